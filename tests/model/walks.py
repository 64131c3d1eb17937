"""``python -m model.walks``: random walks over the real cores.

    python -m model.walks --seeds 0:1000     so many walks; --minutes 10: as many as that takes
    python -m model.walks --seed 7           one walk again, every step printed
    python -m model.walks --steps '[...]'    exactly these steps: what a failing walk prints, shrunk

A walk draws its setting and, as a swarm does, which kinds of steps it prefers and which faults it has at all, and how
many of each. After the faults everything must be well again (R11). A failing walk is shrunk: steps are taken out as
long as what is left still fails.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from tidelog.types import TopicConfig

from model.world import Setting, Step, World

STEPS = 120
"""The applicable steps of a walk before everything heals."""
WEIGHTS = {"deliver": 50, "ask": 8, "learn": 12, "flush": 12, "produce": 10, "start": 6, "heartbeat": 3}
"""How often each kind of step that is no fault is tried."""
FAULTS = {
    "lose": 8,
    "double": 6,
    "lag": 3,
    "resend": 3,
    "checkpoint": 3,
    "power": 3,
    "die": 2,
    "stop": 1,
    "wipe": 3,
    "damage": 2,
    "expire": 3,
    "replace": 2,
    "hand_over": 1,
    "learner": 1,
}
BUDGETS = {
    "power": 6,
    "die": 4,
    "stop": 2,
    "wipe": 3,
    "damage": 2,
    "expire": 6,
    "replace": 3,
    "hand_over": 2,
    "learner": 2,
}
"""The most faults of each kind in one walk; a walk draws its own numbers."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a walk; ``fault`` "" if everything held."""

    seed: int
    setting: Setting
    steps: tuple[Step, ...]
    fault: str
    healing: bool
    """Whether the fault came after the last injected fault."""
    counts: dict[str, int]


def draw_setting(rng: random.Random) -> Setting:
    """Return a random setting: replicas, flush policy, minimum, elections."""
    replicas = rng.choice((3, 3, 3, 2, 4))
    config = TopicConfig(
        commit_rule=rng.choice(RULES),
        min_insync_replicas=rng.choice((1, 1, 2, 2, 3)) if replicas > 2 else 1,
        unclean_election=rng.random() < UNCLEAN,
        flush=rng.choice(("fsync", "fsync", "os")),
    )
    if config.commit_rule == "quorum":
        config = TopicConfig(commit_rule="quorum", unclean_election=config.unclean_election)
    return Setting(replicas, rng.choice(SPARES), config)


RULES = ("isr", "isr", "isr", "quorum", "quorum", "leader")
SPARES = (0, 0, 0, 1)
UNCLEAN = 0.2


def walk(seed: int, length: int = STEPS) -> Result:
    """Run one walk to its end or to its first violation, and return the result."""
    rng = random.Random(seed)
    setting = draw_setting(rng)
    world, done, fault, healing = World(setting), list[Step](), "", False
    weights = {what: weight * rng.choice((1, 1, 2, 4)) for what, weight in WEIGHTS.items()}
    weights |= {what: weight * rng.choice((0, 1, 1, 3)) for what, weight in FAULTS.items()}
    budgets = {what: rng.randint(0, most) for what, most in BUDGETS.items()}
    names = list(world.servers)
    kinds = [what for what, weight in weights.items() for _ in range(weight)]
    choose, below = rng.random, len(kinds)
    haste = rng.choice((0.5, 1, 2))  # above 1 the oldest messages come first, below the newest
    try:
        for _ in range(20 * length):  # where nothing can happen any more, it ends earlier
            if len(done) == length:
                break
            what = kinds[int(choose() * below)]
            if budgets.get(what, 1) <= 0:
                continue
            if what in ("deliver", "double", "lose"):
                if not world.net:
                    what = "ask"
                else:
                    step: Step = (what, int(choose() ** haste * len(world.net)))
            if what == "learn":
                step = (what, names[int(choose() * len(names))], int(choose() * 3) if choose() < 0.3 else 0)
            elif what == "power":
                step = (what, names[int(choose() * len(names))], int(choose() * 17))
            elif what == "replace":
                step = (what,)
            elif what not in ("deliver", "double", "lose"):
                step = (what, names[int(choose() * len(names))])
            done.append(step)
            if not world.do(step):
                done.pop()
            elif what in budgets:
                budgets[what] -= 1
        healing = True
        world.heal()
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    return Result(seed, setting, tuple(done), fault, healing, counts_of(world, done))


