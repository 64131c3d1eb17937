"""The consumer groups whose partition of ``__groups`` this server leads: ``core/groups`` meets the log.

    reading   a new leader reads its log from the begin to where its leader epoch begins, a bite at a time, so that
              others are served in between; requests are refused with ``NOT_COORDINATOR`` until then
    serving   a request changes the core, what it changed is appended as records, and the answer waits until the log
              is committed up to there: also that of a request which changed nothing, since it may tell of records
              that are not committed yet. Answers to reads wait besides for the proof that nobody else led when the
              requests came

A role that ends takes its coordinator with it: who waits for an answer hears ``NOT_COORDINATOR`` with an unknown
outcome. All requests may be repeated.

Nothing is appended while the leader would take no produce (too few in sync, handing over, a full or stalled disk):
requests that may change something are refused as a produce would be, and no member is put out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from tidelog.client.core.partitioner import partition_of
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.records import NewRecord, decode_columns, encode_batch, read_header
from tidelog.types import GROUPS, NodeId, TopicPartition
from tidelog.wire.messages import ListGroups, Message

from tidelog_replica.assignment import Assignment
from tidelog_replica.core.groups.coordinator import KINDS as KINDS
from tidelog_replica.core.groups.coordinator import POSTPONED_S, READS, Coordinator
from tidelog_replica.core.groups.group import Group, Topic, Topics
from tidelog_replica.core.groups.records import Entry, Stored
from tidelog_replica.core.timers import Timers
from tidelog_replica.core.waiters import Waiters, earlier
from tidelog_replica.leading import Leading
from tidelog_replica.outbox import Outbox
from tidelog_replica.partition import Partition
from tidelog_replica.session import Session
from tidelog_replica.settings import ReplicaSettings

TIMER = "groups"
BITE_BYTES = 256 << 10
BITE_PAUSE_S = 0.001
TOPICS_PAUSE_S = 0.05
"""The topics are looked through when the metadata has been still for so long, at least."""
BATCH_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class _Waiting:
    """An answer that waits: for what is written, and (``came``) for the proof that nobody else led then."""

    end: int
    deadline: float
    source: int
    id: int | None
    answer: Message | TidelogError
    came: float


@dataclass(slots=True)
class _Led:
    """A partition of ``__groups`` that this server leads."""

    partition: Partition
    leading: Leading
    read_to: int
    """The log is known up to here."""
    written: int
    """Nobody is answered before the log is committed up to here."""
    stored: Stored = field(default_factory=Stored)
    core: Coordinator | None = None
    """None: the log is not read yet."""
    broken: str = ""
    """Why it cannot be read."""
    waiting: Waiters[_Waiting] = field(default_factory=Waiters)
    unproved: list[_Waiting] = field(default_factory=list)

    @property
    def is_led(self) -> bool:
        """The role has not ended."""
        return self.partition.leading is self.leading


class Groups:
    """``touch`` tells the owner that a partition's input has to be settled."""

    def __init__(
        self,
        node: NodeId,
        assignment: Assignment,
        session: Session,
        settings: ReplicaSettings,
        outbox: Outbox,
        timers: Timers,
        touch: Callable[[Partition], None],
        wall_ms: Callable[[], int],
    ) -> None:
        self._node = node
        self._assignment = assignment
        self._session = session
        self._settings = settings
        self._outbox = outbox
        self._timers = timers
        self._touch = touch
        self._wall_ms = wall_ms
        self._led: dict[TopicPartition, _Led] = {}
        self._topic = Topic("", GROUPS, 0)
        self._topics = Topics()
        self._look_at = inf

    @property
    def groups(self) -> Iterator[Group]:
        """All that are coordinated here."""
        for led in self._led.values():
            if led.core is not None and led.is_led:
                yield from led.core.groups.values()

    # --- inputs ------------------------------------------------------------------------------------------

    def on_metadata(self, now: float) -> None:
        """The metadata is another."""
        if not self._topic.topic_id:
            for topic in self._assignment.topics:
                if topic.name == GROUPS:
                    self._topic = Topic(topic.topic_id, GROUPS, len(topic.partitions))
        if self._led and self._look_at == inf:
            self._look_at = now + TOPICS_PAUSE_S
            self._set_timer(now)

    def on_settled(self, partition: Partition, now: float) -> None:
        """A partition's input is over: its role may have changed, its log be committed further."""
        if partition.key.topic_id != self._topic.topic_id:
            return
        led = self._led.get(partition.key)
        if led is not None and not led.is_led:
            self._resign(led)
            led = None
        if led is not None:
            self._wake(led)
        elif partition.leading is not None:
            leading = partition.leading
            end = leading.core.epoch_start
            self._led[partition.key] = _Led(partition, leading, partition.log.start, end)
            self._timers.set((TIMER, ""), now + BITE_PAUSE_S)

    def on_request(self, source: int, id: int | None, message: Message, now: float) -> None:
        """A request of ``KINDS``, from a gateway."""
        led = self._find(message, now)
        if isinstance(led, TidelogError):
            self._outbox.answer(source, id, led)
            return
        assert led.core is not None
        answer = led.core.handle(message, now, self._wall_ms())
        self._write(led)
        came = -inf
        if isinstance(message, READS):
            came = now
            led.leading.core.ask_confirmation(now)
        led.waiting.add(_Waiting(led.written, now + self._settings.ack_timeout_s, source, id, answer, came))
        self._touch(led.partition)
        self._set_timer(now)

    def on_source_closed(self, source: int) -> None:
        """Nobody waits at the other end of this link any more."""
        for led in self._led.values():
            led.waiting.drop(source)
            led.unproved = [waiting for waiting in led.unproved if waiting.source != source]

    def on_tick(self, now: float) -> None:
        """Everything that is due."""
        topics_due = now >= self._look_at
        if topics_due:
            self._look_at = inf
            self._look_at_topics()
        for led in list(self._led.values()):
            if not led.is_led:
                self._resign(led)
                continue
            self._expire(led, now)
            if led.core is None:
                self._read(led, now)
            elif self._refusal(led) is not None:
                led.core.postpone(now)
                if topics_due:
                    self._look_at = now + POSTPONED_S
            else:
                if topics_due:
                    led.core.on_topics(self._topics, now)
                led.core.on_tick(now, self._wall_ms())
                self._write(led)
            self._touch(led.partition)
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        due = None if self._look_at == inf else self._look_at
        for led in self._led.values():
            due = earlier(due, led.waiting.deadline)
            due = earlier(due, min((waiting.deadline for waiting in led.unproved), default=None))
            if led.core is not None:
                due = earlier(due, led.core.deadline())
            elif not led.broken:
                due = earlier(due, now + (BITE_PAUSE_S if led.read_to < led.written else TOPICS_PAUSE_S))
        self._timers.set((TIMER, ""), due)

    # --- who is asked ------------------------------------------------------------------------------------

    def _find(self, message: Message, now: float) -> _Led | TidelogError:
        """The coordinator that is asked, if it may take the request on now."""
        if not self._topic.partitions or not self._session.live(now):
            return refuse("NOT_COORDINATOR", f"{self._node} has no session with the controller, or no groups yet")
        if isinstance(message, ListGroups):
            number = message.partition
        else:
            number = partition_of(getattr(message, "group", "").encode(), self._topic.partitions)
        led = self._led.get(TopicPartition(self._topic.topic_id, number))
        if led is None or not led.is_led:
            return refuse("NOT_COORDINATOR", f"{self._node} does not lead {GROUPS}/{number}")
        if led.core is None:
            why = led.broken or "it has not read its log yet"
            return refuse("NOT_COORDINATOR", f"{self._node} leads {GROUPS}/{number}, but {why}")
        refusal = None if isinstance(message, READS) else self._refusal(led)
        return refusal or led

    def _refusal(self, led: _Led) -> TidelogError | None:
        """Why nothing can be written now."""
        try:
            led.leading.admit()
        except TidelogError as error:
            return error
        return None

    # --- the log -----------------------------------------------------------------------------------------

    def _read(self, led: _Led, now: float) -> None:
        """One more bite of the log; after the last one the coordinator begins."""
        log, end = led.partition.log, led.leading.core.epoch_start
        if led.broken:
            return
        if led.read_to < end:
            led.partition.guard(self._take, led)
        if led.read_to < end or led.broken or self._refusal(led) is not None:
            return
        self._look_at_topics()
        led.core = Coordinator(self._node, self._settings.groups, self._topics, self._outbox.counts)
        led.core.begin(led.stored, now)
        led.stored = Stored()
        self._write(led)
        key = led.partition.key
        fields = {"partition": key.partition, "groups": len(led.core.groups), "log_end": log.end}
        self._outbox.event("groups_coordinated", **fields)

    def _take(self, led: _Led) -> None:
        log, end = led.partition.log, led.leading.core.epoch_start
        led.read_to = max(led.read_to, log.start)
        try:
            for batch in log.read(led.read_to, BITE_BYTES, end):
                columns = decode_columns(batch)
                for key, value in zip(columns.keys, columns.values, strict=True):
                    led.stored.take(key, value)
                led.read_to = columns.header.end_offset
        except (CorruptBatch, ValueError) as error:
            led.broken = str(error)
            self._outbox.event("groups_unreadable", partition=led.partition.key.partition, reason=str(error))

    def _write(self, led: _Led) -> None:
        """Append what the core has changed."""
        assert led.core is not None
        entries = led.core.take_entries()
        stamp = self._wall_ms()
        while entries:
            size = count = 0
            while count < len(entries) and (not count or size < BATCH_BYTES):
                size += _size(entries[count])
                count += 1
            records = [NewRecord(value, key, stamp) for key, value in entries[:count]]
            batch = encode_batch(records)
            led.written = led.leading.append(batch, read_header(batch))
            del entries[:count]

    def _look_at_topics(self) -> None:
        topics = (Topic(topic.topic_id, topic.name, len(topic.partitions)) for topic in self._assignment.topics)
        self._topics = Topics(topics)

    # --- answers -----------------------------------------------------------------------------------------

    def _wake(self, led: _Led) -> None:
        """Answer those whose records are committed, and for whom it is proved that nobody else led."""
        leader = led.leading.core
        ready = [*led.unproved, *led.waiting.wake(leader.high_watermark)]
        led.unproved = []
        for waiting in ready:
            if waiting.came > leader.confirmed_at:
                led.unproved.append(waiting)
            else:
                self._outbox.answer(waiting.source, waiting.id, waiting.answer)

    def _expire(self, led: _Led, now: float) -> None:
        late = [*led.waiting.expire(now), *(waiting for waiting in led.unproved if waiting.deadline <= now)]
        led.unproved = [waiting for waiting in led.unproved if waiting.deadline > now]
        self._fail(
            late, "REQUEST_TIMED_OUT", "what the request changed is not committed yet, or who leads not proved"
        )

    def _resign(self, led: _Led) -> None:
        """The role is over."""
        del self._led[led.partition.key]
        self._fail([*led.waiting.take_all(), *led.unproved], "NOT_COORDINATOR", f"{self._node} leads no more")
        led.unproved = []

    def _fail(self, waiting: list[_Waiting], code: str, message: str) -> None:
        for one in waiting:
            self._outbox.answer(one.source, one.id, refuse(code, message, unknown_outcome=True))


def _size(entry: Entry) -> int:
    key, value = entry
    return len(key) + len(value or b"")
