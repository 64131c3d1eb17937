"""A cluster with events, and the partition of ``__timeline`` as the timeline writer sees it: conditional appends, a
high watermark, elections."""

from __future__ import annotations

from tidelog.batch.format import decode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.effects import Call, Event
from tidelog.timeline.records import Document, decode
from tidelog.timeline.replay import past_after
from tidelog.types import TIMELINE, TopicConfig
from tidelog.wire.messages import (
    ControllerMember,
    ListOffset,
    Message,
    OffsetAnswer,
    Produce,
    ProduceAck,
    Produced,
    Read,
    ReadAnswer,
    SuspectPart,
)
from tidelog_controller.active.timeline_records import keyframe_records
from tidelog_controller.active.timeline_writer import TimelineWriter, ToServer
from tidelog_controller.config import TimelineSettings
from tidelog_controller.metadata.commands import (
    AddTopic,
    ChangeTopic,
    LeaveParts,
    SetSuccessor,
)
from tidelog_controller.metadata.state import MetadataState
from unit.controller.metadata.test_application_random import SERVERS

from support.applied_commands import Log

GROUP = tuple(ControllerMember(node, f"ws://{node}", True, f"store of {node}") for node in ("c1", "c2", "c3"))
SETTINGS = TimelineSettings(keyframe_events=10, keyframe_interval_s=1000.0)


class TimelineLog:
    """The batches of the partition. Appended batches are committed by ``commit``, which returns their acks."""

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.start = 0
        self.batches: list[bytes] = []
        self.committed = 0
        """The number of committed batches."""
        self._waiting: dict[int, list[ProduceAck]] = {}
        """The acks that wait, by the number of batches that must be committed."""

    def _end_of(self, batches: int) -> int:
        return read_header(self.batches[batches - 1]).end_offset if batches else self.start

    def produce(self, message: Produce) -> list[Produced]:
        """Append a batch, whose ack then waits, or return its refusal."""
        (part,) = message.parts
        error: TidelogError | None = None
        end = self._end_of(len(self.batches))
        if part.leader_epoch != self.leader_epoch:
            error = refuse("FENCED_LEADER_EPOCH", "another epoch")
        elif part.expected_offset != end:
            error = refuse("UNEXPECTED_OFFSET", f"the log ends at {end}")
        if error is not None:
            return [Produced((ProduceAck(part.id, error=error.to_info()),))]
        assert not isinstance(message.payload, list)
        batch = bytes(message.payload)
        stamp = stamp_prefix(end, self.leader_epoch, read_header(batch).crc32c)
        self.batches.append(stamp + batch[len(stamp) :])
        ack = ProduceAck(part.id, end, self.leader_epoch, "all/fsync")
        self._waiting.setdefault(len(self.batches), []).append(ack)
        return []

    def commit(self) -> list[Produced]:
        """Commit all batches and return the acks that waited."""
        self.committed = len(self.batches)
        acks = [ack for waiting in self._waiting.values() for ack in waiting]
        self._waiting.clear()
        return [Produced((ack,)) for ack in acks]

    def answer(self, call: Call) -> Message | TidelogError:
        """Return the high watermark, or the batch with an offset; an error for another leader epoch."""
        assert isinstance(call.message, ListOffset | Read)
        if call.message.leader_epoch != self.leader_epoch:
            return refuse("FENCED_LEADER_EPOCH", "another epoch")
        end = self._end_of(self.committed)
        if isinstance(call.message, ListOffset):
            return OffsetAnswer(end)
        offset = call.message.offset
        if not self.start <= offset < end:
            return refuse("OFFSET_OUT_OF_RANGE", "it is not there", log_start=self.start)
        headers = [read_header(batch) for batch in self.batches]
        (at,) = [i for i, header in enumerate(headers) if header.base_offset <= offset < header.end_offset]
        return ReadAnswer(self.leader_epoch, end, self.start, self.batches[at])

    def fail_over(self, kept: int) -> None:
        """Elect another leader, which has ``kept`` of the uncommitted batches; their acks are lost."""
        del self.batches[self.committed + kept :]
        self._waiting.clear()
        self.leader_epoch += 1

    def lose(self, batches: int) -> None:
        """Elect a leader uncleanly: the last batches are lost, committed or not."""
        del self.batches[len(self.batches) - batches :]
        self.committed = min(self.committed, len(self.batches))
        self.fail_over(0)

    def retire(self) -> None:
        """Delete all batches by retention."""
        self.start = self._end_of(len(self.batches))
        self.batches, self.committed = [], 0

    def records(self) -> list[Document]:
        """Return all timeline records."""
        decoded = [decode(record.value) for batch in self.batches for record in decode_batch(batch)]
        return [record for record in decoded if record is not None]

    def numbers(self) -> list[int]:
        """Return the numbers of all events."""
        return [record["event"] for record in self.records() if record["type"] == "event"]


