"""The faults of a world: what may happen, and the list of it that a seed draws before the run.

A fault strikes at a time, or at a *moment* of a program's traffic (``traffic``), so that a program is killed between
a commit and its answer as often as it is killed while it sleeps. A seed also draws the style of the run (``draw``):
half of the runs mix all kinds, and the others strike programs where they work. Which moments there are, and how
many, is known from a run without faults, the *calm run*. The list is data: a failing run is repeated with fewer
faults until each of them is needed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tidelog.testing.world.cluster import CONTROLLER, GATEWAY, SERVERS
from tidelog.testing.world.traffic import REBALANCED

PROGRAM_KINDS = (
    *("kill_program", "stop_program", "restart_loop", "start_late", "pause_program"),
    *("lose_answer", "lose_request", "isolate_program", "refuse_sends"),
)
CHURN_KINDS = ("kill_program", "stop_program", "restart_loop", "start_late")
"""Kinds by which processes come and go, so that groups rebalance."""
WEIGHTS = {"kill_program": 2, "pause_program": 3, "refuse_sends": 2}
"""How many times as often as another kind these strike: deaths, zombies and refusals show most bugs of programs."""
OUTAGES = ("pause_program", "isolate_program")
"""Kinds that show little at the end of the work: another process has to work on meanwhile."""
CLUSTER_KINDS = (
    *("kill", "power", "move_leader", "cut", "block", "mute", "slow"),
    *("disk_error", "slow_disk", "kill_gateway", "kill_controller", "clock"),
)
KINDS = (*PROGRAM_KINDS, *CLUSTER_KINDS)
TURNS = frozenset({"send", "ack", "deliver", "commit", "committed", "end", "ended", REBALANCED})
"""Moments at which what a program has done, and what the cluster knows of it, may differ. Faults prefer them."""
TEXTS = {
    "kill_program": "{target} is killed, and started again after {back_s:g} s",
    "stop_program": "{target} is asked to stop, ends in an orderly way, and is started again after {back_s:g} s",
    "restart_loop": "{target} is asked to stop {times} times, each time {seconds:g} s after it came back",
    "start_late": "{target} starts {seconds:g} s late",
    "pause_program": "{target} stands still for {seconds:g} s",
    "lose_answer": "{target} loses its connections with the answers on their way, for {seconds:g} s",
    "lose_request": "{target} loses its connections with what it has just sent, for {seconds:g} s",
    "isolate_program": "{target} is cut off from the network for {seconds:g} s",
    "refuse_sends": "the topic to which {target} has sent last is read-only for {seconds:g} s",
    "kill": "replica server {target} is killed, and started again after {back_s:g} s",
    "power": "replica server {target} loses power, and is started again after {back_s:g} s",
    "move_leader": "the leader of a partition is moved to {target}",
    "cut": "the connections between {target} and {other} break",
    "block": "nothing gets from {target} to {other} for {seconds:g} s",
    "mute": "the connections between {target} and {other} lose everything from now on",
    "slow": "the network takes {seconds:g} s",
    "disk_error": "the disk of {target} fails",
    "slow_disk": "the disk of {target} takes up to {seconds:g} s for everything, for {back_s:g} s",
    "kill_gateway": "the gateway is killed, and started again after {back_s:g} s",
    "kill_controller": "the controller is killed, and started again after {back_s:g} s",
    "clock": "the wall clock of {target} jumps by {seconds:g} s",
}


@dataclass(frozen=True, slots=True)
class WorldFault:
    """One fault. Times are virtual seconds since the programs were started."""

    kind: str
    target: str
    """The program, as ``name-1``, or the service that it strikes."""
    at: float = 0.0
    """When it strikes, or from when on it waits for its moment."""
    moment: str = ""
    """The kind of moment of the traffic of ``program`` at which it strikes; "": it strikes at its time."""
    number: int = 1
    """Which moment of that kind, counted from the start of the run."""
    program: str = ""
    delay_s: float = 0.0
    """How long after the moment it strikes."""
    seconds: float = 0.0
    back_s: float = 0.0
    """After how many seconds a killed process is started again."""
    other: str = ""
    """The other end of a connection."""
    linger_s: float = 0.0
    """How long the network goes on to carry what a killed program has sent."""
    times: int = 1
    """How often a program is asked to stop."""

    def __str__(self) -> str:
        what = TEXTS[self.kind].format(**asdict(self))
        if not self.moment:
            return f"{self.at:.3f} s: {what}"
        after = f"{self.delay_s:g} s after " if self.delay_s else "at "
        return f"{after}'{self.moment}' number {self.number} of {self.program}: {what}"

    def data(self) -> dict[str, Any]:
        """Return the fault as a document for JSON; ``WorldFault(**document)`` reads it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Calm:
    """What a run without faults came to."""

    seconds: float = 5.0
    """How long the programs worked, in virtual seconds."""
    moments: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """How many moments of each kind each program had."""


