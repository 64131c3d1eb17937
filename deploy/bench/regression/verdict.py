"""The verdict whether a figure became worse, over pairs of measurements on a machine that is never quiet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

WORSE = 0.9
"""A median ratio below this is a loss that counts; a ratio above its inverse is a gain."""
CHANCE = 0.05
"""The pairs disagree too much for a verdict if chance alone would make as many agree more often than this."""
FEWEST = math.ceil(-math.log2(CHANCE))
"""Least number of pairs for a verdict: with fewer there is none even if all agree."""


def by_chance(agree: int, pairs: int) -> float:
    """Return the probability that at least ``agree`` of the pairs point one way if nothing has changed (sign
    test)."""
    return sum(math.comb(pairs, count) for count in range(agree, pairs + 1)) / 2**pairs


def judge(ratios: list[float]) -> str:
    """Return ``worse``, ``better`` or ``same``. The ratio of a pair is above 1 if the present revision is better.
    Worse is a median below 0.9, with so many pairs below 1 that chance makes as many at most once in 20 times."""
    middle, pairs = median(ratios), len(ratios)
    if middle < WORSE and by_chance(sum(ratio < 1 for ratio in ratios), pairs) <= CHANCE:
        return "worse"
    if middle > 1 / WORSE and by_chance(sum(ratio > 1 for ratio in ratios), pairs) <= CHANCE:
        return "better"
    return "same"


@dataclass(slots=True)
class Figure:
    """The measurements of one quantity, in pairs. ``less``: a smaller value is better."""

    name: str
    unit: str
    less: bool
    base: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)
    first: int = 0
    """Number of pairs before the figure was measured a second time because it looked worse; 0 if it was not."""

    def add(self, base: float, now: float) -> float:
        """Add a pair and return its ratio."""
        self.base.append(base)
        self.now.append(now)
        return self.ratios[-1]

    @property
    def ratios(self) -> list[float]:
        """The ratio of each pair, above 1 if the present revision is better."""
        pairs = zip(self.base, self.now, strict=True)
        return [base / now if self.less else now / base for base, now in pairs]

    @property
    def suspect(self) -> bool:
        """Whether the pairs look worse."""
        return judge(self.ratios) == "worse"

    @property
    def verdict(self) -> str:
        """``worse``, ``better`` or ``same``. If the figure was measured twice, both measurements must agree;
        otherwise it is ``same``."""
        if not self.first:
            return judge(self.ratios)
        before, after = judge(self.ratios[: self.first]), judge(self.ratios[self.first :])
        return before if before == after else "same"
