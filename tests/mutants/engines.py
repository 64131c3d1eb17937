"""Engines that a mutant may be noticed by: the scenarios, the seeds of the simulation, and the unit tests that it
names. A rule of Raft also has the tests of its paper, and the random walks over Raft's cores. A rule of the real disk
has the power losses of ``crash_points``, and nothing else: all others run on the simulated disk.

The random walks over the other cores, and the exhaustive search, are in ``model/mutants.py``.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import scenarios as staged
from crash_points import replay, store
from crash_points.replay import Replayed
from simulation.cluster import Cluster
from simulation.runner import Case, run_case
from simulation.shrink import Shrinker
from simulation.world.loop import Loop

from mutants.rules import Mutant

SCENARIO = re.compile(r"test_[A-E][0-9]+_")
_VALUES = type(pytest.param())
STEPS_MAX = 400_000
"""A scenario, seed or walk that takes so many steps spins."""
WALK_STEPS = 2500


@dataclass(frozen=True, slots=True)
class Notice:
    """How a mutant was noticed. ``steps`` of the simulated cluster until then; 0: there was none."""

    where: str
    what: str
    steps: int


class Spins(Exception):
    """The mutant makes the cluster busy without end."""


@contextmanager
def broken(mutant: Mutant) -> Iterator[list[Cluster]]:
    """The rule is broken meanwhile; the clusters that come about."""
    clusters: list[Cluster] = []
    begin, run_until = Cluster.__init__, Loop.run_until

    def note(self: Cluster, *arguments: Any, **options: Any) -> None:
        clusters.append(self)
        begin(self, *arguments, **options)

    def run(self: Loop, time: float, stop: Callable[[], bool] | None = None) -> None:
        limit = self.steps + STEPS_MAX

        def stop_or_spin() -> bool:
            if self.steps > limit:
                raise Spins(f"{STEPS_MAX} steps within {time - self.now} s")
            return stop is not None and stop()

        run_until(self, time, stop_or_spin)

    node, taken = importlib.import_module("support.raft_network").Node, itertools.count()
    perform = node.perform

    def perform_or_spin(self: Any, effects: Any) -> None:
        if next(taken) > STEPS_MAX:
            raise Spins(f"{STEPS_MAX} messages and ticks")
        perform(self, effects)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "__init__", note)
        patch.setattr(Loop, "run_until", run)
        patch.setattr(node, "perform", perform_or_spin)
        mutant.apply(patch)
        yield clusters


def scenarios(files: str = "") -> dict[str, Callable[[], None]]:
    """Every case of every scenario (of those files), by a name as pytest has it. Those that break a rule themselves
    are left out."""
    paths = sorted(Path(staged.__path__[0]).glob(f"test_{files}*.py"))
    return _cases([importlib.import_module(f"scenarios.{path.stem}") for path in paths], SCENARIO)


def paper() -> dict[str, Callable[[], None]]:
    """Every case of the Raft paper's tests, likewise."""
    return _cases([importlib.import_module("unit.controller.raft.test_paper")], re.compile("test_"))


def unit_tests(mutant: Mutant) -> dict[str, Callable[[], None]]:
    """Every case of the unit tests that the mutant names, likewise; those that need a fixture are left out, and
    those of hypothesis, which are other ones each time."""
    cases = _cases([importlib.import_module(name) for name in mutant.tests], re.compile("test_"))
    return {name: case for name, case in cases.items() if not hasattr(case.func, "hypothesis")}  # type: ignore[attr-defined]


def _cases(modules: list[ModuleType], wanted: re.Pattern[str]) -> dict[str, Callable[[], None]]:
    found: dict[str, Callable[[], None]] = {}
    for module in modules:
        for name, function in vars(module).items():
            if wanted.match(name):
                for values in _parameters(function):
                    if set(inspect.signature(function).parameters) - set(values):
                        continue  # it needs a fixture
                    label = f"[{'-'.join(map(str, values.values()))}]" if values else ""
                    found[f"{name}{label}"] = partial(function, **values)
    return found


def _parameters(function: Any) -> Iterator[dict[str, Any]]:
    """What ``parametrize`` gives a test, case by case."""
    axes = []
    for mark in getattr(function, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names, values = mark.args[0], list(mark.args[1])
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        sets = [
            value.values if isinstance(value, _VALUES) else value if len(names) > 1 else (value,) for value in values
        ]
        axes.append([dict(zip(names, values, strict=True)) for values in sets])
    for combination in itertools.product(*axes):
        yield {name: value for part in combination for name, value in part.items()}


def try_scenario(mutant: Mutant, name: str, scenario: Callable[[], None]) -> Notice | None:
    """Run one with the rule broken; None where it succeeds all the same."""
    with broken(mutant) as clusters:
        try:
            scenario()
        except (Exception, pytest.fail.Exception) as error:
            return Notice(name, _told(error), sum(cluster.loop.steps for cluster in clusters))
    return None


def try_seed(mutant: Mutant, seed: int) -> Notice | None:
    """Run one with the rule broken; None where it holds all the same."""
    with broken(mutant):
        result = run_case(Case(seed))
    return None if result.fault is None else Notice(f"seed {seed}", str(result.fault), result.steps)


def try_walk(mutant: Mutant, number: int) -> Notice | None:
    """One random walk over Raft's cores with the rule broken; every other one changes the group, too."""
    module, name = (
        ("unit.controller.raft.test_random_walks", "Walk"),
        ("unit.controller.raft.test_membership_random", "GroupWalk"),
    )[number % 2]
    with broken(mutant):
        walk = getattr(importlib.import_module(module), name)((3, 5)[number // 2 % 2], number)
        try:
            walk.run(WALK_STEPS)
        except Exception as error:
            return Notice(f"walk {number}", str(error).split("\n")[0] or type(error).__name__, 0)
    return None


def try_power_losses(mutant: Mutant) -> Notice | None:
    """Record a program that breaks the rule, and lose the power at each of its system calls."""
    if mutant.store:
        seeds = range(len(store.LIVES))
        replayed: Iterable[Replayed] = (store.run(seed, 0, mutant.name, flips=False) for seed in seeds)
    else:
        replayed = [replay.run(0, rounds=1, losses=0, mutant=mutant.name)]
    return next((Notice("power losses", run.fault, 0) for run in replayed if run.fault), None)


def fewest_faults(mutant: Mutant, seed: int, runs: int) -> int:
    """How many faults of that seed are left when those that are not needed are dropped, within so many runs."""
    with broken(mutant):
        case = Shrinker(run_case(Case(seed)), runs).shrink()
    return len(case.strikes or ())


def _told(error: BaseException) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0] or 'an assertion fails'}"
