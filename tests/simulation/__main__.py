"""``python -m simulation``: run many seeds, replay one, shrink one.

``--seeds 0:1000`` runs a range over all cores, ``--seed 7`` one in the open, ``--case FILE`` what a failure was
shrunk to, ``--shrink 7`` makes a failing seed small. ``--bytes`` runs the services' real shells, the client and
trio-websocket over streams in memory. ``--capture FILE`` plays what happened to a real cluster (docs/capture.md),
with ``--seed`` or ``--seeds``.

``--seeds own`` is the range of this commit, of which ``make test`` runs the first. ``--record`` adds what a range
came to, on a revision without changes, to ``record.csv``. ``--page`` writes the table of ``docs/lab/simulation.md``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from tidelog.testing.captures.replay import LAST, play_all
from tidelog.testing.runner import DURATION, Case, Result, Tally, run_bytes, run_case, run_many, run_seed
from tidelog.testing.shrink import Shrinker

from simulation import record
from simulation.revision import RECORD, revision

Trace = Callable[[str], None]
OUT = Path(__file__).resolve().parents[2] / "build" / "simulation"
"""The folder for the cases and traces of failed runs."""
SAY_S = 60.0
"""The seconds between two progress lines of a run without a terminal."""
SHRUNK = 3
"""The number of failures of a range that are shrunk, each of another kind."""


def replay(case: Case, trace: bool, run: Callable[[Trace], Result]) -> int:
    """Run one case, print its trace (if asked), counts and digest of the trace, and return 1 if it fails, else 0."""
    digest = hashlib.blake2b(digest_size=16)

    def take(line: str) -> None:
        digest.update(line.encode())
        if trace:
            print(line)

    result = run(take)
    for name, count in sorted(result.counts.items()):
        print(f"{count:8} {name}")
    print(f"seed {case.seed}: {result.steps} steps, {result.seconds:.1f} s, trace {digest.hexdigest()}")
    if result.fault is not None:
        print(result.fault)
    return 0 if result.fault is None else 1


def keep(case: Case, out: Path, run: Callable[[Trace], Result]) -> tuple[Path, Path]:
    """Run a failing case again, write the case and its trace into a folder, and return the two paths."""
    out.mkdir(parents=True, exist_ok=True)
    saved, traced = out / f"seed-{case.seed}.json", out / f"seed-{case.seed}.trace"
    case.save(saved)
    with traced.open("w") as file:
        result = run(lambda line: print(line, file=file))
        print(f"{result.fault}", file=file)
    return saved, traced


def shrink(failed: Result, out: Path) -> None:
    """Shrink a failed case, write it into the folder ``out`` and print what is left of it."""
    shrinker = Shrinker(failed)
    small = shrinker.shrink()
    saved, traced = keep(small, out, partial(run_case, small))
    print(f"seed {failed.seed}, shrunk to {len(small.strikes or ())} strikes of {len(failed.strikes)},")
    print(f"  clients {' '.join(small.clients or ('as drawn',))}, {small.duration} s:")
    for strike in small.strikes or ():
        print(f"    {strike}")
    print(f"  {run_case(small).fault}")
    print(f"  replay: cd tests; python -m simulation --case {saved} --trace")
    print(f"  trace:  {traced}")


class _Rate(ProgressColumn):
    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self.tally = tally

    def render(self, task: Task) -> Text:
        tally, took = self.tally, max(0.01, self.tally.took)
        style = "red" if tally.failed else "green"
        rates = f"  {tally.seeds / took:.1f} seeds/s  {tally.seconds / took:.0f} simulated s/s"
        faults = f"  {sum(tally.faults.values())} faults"
        return Text(f"{len(tally.failed)} failed", style) + Text(faults + rates)


def run_range(
    seeds: range,
    duration: float,
    jobs: int,
    out: Path,
    byte_level: bool = False,
    transactions: bool = False,
    majority: bool = False,
    foreign: bool = False,
) -> Tally:
    """Run all seeds and return their tally. Shows a progress bar, or prints a line now and then without a terminal;
    prints each failure at once with the command that replays it. Ctrl-C ends the run and keeps the results so far."""
    tally, said = Tally(), 0.0
    columns = (BarColumn(), MofNCompleteColumn(), _Rate(tally), TextColumn("ETA"), TimeRemainingColumn())
    flags = " --bytes" if byte_level else "" if duration == DURATION else f" --duration {duration}"
    flags += " --transactions" if transactions else ""
    flags += " --majority" if majority else ""
    flags += " --foreign" if foreign else ""
    plain = partial(run_seed, duration=duration, transactions=transactions, majority=majority, foreign=foreign)
    run = run_bytes if byte_level else plain
    terminal = sys.stdout.isatty()
    with Progress(*columns, transient=not terminal) as progress, suppress(KeyboardInterrupt):
        task = progress.add_task("seeds", total=len(seeds))
        for result in run_many(seeds, run, jobs):
            tally.add(result)
            progress.advance(task)
            if not terminal and tally.took >= said + SAY_S:
                said = tally.took
                progress.console.out(f"{tally.seeds} of {len(seeds)}, {len(tally.failed)} failed", highlight=False)
            if result.fault is not None:
                case = result.case
                again = partial(run_bytes, case.seed) if byte_level else partial(run_case, case)
                _, traced = keep(case, out, again)
                say = progress.console.out
                say(f"seed {case.seed}: {result.fault}", highlight=False)
                say(f"  replay: cd tests; python -m simulation --seed {case.seed}{flags} --trace", highlight=False)
                say(f"  trace:  {traced}", highlight=False)
    return tally


def report(tally: Tally) -> None:
    """Print the counts of a range of seeds."""
    for name, count in sorted(tally.counts.items()):
        print(f"{count:8} {name}")
    print(tally.summary)


def refusal(path: Path, mode: str, seeds: range) -> str:
    """Return the reason why a range may not be recorded; "" if it may."""
    this = revision()
    if not this.commit:
        return "there is no git to tell the revision"
    if this.is_changed:
        return "the sources differ from the last commit"
    there = record.clash(record.load(path), this, mode, seeds)
    return "" if there is None else f"seeds {there.first}:{there.last} of this source are recorded already"


def parse() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one")
    parser.add_argument("--case", type=Path, metavar="FILE", help="replay what a failure was shrunk to")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make this failing seed small")
    parser.add_argument("--trace", action="store_true", help="with --seed or --case: print every step")
    parser.add_argument("--capture", type=Path, metavar="FILE", help="play the story that a capture tells")
    parser.add_argument("--last", type=int, default=LAST, metavar="N", help="with --capture: its last so many events")
    parser.add_argument(
        "--seeds", default="0:200", metavar="A:B", help="run A up to, but without, B; 'own': those of this commit"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; default: one per core")
    parser.add_argument("--duration", type=float, default=DURATION, help="virtual seconds of load per seed")
    parser.add_argument("--bytes", action="store_true", help="the byte level: real shells, client and WebSockets")
    parser.add_argument("--transactions", action="store_true", help="applications with transactions in every seed")
    parser.add_argument(
        "--majority", action="store_true", help="the majority of the controllers is lost for a while in every seed"
    )
    parser.add_argument(
        "--foreign", action="store_true", help="in every seed a client lies in every field that it writes"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a summary of the counts")
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RECORD, metavar="FILE", help="add what the range came to, as CSV"
    )
    parser.add_argument("--page", action="store_true", help="run nothing: write the table of docs/lab/simulation.md")
    parser.add_argument("--out", type=Path, default=OUT, metavar="DIR", help="where failures leave case and trace")
    parser.add_argument("--no-shrink", action="store_true", help="leave failures as long as they are")
    return parser.parse_args()


def main() -> int:
    """Run the command. Returns the exit code: 0 if no seed failed, 1 if one did, 2 if a range cannot be recorded."""
    arguments = parse()
    if arguments.page:
        record.write_page(record.load())
        return 0
    seeds = revision().own_seeds if arguments.seeds == "own" else range(*map(int, arguments.seeds.split(":")))
    if arguments.capture is not None:
        if arguments.seed is not None:
            seeds = range(arguments.seed, arguments.seed + 1)
        return play_all(arguments.capture, seeds, arguments.last, print if arguments.trace else None)
    if arguments.seed is not None or arguments.case is not None:
        drawn = drawn_case(arguments, arguments.seed)
        case = drawn if arguments.case is None else Case.load(arguments.case)
        again = partial(run_bytes, case.seed) if arguments.bytes else partial(run_case, case)
        return replay(case, arguments.trace, again)
    if arguments.shrink is not None:
        result = run_case(drawn_case(arguments, arguments.shrink))
        if result.fault is None:
            print(f"seed {arguments.shrink} does not fail")
            return 0
        shrink(result, arguments.out)
        return 1
    return run_all(arguments, seeds)


def drawn_case(arguments: argparse.Namespace, seed: int) -> Case:
    """Return the case of a seed with the options of the command line."""
    return Case(
        seed,
        arguments.duration,
        transactions=arguments.transactions,
        majority=arguments.majority,
        foreign=arguments.foreign,
    )


def run_all(arguments: argparse.Namespace, seeds: range) -> int:
    """Run a range, print and record its results, and shrink failures. Returns the exit code."""
    this, today = revision(), datetime.now(UTC).date().isoformat()
    mode = "bytes" if arguments.bytes else "transactions" if arguments.transactions else "messages"
    mode = "majority" if arguments.majority else "foreign" if arguments.foreign else mode
    if arguments.record is not None and (why := refusal(arguments.record, mode, seeds)):
        print(f"nothing is run, since it could not be recorded: {why}")
        return 2
    where, before = (arguments.jobs, arguments.out), os.times()
    flags = arguments.bytes, arguments.transactions, arguments.majority, arguments.foreign
    tally = run_range(seeds, arguments.duration, *where, *flags)
    report(tally)
    cpu_s = sum(os.times()[:4]) - sum(before[:4])  # of the processes of the pool, too: it is over
    row = record.row_of(tally, this, mode, seeds, arguments.duration, cpu_s, today)
    print(record.summary([row], f"{this}, {mode}, seeds {row.first}:{row.last}"))
    if arguments.record is not None and row.seeds:
        record.append(row, arguments.record)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(tally.data(), indent=1) + "\n")
    kinds: dict[str, Result] = {}
    for result in tally.failed:
        if result.fault is not None and not arguments.bytes:
            kinds.setdefault(result.fault.kind, result)
    for result in [] if arguments.no_shrink else list(kinds.values())[:SHRUNK]:
        shrink(result, arguments.out)
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
