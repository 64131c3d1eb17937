"""When which fault comes in a mixed run: a function of the seed, of the length of the run and of what may come."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from chaos.faults import Fault

GAP_S = (0.5, 4.0)
"""Between the beginnings of two faults. Most last longer than that: they overlap."""
LONGEST_S, LONGEST = 5.0, 0.05
"""A fault that lasts longer than this, and than this part of the run, does not come in it."""
CALM = 0.1
"""In the last part of the run nothing new begins."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that is to come so many seconds after the start, for so long. ``seed`` is of its own choices."""

    at: float
    fault: str
    hold_s: float
    seed: int


def schedule(
    seed: int, seconds: float, faults: Iterable[Fault], gap_s: tuple[float, float] = GAP_S
) -> tuple[Strike, ...]:
    """Faults are dealt from a shuffled deck, and each comes again only when all have come."""
    random = Random(f"schedule {seed}")
    longest = max(LONGEST_S, seconds * LONGEST)
    fit = [fault for fault in faults if fault.hold[0] <= longest]
    if not fit:
        return ()
    strikes: list[Strike] = []
    deck: list[Fault] = []
    at = random.uniform(*gap_s)
    while at < seconds * (1 - CALM):
        if not deck:
            deck = random.sample(fit, len(fit))
        fault = deck.pop()
        low, high = fault.hold
        hold_s = random.uniform(low, min(high, longest))
        strikes.append(Strike(round(at, 2), fault.name, round(hold_s, 2), random.getrandbits(32)))
        at += random.uniform(*gap_s)
    return tuple(strikes)
