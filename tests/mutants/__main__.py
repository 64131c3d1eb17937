"""``python -m mutants``: break every rule in turn, and see which engines notice. Exit code 0 if each is noticed."""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from model.mutants import BEYOND, by_walks

from mutants import MUTANTS
from mutants.engines import (
    Notice,
    fewest_faults,
    paper,
    scenarios,
    try_power_losses,
    try_scenario,
    try_seed,
    try_walk,
    unit_tests,
)
from mutants.results import Record, load, save, write_pages
from mutants.rules import Mutant

SEEDS = 20
WALKS = 40
SHRINK_RUNS = 40


@dataclass(frozen=True, slots=True)
class Try:
    """A callable for a worker process: it runs all engines that can notice one mutant.

    ``seeds`` is the largest number of seeds of the simulation. With ``shrink``, the first seed that notices is shrunk
    to the fewest faults. A call takes the name of a mutant, and returns the name, the record, and the seconds that it
    took.
    """

    seeds: int
    shrink: bool

    def __call__(self, name: str) -> tuple[str, Record, float]:
        began, mutant = time.monotonic(), MUTANTS[name]
        if mutant.disk:
            lost = try_power_losses(mutant)
            record = Record(unit=lost.where, told=lost.what) if lost else Record()
            return name, record, time.monotonic() - began
        unit = _first(try_scenario(mutant, case, run) for case, run in unit_tests(mutant).items())
        if mutant.units_only:
            record = Record(unit=unit.where, told=unit.what) if unit else Record()
            return name, record, time.monotonic() - began
        cases = scenarios("c_" if mutant.raft else "")  # C is about controllers
        scenario = _first(try_scenario(mutant, case, run) for case, run in cases.items())
        seed, found = _count(try_seed(mutant, seed) for seed in range(self.seeds))
        faults = fewest_faults(mutant, seed, SHRINK_RUNS) if found is not None and self.shrink else -1
        tested, number, walk, steps = None, -1, None, 0
        if mutant.raft:
            tested = _first(try_scenario(mutant, case, run) for case, run in paper().items())
            number, walk = _count(try_walk(mutant, number) for number in range(WALKS))
        elif name not in BEYOND:
            seen = by_walks(mutant)
            number, steps = seen.effort - 1, seen.trace
            walk = Notice(f"walk {number}", seen.what, 0) if seen.noticed else None
        told = found or walk or scenario or tested or unit
        record = Record(
            scenario=scenario.where if scenario else "",
            scenario_steps=scenario.steps if scenario else 0,
            seed=seed if found else -1,
            seeds_tried=seed + 1,
            seed_steps=found.steps if found else 0,
            faults=faults,
            paper=tested.where if tested else "",
            walk=number if walk else -1,
            walks_tried=number + 1,
            walk_steps=steps,
            unit=unit.where if unit else "",
            told=told.what if told else "",
        )
        return name, record, time.monotonic() - began


def _first(tries: Iterable[Notice | None]) -> Notice | None:
    return next(filter(None, tries), None)


def _count(tries: Iterable[Notice | None]) -> tuple[int, Notice | None]:
    """Take tries until one notices the mutant. Return its number, from 0, and the notice; if none does, the number of
    the last try and None."""
    number = -1
    for number, notice in enumerate(tries):
        if notice is not None:
            return number, notice
    return number, None


def control(mutants: Sequence[Mutant], seeds: int) -> Notice | None:
    """Run, with no rule broken, the engines that these mutants need, and return the first failure, or None if all
    pass. Unless it is None, the failures with a broken rule prove nothing."""
    whole = Mutant("whole", "", "", "", lambda patch: None)
    tests = {case: run for mutant in mutants for case, run in unit_tests(mutant).items()}
    if all(mutant.units_only for mutant in mutants):
        return _first(try_scenario(whole, case, run) for case, run in tests.items())
    tried = itertools.chain(
        (try_scenario(whole, case, run) for case, run in {**paper(), **scenarios(), **tests}.items()),
        (try_walk(whole, number) for number in range(WALKS)),
        (try_seed(whole, seed) for seed in range(seeds)),
    )
    return _first(tried)


def main() -> int:
    """Break every chosen rule in turn, and print which engines notice. Return 0 if each mutant is noticed, 1 if one
    is missed, and 2 if an engine fails with no rule broken. With ``--page``, run nothing, and write the pages from
    the records."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="most seeds of the simulation per mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--shrink", action="store_true", help="also see how few faults are enough")
    parser.add_argument("--write", action="store_true", help="keep the records, and write docs/lab")
    parser.add_argument("--page", action="store_true", help="run nothing: write docs/lab from the records")
    arguments = parser.parse_args()
    if arguments.page:
        write_pages(load())
        return 0
    names = arguments.names or list(MUTANTS)
    records = load() if arguments.write else {}
    if (found := control([MUTANTS[name] for name in names], arguments.seeds)) is not None:
        print(f"with nothing broken {found.where} fails too: {found.what}")
        return 2
    missed = 0
    with multiprocessing.Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for name, record, took in pool.imap_unordered(Try(arguments.seeds, arguments.shrink), names):
            records[name] = record
            if arguments.write:
                save(records)
            missed += not record.noticed
            by = f"scenario {record.scenario or 'none'}, seed {record.seed if record.seed >= 0 else 'none'}"
            by += f", walk {record.walk if record.walk >= 0 else 'none'}"
            by += f", unit test {record.unit or 'none'}"
            if MUTANTS[name].raft:
                by += f", paper {record.paper or 'none'}"
            print(f"{'noticed' if record.noticed else 'MISSED '} {name}: {by} ({took:.0f} s)", flush=True)
    if arguments.write:
        write_pages(records)
    print(f"{len(names) - missed} of {len(names)} mutants noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
