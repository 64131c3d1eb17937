"""Sums over the last seconds, for metrics that say how something is now, not since the start of the process.

A counter or a histogram shows the present only to a reader that asks twice. A gauge from ``RecentSums`` does so in
one look: it has what was added in the last ``WINDOW_S`` seconds. The window moves in ``PARTS`` steps, so that adding
costs the same however much is added.
"""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
"""Seconds after which what was added is forgotten."""
PARTS = 5
"""Number of parts of the window that are forgotten one by one."""
_PART_S = WINDOW_S / PARTS


class RecentSums:
    """The number and the sum of the values that were added in the last ``WINDOW_S`` seconds. Times are seconds of a
    clock that never goes back."""

    def __init__(self) -> None:
        self._parts: deque[tuple[int, int, float]] = deque(maxlen=PARTS)
        """(number of the part since the clock's zero, number of values, their sum), the oldest first."""

    def add(self, value: float, now: float, times: int = 1) -> None:
        """Add a value that was observed ``times`` times until ``now``."""
        part = int(now // _PART_S)
        if self._parts and self._parts[-1][0] == part:
            _, number, total = self._parts.pop()
            self._parts.append((part, number + times, total + value * times))
        else:
            self._parts.append((part, times, value * times))

    def total(self, now: float) -> tuple[int, float]:
        """Return the number and the sum of the values of the window that ends at ``now``."""
        first = int(now // _PART_S) - PARTS + 1
        within = [(number, total) for part, number, total in self._parts if part >= first]
        return sum(number for number, _ in within), sum(total for _, total in within)
