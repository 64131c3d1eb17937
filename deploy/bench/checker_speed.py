"""How fast the verifier judges: a sound history of so many operations, written, read and checked.

    .venv/bin/python deploy/bench/checker_speed.py [--sends 1000000]

Sends of one record each, by ten producers to ten partitions, one in a hundred unknown; every record is read by two
consumers in batches of twenty, and twice at the end; one question for the end to ten sends. One process; seconds of
CPU time, which other processes disturb least.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from tidelog.verify import Recorder, check, load

PLACES = [f"t/{partition}" for partition in range(10)]
BATCH = 20
"""Records that a consumer reads at a time."""
DRAIN = 1000
"""Records that a final reader reads at a time."""


@contextmanager
def timed(what: str, operations: int) -> Iterator[None]:
    """Print how much CPU time the block took, and the operations per second."""
    began = time.process_time()
    yield
    seconds = time.process_time() - began
    click.echo(f"{what:<8} {seconds:6.2f} s  {operations / seconds:12,.0f} operations/s")


def write(path: Path, sends: int) -> int:
    """Write a sound history of this many sends to ``path``, and return its number of operations."""
    seconds, operations = 0.0, 0
    logs: dict[str, list[tuple[int, bytes]]] = {place: [] for place in PLACES}
    with Recorder(path, clock=lambda: seconds) as recorder:
        for number in range(sends):
            place, log = PLACES[number % 10], logs[PLACES[number % 10]]
            value = f"p{number // 10 % 10}:{place}:{number}".encode()
            op = recorder.send(f"p{number // 10 % 10}", place, [value])
            seconds += 0.0005
            if number % 100 == 0:
                op.settle("unknown")
            else:
                op.acked(len(log), 0)
            log.append((len(log), value))
            operations += 1
            if number % 10 == 0:
                recorder.latest("asker", place, len(log), seconds)
                operations += 1
            if len(log) % BATCH == 0:
                rows = [(offset, value, 0) for offset, value in log[-BATCH:]]
                for consumer in ("c1", "c2"):
                    recorder.read(consumer, place, rows[0][0], rows, seconds)
                operations += 2
        for process in ("drain 1", "drain 2"):
            for place, rows in logs.items():
                for first in range(0, len(rows), DRAIN):
                    recorder.drain(process, place, rows[first : first + DRAIN])
                recorder.drained(process, place, 0)
    return operations


@click.command()
@click.option("--sends", default=1_000_000, show_default=True)
def main(sends: int) -> None:
    """Write a history, and print how fast the verifier reads and checks it."""
    gc.disable()  # as the command does
    with tempfile.TemporaryDirectory(prefix="tidelog-histories-") as folder:
        path = Path(folder) / "run"
        began = time.process_time()
        operations = write(path, sends)
        written = time.process_time() - began
        size = path.stat().st_size
        click.echo(f"{operations:,} operations, {size / 1e6:,.0f} MB, written in {written:.1f} s")
        with timed("read", operations):
            recording = load(path)
        with timed("check", operations):
            found = check(recording.history)
        assert found == [], found


if __name__ == "__main__":
    main()
