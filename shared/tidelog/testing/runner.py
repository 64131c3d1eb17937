"""Runs of the simulation as values: a case, its result, and many of them over several processes."""

from __future__ import annotations

import json
import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tidelog.testing.cluster import Cluster, Options
from tidelog.testing.faults.strikes import Strike
from tidelog.testing.hardware.disk import PowerLost
from tidelog.testing.invariants.ghost import Violation
from tidelog.testing.shells.run import ByteCluster

DURATION = 7.0
"""The virtual seconds of load of a run; faults come in the first three quarters."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run: everything that a seed determines, or less of it. ``strikes`` and ``clients`` None: as the seed draws
    them."""

    seed: int
    duration: float = DURATION
    strikes: tuple[Strike, ...] | None = None
    clients: tuple[str, ...] | None = None
    transactions: bool = False
    """Whether the run has transactions even if the seed draws none."""
    majority: bool = False
    """Whether the majority of the controllers is lost for a while even if the seed does not draw that."""
    foreign: bool = False
    """Whether the run has a foreign client even if the seed draws none."""

    def options(self) -> Options:
        """Return the options of the run."""
        drawn = Options.draw(self.seed, self.duration)
        transactions, foreign = drawn.transactions or self.transactions, drawn.foreign or self.foreign
        if self.majority:
            # a server that restarts meanwhile serves nobody, and neither does a cluster that is founded late
            pause_s = drawn.swarm.mean_pause if self.seed % 2 else 1.0
            swarm = replace(drawn.swarm, founding=0, majorities=2, mean_pause=pause_s)
            drawn = replace(drawn, swarm=swarm)
        return replace(drawn, strikes=self.strikes, only=self.clients, transactions=transactions, foreign=foreign)

    def save(self, path: Path) -> None:
        """Write the case to a file as JSON."""
        strikes = None if self.strikes is None else [strike.data() for strike in self.strikes]
        data = {**asdict(self), "strikes": strikes}
        path.write_text(json.dumps(data, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read a case that ``save`` wrote."""
        data = json.loads(path.read_text())
        strikes = None if data["strikes"] is None else tuple(Strike.of(strike) for strike in data["strikes"])
        clients = None if data["clients"] is None else tuple(data["clients"])
        return cls(**{**data, "strikes": strikes, "clients": clients})


@dataclass(frozen=True, slots=True)
class Fault:
    """How a run failed. ``kind`` is the id of an invariant, the kind of an anomaly, or an exception with its place;
    two runs with the same kind count as the same failure."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Fault:
        """Return the failure that an exception of a run stands for."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}"
        text = str(error)
        if isinstance(error, Violation):
            return cls(text.split(" ")[0].rstrip(":"), f"{text} [{where}]")
        return cls(f"{type(error).__name__} {where}", f"{type(error).__name__}: {text} [{where}]")

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case. ``fault`` is None if everything held."""

    case: Case
    fault: Fault | None
    counts: dict[str, int]
    steps: int
    seconds: float
    """The virtual seconds that the run took."""
    strikes: tuple[Strike, ...] = ()
    """The faults that struck; only filled if the run failed."""

    @property
    def seed(self) -> int:
        """The seed of the case."""
        return self.case.seed


def run_case(case: Case, trace: Callable[[str], None] | None = None) -> Result:
    """Run a case to its end or its first failure, and return the result. ``trace`` gets the lines of the trace."""
    cluster = Cluster(case.options(), trace)
    fault = None
    try:
        cluster.run()
    except (Exception, PowerLost) as error:
        fault = Fault.of(error)
    struck = () if fault is None else tuple(cluster.faults.struck)
    return Result(case, fault, cluster.counts, cluster.loop.steps, cluster.loop.now, struck)


def run_seed(
    seed: int,
    duration: float = DURATION,
    transactions: bool = False,
    majority: bool = False,
    foreign: bool = False,
) -> Result:
    """Run the case of a seed and return the result."""
    return run_case(Case(seed, duration, transactions=transactions, majority=majority, foreign=foreign))


def run_bytes(seed: int, trace: Callable[[str], None] | None = None) -> Result:
    """Run a seed at the byte level (real shells and transports) and return the result."""
    cluster = ByteCluster(seed, trace)
    fault = None
    try:
        cluster.run()
    except Exception as error:  # also groups of them: what a nursery raised
        fault = Fault.of(innermost(error))
    return Result(Case(seed), fault, cluster.counts, cluster.counts.get("pieces received", 0), cluster.seconds)


def innermost(error: Exception) -> Exception:
    """Return the first exception inside of nested exception groups."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def run_many(seeds: range, run: Callable[[int], Result], jobs: int) -> Iterator[Result]:
    """Run all seeds over ``jobs`` processes and yield the results in the order in which they finish."""
    if jobs == 1:
        yield from map(run, seeds)
        return
    ignore = (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever takes the results
    with multiprocessing.Pool(jobs, signal.signal, ignore) as pool:
        yield from pool.imap_unordered(run, seeds, chunksize=2)


class Tally:
    """The sums over the results of a range of seeds."""

    def __init__(self) -> None:
        self.seeds = 0
        self.last = -1
        """The largest seed that was run; -1 before the first."""
        self.steps = 0
        self.seconds = 0.0
        self.counts: dict[str, int] = {}
        self.failed: list[Result] = []
        self._began = time.monotonic()

    def add(self, result: Result) -> None:
        """Count the result of one more seed."""
        self.seeds += 1
        self.last = max(self.last, result.seed)
        self.steps += result.steps
        self.seconds += result.seconds
        for name, count in result.counts.items():
            self.counts[name] = self.counts.get(name, 0) + count
        if result.fault is not None:
            self.failed.append(result)

    @property
    def took(self) -> float:
        """The real seconds since the tally was created."""
        return time.monotonic() - self._began

    @property
    def faults(self) -> dict[str, int]:
        """The number of injected faults by kind."""
        prefix = "fault "
        counts = sorted(self.counts.items())
        return {name.removeprefix(prefix): count for name, count in counts if name.startswith(prefix)}

    @property
    def summary(self) -> str:
        """A summary in one line."""
        took = max(self.took, 0.01)
        rates = f"{self.seeds / took:.1f} seeds/s, {self.seconds / took:.0f} simulated s/s"
        return (
            f"{self.seeds} seeds, {len(self.failed)} failed; {sum(self.faults.values())} faults injected,"
            f" {self.steps} steps, {self.seconds:.0f} s simulated in {took:.1f} s: {rates}"
        )

    def data(self) -> dict[str, Any]:
        """Return the sums as a document for JSON."""
        took = max(self.took, 0.01)
        return {
            "seeds": self.seeds,
            "failed": {str(result.seed): str(result.fault) for result in self.failed},
            "faults_injected": sum(self.faults.values()),
            "real_seconds": round(took, 1),
            "virtual_seconds": round(self.seconds, 1),
            "seeds_per_second": round(self.seeds / took, 2),
            "virtual_seconds_per_second": round(self.seconds / took, 1),
            "steps": self.steps,
            "faults": self.faults,
            "counts": {n: c for n, c in sorted(self.counts.items()) if not n.startswith("fault ")},
        }
