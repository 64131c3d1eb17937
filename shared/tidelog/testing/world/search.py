"""The search for a seed with which a test fails, over all cores, and for the fewest faults that it needs.

Each run has a process of its own, which is forked and ends with the run. So a test function begins with the same
state for every seed, whatever it and its fixtures keep in variables, and what a run replaces in Python and trio
(``entropy``) is gone with the process.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing.connection import Connection, Pipe, wait

from tidelog.client.trio_loop import connect
from tidelog.testing.world.faults import Calm, WorldFault
from tidelog.testing.world.run import WorldRun
from tidelog.testing.world.world import World

RUN_LIMIT_S = 300.0
"""Real seconds that one run may take."""
ENDLESS, DIED = "Endless", "Died"
"""Kinds of results of runs that took longer, and whose process ended without a result."""
SHRINK_RUNS = 60
"""Most runs that the search for fewer faults makes."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run to make: a seed, and the faults if not those that the seed draws."""

    seed: int
    calm: Calm
    faults: tuple[WorldFault, ...] | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run. ``kind`` is the name of the exception's class; "" if the test has passed."""

    attempt: Attempt
    kind: str = ""
    text: str = ""
    """The traceback of the exception."""
    struck: tuple[WorldFault, ...] = ()
    """The faults that have struck."""
    calm: Calm = field(default_factory=Calm)
    """What the programs did in the run."""
    digest: str = ""
    seconds: float = 0.0
    """The virtual seconds of the run."""
    cpu_s: float = 0.0

    @property
    def failed(self) -> bool:
        """Return whether the test has failed."""
        return bool(self.kind)

    @property
    def was_lost(self) -> bool:
        """Return whether the process of the run has ended without a result, or was ended since it had none."""
        return self.kind in (ENDLESS, DIED)


@dataclass(frozen=True, slots=True)
class Found:
    """A failure: the run to repeat, with as few faults as the search found to be enough, and its result."""

    attempt: Attempt
    result: Result
    drawn: int
    """How many faults struck before the search for fewer."""
    without_faults: bool = False
    """Whether the test fails without any fault."""


Test = Callable[[World], object]


def run_here(test: Test, attempt: Attempt, world: World | None = None, trace: list[str] | None = None) -> Result:
    """Make a run in this process and return its result. Raises nothing but what ends the process. ``world``: the
    world that the test gets; by default a new one. The lines of the trace are added to ``trace``."""
    runs: list[WorldRun] = []
    world = world or World()
    world.prepare(attempt.seed, calm=attempt.calm, faults=attempt.faults, on_end=runs.append)
    began, kind, text = time.process_time(), "", ""
    try:
        test(world)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        kind, text = type(error).__name__, "".join(traceback.format_exception(error))
    if not runs:
        return Result(attempt, kind, text)
    if trace is not None:
        trace += runs[0].trace
    run = runs[0]
    cpu_s = time.process_time() - began
    return Result(attempt, kind, text, tuple(run.struck), run.calm, run.digest, run.seconds, cpu_s)


def run_each(
    test: Test, attempts: Iterable[Attempt], jobs: int, world: World | None = None
) -> Iterator[tuple[int, Result]]:
    """Make runs, ``jobs`` at a time, each in a process of its own, and yield each result with the number of its
    attempt, in the order in which they end. Processes that still run are ended when the caller stops."""
    children: dict[Connection, tuple[int, int, Attempt, float]] = {}
    numbered = enumerate(attempts)
    try:
        while True:
            while len(children) < jobs and (following := next(numbered, None)) is not None:
                number, attempt = following
                pid, reader = _fork(test, attempt, world)
                children[reader] = (number, pid, attempt, time.monotonic())
            if not children:
                return
            ready = wait(list(children), timeout=1.0)
            for reader, (number, pid, attempt, since) in list(children.items()):
                late = time.monotonic() - since > RUN_LIMIT_S
                if reader in ready or late:
                    del children[reader]
                    yield number, _collect(reader, pid, attempt, late)
    finally:
        for reader, (_, pid, _, _) in children.items():
            _end(reader, pid)


