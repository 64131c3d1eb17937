"""Whether a figure became worse, judged over pairs of measurements on a machine that is never quiet."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from statistics import median

WORSE = 0.9
"""A median ratio below it is a loss that counts; above its inverse, a gain."""
CHANCE = 0.05
"""Pairs disagree too much to tell anything when as many would agree by chance oftener than this."""
FEWEST = math.ceil(-math.log2(CHANCE))
"""Pairs that it takes: with fewer not even all together tell anything."""


def by_chance(agree: int, pairs: int) -> float:
    """How probable it is that at least so many pairs point one way where nothing changed (sign test)."""
    return sum(math.comb(pairs, count) for count in range(agree, pairs + 1)) / 2**pairs


def judge(ratios: list[float]) -> str:
    """``worse``, ``better`` or ``same``. A ratio of a pair is how good now is, 1 being as good as before: worse is a
    median below 0.9, with so many pairs below 1 that chance makes as many at most once in 20 times."""
    middle, pairs = median(ratios), len(ratios)
    if middle < WORSE and by_chance(sum(ratio < 1 for ratio in ratios), pairs) <= CHANCE:
        return "worse"
    if middle > 1 / WORSE and by_chance(sum(ratio > 1 for ratio in ratios), pairs) <= CHANCE:
        return "better"
    return "same"


@dataclass(slots=True)
class Figure:
    """What was measured of one thing, in pairs. ``less``: a smaller value is the better one."""

    name: str
    unit: str
    less: bool
    base: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)
    first: int = 0
    """Pairs before it was measured again because they looked worse; 0 where it was not."""

    def add(self, base: float, now: float) -> float:
        """A pair; its ratio."""
        self.base.append(base)
        self.now.append(now)
        return self.ratios[-1]

    @property
    def ratios(self) -> list[float]:
        """Of all pairs, above 1 where now is better."""
        pairs = zip(self.base, self.now, strict=True)
        return [base / now if self.less else now / base for base, now in pairs]

    @property
    def suspect(self) -> bool:
        """The pairs so far look worse."""
        return judge(self.ratios) == "worse"

    @property
    def verdict(self) -> str:
        """Worse only if it was so twice, each time by pairs of its own."""
        if not self.first:
            return judge(self.ratios)
        before, after = judge(self.ratios[: self.first]), judge(self.ratios[self.first :])
        return before if before == after else "same"
