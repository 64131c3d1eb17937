"""What the workload felt: when which operation ended, how long it took, what failed."""

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
    """Times in seconds since ``began``."""

    began: float = field(default_factory=trio.current_time)
    done: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """(when it ended, how long it took) of every operation that succeeded, by kind."""
    failed: dict[str, list[float]] = field(default_factory=dict)
    """When operations of each kind failed."""
    reasons: Counter[str] = field(default_factory=Counter)
    """How often which refusal or error was met."""
    acks: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    """When each partition of each topic acknowledged something with acks ``all``."""

    def now(self) -> float:
        """Since the start."""
        return trio.current_time() - self.began

    @contextmanager
    def operation(self, kind: str, began: float | None = None) -> Iterator[None]:
        """Measure the block, and count the errors of the cluster that end it."""
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
        """A record was acknowledged by all that have to."""
        self.acks.setdefault((topic, partition), []).append(self.now())

    def longest_gap(self, since: float, until: float) -> float:
        """The longest time in which some partition that is written to acknowledged nothing, of the silences that were
        within these or began there."""
        longest = 0.0
        for times in self.acks.values():
            first, last = bisect(times, since), bisect(times, until)
            points = [since, *times[first : last + 1]]
            longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(points)), 0.0)
        return longest
