"""``python -m simulation``: replay one seed, or run many."""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from simulation.cluster import Cluster, Options


@dataclass(frozen=True, slots=True)
class Result:
    """How a seed went. ``fault`` is None when all held."""

    seed: int
    fault: str | None
    counts: dict[str, int]
    steps: int


def run_seed(seed: int, duration: float = 7.0) -> Result:
    """Run one seed to its end, or to its first fault."""
    cluster = Cluster(Options.draw(seed, duration))
    fault = None
    try:
        cluster.run()
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__}: {error} [{where.filename.rsplit('/', 1)[-1]}:{where.lineno}]"
    return Result(seed, fault, cluster.counts, cluster.loop.steps)


def replay(seed: int, duration: float, trace: bool) -> int:
    """Run one seed in the open: its trace, its counts, its digest. 1 when it fails."""
    digest = hashlib.blake2b(digest_size=16)

    def take(line: str) -> None:
        digest.update(line.encode())
        if trace:
            print(line)

    cluster = Cluster(Options.draw(seed, duration), take)
    code = 0
    try:
        cluster.run()
    except Exception:
        traceback.print_exc()
        code = 1
    for name, count in sorted(cluster.counts.items()):
        print(f"{count:8} {name}")
    print(f"seed {seed}: {cluster.loop.steps} steps, {cluster.loop.now:.1f} s, trace {digest.hexdigest()}")
    return code


def run_many(seeds: range, duration: float, jobs: int) -> Iterator[Result]:
    """Results as they come, in order of their seeds."""
    if jobs == 1:
        yield from (run_seed(seed, duration) for seed in seeds)
        return
    with multiprocessing.Pool(jobs) as pool:
        yield from pool.imap(_Run(duration), seeds, chunksize=4)


@dataclass(frozen=True, slots=True)
class _Run:
    duration: float

    def __call__(self, seed: int) -> Result:
        return run_seed(seed, self.duration)


def main() -> int:
    """Exit code 0 when no seed failed."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every step")
    parser.add_argument("--seeds", default="0:200", metavar="A:B", help="run A up to, but without, B")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--duration", type=float, default=7.0, help="virtual seconds of load and faults per seed")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return replay(arguments.seed, arguments.duration, arguments.trace)
    first, last = (int(text) for text in arguments.seeds.split(":"))
    seeds, totals, failed, began = range(first, last), dict[str, int](), 0, time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, transient=not sys.stdout.isatty()) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for result in run_many(seeds, arguments.duration, arguments.jobs):
            progress.advance(task)
            for name, count in result.counts.items():
                totals[name] = totals.get(name, 0) + count
            if result.fault is not None:
                failed += 1
                progress.console.print(f"seed {result.seed}: {result.fault}", markup=False, highlight=False)
                duration = "" if arguments.duration == 7.0 else f" --duration {arguments.duration}"
                progress.console.print(f"  python -m simulation --seed {result.seed}{duration} --trace", markup=False)
    for name, count in sorted(totals.items()):
        print(f"{count:8} {name}")
    print(f"{len(seeds)} seeds, {failed} failed, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
