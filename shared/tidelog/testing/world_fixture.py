"""The fixture ``tidelog_world`` and its options: a test that uses it is run over many seeds.

Nothing but pytest is imported until a test uses the fixture.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from tidelog.testing.world.search import Attempt, Found, Result
    from tidelog.testing.world.world import World

FIXTURE = "tidelog_world"
SEEDS = 20
FOLDER = ".tidelog"
"""The folder in the root of the tests for the traces of failures."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of worlds."""
    group = parser.getgroup("tidelog", "worlds of tidelog.testing")
    group.addoption(
        "--tidelog-seeds",
        type=_number,
        metavar="N",
        help="run each world test without faults and over the seeds 0 to N-1",
    )
    group.addoption("--tidelog-seed", type=_number, metavar="S", help="run each world test with this seed")
    group.addoption(
        "--tidelog-jobs", type=_number, metavar="J", help="how many runs at a time; 0, the default: one for each core"
    )
    parser.addini("tidelog_seeds", f"the seeds of each world test (default {SEEDS})", default=str(SEEDS))


def _number(text: str) -> int:
    """Return the number that an option gives. Raises ``ArgumentTypeError`` if it is none, or negative."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return int(text)


@pytest.fixture
def tidelog_world() -> World:
    """A simulated cluster for programs, in virtual time, under faults that a seed decides. The test declares topics,
    programs and invariants, and calls ``run()`` (``tidelog.testing.World``). It is a plain function, and is called
    once for each seed, in a process of its own: ``--tidelog-seeds N``, the ini option ``tidelog_seeds``, or
    ``--tidelog-seed S`` for one. A failure is run again in this process with as few faults as it needs."""
    from tidelog.testing.world.world import World

    return World()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Call a test that uses ``tidelog_world`` once for each seed; leave other tests to pytest."""
    if FIXTURE not in pyfuncitem.fixturenames:
        return None
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pytest.fail(f"a test with {FIXTURE} is a plain function: the world runs trio itself", pytrace=False)
    _SeededTest(pyfuncitem).run()
    return True


class _SeededTest:
    """A test that is called once for each seed."""

    def __init__(self, item: pytest.Function) -> None:
        self._item = item
        self._config = item.config
        self._world = cast("World", item.funcargs[FIXTURE])
        self._done = 0
        self._seeds = _seeds(item.config)

    def run(self) -> None:
        """Search for a seed that fails, and replay it in this process, so that it fails with its own exception."""
        from tidelog.testing.world.search import search

        found = search(
            self._call, self._seeds, jobs=_jobs(self._config), world=self._world, on_result=self._show_progress
        )
        self._clear_progress()
        if found is not None:
            self._replay(found)

    def _call(self, world: World) -> None:
        arguments = {name: self._item.funcargs[name] for name in self._item._fixtureinfo.argnames}
        self._item.obj(**arguments)
        if not world.has_run:
            pytest.fail("the test does not call world.run(), so nothing was judged", pytrace=False)

    def _replay(self, found: Found) -> None:
        """Run a failure again, and raise its exception with how to replay it. One whose process was lost is not run
        again: it might never end here."""
        from tidelog.testing.world.run import InvariantBroken

        attempt = found.attempt
        if found.result.was_lost:
            pytest.fail(f"{found.result.text}\n{self._describe(found)}", pytrace=False)
        try:
            self._world.prepare(attempt.seed, calm=attempt.calm, faults=attempt.faults)
            self._call(self._world)
        except BaseException as error:
            if not self._world.has_run:  # a declaration is wrong
                raise
            text = self._describe(found, self._write_trace(attempt))
            if isinstance(error, InvariantBroken):
                raise InvariantBroken(f"{error}\n{text}") from None
            error.add_note(text)
            raise
        raise RuntimeError(
            f"seed {attempt.seed} failed in a process of its own and passes here: the test depends on something"
            f" besides the seed\n{found.result.text}"
        )

    def _describe(self, found: Found, trace: Path | None = None) -> str:
        """Return the seed, the way to replay it, its faults and its trace, if it has one, as text."""
        attempt = found.attempt
        if found.without_faults:
            lines = ["it fails without any fault"]
        else:
            count = len(attempt.faults or ())
            lines = [f"seed {attempt.seed}, with {count} of {found.drawn} faults:"]
            lines += [f"  - {fault}" for fault in attempt.faults or ()]
            if not count:
                lines.append(
                    "It fails without these faults, and passed before: does something outlive a run, such as"
                )
                lines.append("a variable of a module, or a file in a folder of a fixture?")
        lines.append(f"replay: pytest {shlex.quote(self._item.nodeid)} --tidelog-seed {attempt.seed}")
        return "\n".join(lines if trace is None else [*lines, f"trace:  {trace}"])

    def _write_trace(self, attempt: Attempt) -> Path:
        """Write the trace of the last run to a file and return its path, relative to where pytest runs if it is
        below."""
        folder = self._config.rootpath / FOLDER
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        name = re.sub(r"[^\w.-]+", "-", self._item.nodeid.rpartition("/")[2])
        path = folder / f"{name}-seed-{attempt.seed}.trace"
        path.write_text("\n".join(self._world.trace) + "\n")
        here = self._config.invocation_params.dir
        return path.relative_to(here) if path.is_relative_to(here) else path

    # --- progress ----------------------------------------------------------------------------------------

    def _show_progress(self, result: Result) -> None:
        """Show on a terminal how many seeds have passed."""
        self._done += 1
        terminal = self._terminal()
        if terminal is not None:
            name = self._item.name
            terminal.write(f"\r{name}: {max(0, self._done - 1)} of {len(self._seeds)} seeds")
            terminal.flush()

    def _clear_progress(self) -> None:
        terminal = self._terminal()
        if terminal is not None:
            terminal.write("\r" + " " * 78 + "\r")
            terminal.flush()

    def _terminal(self) -> Any:
        """Return the terminal; None if there is none, or if it belongs to another process."""
        if len(self._seeds) < 2 or hasattr(self._config, "workerinput") or not os.isatty(2):
            return None
        return sys.__stderr__


def _seeds(config: pytest.Config) -> list[int]:
    """Return the seeds over which world tests are run."""
    one, many = config.getoption("--tidelog-seed"), config.getoption("--tidelog-seeds")
    if one is not None:
        return [one]
    if many is None:
        try:
            many = _number(config.getini("tidelog_seeds"))
        except argparse.ArgumentTypeError as error:
            raise pytest.UsageError(f"tidelog_seeds: {error}") from None
    return list(range(many))


def _jobs(config: pytest.Config) -> int:
    """Return how many runs are made at a time: as many as there are cores, divided among the workers of xdist."""
    from tidelog.testing.world.search import cores

    given = config.getoption("--tidelog-jobs")
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    return int(given) if given else max(1, cores() // workers)
