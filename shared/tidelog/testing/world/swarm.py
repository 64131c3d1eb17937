"""The faults that a seed draws for a run, by swarm testing.

Which faults show a bug depends on the program. A mix of all kinds in every run is a poor choice: one kind hides what
another would show. So a seed first draws a *swarm*, which is what the run prefers: one way in which a process loses
its place, what else may strike beside it, about half of the kinds of moments, with random weights, whom the faults
strike, how long outages last, and how often a fault is repeated. The faults are drawn from it. Neighbouring seeds
take turns with the ways, so a few seeds have them all. Nobody has to know which one a program needs.

Source: Groce, Zhang, Eide, Chen, Regehr: Swarm Testing, ISSTA 2012.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tidelog.testing.world.cluster import CONTROLLER, GATEWAY, SERVERS
from tidelog.testing.world.faults import CLUSTER_KINDS, Calm, WorldFault
from tidelog.testing.world.traffic import REBALANCED

LEADING = (
    ("kill_program",),
    ("stop_program",),
    ("restart_loop",),
    ("pause_program",),
    ("lose_answer", "lose_request", "isolate_program"),
)
"""The ways in which a process loses its place, as families of kinds of faults. At most one of them strikes in a run,
since what one does hides what another would show: after a death a group does nothing until the session is over."""
ABRUPT, ORDERLY = (1, 1, 2, 4), (2, 4, 8)
"""How many leading faults there are. After a death or a long outage a group stands still for a session; after an
orderly stop it goes on at once, so more of them find it at work."""
BESIDE = (("slow_program",), ("start_late",), ("refuse_sends",), CLUSTER_KINDS)
"""The families of kinds that may strike beside any other."""
TOGETHER = 0.35
"""How likely each of these strikes in a run."""
KEPT = 0.5
"""How likely a kind of moments is among those of a run."""
MOST_WEIGHT = 8.0
"""The weights in a run are between 1 and this, small ones as often as large ones."""
MORE_REBALANCES = 4
"""With faults a group rebalances so many times more often than without."""
OUTAGES = ("pause_program", "isolate_program", "lose_answer", "lose_request")
"""The kinds that take a program away for a while."""
SHORT_S = ((0.02, 2.0), (0.5, 20.0))
"""The ranges of a short outage, in seconds: it delays, or breaks connections."""
AWAY = (0.3, 1.5)
"""For how much of the work a long outage goes on after the session is over, so that others do the work meanwhile."""
SESSION_S = 45.0
"""The session timeout that outages go by where there is no group."""
REFUSED_S = 6.0
"""The longest time that a topic is read-only: other programs wait meanwhile."""
BACK_S = (0.02, 1.0, 2.0, 5.0)
"""After how many seconds a killed program is back, unless its session is over by then."""
LOOP_S = (0.4, 4.0)
"""How long a program in a loop of restarts runs, and is down, in seconds: mostly long enough for a rebalance."""
DELAY_S = (0.0005, 3.0)
"""How long after its moment a fault strikes, unless it strikes at once."""
LATE_S = (0.3, 3.0, 6.0)
"""How late a process starts at most."""
BACKLOG_S = 20.0
"""The longest time in which others work before a program starts, in seconds."""
AT_WORK = frozenset({"ack", "deliver", "committed", "ended"})
"""Moments just after which a program works on what it got."""
AT_WORK_S = (0.0005, 0.3)
"""How long after such a moment a long outage begins."""
UNDER_WAY = frozenset({"send", "commit", "begin", "end", "prepare", "commit_staged"})
"""Moments just after which a request is under way that changes something."""
UNDER_WAY_S = (0.0001, 0.01)
"""How long after such a moment its answer is lost."""
SPAN_S = (0.5, 60.0)
"""Within how many seconds faults strike that wait for no moment, at least and at most."""
Weights = Mapping[str, float]
When = dict[str, Any]
"""The fields of a fault that say when it strikes."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """What one run prefers."""

    leaders: Sequence[str]
    """The kinds of faults that lead in this run."""
    leading: int
    """How many of them there are."""
    beside: Sequence[Sequence[str]]
    """The families of the others."""
    victims: Sequence[str]
    """The processes that the leading faults strike."""
    moments: Weights
    """The kinds of moments."""
    timed: float
    """The share of the faults that strike at a time, and at no moment."""
    delayed: float
    """The share of the faults at moments that strike some time after it."""
    crossed: float
    """The share of the faults that strike another process than the one whose moment it is."""
    repeated: float
    """How likely a leading fault is a repetition of the one before it, a little later."""
    reach: float
    """Faults strike in this first part of the work."""
    short_s: tuple[float, float]
    """The range of short outages."""
    long: int
    """How many of the leading outages are longer than a session."""


def draw(
    rng: random.Random, seed: int, programs: Sequence[str], kinds: Sequence[str], calm: Calm
) -> list[WorldFault]:
    """Return the faults of a run, in the order of their times. ``programs``: the name of each process. ``kinds``: the
    kinds of faults that are allowed. ``calm``: what a run without faults came to."""
    swarm = draw_swarm(rng, seed, programs, kinds, calm)
    faults: list[WorldFault] = []
    long = swarm.long
    for _ in range(swarm.leading):
        kind = rng.choice(swarm.leaders)
        if kind in OUTAGES and long:
            faults.append(_draw_long(rng, kind, swarm, calm))
            long -= 1
        elif faults and rng.random() < swarm.repeated:
            faults.append(_again(rng, faults[-1]))
        else:
            faults.append(_draw_one(rng, kind, swarm, programs, calm))
    for family in swarm.beside:
        if family == ["start_late"]:
            faults += _draw_late(rng, programs, calm)
            continue
        senders = [program for program in programs if "send" in calm.moments.get(program, ())]
        anywhere = replace(swarm, victims=senders if family == ["refuse_sends"] and senders else programs)
        some = rng.sample(family, min(len(family), 3))
        for _ in range(rng.choice((1, 2, 3))):
            faults.append(_draw_one(rng, rng.choice(some), anywhere, programs, calm))
    return sorted(faults, key=lambda fault: fault.at)


def _draw_late(rng: random.Random, programs: Sequence[str], calm: Calm) -> list[WorldFault]:
    """Return late starts: of about half of the processes by a few seconds, or of all copies of a program when much of
    the work is there already. Then it has more in hand at a time than it would have else."""
    if rng.random() < 0.5:
        late = [program for program in programs if rng.random() < 0.5] or [rng.choice(programs)]
        most_s = rng.choice(LATE_S)
        return [WorldFault("start_late", one, seconds=round(rng.uniform(0.0, most_s), 3)) for one in late]
    after_s = min(BACKLOG_S, calm.seconds) * rng.uniform(0.4, 1.2)
    late = _copies(rng.choice(programs), programs)
    return [WorldFault("start_late", one, seconds=round(after_s + rng.uniform(0.0, 1.0), 3)) for one in late]


def draw_swarm(rng: random.Random, seed: int, programs: Sequence[str], kinds: Sequence[str], calm: Calm) -> Swarm:
    """Return what a run prefers. Each of the leading families leads in one of as many neighbouring seeds as there are
    families; in one more, none leads."""
    leading: list[list[str]] = _allowed(LEADING, kinds)
    beside = _allowed(BESIDE, kinds)
    if beside:
        leading.append([])
    turn, place = divmod(seed, len(leading))
    leaders = random.Random(turn).sample(leading, len(leading))[place]
    together = [family for family in beside if rng.random() < TOGETHER]
    if not leaders and not together:
        together = [rng.choice(beside)]
    moments = Counter(moment for counts in calm.moments.values() for moment in counts)
    if "joined" in moments:
        moments[REBALANCED] += 1
    return Swarm(
        leaders=leaders,
        leading=rng.choice(ORDERLY if set(leaders) & {"stop_program", "restart_loop"} else ABRUPT) if leaders else 0,
        beside=together,
        victims=_draw_victims(rng, programs, calm),
        moments=_draw_moments(rng, sorted(moments)),
        timed=rng.choice((0.1, 0.2, 0.5)),
        delayed=rng.choice((0.0, 0.5, 1.0)),
        crossed=rng.choice((0.0, 0.2, 0.5)),
        repeated=rng.choice((0.0, 0.3, 0.7)),
        reach=rng.choice((0.3, 0.6, 1.0)),
        short_s=rng.choice(SHORT_S),
        long=rng.choice((0, 1, 1, 1, 1, 2)),
    )


def _allowed(families: Sequence[Sequence[str]], kinds: Sequence[str]) -> list[list[str]]:
    """Return what is left of families if only some kinds are allowed."""
    left = [[kind for kind in family if kind in kinds] for family in families]
    return [family for family in left if family]


def _draw_victims(rng: random.Random, programs: Sequence[str], calm: Calm) -> Sequence[str]:
    """Return one process, or all processes of one program. A program is chosen as often as it has kinds of moments:
    the more it does with the cluster, the more can go wrong in it."""
    one = rng.choices(programs, [(1 + len(calm.moments.get(program, ()))) ** 2 for program in programs])[0]
    return [one] if rng.random() < 0.5 else _copies(one, programs)


def _copies(process: str, programs: Sequence[str]) -> list[str]:
    """Return all processes of the program of a process."""
    return [other for other in programs if other.rpartition("-")[0] == process.rpartition("-")[0]]


def _draw_moments(rng: random.Random, names: Sequence[str]) -> dict[str, float]:
    """Return about half of the kinds of moments, and at least one unless there is none, with random weights."""
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
    """Return a fault that repeats another one a little later: at one of the next moments, or up to 5 s later. It is
    no long outage."""
    fault = replace(fault, seconds=min(fault.seconds, SHORT_S[-1][-1]))
    if fault.moment:
        return replace(fault, number=fault.number + rng.choice((1, 1, 2, 3)))
    return replace(fault, at=round(fault.at + _between(rng, 0.02, 5.0), 3))


def _draw_when(rng: random.Random, swarm: Swarm, program: str, calm: Calm) -> When:
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


def _draw_aimed(rng: random.Random, program: str, kind: str, calm: Calm) -> When:
    """Return a moment in the first half of the work of a program at which a long outage shows most: a request is
    under way if its answer is to be lost, and else the program is at work."""
    loses = kind in ("lose_answer", "lose_request")
    moments, delay_s = (UNDER_WAY, UNDER_WAY_S) if loses else (AT_WORK, AT_WORK_S)
    counts = {name: count for name, count in calm.moments.get(program, {}).items() if name in moments}
    if not counts:
        return {"at": round(rng.uniform(0.0, calm.seconds / 2), 3)}
    moment = _pick(rng, dict(sorted(counts.items())))
    number = rng.randint(1, max(1, counts[moment] // 2))
    return {"moment": moment, "number": number, "program": program, "delay_s": _between(rng, *delay_s)}


def _draw_one(rng: random.Random, kind: str, swarm: Swarm, programs: Sequence[str], calm: Calm) -> WorldFault:
    """Return a random fault of a kind."""
    witness = rng.choice(swarm.victims)
    when = _draw_when(rng, swarm, witness, calm)
    if kind in CLUSTER_KINDS:
        return _strike_cluster(rng, kind, when, programs)
    target = rng.choice(programs) if rng.random() < swarm.crossed else witness
    outage_s = _between(rng, *swarm.short_s)
    back_s = rng.choice(BACK_S) if rng.random() < 0.85 else 1.2 * (calm.session_s or SESSION_S)
    if kind == "restart_loop":
        up_s, back_s = _between(rng, *LOOP_S), _between(rng, *LOOP_S)
        return WorldFault(kind, target, **when, seconds=up_s, back_s=back_s, times=rng.choice((3, 5, 8)))
    if kind == "stop_program":
        return WorldFault(kind, target, **when, back_s=back_s)
    if kind == "kill_program":
        return WorldFault(kind, target, **when, back_s=back_s, linger_s=rng.choice((0.0, 0.0, 0.05, 16.0)))
    if kind == "refuse_sends":
        outage_s = min(outage_s, REFUSED_S)
    if kind == "slow_program":
        outage_s = _between(rng, 2.0, 30.0)
    if kind in ("lose_answer", "lose_request") and rng.random() < 0.3:
        outage_s = 0.0
    return WorldFault(kind, target, **when, seconds=outage_s)


def _draw_long(rng: random.Random, kind: str, swarm: Swarm, calm: Calm) -> WorldFault:
    """Return an outage that is longer than the session of a member."""
    target = rng.choice(swarm.victims)
    away_s = max(10.0, min(SPAN_S[1], calm.seconds)) * rng.uniform(*AWAY)
    seconds = round((calm.session_s or SESSION_S) + away_s, 3)
    return WorldFault(kind, target, **_draw_aimed(rng, target, kind, calm), seconds=seconds)


def _strike_cluster(rng: random.Random, kind: str, when: When, programs: Sequence[str]) -> WorldFault:
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
