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
    """A random stream of its own per concern, so that one more draw in one leaves the others as they were."""
    digest = hashlib.blake2b(f"{seed}/{concern}".encode(), digest_size=8).digest()
    return random.Random(int.from_bytes(digest, "big"))


class Loop:
    """The clock and the events to come. ``now`` is in virtual seconds."""

    def __init__(self, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._trace = trace
        self.tracing = trace is not None
        """Whether lines are wanted: they cost a good part of the run itself."""

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Run ``action`` at ``time``, or now if that has passed."""
        self._sequence += 1
        heappush(self._heap, (time if time > self.now else self.now, self._sequence, action))

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run ``action`` after ``delay`` seconds."""
        self._sequence += 1
        heappush(self._heap, (self.now + delay if delay > 0.0 else self.now, self._sequence, action))

    def run_until(self, time: float, stop: Callable[[], bool] | None = None) -> None:
        """Run events up to and including ``time``, or until ``stop`` says so (asked after each event)."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            self.now, _, action = heappop(heap)
            self.steps += 1
            action()
            if stop is not None and stop():
                return
        self.now = max(self.now, time)

    def note(self, who: str, text: str) -> None:
        """One line of the trace. Callers ask ``tracing`` first where the text is costly."""
        if self._trace is not None:
            self._trace(f"{self.now:10.4f} {who:4} {text}")
