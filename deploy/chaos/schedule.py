"""The schedule of a mixed run: which fault comes when. It is a function of the seed, of the length of the run and of
the faults that are possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from chaos.faults import Fault

GAP_S = (0.5, 4.0)
"""Shortest and longest time in seconds between the beginnings of two faults. Most faults last longer, so they
overlap."""
LONGEST_S, LONGEST = 5.0, 0.05
"""A fault whose shortest time exceeds ``LONGEST_S`` seconds, and this part of the run, is left out."""
CALM = 0.1
"""Last part of a run in which no fault begins."""


@dataclass(frozen=True, slots=True)
class Strike:
    """A fault that is to begin ``at`` seconds after the start and last ``hold_s`` seconds. ``seed`` seeds its random
    choices."""

    at: float
    fault: str
    hold_s: float
    seed: int


def schedule(
    seed: int, seconds: float, faults: Iterable[Fault], gap_s: tuple[float, float] = GAP_S
) -> tuple[Strike, ...]:
    """Return the faults of a run of this many seconds, in order. They are dealt from a shuffled deck, and each comes
    again only when all have come. Empty if no fault is short enough."""
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
