"""How fast a world finds the bugs of the programs in ``docs/examples/buggy``, and whether their mended twins pass.

    .venv/bin/python deploy/bench/buggy.py [--first-seed 0] [--seeds 20] [--limit 200] [--jobs 2] [--json FILE] [NAME]

For each program one run has no faults, and then the seeds from ``--first-seed`` on run, ``--jobs`` at a time, until
an invariant is broken. The table has the number of runs with faults until then (0: the bug shows without any), and
the wall-clock seconds and the CPU time of all of it. Then the mended twin runs under ``--seeds`` seeds, from the same
one on, and each must pass; ``--seeds 0`` leaves the twins out. The exit code is 1 if a bug is not found within
``--limit`` seeds, or a twin fails. Measure a change of how faults are drawn on seeds that were not used to choose it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
SHARED = ("__init__", "shop")
"""Modules of the folder that are no program."""


@dataclass
class Found:
    """What the seeds of one program have shown."""

    name: str
    seeds: int = 0
    """Runs of the buggy program with faults until one failed."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    broken: str = ""
    """What the invariant said; "" if the bug was not found."""
    twin_seeds: int = 0
    twin_seconds: float = 0.0
    twin_cpu_s: float = 0.0
    twin_failures: tuple[str, ...] = ()
    """The failures of the mended twin, each with its seed."""


def names() -> list[str]:
    """Return the names of the programs."""
    return sorted(path.stem for path in (EXAMPLES / "buggy").glob("*.py") if path.stem not in SHARED)


def measure(name: str, first_seed: int, limit: int, twin_seeds: int, jobs: int) -> Found:
    """Look for the bug of a program, and run its mended twin, from ``first_seed`` on, ``jobs`` runs at a time."""
    from tidelog.testing.world.faults import Calm
    from tidelog.testing.world.search import Attempt, Result, run_each, search

    example = import_module(f"buggy.{name}")
    found = Found(name)
    began = time.perf_counter()
    runs: list[Result] = []
    failure = search(
        lambda world: example.check(world, example.buggy),
        range(first_seed, first_seed + limit),
        jobs=jobs,
        shrink=False,
        on_result=runs.append,
    )
    found.seconds = time.perf_counter() - began
    found.cpu_s = sum(run.cpu_s for run in runs)
    found.seeds = len(runs) - 1  # the first run has no faults
    if failure is not None:
        found.broken = failure.result.text.strip().splitlines()[-1].partition(": ")[2]
    if not twin_seeds:
        return found
    began = time.perf_counter()

    def run_twin(world: object) -> None:
        example.check(world, example.mended)

    ((_, first),) = run_each(run_twin, [Attempt(0, Calm(), ())], 1)
    seeds = [Attempt(seed, first.calm) for seed in range(first_seed, first_seed + twin_seeds)]
    results = [first] if first.failed else [result for _, result in run_each(run_twin, seeds, jobs)]
    found.twin_seeds = len(results)
    found.twin_cpu_s = first.cpu_s + sum(result.cpu_s for result in results if result is not first)
    found.twin_failures = tuple(
        f"seed {result.attempt.seed}: {result.text.strip().splitlines()[-1]}" for result in results if result.failed
    )
    found.twin_seconds = time.perf_counter() - began
    return found


def show(results: list[Found]) -> Table:
    """Return the results as a table."""
    table = Table(
        *("program", "runs until found", "seconds", "CPU s", "what is broken"),
        *("twin: seeds passed", "seconds", "CPU s"),
    )
    for one in sorted(results, key=lambda one: one.name):
        passed = f"{one.twin_seeds - len(one.twin_failures)} of {one.twin_seeds}"
        table.add_row(
            one.name,
            str(one.seeds) if one.broken else f"not in {one.seeds}",
            f"{one.seconds:.1f}",
            f"{one.cpu_s:.1f}",
            one.broken[:70],
            passed,
            f"{one.twin_seconds:.0f}",
            f"{one.twin_cpu_s:.1f}",
        )
    return table


@click.command()
@click.argument("chosen", nargs=-1, metavar="[NAME …]")
@click.option("--first-seed", default=0, show_default=True, help="The first seed of each program and of each twin.")
@click.option("--seeds", default=20, show_default=True, help="Seeds of each mended twin.")
@click.option("--limit", default=200, show_default=True, help="Most seeds until a bug is found.")
@click.option("--jobs", default=os.cpu_count() or 1, help="Runs at a time; by default one per core.")
@click.option("--json", "into", type=click.Path(path_type=Path), help="Write the figures to this file, too.")
def main(chosen: tuple[str, ...], first_seed: int, seeds: int, limit: int, jobs: int, into: Path | None) -> None:
    """Find the bugs of the twenty programs, and run their mended twins."""
    sys.path.insert(0, str(EXAMPLES))
    results: list[Found] = []
    console = Console()
    for name in chosen or names():
        one = measure(name, first_seed, limit, seeds, jobs)
        results.append(one)
        console.print(
            f"{name}: {'found in' if one.broken else 'not found in'} {one.seeds} runs, {one.seconds:.1f} s, "
            f"{one.cpu_s:.1f} s of CPU; {len(one.twin_failures)} of {one.twin_seeds} seeds of the twin fail"
        )
        for failure in one.twin_failures:
            console.print(f"  {failure}", style="red")
        if into is not None:
            into.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    console.print(show(results))
    sys.exit(any(not one.broken or one.twin_failures for one in results))


if __name__ == "__main__":
    main()
