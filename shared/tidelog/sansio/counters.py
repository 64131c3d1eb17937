"""How cores count for the metrics: plain attributes, and histograms that cost a bisection. Read by
``runtime/metrics.py``."""

from __future__ import annotations

from bisect import bisect_left

LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds for what takes from a disk's sync to a failover."""
DURATIONS_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
"""Upper bounds for what takes from a moment to a day."""


class Histogram:
    """How often a value was seen, by upper bounds; the last count is of what is above them all."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """The value was seen, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """How many were seen."""
        return sum(self.counts)


def count(table: dict[str, int], name: str, more: int = 1) -> None:
    """So many more of that name."""
    table[name] = table.get(name, 0) + more