def present(state: MetadataState) -> dict[str, object]:
    """Return the image that a replay of the timeline must end with."""
    return past_after(keyframe_records(state)).image()


def cluster() -> Log:
    """Return a metadata log with three servers and the topic of the timeline on them."""
    log = Log()
    for node in SERVERS[:3]:
        log.register(node, lives=(f"{node}-first",))
    log.write(AddTopic(5, "T", TIMELINE, TopicConfig(min_insync_replicas=2), (("r1", "r2", "r3"),)))
    return log


def happen(log: Log, count: int = 1) -> None:
    """Write so many more events, about a topic of its own."""
    if "other" not in log.state.topics:
        log.write(AddTopic(6, "other", "other", TopicConfig(), (("r1",),)))
    for _ in range(count):
        value = 1000 + len(log.commands)
        log.write(ChangeTopic(7 + len(log.commands), "other", {"retention_ms": value}))


class Pen:
    """A timeline writer of a controller with the state of ``log``, over a timeline that answers at once."""

    def __init__(self, log: Log, there: TimelineLog) -> None:
        self.log, self.there = log, there
        self.timeline_writer = TimelineWriter(SETTINGS)
        self.timeline_writer.become_active(0.0)
        self.now = 0.0
        self.events: list[Event] = []

    def step(self) -> bool:
        """Perform the next effects and give their answers; returns False if there is nothing to do."""
        effects = self.timeline_writer.act(self.log.state, self.now, 0)
        for effect in effects:
            match effect:
                case Call(token=token):
                    self.timeline_writer.on_answer(token, self.there.answer(effect), self.log.state, self.now)
                case ToServer(message=Produce() as message):
                    for produced in self.there.produce(message) or self.there.commit():
                        self.timeline_writer.on_produced(produced, self.now)
                case Event():
                    self.events.append(effect)
        return bool(effects)

    def write(self) -> None:
        """Let the writer work until all events are written. Raises AssertionError if it does not come to an end."""
        for _ in range(1000):
            if not self.step() and self.timeline_writer.deadline(self.log.state) > self.now + 10:
                return
            self.now = max(self.now, min(self.timeline_writer.deadline(self.log.state), self.now + 10))
        raise AssertionError("the scribe does not come to an end")


def elect(log: Log, there: TimelineLog) -> None:
    """Elect another leader of the timeline in the metadata, and adopt its leader epoch in the log."""
    p = log.state.topics["T"].partitions[0]
    assert p.leader is not None
    log.write(SetSuccessor(8, "T", 0, p.epoch, p.isr[p.isr.index(p.leader) - 1], "test"))
    parts = (SuspectPart("T", 0, p.epoch + 1, p.leader_epoch),)
    log.write(LeaveParts(8, p.leader, log.epoch_of(p.leader), "transfer", parts, lost=False, ready=True))
    assert log.state.topics["T"].partitions[0].leader_epoch == there.leader_epoch
