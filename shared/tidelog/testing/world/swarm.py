"""The faults that a seed draws for a run, by swarm testing.

Which faults show a bug depends on the program. A mix of all kinds in every run is a poor choice: one kind hides what
another would show, such as a death after which a group does nothing for 45 s. So a seed first draws a *swarm*, which
is what the run prefers: about half of the kinds of faults, half of the kinds of moments, with weights that are drawn
as well, whom the faults strike, how long outages last, and how often a fault is repeated. The faults are drawn from
it. Over many seeds each combination has its runs, and nobody has to know which one a program needs.

Source: Groce, Zhang, Eide, Chen, Regehr: Swarm Testing, ISSTA 2012.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelog.testing.world.cluster import CONTROLLER, GATEWAY, SERVERS
from tidelog.testing.world.faults import CLUSTER_KINDS, PROGRAM_KINDS, Calm, WorldFault
from tidelog.testing.world.traffic import REBALANCED

KEPT = 0.5
"""How likely a kind of faults or of moments is among those of a run."""
MOST_WEIGHT = 8.0
"""The weights in a run are between 1 and this, small ones as often as large ones."""
MORE_REBALANCES = 4
"""With faults a group rebalances so many times more often than without."""
OUTAGES_S = ((0.02, 2.0), (2.0, 30.0), (46.0, 110.0))
"""The ranges of an outage, in seconds: it delays, breaks connections, or outlives the session of a member."""
DELAY_S = (0.0005, 3.0)
"""How long after its moment a fault strikes, unless it strikes at once."""
LATE_S = (0.3, 3.0, 6.0)
"""How late a copy starts at most."""
SPAN_S = (0.5, 60.0)
"""Within how many seconds faults strike that wait for no moment, at least and at most."""
Weights = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one run prefers."""

    kinds: Weights
    """The kinds of faults."""
    moments: Weights
    """The kinds of moments."""
    victims: Sequence[str]
    """The programs that are struck."""
    count: int
    """How many faults there are, besides late starts."""
    timed: float
    """The share of the faults that strike at a time, and at no moment."""
    delayed: float
    """The share of the faults at moments that strike some time after it."""
    crossed: float
    """The share of the faults that strike another program than the one whose moment it is."""
    repeated: float
    """How likely a fault is a repetition of the one before it, a little later."""
    reach: float
    """Faults strike in this first part of the work."""
    outages_s: Sequence[tuple[float, float]]
    """The ranges of outages."""


def draw(rng: random.Random, programs: Sequence[str], kinds: Sequence[str], calm: Calm) -> list[WorldFault]:
    """Return the faults of a run, in the order of their times. ``programs``: the name of each copy. ``kinds``: the
    kinds of faults that are allowed. ``calm``: what a run without faults came to."""
    swarm = draw_swarm(rng, programs, kinds, calm)
    faults: list[WorldFault] = []
    kept = [kind for kind in swarm.kinds if kind != "start_late"]
    while kept and len(faults) < swarm.count:
        if faults and rng.random() < swarm.repeated:
            faults.append(_again(rng, faults[-1]))
            continue
        kind = _pick(rng, {kind: swarm.kinds[kind] for kind in kept})
        faults.append(_draw_one(rng, kind, swarm, programs, calm))
    if "start_late" in swarm.kinds or not faults:
        late = [program for program in programs if rng.random() < 0.5] or [rng.choice(programs)]
        most_s = rng.choice(LATE_S)
        faults += [WorldFault("start_late", one, seconds=round(rng.uniform(0.0, most_s), 3)) for one in late]
    return sorted(faults, key=lambda fault: fault.at)


def draw_swarm(rng: random.Random, programs: Sequence[str], kinds: Sequence[str], calm: Calm) -> Swarm:
    """Return what a run prefers. In half of the runs only programs are struck, if these kinds are allowed."""
    mine = [kind for kind in kinds if kind in PROGRAM_KINDS]
    others = [kind for kind in kinds if kind in CLUSTER_KINDS]
    moments = Counter(moment for counts in calm.moments.values() for moment in counts)
    if "joined" in moments:
        moments[REBALANCED] += 1
    return Swarm(
        kinds=_swarm(rng, mine if mine and rng.random() < 0.5 else [*mine, *others]),
        moments=_swarm(rng, sorted(moments)),
        victims=[program for program in programs if rng.random() < KEPT] or [rng.choice(programs)],
        count=rng.choice((2, 4, 6, 9, 12, 16)),
        timed=rng.choice((0.1, 0.3, 0.6, 1.0)),
        delayed=rng.choice((0.0, 0.5, 1.0)),
        crossed=rng.choice((0.0, 0.2, 0.5)),
        repeated=rng.choice((0.0, 0.3, 0.7)),
        reach=rng.choice((0.3, 0.6, 1.0, 1.0)),
        outages_s=[rng.choice(OUTAGES_S)] if rng.random() < 0.75 else OUTAGES_S,
    )