def counts_of(world: World, done: Iterable[Step]) -> dict[str, int]:
    """Return what happened in a walk, to show that enough did."""
    counts = {"records acked": world.ghost.acked, "leader epochs": world.partition.leader_epoch}
    counts["records lost by permission"] = world.ghost.lost
    for step in done:
        counts[step[0]] = counts.get(step[0], 0) + 1
    return counts


def replay(setting: Setting, steps: Iterable[Step], *, tell: bool = False, healing: bool = True) -> str:
    """Run these steps, and heal at the end; returns the violation, "" for none. Steps that do not apply are
    skipped."""
    world = World(setting)
    try:
        for step in steps:
            what = _describe(world, step) if tell else ""
            if world.do(step) and tell:
                print(f"  {what:40} {_partition(world)}")
        if healing:
            world.heal()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _describe(world: World, step: Step) -> str:
    """Return a step in words."""
    if step[0] in ("deliver", "double", "lose") and step[1] < len(world.net):
        sent = world.net[step[1]]
        return f"{step[0]} {sent.kind} {sent.source} > {sent.to}"
    return " ".join(map(str, step))


def _partition(world: World) -> str:
    state = world.partition
    logs = " ".join(f"{s.name}:{len(s.disk.row)}/{s.durable}{'' if s.up else '!'}" for s in world.servers.values())
    elr = f" elr {','.join(state.elr)}" if state.elr else ""
    epochs = f"epoch {state.leader_epoch}.{state.epoch}"
    return f"{state.leader or '-'} {epochs} isr {','.join(state.isr)}{elr}; {logs}; {len(world.ghost.committed)}"


def shrink(result: Result) -> tuple[Step, ...]:
    """Return fewer steps that still break the same invariant (its first word); none of them can be left out."""
    kind = result.fault.split(":")[1][:4]
    steps, size, before = list(result.steps), max(1, len(result.steps) // 2), -1
    while size or before != len(steps):
        size = size or 1
        before, at = len(steps), 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size :]
            fault = replay(result.setting, fewer, healing=result.healing)
            if fault and fault.split(":")[1][:4] == kind:
                steps = fewer
            else:
                at += size
        size //= 2
    return tuple(steps)


def command(setting: Setting, steps: Iterable[Step]) -> str:
    """Return the command that replays exactly these steps."""
    return f"cd tests; python -m model.walks --setting '{json.dumps(asdict(setting))}' --steps '{list(steps)}'"


def report(result: Result) -> None:
    """Print a failing walk, shrunk, as a list of steps and a command."""
    steps = shrink(result)
    print(f"seed {result.seed}: {result.fault}; shrunk from {len(result.steps)} to {len(steps)} steps:")
    print(f"  {result.setting}")
    print(f"  {replay(result.setting, steps, tell=True)}")
    print(f"  {command(result.setting, steps)}")


def main() -> int:
    """Run the command. Returns the exit code: 0 if no walk failed."""
    parser = argparse.ArgumentParser(prog="python -m model.walks", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", default="0:500", metavar="A:B")
    parser.add_argument("--minutes", type=float, help="go on from A for so long")
    parser.add_argument("--setting", help="JSON, with --steps")
    parser.add_argument("--steps", help="a list, as a failing walk prints it")
    arguments = parser.parse_args()
    if arguments.steps:
        values = json.loads(arguments.setting)
        setting = Setting(values["replicas"], values["spares"], TopicConfig(**values["config"]))
        fault = replay(setting, ast.literal_eval(arguments.steps), tell=True)
        print(fault)
        return 1 if fault else 0
    if arguments.seed is not None:
        result = walk(arguments.seed)
        replay(result.setting, result.steps, tell=True)
        print(result.fault)
        return 1 if result.fault else 0
    first, last = (int(text or 0) for text in arguments.seeds.split(":"))
    began, totals, failed, seed = time.monotonic(), dict[str, int](), 0, first
    while (time.monotonic() - began < arguments.minutes * 60) if arguments.minutes else seed < last:
        result = walk(seed)
        seed += 1
        for name, count in result.counts.items():
            totals[name] = totals.get(name, 0) + count
        if result.fault:
            failed += 1
            if failed <= 3:
                report(result)
    seconds = time.monotonic() - began
    for name, count in sorted(totals.items()):
        print(f"{count:9} {name}")
    steps = sum(count for name, count in totals.items() if " " not in name)
    print(f"{seed - first} walks, {failed} failed, {steps} steps, {steps / seconds:.0f}/s, {seconds:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
