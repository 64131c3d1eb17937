"""Virtual time: a clock for trio that jumps to the next deadline or event when no task can run.

trio asks its clock how long to wait when no task can run. This clock answers "not at all" and moves to the next
deadline or event instead. So an hour in which nothing happens costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import copy_context
from heapq import heappop, heappush

import trio

IDLE_S, MOST_IDLE = 0.01, 500
"""Real seconds that trio waits for a call from itself, and how often in a row."""


class Deadlock(RuntimeError):
    """The error that no task can run and none waits for a time, so that nothing would ever happen again."""


class EventClock(trio.abc.Clock):
    """A clock of virtual seconds. ``now`` begins at 0. Events are functions that are called at their time, outside of
    any task, in the order of their times and then in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.context = copy_context()
        """The context in which events are called. Tasks that they start inherit its variables."""
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = 0
        self._idle = 0

    def start_clock(self) -> None:
        """Do nothing: the clock stands until trio has nothing to do."""

    def current_time(self) -> float:
        """Return the virtual seconds since the run began."""
        return self.now

    def call_at(self, at: float, call: Callable[[], object]) -> None:
        """Call a function at a time; as soon as no task can run if that is past."""
        self._count += 1
        heappush(self._events, (at, self._count, call))

    def call_later(self, seconds: float, call: Callable[[], object]) -> None:
        """Call a function after some seconds."""
        self.call_at(self.now + seconds, call)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Move to the next event or to ``deadline``, whichever is first, call the events of that time, and return 0:
        trio is not to wait. If there is neither, trio waits a little, since it wakes itself at its end; raises
        ``Deadlock`` if that does not help."""
        events = self._events
        if events and events[0][0] <= deadline:
            self.now = max(self.now, events[0][0])
            while events and events[0][0] <= self.now:
                self.context.run(heappop(events)[2])
        elif deadline == math.inf:
            self._idle += 1
            if self._idle > MOST_IDLE:
                raise Deadlock("no task can run, and none waits for a time")
            return IDLE_S
        else:
            self.now = max(self.now, deadline)
        self._idle = 0
        return 0.0