def _swarm(rng: random.Random, names: Sequence[str]) -> dict[str, float]:
    """Return about half of the names, and at least one unless there is none, with random weights."""
    kept = [name for name in names if rng.random() < KEPT]
    if names and not kept:
        kept = [rng.choice(names)]
    return {name: MOST_WEIGHT ** rng.random() for name in kept}


def _pick(rng: random.Random, weights: Weights) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def _between(rng: random.Random, least: float, most: float) -> float:
    """Return a number of seconds between two others, each power of ten as often as another."""
    return round(float(least * (most / least) ** rng.random()), 4)


def _again(rng: random.Random, fault: WorldFault) -> WorldFault:
    """Return a fault that repeats another one a little later: at one of the next moments, or up to 5 s later."""
    if fault.moment:
        return replace(fault, number=fault.number + rng.choice((1, 1, 2, 3)))
    return replace(fault, at=round(fault.at + _between(rng, 0.02, 5.0), 3))


def _draw_when(rng: random.Random, swarm: Swarm, program: str, calm: Calm) -> dict[str, Any]:
    """Return the time at which a fault strikes, or the moment of a program."""
    counts = dict(calm.moments.get(program, {}))
    if "joined" in counts:
        counts[REBALANCED] = counts.get(REBALANCED, 0) + MORE_REBALANCES
    weights = {moment: weight * counts[moment] ** 0.5 for moment, weight in swarm.moments.items() if moment in counts}
    if not weights or rng.random() < swarm.timed:
        span = max(SPAN_S[0], min(SPAN_S[1], 1.5 * calm.seconds))
        return {"at": round(rng.uniform(0.0, span * swarm.reach), 3)}
    moment = _pick(rng, weights)
    number = rng.randint(1, max(1, round(counts[moment] * swarm.reach)))
    delay_s = _between(rng, *DELAY_S) if rng.random() < swarm.delayed else 0.0
    return {"moment": moment, "number": number, "program": program, "delay_s": delay_s}


def _draw_one(rng: random.Random, kind: str, swarm: Swarm, programs: Sequence[str], calm: Calm) -> WorldFault:
    """Return a random fault of a kind."""
    witness = rng.choice(swarm.victims)
    when = _draw_when(rng, swarm, witness, calm)
    if kind in CLUSTER_KINDS:
        return _strike_cluster(rng, kind, when, programs)
    target = rng.choice(programs) if rng.random() < swarm.crossed else witness
    outage_s = _between(rng, *rng.choice(swarm.outages_s))
    if kind == "restart_loop":
        seconds, back_s = _between(rng, 0.1, 5.0), _between(rng, 0.02, 3.0)
        return WorldFault(kind, target, **when, seconds=seconds, back_s=back_s, times=rng.choice((3, 5, 8)))
    back_s = rng.choice((0.02, 0.2, 1.0, 1.0, 5.0, 50.0, 70.0))
    if kind == "stop_program":
        return WorldFault(kind, target, **when, back_s=back_s)
    if kind == "kill_program":
        return WorldFault(kind, target, **when, back_s=back_s, linger_s=rng.choice((0.0, 0.0, 0.05, 16.0)))
    if kind == "refuse_sends":
        outage_s = min(outage_s, 20.0)
    if kind == "slow_program":
        outage_s = _between(rng, 2.0, 30.0)
    if kind in ("lose_answer", "lose_request") and rng.random() < 0.3:
        outage_s = 0.0
    return WorldFault(kind, target, **when, seconds=outage_s)


def _strike_cluster(rng: random.Random, kind: str, when: dict[str, Any], programs: Sequence[str]) -> WorldFault:
    """Return a random fault of the cluster or the network."""
    back_s = rng.choice((0.05, 0.3, 1.0, 3.0, 8.0))
    if kind == "clock":
        target = rng.choice((*SERVERS, GATEWAY, CONTROLLER, *programs))
        return WorldFault(kind, target, **when, seconds=rng.choice((-3600.0, -5.0, 5.0, 60.0, 3600.0)))
    if kind in ("cut", "block", "mute"):
        target = rng.choice((*SERVERS, *programs))
        nodes = (*SERVERS, GATEWAY)
        other = GATEWAY if target in programs else rng.choice([node for node in nodes if node != target])
        if rng.random() < 0.5:
            target, other = other, target
        return WorldFault(kind, target, **when, seconds=rng.choice((0.1, 1.0, 4.0, 12.0)), other=other)
    if kind in ("kill_gateway", "kill_controller"):
        return WorldFault(kind, GATEWAY if kind == "kill_gateway" else CONTROLLER, **when, back_s=back_s)
    if kind == "slow":
        return WorldFault(kind, "", **when, seconds=rng.choice((0.002, 0.01, 0.05)))
    seconds = rng.choice((0.05, 0.3, 1.5)) if kind == "slow_disk" else 0.0
    return WorldFault(kind, rng.choice(SERVERS), **when, seconds=seconds, back_s=back_s)
