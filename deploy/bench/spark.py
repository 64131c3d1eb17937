"""What Spark gets out of the log and into it, beside the same rows from Parquet files and one row at a time.

    .venv/bin/python deploy/bench/spark.py [--rows 1000000] [--bytes 100] [--rounds 3] [--threads 2]
    .venv/bin/python deploy/bench/spark.py --rows 50000 --rounds 1           does it work? in a minute
    .venv/bin/python deploy/bench/spark.py --beside-kafka [--rounds 5]       beside Spark's connector for Kafka, with
                                                                             other cases: spark_connectors.py

    source, n partitions      every row of a topic of so many partitions, read and thrown away: what more tasks give
    source, one row at a time the same records through a Python data source that yields one tuple after the other
    parquet files             the same rows from Parquet files
    sink, …                   the rows of a Parquet file written to a topic, for each delivery
    to parquet files          the same rows written to Parquet files

A cluster of real processes (one controller, three replica servers, one gateway; factor 3, flush ``os``) and
a local Spark share this machine. Cases are run one after the other, in rounds; the
median counts, without the first round, in which Python workers start and Java compiles.
Every case includes what Spark needs to plan a query, with processes of Python that it starts for it. An executor's
memory is that of Spark's own process, here with the driver in it, and of a Python worker for each task at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import tidelog.sync
import trio
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.table import Table
from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.session import session

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import spark_connectors
from bench.harness.cluster import create
from bench.harness.processes import end_with_sigterm, require_linux

CONSOLE = Console(highlight=False, soft_wrap=True)
PARTITIONS = 4
"""Partitions of the topics, and tasks of the writers."""
PIPELINE = """
name = "bench"
[spark]
"spark.driver.host" = "127.0.0.1"
"spark.driver.bindAddress" = "127.0.0.1"
"spark.driver.memory" = "2g"
[in.a]
topic = "a"
[out.b]
from = "a"
parquet = "b"
"""
"""The description of a pipeline that is used only for its Spark session, which is that of every pipeline."""


def new_session(threads: int, settings: dict[str, str]) -> SparkSession:
    """Return a Spark session of so many threads with these settings besides its own."""
    pipeline = parse(PIPELINE)
    return session(replace(pipeline, spark={**pipeline.spark, **settings}), f"local[{threads}]")


class RowSource(DataSource):
    """A simple Spark data source to compare with: a consumer, and a tuple for each record."""

    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> str:
        return "key BINARY, value BINARY, partition INT, offset BIGINT"

    def reader(self, schema: Any) -> DataSourceReader:
        return RowReader(self.options["gateway"], self.options["topic"])


class RowReader(DataSourceReader):
    def __init__(self, gateway: str, topic: str) -> None:
        self._gateway = gateway
        self._topic = topic

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        with tidelog.sync.connect(self._gateway) as log:
            for record in log.consume(self._topic, partitions=[partition.value], start="earliest", end="latest"):
                yield record.key, record.value, record.partition, record.offset


def throw_away(rows: DataFrame) -> None:
    """Have Spark compute all rows and keep none."""
    rows.write.format("noop").mode("overwrite").save()


class Bench:
    """The cases of the benchmark, over one Spark session and one cluster."""

    def __init__(self, spark: SparkSession, gateway: str, folder: Path, rows: int, size: int) -> None:
        self._spark = spark
        self._gateway = gateway
        self._folder = folder
        self._rows = rows
        self._size = size
        self._written = 0

    def prepare(self) -> None:
        """Write the rows as Parquet files and into topics of 1, 2 and ``PARTITIONS`` partitions."""
        self._spark.dataSource.register(RowSource)
        value = f"rpad(CAST(id AS STRING), {self._size}, 'abcdefghijklmnopqrstuvwxyz')"
        rows = self._spark.range(0, self._rows, 1, PARTITIONS).selectExpr(f"CAST({value} AS BINARY) AS value", "id")
        rows.write.option("compression", "none").parquet(str(self._folder / "rows"))
        for partitions in (1, 2, PARTITIONS):
            self._create(f"read-{partitions}", partitions)
            self._write(f"read-{partitions}", partitions, "idempotent")

    def _create(self, topic: str, partitions: int) -> None:
        with tidelog.sync.connect(self._gateway) as log:
            log.topics.create(topic, partitions=partitions, replication_factor=3, config={"flush": "os"})

    def _parquet(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "rows"))

    def _write(self, topic: str, partitions: int, delivery: str) -> None:
        rows = self._parquet().selectExpr("value", f"CAST(id % {partitions} AS INT) AS partition")
        writing = rows.write.format("tidelog").options(gateway=self._gateway, topic=topic, delivery=delivery)
        writing.mode("append").save()

    def _read(self, partitions: int) -> None:
        source = self._spark.read.format("tidelog").options(gateway=self._gateway, subscribe=f"read-{partitions}")
        throw_away(source.load())

    def _read_rows(self) -> None:
        throw_away(self._spark.read.format("rows").options(gateway=self._gateway, topic=f"read-{PARTITIONS}").load())

    def _sink(self, delivery: str) -> None:
        self._written += 1
        self._create(f"written-{self._written}", PARTITIONS)
        self._write(f"written-{self._written}", PARTITIONS, delivery)

    def _to_parquet(self) -> None:
        self._parquet().write.mode("overwrite").option("compression", "none").parquet(str(self._folder / "written"))

    def cases(self) -> dict[str, Callable[[], None]]:
        """Return the cases by name; each is a function that runs it once."""
        deliveries = ("exactly-once", "idempotent", "at-least-once")
        return {
            f"source, {PARTITIONS} partitions": lambda: self._read(PARTITIONS),
            "source, 2 partitions": lambda: self._read(2),
            "source, 1 partition": lambda: self._read(1),
            "source, one row at a time": self._read_rows,
            "parquet files": lambda: throw_away(self._parquet()),
            **{f"sink, {delivery}": lambda delivery=delivery: self._sink(delivery) for delivery in deliveries},
            "to parquet files": self._to_parquet,
        }


class Memory:
    """The greatest resident sets of Spark's own process and of one of its Python workers, among the processes that
    this program has started."""

    def __init__(self) -> None:
        self.peaks_mb = {"spark": 0.0, "worker": 0.0}

    def sample(self) -> None:
        """Update the peaks from the processes that run now. Call it after each case, since idle workers end in
        time."""
        found: dict[int, tuple[int, str, float]] = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
                command = (status.parent / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            kind = (
                "spark"
                if b"SparkSubmit" in command
                else "worker"
                if b"pyspark.daemon\0pyspark.worker" in command
                else ""
            )
            peak_mb = int(fields.get("VmHWM", "0 kB").split()[0]) / 1000
            found[int(status.parent.name)] = int(fields["PPid"]), kind, peak_mb
        for process, (_, kind, peak_mb) in found.items():
            while process in found and process != os.getpid():
                process = found[process][0]
            if process == os.getpid() and kind:
                self.peaks_mb[kind] = max(self.peaks_mb[kind], peak_mb)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="Rows in each case.")
@click.option("--bytes", "size", default=100, show_default=True, help="Bytes of each value.")
@click.option("--rounds", default=3, show_default=True, help="Times each case is run; the median counts.")
@click.option("--threads", default=2, show_default=True, help="Threads of Spark: tasks at a time.")
@click.option("--beside-kafka", is_flag=True, help="Measure Kafka's connector too; the values are lines of logs.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(rows: int, size: int, rounds: int, threads: int, beside_kafka: bool, out: Path | None) -> None:
    """Measure Spark's source and sink on a cluster of 1 controller, 3 replica servers and 1 gateway, and print the
    table."""
    require_linux()
    end_with_sigterm()
    if beside_kafka:
        costs = spark_connectors.measure(partial(new_session, threads), rows, rounds)
        if out is not None:
            out.write_text(json.dumps({"rows": rows, "cases": costs}, indent=1))
        return
    folder = Path(tempfile.mkdtemp(prefix="tidelog-spark-"))
    cluster = create(folder / "cluster")
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        spark = new_session(threads, {})
        bench = Bench(spark, cluster.gateways()[0], folder, rows, size)
        CONSOLE.print(f"{rows} rows of {size} B: writing them to files and topics …")
        bench.prepare()
        seconds: dict[str, list[float]] = {name: [] for name in bench.cases()}
        memory = Memory()
        for number in range(rounds + 1):
            for name, case in bench.cases().items():
                began = time.monotonic()
                case()
                taken = time.monotonic() - began
                if number:
                    seconds[name].append(taken)
                CONSOLE.print(f"{f'round {number}' if number else 'warm-up'}: {name}: {taken:.2f} s")
                memory.sample()
        spark.stop()
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    peaks = memory.peaks_mb
    show(seconds, rows, size, peaks)
    if out is not None:
        out.write_text(json.dumps({"rows": rows, "bytes": size, "seconds": seconds, "peak_mb": peaks}, indent=1))


def show(seconds: dict[str, list[float]], rows: int, size: int, peaks: dict[str, float]) -> None:
    """Print the table of results and the greatest memory."""
    table = Table("case", "s", "rows/s", "MB/s")
    for name, taken in seconds.items():
        median = statistics.median(taken)
        table.add_row(name, f"{median:.2f}", f"{rows / median:,.0f}", f"{rows * size / median / 1e6:.1f}")
    CONSOLE.print(table)
    CONSOLE.print(
        f"greatest memory: Spark {peaks['spark']:.0f} MB, each of its two Python workers {peaks['worker']:.0f} MB"
    )


if __name__ == "__main__":
    main()