@cache
def warm_up() -> None:
    """Run a small world once in this process, so that its children have loaded and prepared all modules already."""

    async def works(address: str) -> None:
        async with connect(address) as log:
            async with log.transaction("warm-up") as tx:
                await tx.send("warm-up", b"")
            async with log.consume("warm-up", group="warm-up") as consumer:
                await anext(aiter(consumer))

    world = World()
    world.faults()
    world.topic("warm-up")
    world.program(works)
    world.run()


def _fork(test: Test, attempt: Attempt, world: World | None) -> tuple[int, Connection]:
    """Start a process that makes a run and sends its result. Return its id, and where the result arrives."""
    reader, writer = Pipe(duplex=False)
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads do nothing that the child needs
        pid = os.fork()
    if pid:
        writer.close()
        return pid, reader
    try:
        reader.close()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        writer.send_bytes(pickle.dumps(run_here(test, attempt, world)))
        writer.close()
    finally:
        os._exit(0)


def _collect(reader: Connection, pid: int, attempt: Attempt, late: bool) -> Result:
    """Return the result that a process has sent, or what became of it."""
    result = Result(attempt, DIED, "the process of the run ended without a result")
    if late:
        result = Result(attempt, ENDLESS, f"the run takes longer than {RUN_LIMIT_S:g} s: does a program spin?")
    else:
        with suppress(EOFError, OSError):  # it ended before it had sent all
            result = pickle.loads(reader.recv_bytes())
    _end(reader, pid)
    return result


def _end(reader: Connection, pid: int) -> None:
    """End a process, and wait for its end."""
    reader.close()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def search(
    test: Test,
    seeds: Sequence[int],
    *,
    jobs: int | None = None,
    shrink: bool = True,
    world: World | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Found | None:
    """Run a test without faults and then with each seed, and stop at the first that fails; return that failure with
    as few faults as are needed, or None. ``test`` is a function that declares and runs the world that it gets. With
    ``jobs`` None as many runs are made at once as there are cores. ``on_result`` is called after each run."""
    jobs = jobs or cores()
    warm_up()
    ((_, first),) = run_each(test, [Attempt(0, Calm(), ())], 1, world)
    on_result(first)
    if first.failed:
        return Found(first.attempt, first, 0, without_faults=True)
    failed = None
    for _, result in run_each(test, (Attempt(seed, first.calm) for seed in seeds), jobs, world):
        on_result(result)
        if result.failed:
            failed = result
            break
    if failed is None:
        return None
    attempt = replace(failed.attempt, faults=failed.struck)
    if not shrink or failed.was_lost:  # each run of an endless one would take ``RUN_LIMIT_S``
        return Found(attempt, failed, len(failed.struck))
    return _shrink(test, attempt, failed, jobs, world)


def _shrink(test: Test, attempt: Attempt, failed: Result, jobs: int, world: World | None) -> Found:
    """Leave out ever smaller parts of the faults, as long as the test fails with the same exception (delta
    debugging)."""
    best, left, size = failed, SHRINK_RUNS, max(1, len(failed.struck) // 2)
    faults = tuple(failed.struck)
    while faults and left > 0:
        fewer = [faults[:place] + faults[place + size :] for place in range(0, len(faults), size)]
        left -= len(fewer)
        smaller: Result | None = None
        for _, result in run_each(test, [replace(attempt, faults=some) for some in fewer], jobs, world):
            if result.kind == failed.kind:
                smaller = result
                break
        if smaller is not None:
            best, faults = smaller, tuple(smaller.struck)
            size = max(1, min(size, len(faults) // 2))
        elif size == 1:
            break
        else:
            size = max(1, size // 2)
    return Found(replace(attempt, faults=faults if best is not failed else attempt.faults), best, len(failed.struck))


def cores() -> int:
    """Return how many runs are made at once: one for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
