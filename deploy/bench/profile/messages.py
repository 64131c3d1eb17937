"""How many messages each service sends for a batch, and how many turns its event loop takes: one case of
``throughput.py``, counted.

    .venv/bin/python deploy/bench/profile/messages.py [--case 16k] [--flush os] [--seconds 3]

A batch is what a gateway sends to a leader as one; with ``--case one`` it is a record. Counts are divided by the
number of batches. Counting slows the services down, so the rate is not that of ``throughput.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import click
import trio
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.cluster import create
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import CONSOLE, show
from bench.throughput import Bench, cases

COUNTING = Path(__file__).resolve().parent / "counting"
LEAST = 0.005
"""Messages of a kind that come more rarely, for each batch, are left out of the table."""


async def run_counted(bench: Bench, name: str) -> dict[str, int]:
    """Run the case once for warmth, then counted. Return the process id of each gateway and replica server."""
    case = cases(False)[name]
    topic = await bench.create_topic(name)
    await case(replace(bench, seconds=min(1.0, bench.seconds)), topic)
    pids = {process.id: process.pid for process in bench.cluster.processes if process.pid and process.id[0] in "gr"}
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR1)
    show(await case(bench, topic))
    for pid in pids.values():
        os.kill(pid, signal.SIGUSR2)
    return pids


def read_counts(pids: dict[str, int], folder: Path) -> dict[str, Counter[str]]:
    """Return the counts of each service, which its process writes as soon as it has taken the signal. Fails if one
    has not after ten seconds."""
    files = {node: folder / f"{pid}.json" for node, pid in pids.items()}
    until = time.monotonic() + 10
    while not all(file.exists() for file in files.values()):
        assert time.monotonic() < until, "a service has not written its counts"
        time.sleep(0.05)
    return {node: Counter(json.loads(file.read_text())) for node, file in files.items()}


def table(found: dict[str, Counter[str]]) -> Table:
    """Return the counts of each process for each batch, as a table: turns and steps of the event loop first, then the
    messages sent, the most frequent first."""
    batches = max(1, found["g1"].pop("batches", 0))
    total: Counter[str] = Counter()
    for counts in found.values():
        total += counts
    names = [name for name, number in total.most_common() if number / batches >= LEAST]
    names.sort(key=lambda name: name not in ("turns", "steps"))
    made = Table(box=None)
    for heading in ("for each batch", *found, "all"):
        made.add_column(heading, justify="right" if made.columns else "left")
    for name in names:
        made.add_row(
            name,
            *(f"{counts[name] / batches:.3f}" if counts[name] else "" for counts in found.values()),
            f"{total[name] / batches:.3f}",
        )
    return made


@click.command(help=__doc__)
@click.option("--case", "name", type=click.Choice(list(cases(False))), default="16k", show_default=True)
@click.option("--flush", type=click.Choice(["fsync", "interval", "os"]), default="os", show_default=True)
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Length of the case.")
def main(name: str, flush: str, seconds: float) -> None:
    """Start a cluster whose services count, run a case, and print the table."""
    require_linux()
    end_with_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-messages-"))
    cluster = create(folder / "cluster")
    os.environ.update({"PYTHONPATH": str(COUNTING), "TIDELOG_COUNTS": str(folder)})
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        pids = trio.run(run_counted, Bench(cluster, flush, seconds, 1 << 30), name)
        found = read_counts(pids, folder)
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    CONSOLE.print(table(found))


if __name__ == "__main__":
    main()
