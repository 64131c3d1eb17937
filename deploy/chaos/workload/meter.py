"""Measurements of the workload: when each operation ended, how long it took, and what failed."""

from __future__ import annotations

import itertools
from bisect import bisect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import trio
from tidelog.errors import TidelogError


@dataclass(slots=True)
class Meter:
    """The operations of a run, by kind. Times are seconds since ``began``."""

    began: float = field(default_factory=trio.current_time)
    done: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(end, duration) of every operation that succeeded, by kind."""
    failed: dict[str, list[float]] = field(default_factory=dict)
    """Times at which operations failed, by kind."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Number of each error, by kind of operation and error code."""
    acks: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """Times at which each partition of each topic acknowledged a record with acks ``all``."""

    def now(self) -> float:
        """Return the seconds since the start."""
        return trio.current_time() - self.began

    @contextmanager
    def operation(self, kind: str, began: float | None = None) -> Iterator[None]:
        """Measure the block as one operation of this kind that began at ``began`` (by default now). A
        ``TidelogError`` counts it as failed and is raised."""
        began = self.now() if began is None else began
        try:
            yield
        except TidelogError as error:
            self.failed.setdefault(kind, []).append(self.now())
            self.reasons[f"{kind}: {error.code}"] += 1
            raise
        else:
            self.done.setdefault(kind, []).append((self.now(), self.now() - began))

    def acked(self, topic: str, partition: int) -> None:
        """Enter that a partition has just acknowledged a record with acks ``all``."""
        self.acks.setdefault((topic, partition), []).append(self.now())

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time without an ack of some partition that is written to, among the gaps that lie
        between ``since`` and ``until`` or begin there."""
        longest = 0.0
        for times in self.acks.values():
            first, last = bisect(times, since), bisect(times, until)
            points = [since, *times[first : last + 1]]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(points)), 0.0)
        return longest