def draw(rng: random.Random, programs: Sequence[str], kinds: Sequence[str], calm: Calm) -> list[WorldFault]:
    """Return the faults of a run, in the order of their times. ``programs``: the name of each copy. Half of the runs
    have faults of all kinds, at any times. In a quarter, processes come and go while their network is intact; in
    another quarter, all faults strike programs. Both strike at the moments at which programs work."""
    style = rng.choice(("mixed", "mixed", "churn", "moments"))
    churn = [kind for kind in kinds if kind in CHURN_KINDS]
    mine = [kind for kind in kinds if kind in PROGRAM_KINDS]
    if style == "churn" and churn:
        return _draw_focused(rng, churn, programs, calm)
    if style == "moments" and mine:
        return _draw_focused(rng, mine, programs, calm)
    chosen = [kind for kind in kinds if rng.random() < 0.6] or list(kinds)
    mine = [kind for kind in chosen if kind in PROGRAM_KINDS] or mine
    others = [kind for kind in chosen if kind in CLUSTER_KINDS]
    span = _span(rng, calm)
    faults = []
    for _ in range(rng.choice((2, 3, 4, 6, 9, 12))):
        pool = mine if mine and (not others or rng.random() < 0.7) else others
        kind = _draw_kind(rng, pool)
        share = 0.7 if kind in PROGRAM_KINDS else 0.4
        faults.append(_draw_one(rng, kind, programs, calm, span, share))
    return _in_order(faults)


def _draw_focused(rng: random.Random, kinds: Sequence[str], programs: Sequence[str], calm: Calm) -> list[WorldFault]:
    """Return faults of these kinds, nearly all of them at moments, and in half of the runs all for one program."""
    victims = programs if rng.random() < 0.5 else [rng.choice(programs)]
    span = _span(rng, calm)
    count = rng.choice((3, 4, 6, 9))
    faults = [_draw_one(rng, _draw_kind(rng, kinds), victims, calm, span, 0.85) for _ in range(count)]
    return _in_order(faults)


def _draw_kind(rng: random.Random, kinds: Sequence[str]) -> str:
    return rng.choices(kinds, [WEIGHTS.get(kind, 1) for kind in kinds])[0]


def _in_order(faults: Sequence[WorldFault]) -> list[WorldFault]:
    """Return faults in the order of their times. A copy starts late once: further such faults are left out."""
    late = {fault.target: fault for fault in reversed(faults) if fault.kind == "start_late"}
    kept = [fault for fault in faults if fault.kind != "start_late" or late[fault.target] is fault]
    return sorted(kept, key=lambda fault: fault.at)


def _span(rng: random.Random, calm: Calm) -> float:
    """Return within how many seconds timed faults strike."""
    return max(0.5, min(60.0, calm.seconds * rng.choice((0.5, 1.0, 1.5))))


