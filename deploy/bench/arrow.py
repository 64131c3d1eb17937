"""What ``log.read_arrow`` gets out of a topic beside ``log.consume``, and how long ``tidelog sql`` takes over it.

    .venv/bin/python deploy/bench/arrow.py [--mb 1000] [--bytes 1000] [--bytes 100] [--rounds 3] [--json FILE]
    .venv/bin/python deploy/bench/arrow.py --mb 20 --rounds 1                 does it work? in a minute

    consume, records          every record of a topic, one at a time: for record in log.consume(…)
    consume, batches          the same with next_records, a list for each batch of the log
    read_arrow, all           all default columns, value and key as bytes
    read_arrow, value         the column value alone
    read_arrow, string        the column value alone, as text
    read_arrow, json          the column value alone, as structs of three fields
    read_arrow, offset        the column offset alone, for which no body is decoded
    sql, bytes                tidelog sql: select partition, count(*), sum(length(value)) … group by partition
    sql, json                 tidelog sql: the sum of a field of the JSON values, by another field
    sql, count                tidelog sql: select count(*)

A cluster of real processes (one controller, three replica servers, one gateway; factor 3, flush ``os``) shares this
machine. The values are JSON objects of about ``--bytes`` bytes, whose lengths differ. Cases take turns in each round,
so a busy machine slows all of them alike; the median of the rounds counts, and the ratio to the record iterator is
that of medians. CPU is that of the reading process, which others disturb less than its seconds. Seconds and CPU of
``tidelog sql`` are those of the whole command, with the start of Python. The load of the machine is printed before
and after, since with other programs only the ratios mean something.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pyarrow as pa
import tidelog
import tidelog.sync
import trio
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import running_cluster
from bench.harness.rows import CONSOLE, machine

PARTITIONS = 4
COMMAND = [sys.executable, "-m", "tidelog.cli"]
SCHEMA = pa.schema([("id", pa.int64()), ("kind", pa.string()), ("amount", pa.float64())])


def value(number: int, size: int) -> bytes:
    """Return the value of a record: a JSON object of ``size`` bytes, give or take 10 %."""
    text = b'{"id":%d,"kind":"k%d","amount":%d.5,"note":"' % (number, number % 7, number % 1000)
    length = size - size // 10 + number % (size // 5)
    return text + b"x" * max(0, length - len(text) - 2) + b'"}'


async def fill(url: str, topic: str, records: int, size: int) -> None:
    """Create the topic and write ``records`` records to it."""
    async with tidelog.connect(url) as log:
        await log.topics.create(topic, partitions=PARTITIONS, replication_factor=3, config={"flush": "os"})
        async with log.producer(topic) as producer:
            for number in range(records):
                await producer.submit(value(number, size), key=b"%d" % (number % 1000), partition=number % PARTITIONS)


class Bench:
    """The cases over one topic; each reads all of it and returns the number of records that it has seen."""

    def __init__(self, log: tidelog.sync.Log, url: str, topic: str) -> None:
        self._log = log
        self._url = url
        self._topic = topic

    def records(self) -> int:
        """Read record by record."""
        seen = 0
        for _ in self._log.consume(self._topic, start="earliest", end="latest"):
            seen += 1
        return seen

    def batches(self) -> int:
        """Read the records of one batch of the log after the other."""
        seen = 0
        with self._log.consume(self._topic, start="earliest", end="latest") as consumer:
            while records := consumer.next_records():
                seen += len(records)
        return seen

    def arrow(self, **how: object) -> int:
        """Read record batches."""
        return sum(batch.num_rows for batch in self._log.read_arrow(self._topic, **how))  # type: ignore[arg-type]

    def sql(self, query: str) -> int:
        """Run ``tidelog sql`` with a query whose last column counts records."""
        command = [*COMMAND, "sql", "--gateway", self._url, "-o", "json", query.replace("TOPIC", f'"{self._topic}"')]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return sum(int(row["n"]) for row in json.loads(done.stdout))

    def cases(self) -> dict[str, Callable[[], int]]:
        """Return the cases by name."""
        by_kind = "select value->>'$.kind', sum((value->>'$.amount')::double), count(*) n from TOPIC group by 1"
        by_partition = "select partition, sum(length(value)), count(*) n from TOPIC group by 1"
        return {
            "consume, records": self.records,
            "consume, batches": self.batches,
            "read_arrow, all": self.arrow,
            "read_arrow, value": lambda: self.arrow(columns=["value"]),
            "read_arrow, string": lambda: self.arrow(columns=["value"], values="string"),
            "read_arrow, json": lambda: self.arrow(columns=["value"], values="json", schema=SCHEMA),
            "read_arrow, offset": lambda: self.arrow(columns=["offset"]),
            "sql, bytes": lambda: self.sql(by_partition),
            "sql, json": lambda: self.sql(by_kind),
            "sql, count": lambda: self.sql("select count(*) n from TOPIC"),
        }


def cpu_seconds() -> float:
    """Return the seconds of CPU of this process and of the commands that it has run."""
    return sum(os.times()[:4])


Figures = dict[str, tuple[float, float]]
"""Case -> seconds, and seconds of CPU of the reading process, each as the median of the rounds."""


def measure(url: str, size: int, records: int, rounds: int) -> Figures:
    """Measure all cases over a new topic, and return the medians of each."""
    topic = f"values-{size}"
    trio.run(fill, url, topic, records, size)
    taken: dict[str, list[tuple[float, float]]] = {}
    with tidelog.sync.connect(url) as log:
        cases = Bench(log, url, topic).cases()
        for _ in range(rounds):
            for name, case in cases.items():
                began, cpu = time.perf_counter(), cpu_seconds()
                seen = case()
                taken.setdefault(name, []).append((time.perf_counter() - began, cpu_seconds() - cpu))
                assert seen == records, (name, seen)
    for name, times in taken.items():
        CONSOLE.print(f"{name}: {min(times)[0]:.2f} to {max(times)[0]:.2f} s")
    medians = {name: [*map(statistics.median, zip(*times, strict=True))] for name, times in taken.items()}
    return {name: (seconds, cost) for name, (seconds, cost) in medians.items()}


def load() -> str:
    """Return the load of the machine in the last 1, 5 and 15 minutes."""
    return " ".join(f"{average:.1f}" for average in os.getloadavg())


@click.command(help=__doc__.partition("\n\n")[0] if __doc__ else None)
@click.option("--mb", default=1000, show_default=True, help="Size of the values of a topic, in 10^6 bytes.")
@click.option("--bytes", "sizes", multiple=True, default=(1000, 100), show_default=True, help="Bytes of a value.")
@click.option("--rounds", default=3, show_default=True, help="How often each case is run.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures.")
def main(mb: int, sizes: tuple[int, ...], rounds: int, file: Path | None) -> None:
    figures: dict[str, Figures] = {}
    CONSOLE.print(f"{mb} MB of values, {PARTITIONS} partitions, {rounds} rounds; {machine()}; load {load()}")
    for size in sizes:
        records = mb * 1_000_000 // size
        with running_cluster() as cluster:
            found = figures[str(size)] = measure(cluster.gateways()[0], size, records, rounds)
        table = Table(
            "case", "seconds", "records/s", "times consume", "CPU s", "CPU ns/record", title=f"values of {size} bytes"
        )
        for name, (seconds, cost) in found.items():
            ratio = found["consume, records"][0] / seconds
            cpu = f"{cost:.2f}", f"{cost / records * 1e9:.0f}"
            table.add_row(name, f"{seconds:.2f}", f"{records / seconds:,.0f}", f"{ratio:.1f}", *cpu)
        CONSOLE.print(table, f"load {load()}")
    if file:
        file.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
