"""Virtual time: a heap of events ordered by (time, sequence), and the trace of what happened.

Nothing in the simulation reads a clock or a global random number. Events at the same time run in the order in
which they were scheduled, so a run is a function of its seed alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush


def stream(seed: int, concern: str) -> random.Random:
    """Return a random generator for one concern (a process, the network, …), derived from the seed and its name. One
    more draw in one concern does not change the numbers of the others."""
    digest = hashlib.blake2b(f"{seed}/{concern}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))


class Loop:
    """The virtual clock and the queue of future events of one run. ``now`` is in virtual seconds. Events run in the
    order of (time, order of scheduling), so a run depends on its seed alone."""

    def __init__(self, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = trace
        self.tracing = trace is not None
        """Whether the run is traced. Callers build the text of a trace line only if it is, since that costs a good
        part of the run."""

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule a call of ``action`` for a virtual time, or for now if that time has passed."""
        self._sequence += 1
        heappush(self._heap, (time if time > self.now else self.now, self._sequence, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Schedule a call of ``action`` in ``delay`` virtual seconds; a negative delay counts as 0."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay if delay > 0.0 else self.now, self._sequence, action))

    def run_until(self, time: float, stop: Callable[[], bool] | None = None) -> None:
        """Run the events due up to and including ``time``, then set the clock to it. ``stop`` is called after each
        event; if it returns True, the loop returns at once and the clock stays at that event."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, action = heappop(heap)
            self.steps += 1
            action()
            if stop is not None and stop():
                return
        self.now = max(self.now, time)

    def note(self, who: str, text: str) -> None:
        """Write one line with time and process name to the trace; does nothing if the run is not traced. Callers
        check ``tracing`` first where the text is costly."""
        if self._trace is not None:
            self._trace(f"{self.now:10.4f} {who:4} {text}")
