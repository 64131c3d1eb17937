"""The engines that can notice a mutant: the scenarios, the seeds of the simulation, and the unit tests that it
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
from tidelog.testing.cluster import Cluster
from tidelog.testing.hardware.loop import Loop
from tidelog.testing.runner import Case, run_case
from tidelog.testing.shrink import Shrinker

from mutants.rules import Mutant

SCENARIO = re.compile(r"test_[A-E][0-9]+_")
_VALUES = type(pytest.param())
STEPS_MAX = 400_000
"""A scenario, seed or walk that takes more steps fails with `Spins`."""
WALK_STEPS = 2500


@dataclass(frozen=True, slots=True)
class Notice:
    """A failure by which an engine noticed a mutant: the case, the error text, and the steps of the simulated
    clusters until then (0 if the case has no cluster)."""

    where: str
    what: str
    steps: int


class Spins(Exception):
    """Raised when a mutant keeps a simulation busy for more than ``STEPS_MAX`` steps."""


@contextmanager
def broken(mutant: Mutant) -> Iterator[list[Cluster]]:
    """Break the rule within the context, and yield a list to which every simulated cluster created in it is added. A
    simulation that takes more than ``STEPS_MAX`` steps in one run raises `Spins`."""
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
    """Return every case of the scenarios whose file name begins with ``test_`` and ``files``, by its name in pytest.
    Cases that need a fixture are left out: they break a rule themselves."""
    paths = sorted(Path(staged.__path__[0]).glob(f"test_{files}*.py"))
    return _cases([importlib.import_module(f"scenarios.{path.stem}") for path in paths], SCENARIO)


def paper() -> dict[str, Callable[[], None]]:
    """Return every case of the tests of the Raft paper, by its name in pytest, without cases that need a fixture."""
    return _cases([importlib.import_module("unit.controller.raft.test_paper")], re.compile("test_"))


def unit_tests(mutant: Mutant) -> dict[str, Callable[[], None]]:
    """Return every case of the unit tests that the mutant names, by its name in pytest. Cases that need a fixture are
    left out, and tests of hypothesis, whose cases differ from run to run."""
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
    """Yield the arguments of every case that ``parametrize`` gives a test; one empty dict if it has no parameters."""
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
    """Run a case with the rule broken. Return its failure, or None if it passes."""
    with broken(mutant) as clusters:
        try:
            scenario()
        except (Exception, pytest.fail.Exception) as error:
            return Notice(name, _told(error), sum(cluster.loop.steps for cluster in clusters))
    return None


def try_seed(mutant: Mutant, seed: int) -> Notice | None:
    """Run a seed of the simulation with the rule broken. Return the violation, or None if no invariant is
    violated."""
    with broken(mutant):
        result = run_case(Case(seed))
    return None if result.fault is None else Notice(f"seed {seed}", str(result.fault), result.steps)


def try_walk(mutant: Mutant, number: int) -> Notice | None:
    """Run one random walk over Raft's cores with the rule broken, and return its failure, or None if it passes. Walks
    with an odd number also change the members of the group."""
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
    """Record a program that breaks the rule, and replay it with a power loss at each of its system calls. Return the
    first fault, or None if every recovery is right."""
    if mutant.store:
        seeds = range(len(store.LIVES))
        replayed: Iterable[Replayed] = (store.run(seed, 0, mutant.name, flips=False) for seed in seeds)
    else:
        replayed = [replay.run(0, rounds=1, losses=0, mutant=mutant.name)]
    return next((Notice("power losses", run.fault, 0) for run in replayed if run.fault), None)


def fewest_faults(mutant: Mutant, seed: int, runs: int) -> int:
    """Drop the faults of a seed that are not needed for the failure, in at most ``runs`` runs, and return the number
    of faults that are left."""
    with broken(mutant):
        case = Shrinker(run_case(Case(seed)), runs).shrink()
    return len(case.strikes or ())


def _told(error: BaseException) -> str:
    lines = str(error).strip().split("\n")
    return f"{type(error).__name__}: {lines[0] or 'an assertion fails'}"
