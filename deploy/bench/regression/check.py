"""Has the product become slower? The present tree and an earlier revision, measured beside each other.

    .venv/bin/python deploy/bench/regression/check.py [--base REVISION] [--rounds 6] [--seconds 2] [--case 128k]
        [--json FILE]

A cluster of each source runs the whole time. A round takes the cases one after the other, each on both: base, now; in
the next round now, base. So the two figures of a pair are seconds apart and see about the same machine. Each side has
its own services, its own client library, and its own copy of this program with its cases: a revision may have modules
where another has none. A case that one side does not know cannot be compared.

What is judged is the ratio within each pair, so that 1 is "as good as before". A figure looks worse when the median
of its ratios is below 0.9 and all pairs, or nearly all, are below 1 (a sign test: chance does it once in 20 times at
most). What looks worse is measured again, as many rounds, and is worse only if those say so too. CPU time is what a
busy machine disturbs least: trust it before the rates.

Exit code 0: nothing is worse; 1: something is; 2: it could not be measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import click
import tidelog
import trio
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.cluster import create
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import CONSOLE, Row, cpu_cost, cpu_unit, machine
from bench.regression.verdict import FEWEST, Figure
from bench.throughput import Bench, cases
from chaos.cluster import versions

CASES = ("records-1024", "128k", "16k", "requests", "one", "transactions", "commit", "consume")
FILL_BYTES = 128 << 20
"""Bytes that the consuming cases read."""


class Failed(Exception):
    """Raised if a side could not be started or measured."""


async def one_case(bench: Bench, name: str, number: int) -> Row:
    """Run a case once and return its figures, on a new topic that is deleted after it. A consuming case reads a topic
    that stays."""
    if name.startswith("consume"):
        return await cases(False)[name](bench, f"bench-{bench.flush}-{name}")
    topic = await bench.create_topic(f"{name}-{number}")
    row = await cases(False)[name](bench, topic)
    async with tidelog.connect(bench.cluster.gateways()) as log:
        await log.topics.delete(topic)
    return row


def side(folder: Path, flush: str, seconds: float) -> None:
    """Run one side, as a process with its own source: start a cluster, print ``ready``, then read names of cases from
    stdin and print the figures of each as a line of JSON. At the end of stdin the cluster is stopped."""
    cluster = create(folder)
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        bench = Bench(cluster, flush, seconds, FILL_BYTES)
        for name in CASES:
            if name.startswith("consume"):
                trio.run(bench.create_topic, name)
        print("ready", flush=True)
        for number, name in enumerate(sys.stdin):
            row = trio.run(one_case, bench, name.strip(), number)
            print(json.dumps(asdict(row)), flush=True)
    finally:
        cluster.stop()


def program_of(tree: Path) -> Path:
    """Return the path of this program in the source of a side. Revisions before the folders of ``deploy/bench`` have
    it one folder higher."""
    bench = tree / "deploy" / "bench"
    program = bench / "regression" / "check.py"
    return program if program.exists() else bench / "check.py"


class Side:
    """The process of a side, as the comparing process sees it."""

    def __init__(self, tree: Path, folder: Path, flush: str, seconds: float) -> None:
        command = [
            sys.executable,
            str(program_of(tree)),
            "--side",
            str(folder),
            "--flush",
            flush,
            "--seconds",
            str(seconds),
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": versions.python_path(tree)},
        )

    def line(self) -> str:
        """Return the next line that the side prints. Raises ``Failed`` if it has ended; it has printed the reason."""
        assert self.process.stdout
        if not (line := self.process.stdout.readline()):
            raise Failed
        return line

    def measure(self, name: str) -> Row:
        """Have the side run a case and return its figures. Raises ``Failed`` if the side has ended."""
        assert self.process.stdin
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        return Row(**json.loads(self.line()))


@contextmanager
def sides(base: str, flush: str, seconds: float) -> Iterator[dict[str, Side]]:
    """Run both sides during the block, and yield them by name once both are ready. Raises ``Failed`` and
    ``NoRevision``."""
    with tempfile.TemporaryDirectory(prefix="tidelog-check-") as name, ExitStack() as stack:
        folder, running = Path(name), {}
        versions.unpack(base, folder / "tree")
        for which, tree in (("base", folder / "tree"), ("now", versions.ROOT)):
            running[which] = stack.enter_context(ended(Side(tree, folder / which, flush, seconds)))
            running[which].line()  # one after the other: both look for free ports
        yield running


@contextmanager
def ended(side: Side) -> Iterator[Side]:
    """Yield the side; at the end close its input, which ends its cluster, and wait for the process."""
    with side.process:  # closes the pipes and waits
        yield side


def figures_of(row: Row) -> Iterator[tuple[str, float, bool]]:
    """Yield (unit, value, whether less is better) of the figures of a case that count."""
    assert row.cpu is not None
    if row.case.startswith(("produce, one", "transaction")):
        assert row.p50_ms is not None
        yield "p50 ms", row.p50_ms, True
    elif row.mb_per_s is not None:
        yield "MB/s", row.mb_per_s, False
    else:
        assert row.records_per_s is not None
        yield "records/s", row.records_per_s, False
    yield f"CPU {cpu_unit(row)}", cpu_cost(row, sum(row.cpu.values())), True


def measure(running: dict[str, Side], names: list[str], rounds: int, figures: dict[tuple[str, str], Figure]) -> None:
    """Measure this many more pairs of each case and add them to ``figures``. Prints each. Raises ``Failed`` if a side
    ends."""
    for number in range(rounds):
        for name in names:
            order = ("base", "now") if number % 2 == 0 else ("now", "base")
            rows = {which: running[which].measure(name) for which in order}
            said = []
            pairs = zip(figures_of(rows["base"]), figures_of(rows["now"]), strict=True)
            for (unit, base, less), (_, now, _) in pairs:
                figure = figures.setdefault((name, unit), Figure(name, unit, less))
                said.append(f"{unit} {base:,.2f} and {now:,.2f}, ratio {figure.add(base, now):.2f}")
            CONSOLE.print(f"  {number + 1}/{rounds} {name}: {'; '.join(said)}")


def compare(base: str, names: list[str], rounds: int, flush: str, seconds: float) -> list[Figure]:
    """Measure all cases on both revisions, those that look worse a second time, and return all figures. Raises
    ``Failed`` and ``NoRevision``."""
    figures: dict[tuple[str, str], Figure] = {}
    with sides(base, flush, seconds) as running:
        measure(running, names, rounds, figures)
        suspects = {figure.name for figure in figures.values() if figure.suspect}
        if again := [name for name in names if name in suspects]:
            CONSOLE.print(f"again, since they look worse: {', '.join(again)}")
            for figure in figures.values():
                figure.first = rounds if figure.name in again else 0
            measure(running, again, rounds, figures)
    return list(figures.values())


def table(figures: list[Figure]) -> Table:
    """Return a table with a line for each figure."""
    made = Table("case", "figure", "base", "now", "ratio", "lowest, highest pair", "pairs", "verdict", box=None)
    for figure in figures:
        ratios = figure.ratios
        made.add_row(
            figure.name,
            figure.unit,
            f"{median(figure.base):,.2f}",
            f"{median(figure.now):,.2f}",
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f}, {max(ratios):.2f}",
            str(len(ratios)),
            figure.verdict,
        )
    return made


def figure_json(figure: Figure) -> dict[str, Any]:
    """Return a figure as a dictionary for JSON, with its ratios and its verdict."""
    return asdict(figure) | {"ratios": figure.ratios, "ratio": median(figure.ratios), "verdict": figure.verdict}


@click.command(help=__doc__)
@click.option("--base", default="", metavar="REVISION", help="Default: before the last change of sources.")
@click.option("--rounds", type=click.IntRange(FEWEST), default=6, show_default=True, help="Pairs of each case.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="Length of each measurement.")
@click.option("--case", "names", type=click.Choice(CASES), multiple=True, help="Only these.")
@click.option("--flush", type=click.Choice(["fsync", "os"]), default="os", show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every pair here too.")
@click.option("--side", "side_folder", type=click.Path(path_type=Path), hidden=True)
def main(
    base: str,
    rounds: int,
    seconds: float,
    names: tuple[str, ...],
    flush: str,
    json_file: Path | None,
    side_folder: Path | None,
) -> None:
    """Measure both revisions and print the difference. Exits with 1 if something is worse, with 2 if nothing could be
    measured."""
    require_linux()
    end_with_sigterm()
    if side_folder:
        side(side_folder, flush, seconds)
        return
    began = time.monotonic()
    try:
        base = versions.resolve(base) if base else versions.before_the_last_change()
        CONSOLE.print(f"base: {base}; now: the present source; flush {flush}; {machine()}")
        figures = compare(base, list(names or CASES), rounds, flush, seconds)
    except versions.NoRevision as error:
        CONSOLE.print(f"nothing is measured: git knows no earlier revision: {error}")
        sys.exit(2)
    except Failed:
        CONSOLE.print("a side ended: see above")
        sys.exit(2)
    Console(highlight=False, width=max(CONSOLE.width, 110)).print(table(figures))
    if json_file:
        report = {
            "machine": machine(),
            "base": base,
            "flush": flush,
            "seconds": seconds,
            "figures": [figure_json(figure) for figure in figures],
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    worse = [f"{figure.name} {figure.unit}" for figure in figures if figure.verdict == "worse"]
    CONSOLE.print(
        f"{'worse: ' + ', '.join(worse) if worse else 'nothing is worse'}; {time.monotonic() - began:.0f} s"
    )
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
