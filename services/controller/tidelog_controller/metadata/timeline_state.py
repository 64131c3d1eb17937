"""The part of the replicated state that belongs to the timeline (``tidelog.timeline``): events that are not yet in
the topic ``__timeline`` for certain, and the number of the last one.

Events are made while commands are applied, so that every controller numbers them alike, and wait in the state itself:
neither a snapshot nor the compaction of the Raft log can lose one. The active controller writes them
(``active/timeline_writer.py``) and says with a command which are in the topic for good (``ForgetEvents``). At most
``PENDING_EVENTS`` wait; where the topic cannot be written for so long that there are more, the oldest go, and the
scribe writes a gap in their place.

None of this makes events: they come from changes of partitions, topics, servers and controllers alone. A change of
the partition of ``__timeline`` is an event like any other, and writing it down is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidelog.timeline.records import Subject
from tidelog.types import NodeId
from tidelog.wire.messages import ControllerMember

PENDING_EVENTS = 20_000
"""Events that wait at most."""
CLOCK_JUMP_MS = 300_000
"""Times are made not to go back where clocks differ by less; a clock that was wrong by more has been set right."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event: what ``kind``, about which partition (``partition`` >= 0), topic, or node, and why."""

    number: int
    time_ms: int
    index: int
    kind: str
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)
    topic: str = ""
    topic_id: str = ""
    partition: int = -1
    node: NodeId = ""
    before: Subject | None = None
    after: Subject | None = None


@dataclass(frozen=True, slots=True)
class PendingTimeline:
    """Never changed in place."""

    last: int = 0
    """Number of the last event; the first has 1."""
    time_ms: int = 0
    """When it was."""
    written: int = 0
    """Events up to this one are in the topic, for good."""
    pending: tuple[TimelineEvent, ...] = ()
    """Those behind it, without a gap, but for such as had to go."""
    controllers: tuple[ControllerMember, ...] = ()
    """The group, as the events tell of it; without stores."""
    active: NodeId = ""
    term: int = 0
    """The active controller, likewise."""

    def clock(self, time_ms: int) -> int:
        """The time of a command, made not to go back."""
        return self.time_ms if time_ms < self.time_ms < time_ms + CLOCK_JUMP_MS else time_ms

    def with_events(self, events: Sequence[TimelineEvent]) -> PendingTimeline:
        """With these more."""
        if not events:
            return self
        pending = (*self.pending, *events)[-PENDING_EVENTS:]
        return replace(self, last=events[-1].number, time_ms=events[-1].time_ms, pending=pending)

    def without(self, number: int) -> PendingTimeline:
        """Events up to this number are in the topic for good."""
        if number <= self.written:
            return self
        left = tuple(event for event in self.pending if event.number > number)
        return replace(self, written=min(number, self.last), pending=left)

    def first_after(self, number: int) -> int:
        """The number of the first event behind this one that is still known; ``last`` + 1 if there is none."""
        first = self.pending[0].number if self.pending else self.last + 1
        return max(first, number + 1)

    def after(self, number: int, count: int) -> tuple[TimelineEvent, ...]:
        """Up to so many events behind that number, of those that are still known."""
        if not self.pending:
            return ()
        at = self.first_after(number) - self.pending[0].number
        return self.pending[at : at + count]