def _draw_moment(rng: random.Random, program: str, moments: Mapping[str, int], share: float) -> dict[str, Any]:
    """Return a random moment of a program, among the first ``share`` of its kind, and how long after it a fault
    strikes: at once, or after a time between 0.5 ms and 3 s, each power of ten as often as another. Groups rebalance
    more often than without faults."""
    if "joined" in moments:
        moments = {**moments, REBALANCED: moments.get(REBALANCED, 0) + 3}
    kinds = sorted(moments)
    moment = rng.choices(kinds, [3 if kind in TURNS else 1 for kind in kinds])[0]
    number = rng.randint(1, max(1, round(moments[moment] * share)))
    delay_s = 0.0 if rng.random() < 0.4 else round(10 ** rng.uniform(-3.3, 0.5), 4)
    return {"moment": moment, "number": number, "program": program, "delay_s": delay_s}


def _draw_one(
    rng: random.Random, kind: str, programs: Sequence[str], calm: Calm, span: float, share: float
) -> WorldFault:
    """Return a random fault of a kind. ``share``: how many of the faults strike at moments."""
    early = 0.5 if kind in OUTAGES else 1.0
    when: dict[str, Any] = {"at": round(rng.uniform(0.0, span * early), 3)}
    witness = rng.choice(programs)
    if kind == "start_late":
        return WorldFault(kind, witness, seconds=when["at"])
    moments = calm.moments.get(witness)
    if moments and rng.random() < share:
        when = _draw_moment(rng, witness, moments, early)
    nodes = (*SERVERS, GATEWAY)
    target, others = rng.choice(nodes), rng.choice(nodes)
    back_s = rng.choice((0.05, 0.3, 1.0, 3.0, 8.0))
    if kind in PROGRAM_KINDS:
        is_shared = when.get("moment") == REBALANCED  # what another member does then matters as much
        target = witness if rng.random() < (0.5 if is_shared else 0.85) else rng.choice(programs)
        outages = {
            "kill_program": (0.0,),
            "stop_program": (0.0,),
            "restart_loop": (0.3, 0.7, 1.5, 4.0),
            "refuse_sends": (0.3, 2.0, 8.0, 20.0),
            "pause_program": (0.3, 5.0, 20.0, 55.0, 55.0, 75.0, 110.0),
            "lose_answer": (0.0, 0.0, 0.5, 8.0, 35.0, 50.0),
            "lose_request": (0.0, 0.0, 0.5, 8.0, 35.0, 50.0),
            "isolate_program": (1.0, 12.0, 35.0, 55.0, 75.0),
        }
        is_loop = kind == "restart_loop"
        back_s = rng.choice((0.02, 0.3, 1.0, 3.0) if is_loop else (0.02, 0.2, 1.0, 1.0, 5.0, 50.0, 70.0))
        return WorldFault(
            kind,
            target,
            **when,
            seconds=rng.choice(outages[kind]),
            back_s=back_s,
            linger_s=rng.choice((0.0, 0.0, 0.05, 16.0)),
            times=rng.choice((3, 5, 8)) if is_loop else 1,
        )
    if kind == "clock":
        target = rng.choice((*SERVERS, GATEWAY, CONTROLLER, *programs))
        return WorldFault(kind, target, **when, seconds=rng.choice((-3600.0, -5.0, 5.0, 60.0, 3600.0)))
    if kind in ("cut", "block", "mute"):
        target = rng.choice((*SERVERS, *programs))
        others = GATEWAY if target in programs else rng.choice([node for node in nodes if node != target])
        if rng.random() < 0.5:
            target, others = others, target
        return WorldFault(kind, target, **when, seconds=rng.choice((0.1, 1.0, 4.0, 12.0)), other=others)
    if kind in ("kill_gateway", "kill_controller"):
        return WorldFault(kind, GATEWAY if kind == "kill_gateway" else CONTROLLER, **when, back_s=back_s)
    if kind == "slow":
        return WorldFault(kind, "", **when, seconds=rng.choice((0.002, 0.01, 0.05)))
    seconds = rng.choice((0.05, 0.3, 1.5)) if kind == "slow_disk" else 0.0
    return WorldFault(kind, rng.choice(SERVERS), **when, seconds=seconds, back_s=back_s)
