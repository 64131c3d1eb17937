"""Writes the timeline: what the active controller does so that every event is in the topic ``__timeline`` once.

The truth about what is written is the topic itself. Each record says how far the events have come, and each append is
conditional on the end of the log (``expected_offset``) and on the leader epoch:

    lost      the end is not known: after a pause ask the leader for it
    ending    asked for the high watermark
    reading   asked for the record before it: its event number N is how far the timeline has come
    ready     the next batch is appended at E, the end, and continues with event N + 1
    writing   one batch is on its way: acked ``all``, E and N move on; anything else, and the end is lost

- *Nothing twice*: N was read from a committed record right before E, and a batch that is not appended at E is not
  appended. Two controllers that both think they are active, a batch that the network repeats, an ack that never came:
  of all the batches for one E one is appended, and each of them begins with event N + 1. Committed records go only by
  an unclean election, and so with the leader epoch: what was known in another one counts no more.
- *Nothing lost*: events wait in the replicated state until a command says that they are in the topic for good
  (``metadata/timeline_state.py``); it is proposed for what was acked ``all``, or was read below the high watermark.
- *Nothing silent*: where the next event is not N + 1, the batch begins with a gap record.

A keyframe is a record of the whole cluster, in parts. It is written when no event is waiting: after the first events,
after a gap, after ``keyframe_events`` (or four times as many as there are partitions) and after
``keyframe_interval_s``. It shows the state at that moment, and events wait behind it. Refusals
(``active/refusal_log.py``) are written behind the events that there are."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from tidelog.batch.format import NewRecord, decode_batch, encode_batch, split
from tidelog.errors import CorruptBatch, TidelogError
from tidelog.sansio.effects import Call, Event
from tidelog.timeline.records import Document, decode
from tidelog.types import TIMELINE, Acks, NodeId
from tidelog.wire.messages import (
    ListOffset,
    Message,
    OffsetAnswer,
    Produce,
    Produced,
    ProducePart,
    Read,
    ReadAnswer,
)

from tidelog_controller.active.refusal_log import Refusal, RefusalLog
from tidelog_controller.active.timeline_records import (
    event_record,
    gap_record,
    keyframe_records,
    new_record,
    refused_record,
)
from tidelog_controller.config import TimelineSettings
from tidelog_controller.metadata.state import MetadataState

ANSWER_S = 5.0
"""Longest wait in seconds for an answer or an ack."""
PAUSE_FIRST_S, PAUSE_MAX_S = 0.05, 2.0
BATCH_EVENTS = 200
"""Number of events in one batch, at most."""
BATCH_BYTES = 256 << 10
"""Size of the records in one batch in bytes, at most, unless a single record is larger."""


@dataclass(frozen=True, slots=True)
class ToServer:
    """An effect for the shell: send a message that has no answer to the replica server ``to``. The message may be
    lost."""

    to: NodeId
    message: Message


class _Led(NamedTuple):
    """The leader of the timeline's partition and its leader epoch. What the writer knows of the end of the log holds
    only in this leader epoch."""

    topic_id: str
    leader: NodeId
    leader_epoch: int


class _Place(NamedTuple):
    """A known end of the timeline: the end of its log, the number of its last event, and its last complete keyframe
    as (offset of its first record, number of its event), or None."""

    offset: int
    """The offset of the next record."""
    event: int
    keyframe: tuple[int, int] | None


TimelineEffect = Call | ToServer | Event


class TimelineWriter:
    """The part of the active controller that appends the events of the metadata, refusals and keyframes to the topic
    ``__timeline``. It has one request or one batch under way at a time. In memory only. Times are seconds of the
    caller's monotonic clock."""

    def __init__(self, settings: TimelineSettings) -> None:
        self._settings = settings
        self._number = 0
        """The number of the last request or append. No number is used twice, so answers to earlier requests are
        recognised."""
        self.confirmed = 0
        """Events up to this number are committed in the topic."""
        self.refusals = RefusalLog()
        self._sent_refusals: list[Refusal] = []
        """The refusals in the batch that is under way."""
        self._reset()

    def become_active(self, now: float) -> None:
        """Begin without knowing the end of the timeline. The first keyframe by time is due after
        ``keyframe_interval_s``."""
        self._reset()
        self._keyframe_at = now + self._settings.keyframe_interval_s

    def clear(self) -> None:
        """Forget the end of the timeline and all refusals that are not written, since this controller is no longer
        active."""
        self._reset()
        self.refusals.clear()

    def _reset(self) -> None:
        self.confirmed = 0
        self._phase = "lost"
        self._until = -math.inf
        self._pause_s = PAUSE_FIRST_S
        self._led: _Led | None = None
        self._place = _Place(0, 0, None)
        self._next: _Place | None = None
        self._end = 0
        self._frame: deque[Document] = deque()
        self._frame_offset = 0
        self._keyframe_at = math.inf
        self._ahead_logged = False

    # --- inputs ------------------------------------------------------------------------------------------

    def on_answer(self, token: int, answer: Message | Exception, state: MetadataState, now: float) -> None:
        """Handle the answer to the request ``token`` of ``act``: the end of the timeline, or the record before its
        end, after which appending can begin. An error, or a record that cannot be read, begins the search for the end
        anew after a pause. Answers to earlier requests are ignored."""
        if token != self._number:
            return
        match answer:
            case OffsetAnswer(0) if self._phase == "ending":
                self._know(_Place(0, 0, None))
            case OffsetAnswer(end) if self._phase == "ending":
                self._phase, self._end, self._until = "read", end, -math.inf
            case ReadAnswer() if self._phase == "reading":
                place = _read_place(answer, self._end)
                if place is None:
                    self._lose(now, PAUSE_MAX_S)
                else:
                    self._know(place)
            case TidelogError() if self._phase == "reading" and _is_emptied(answer, self._end):
                # retention deleted even the last record: its event was written long ago
                self._know(_Place(self._end, state.timeline.written, None))
            case _:
                self._lose(now)

    def on_produced(self, message: Produced, now: float) -> None:
        """Handle the acks of a replica server for the batch under way. If it was appended at the expected offset, the
        next batch may follow. Any other outcome begins the search for the end anew after a pause. Refusals in a batch
        that was certainly not appended are written later. Acks of earlier batches are ignored."""
        for ack in message.acks:
            if ack.id != self._number or self._phase != "writing":
                continue
            assert self._next is not None
            if ack.error is None and ack.offset == self._place.offset:
                self._know(self._next)
                self._pause_s = PAUSE_FIRST_S
            else:
                if ack.error is not None and not ack.error.unknown_outcome:
                    self.refusals.put_back(self._sent_refusals)
                self._lose(now)

    def on_server_down(self, node: NodeId, now: float) -> None:
        """Begin the search for the end of the timeline anew if a batch is under way to the server ``node``, since the
        link to it is lost and the ack will not come. Otherwise nothing happens."""
        if self._phase == "writing" and self._led is not None and self._led.leader == node:
            self._lose(now)

    def _know(self, place: _Place) -> None:
        """Record how far the timeline has come, so that the next batch may be appended there."""
        self._phase, self._until, self._place, self._next = "ready", math.inf, place, None
        self.confirmed = max(self.confirmed, place.event)

    def _lose(self, now: float, pause_s: float | None = None) -> None:
        """Forget how far the timeline has come, and ask its leader again after a pause in seconds: ``pause_s``, or
        one that doubles with each failure up to ``PAUSE_MAX_S``. A keyframe that is half written is given up."""
        self._phase, self._until, self._next = "lost", now + (pause_s or self._pause_s), None
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._frame.clear()

    # --- what to do --------------------------------------------------------------------------------------

    def deadline(self, state: MetadataState) -> float:
        """Return the time in seconds at which ``act`` has something to do: minus infinity for at once, infinity if it
        has nothing to do before the state changes."""
        led = _led(state)
        if led is None:
            return math.inf
        if led != self._led:
            return -math.inf
        if self._phase == "ready":
            due = self._has_work(state) or (self._is_ahead(state) and not self._ahead_logged)
            return -math.inf if due else min(self._keyframe_at, self.refusals.deadline())
        return self._until

    def act(self, state: MetadataState, now: float, wall_ms: int) -> list[TimelineEffect]:
        """Take the next step and return its effects: ask the leader of the timeline for its end or its last record,
        or append the next batch; an empty list if there is nothing to do. Afterwards ``deadline`` is later than
        ``now``. If the topic has later events than the metadata, nothing is appended, and the event
        ``timeline_ahead`` is logged once."""
        led = _led(state)
        if led != self._led:
            self._led, self._phase, self._until, self._pause_s = led, "lost", -math.inf, PAUSE_FIRST_S
            self._frame.clear()
        if led is None:
            return []
        if self._phase in ("ending", "reading", "writing") and now >= self._until:
            self._lose(now)
        if self._phase == "lost" and now >= self._until:
            return [self._ask("ending", ListOffset(led.topic_id, 0, "latest", -1, led.leader_epoch), now)]
        if self._phase == "read":
            epoch = led.leader_epoch
            return [self._ask("reading", Read(led.topic_id, 0, self._end - 1, -1, epoch, max_bytes=1), now)]
        if self._phase == "ready":
            self.refusals.on_tick(now)
        if self._phase == "ready" and now >= self._keyframe_at and self._place.event == state.timeline.last:
            self._begin_keyframe(state, now)
        if self._phase == "ready" and self._has_work(state):
            return self._write(led, state, now, wall_ms)
        if now >= self._keyframe_at:
            self._keyframe_at = now + self._settings.keyframe_interval_s
        if self._phase == "ready" and self._is_ahead(state) and not self._ahead_logged:
            self._ahead_logged = True
            return [Event("timeline_ahead", {"written": self._place.event, "last": state.timeline.last})]
        return []

    def _is_ahead(self, state: MetadataState) -> bool:
        """Return whether the topic has later events than the metadata. The topic then belongs to another past of this
        cluster, and no event of the present one may follow in it."""
        return self._place.event > state.timeline.last

    def _ask(self, phase: str, message: Message, now: float) -> Call:
        """Return the effect that sends a request with a new number to the leader of the timeline. Its answer is
        awaited in the phase ``phase``."""
        assert self._led is not None
        self._phase, self._until = phase, now + ANSWER_S + 1.0  # an answer or an error comes before that
        self._number += 1
        return Call(self._led.leader, self._number, message, ANSWER_S)

    def _has_work(self, state: MetadataState) -> bool:
        """Return whether events, refusals or a keyframe wait to be appended. False if the topic is ahead of the
        metadata."""
        if self._is_ahead(state):
            return False
        waits = self._frame or self.refusals.ready or self._place.event < state.timeline.last
        return bool(waits) or self._keyframe_due(state)

    def _keyframe_due(self, state: MetadataState) -> bool:
        """Return whether a keyframe is due by the number of events: enough were written since the last keyframe, or
        there is none yet."""
        if self._place.keyframe is None:
            return self._place.event > 0
        since = self._place.event - self._place.keyframe[1]
        if since < self._settings.keyframe_events:
            return False
        return since >= 4 * sum(len(topic.partitions) for topic in state.topics.values())

    def _begin_keyframe(self, state: MetadataState, now: float) -> None:
        """Make a keyframe of the present state; its records are appended next. Does nothing while another keyframe is
        being written."""
        if not self._frame:
            self._frame.extend(keyframe_records(state))
            self._frame_offset = self._place.offset
            self._keyframe_at = now + self._settings.keyframe_interval_s

    def _write(self, led: _Led, state: MetadataState, now: float, wall_ms: int) -> list[TimelineEffect]:
        """Return the effect that appends the next batch at the known end of the log, and begin to wait for its
        ack."""
        if not self._frame and self._place.event == state.timeline.last and self._keyframe_due(state):
            self._begin_keyframe(state, now)
        records, self._next = self._next_batch(state, wall_ms)
        batch = encode_batch(records)
        self._number += 1
        self._phase, self._until = "writing", now + ANSWER_S
        part = ProducePart(
            self._number,
            led.topic_id,
            0,
            Acks.ALL,
            round(ANSWER_S * 1000),
            len(batch),
            led.leader_epoch,
            self._place.offset,
        )
        return [ToServer(led.leader, Produce((part,), batch))]

    def _next_batch(self, state: MetadataState, wall_ms: int) -> tuple[list[NewRecord], _Place]:
        """Return the records of the next batch, and how far the timeline has come once they are appended. The records
        are the rest of a keyframe, or else a gap, events and refusals, of at most ``BATCH_BYTES`` bytes unless a
        single one is larger. Records of a keyframe and refusals no longer wait afterwards; events stay in the
        metadata. The refusals are kept in ``_sent_refusals``, so that they can be put back if the batch is not
        appended."""
        at, size, records = self._place, 0, list[NewRecord]()
        self._sent_refusals = []
        for record in self._next_records(state):
            keyframe = at.keyframe
            if record["type"] == "gap":
                keyframe = None
            elif record["type"] == "keyframe" and record["part"] == record["parts"]:
                keyframe = (self._frame_offset, record["event"])
            new = new_record(record, keyframe, wall_ms)
            size += len(new.value or b"")
            if records and size > BATCH_BYTES:
                break
            records.append(new)
            at = _Place(at.offset + 1, record["event"], keyframe)
            if record["type"] == "keyframe":
                self._frame.popleft()
            elif record["type"] == "refused":
                self._sent_refusals.append(self.refusals.pop_ready())
        return records, at

    def _next_records(self, state: MetadataState) -> list[Document]:
        """Return the documents of the records that come next: the rest of a keyframe, or else a gap, events and
        refusals."""
        if self._frame:
            return list(self._frame)
        timeline, event = state.timeline, self._place.event
        first, events = timeline.first_after(event), timeline.after(event, BATCH_EVENTS)
        time_ms = events[0].time_ms if events else timeline.time_ms
        gap = [gap_record(event + 1, first - 1, time_ms)] if first > event + 1 else []
        records = gap + [event_record(one) for one in events]
        if len(events) < BATCH_EVENTS:
            records += [refused_record(one, timeline) for one in self.refusals.ready]
        return records


