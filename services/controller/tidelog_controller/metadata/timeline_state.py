"""The part of the replicated state that belongs to the timeline (``tidelog.timeline``): events that are not yet in
the topic ``__timeline`` for certain, and the number of the last one.

Events are made while commands are applied, so that every controller numbers them alike, and wait in the state itself:
neither a snapshot nor the compaction of the Raft log can lose one. The active controller writes them
(``active/timeline_writer.py``) and says with a command which are in the topic for good (``ForgetEvents``). At most
``PENDING_EVENTS`` wait; if the topic cannot be written for so long that there are more, the oldest are dropped, and
the timeline writer puts a gap record in their place.

Writing the timeline makes no events: they come from changes of partitions, topics, servers and controllers alone. A
change of the partition of ``__timeline`` is an event like any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tidelog.timeline.records import Subject
from tidelog.types import NodeId
from tidelog.wire.messages import ControllerMember

PENDING_EVENTS = 20_000
"""Number of events that wait at most."""
CLOCK_JUMP_MS = 300_000
"""By how many milliseconds a clock must go back to count as corrected. Events then get the new times; after a smaller
step back they keep the time of the last event."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event of the timeline: its kind, why it happened (``cause``, ``evidence``), and the state of its subject
    before and after. The subject is a partition if ``partition`` is 0 or more, otherwise a topic or a server.
    ``index`` is the log index of the command that made the event, ``time_ms`` the wall clock in the command."""

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
    """The events that wait to be written to the topic ``__timeline``. An object never changes."""

    last: int = 0
    """The number of the last event; the first one has 1."""
    time_ms: int = 0
    """The time of the last event."""
    written: int = 0
    """Events up to this number are committed in the topic."""
    pending: tuple[TimelineEvent, ...] = ()
    """The events after ``written``, in order; the oldest are missing if there were too many."""
    controllers: tuple[ControllerMember, ...] = ()
    """The group of controllers that the last events describe, without the names of stores."""
    active: NodeId = ""
    term: int = 0
    """The term in which ``active`` became the active controller, according to the last events."""

    def clock(self, time_ms: int) -> int:
        """Return the time in milliseconds for the events of a command whose time is ``time_ms``: that time, or the
        time of the last event if that is later. If it is later by ``CLOCK_JUMP_MS`` or more, a wrong clock was
        corrected, and ``time_ms`` counts."""
        return self.time_ms if time_ms < self.time_ms < time_ms + CLOCK_JUMP_MS else time_ms

    def with_events(self, events: Sequence[TimelineEvent]) -> PendingTimeline:
        """Return a timeline with these events appended. If more than ``PENDING_EVENTS`` wait then, the oldest are
        dropped."""
        if not events:
            return self
        surplus = len(self.pending) + len(events) - PENDING_EVENTS
        kept = self.pending[surplus:] if surplus > 0 else self.pending
        pending = kept + tuple(events)[-PENDING_EVENTS:]
        return replace(self, last=events[-1].number, time_ms=events[-1].time_ms, pending=pending)

    def without(self, number: int) -> PendingTimeline:
        """Return a timeline without the events up to ``number``, which are committed in the topic; the same object if
        they were removed before."""
        if number <= self.written:
            return self
        left = tuple(event for event in self.pending if event.number > number)
        return replace(self, written=min(number, self.last), pending=left)

    def first_after(self, number: int) -> int:
        """Return the number of the first event after ``number`` that still waits; ``last`` + 1 if none does."""
        first = self.pending[0].number if self.pending else self.last + 1
        return max(first, number + 1)

    def after(self, number: int, count: int) -> tuple[TimelineEvent, ...]:
        """Return the first ``count`` of the waiting events with numbers above ``number``, in order; an empty tuple if
        none waits."""
        if not self.pending:
            return ()
        at = self.first_after(number) - self.pending[0].number
        return self.pending[at : at + count]