def _led(state: MetadataState) -> _Led | None:
    """Return the leader of the timeline's partition and its leader epoch; None if the topic does not exist or has no
    leader."""
    topic_id = state.names.get(TIMELINE)
    if topic_id is None:
        return None
    partition = state.topics[topic_id].partitions[0]
    return None if partition.leader is None else _Led(topic_id, partition.leader, partition.leader_epoch)


def _read_place(answer: ReadAnswer, end: int) -> _Place | None:
    """Return how far the timeline has come, as its last record says, the one at offset ``end`` - 1. ``answer``: the
    answer to a read of that record. Return None if the record is not in it, is of a format later than this program
    knows, or cannot be decoded."""
    assert not isinstance(answer.payload, list)
    try:
        for _, batch in split(answer.payload):
            for record in decode_batch(batch):
                found = decode(record.value) if record.offset == end - 1 else None
                if found is not None:
                    frame = found.get("keyframe")
                    return _Place(end, found["event"], None if frame is None else (frame[0], frame[1]))
    except (CorruptBatch, ValueError):
        return None
    return None


def _is_emptied(error: TidelogError, end: int) -> bool:
    """Return whether the read of the record before ``end`` failed because retention has deleted all records up to
    there."""
    start = str(error.detail.get("log_start", ""))
    return error.code == "OFFSET_OUT_OF_RANGE" and start.isdigit() and int(start) >= end
