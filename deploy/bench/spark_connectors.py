"""Spark's connectors for Tidelog and for Kafka beside each other: ``deploy/bench/spark.py --beside-kafka``.

    batch read      all columns of every record of a topic, thrown away
    count           the number of records in a topic
    stream read     the same as a batch read, as a streaming query with Trigger.AvailableNow
    batch write     the rows of Parquet files, values alone, written to a topic
    stream copy     a streaming query with Trigger.AvailableNow from one topic to another

Both clusters run at the same time, each with three replicas of every partition, and an ack of either means the page
caches of two servers. Spark's settings, its session and the rows are the same for both. Delivery is each connector's
default: Tidelog writes a batch idempotently and copies exactly once, Kafka's connector writes at least once. In each
round every case is run with one connector and at once with the other; the one that begins changes from round to
round. The median counts, without the rounds for warming up, in which Python workers start and Java compiles.

The CPU of the client is that of Spark's process and of the Python processes that it starts; the CPU of the servers is
that of the processes of the case's own cluster.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import tidelog.sync
import trio
from bench.harness.cluster import create
from bench.harness.processes import TreeCpu, cpu_s
from bench.peers.products import PEERS, Kafka
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

CONSOLE = Console(highlight=False, soft_wrap=True)
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("TIDELOG_TEST_DATA", ROOT.parent / "shared" / "data"))
LOGS = ("OpenSSH_2k.log", "Zookeeper_2k.log")
"""The files of ``DATA`` whose lines are the values, repeated until there are enough rows."""
CONNECTOR = PEERS / "spark-kafka"
"""The folder with the jars of Spark's connector for Kafka."""
PARTITIONS = 4
"""Partitions of the topics, and Parquet files."""
WARM_UPS = 2
"""Rounds that do not count."""


class Side(Protocol):
    """A connector and its running cluster. ``name`` is that of its format in Spark."""

    name: str

    @property
    def pids(self) -> list[int]:
        """Return the ids of the cluster's processes."""

    @property
    def connection(self) -> dict[str, str]:
        """Return the options by which Spark finds the cluster."""

    def create(self, topic: str) -> None:
        """Create a topic with ``PARTITIONS`` partitions of three replicas."""

    def delete(self, topic: str) -> None:
        """Delete a topic."""


class TidelogSide:
    name = "tidelog"

    def __init__(self, folder: Path) -> None:
        self._cluster = create(folder)

    def start(self) -> None:
        self._cluster.start()
        trio.run(self._cluster.wait_ready)

    def stop(self) -> None:
        self._cluster.stop()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._cluster.processes]

    @property
    def connection(self) -> dict[str, str]:
        return {"gateway": self._cluster.gateways()[0]}

    def create(self, topic: str) -> None:
        with tidelog.sync.connect(self._cluster.gateways()[0]) as log:
            log.topics.create(topic, partitions=PARTITIONS, replication_factor=3, config={"flush": "os"})

    def delete(self, topic: str) -> None:
        with tidelog.sync.connect(self._cluster.gateways()[0]) as log:
            log.topics.delete(topic)


class KafkaSide:
    """Kafka's topics are created and deleted by the Java client that Spark's connector brings with it."""

    name = "kafka"

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._cluster = Kafka(folder)
        self._admin: Any = None

    def start(self) -> None:
        self._cluster.start()

    def use(self, spark: SparkSession) -> None:
        """Use Java of this Spark session, which has the connector in its class path."""
        java: Any = spark.sparkContext._jvm
        settings = java.java.util.HashMap()
        settings.put("bootstrap.servers", ",".join(self._cluster.addresses))
        self._java, self._admin = java, java.org.apache.kafka.clients.admin.AdminClient.create(settings)

    def stop(self) -> None:
        self._cluster.stop()

    @property
    def pids(self) -> list[int]:
        return self._cluster.pids()

    @property
    def connection(self) -> dict[str, str]:
        return {"kafka.bootstrap.servers": ",".join(self._cluster.addresses)}

    def create(self, topic: str) -> None:
        settings = self._java.java.util.HashMap()
        for name, value in Kafka.settings.items():
            settings.put(name, value)
        wanted = self._java.org.apache.kafka.clients.admin.NewTopic(topic, PARTITIONS, 3).configs(settings)
        self._admin.createTopics(self._java.java.util.Collections.singleton(wanted)).all().get()

    def delete(self, topic: str) -> None:
        self._admin.deleteTopics(self._java.java.util.Collections.singleton(topic)).all().get()


@dataclass
class Costs:
    """What one case took with one connector, a figure for each round."""

    seconds: list[float] = field(default_factory=list)
    client_s: list[float] = field(default_factory=list)
    servers_s: list[float] = field(default_factory=list)

    def medians(self) -> tuple[float, float, float]:
        """Return the medians of seconds, CPU seconds of the client, and CPU seconds of the servers."""
        return statistics.median(self.seconds), statistics.median(self.client_s), statistics.median(self.servers_s)

    def together_s(self) -> float:
        """Return the CPU seconds of client and servers together."""
        return statistics.median(self.client_s) + statistics.median(self.servers_s)


def missing() -> str:
    """Return what is not there that Kafka needs, and how to get it; "" if all is there."""
    wanted = {PEERS / "kafka" / "fetched": "brokers", CONNECTOR / "fetched": "connector"}
    lacking = [what for file, what in wanted.items() if not file.exists()]
    return f"Kafka's {' and '.join(lacking)}: make spark-kafka fetches them" if lacking else ""


def spark_settings() -> dict[str, str]:
    """Return the settings of a Spark session that has the connector for Kafka."""
    return {"spark.driver.extraClassPath": f"{CONNECTOR}/*"} if not missing() else {}


class Connectors:
    """The cases, over one Spark session."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self._spark = spark
        self._folder = folder
        self._rows = rows
        self._runs = 0
        self._client = TreeCpu(spark.sparkContext._gateway.proc.pid)

    def prepare(self, sides: list[Any]) -> int:
        """Write the rows to Parquet files, and to a topic of each side. Return the bytes of all values."""
        lines = [line for name in LOGS for line in (DATA / name).read_bytes().splitlines()]
        values = pa.array(list(islice(cycle(lines), self._rows)), pa.binary())
        (self._folder / "rows").mkdir()
        share = -(-self._rows // PARTITIONS)
        for number in range(PARTITIONS):
            part = pa.table({"value": values.slice(number * share, share)})
            pq.write_table(part, self._folder / "rows" / f"{number}.parquet", compression="none")
        for side in sides:
            side.create("read")
            self._write(side, "read")
            self._check(side, "read")
        return sum(map(len, values.to_pylist()))

    def _read(self, side: Side, topic: str) -> DataFrame:
        reader = self._spark.read.format(side.name).options(**side.connection, subscribe=topic)
        return reader.option("startingOffsets", "earliest").load()

    def _stream(self, side: Side) -> DataFrame:
        reader = self._spark.readStream.format(side.name).options(**side.connection, subscribe="read")
        return reader.option("startingOffsets", "earliest").load()

    def _write(self, side: Side, topic: str) -> None:
        rows = self._spark.read.parquet(str(self._folder / "rows"))
        rows.write.format(side.name).options(**side.connection, topic=topic).mode("append").save()

    def _check(self, side: Side, topic: str) -> None:
        """Raise ``RuntimeError`` if a topic does not have as many records as there are rows."""
        found = self._read(side, topic).count()
        if found != self._rows:
            raise RuntimeError(f"{side.name}: {found} records of {self._rows}")

    def _finish(self, rows: DataFrame, format: str, **options: str) -> None:
        writer = rows.writeStream.format(format).options(**options).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self._folder / f"checkpoint-{self._runs}")).start()
        query.awaitTermination()

    def cases(self, side: Side, target: str) -> dict[str, Callable[[], None]]:
        """Return the cases by name; each is a function that runs it once. Those that write use the topic
        ``target``."""
        copied = lambda: self._stream(side).select("value")  # noqa: E731
        return {
            "batch read": lambda: self._read(side, "read").write.format("noop").mode("overwrite").save(),
            "count": lambda: self._check(side, "read"),
            "stream read": lambda: self._finish(self._stream(side), "noop"),
            "batch write": lambda: self._write(side, target),
            "stream copy": lambda: self._finish(copied(), side.name, **side.connection, topic=target),
        }

    def run(self, side: Side, case: str, *, checked: bool) -> tuple[float, float, float]:
        """Run a case once, with a new topic if it writes. Return the seconds, the CPU seconds of the client, and
        those of the servers. With ``checked``, the records that were written are counted afterwards."""
        self._runs += 1
        target = f"written-{self._runs}"
        writes = case in ("batch write", "stream copy")
        if writes:
            side.create(target)
        servers, client, began = sum(map(cpu_s, side.pids)), self._client.seconds(), time.monotonic()
        self.cases(side, target)[case]()
        taken = time.monotonic() - began
        figures = taken, self._client.seconds() - client, sum(map(cpu_s, side.pids)) - servers
        if writes:
            if checked:
                self._check(side, target)
            side.delete(target)
        return figures


@contextmanager
def running_sides(folder: Path) -> Iterator[list[Any]]:
    """Yield the sides with their clusters started, one after the other, since a cluster takes ports that are free:
    Tidelog, and Kafka unless it is ``missing``."""
    sides: list[Any] = []
    try:
        for kind in (TidelogSide,) if missing() else (TidelogSide, KafkaSide):
            sides.append(kind(folder / kind.name))
            sides[-1].start()
        if missing():
            CONSOLE.print(f"without Kafka. Missing: {missing()}")
        yield sides
    finally:
        for side in sides:
            side.stop()


def measure(new_session: Callable[[dict[str, str]], SparkSession], rows: int, rounds: int) -> dict[str, Any]:
    """Run all cases in rounds, print every figure and a table of the medians, and return the figures."""
    with tempfile.TemporaryDirectory(prefix="tidelog-spark-") as name, running_sides(Path(name)) as sides:
        spark = new_session(spark_settings())
        for side in sides[1:]:
            side.use(spark)
        connectors = Connectors(spark, Path(name), rows)
        CONSOLE.print(f"{rows} lines of {', '.join(LOGS)}: writing them to files and topics …")
        size = connectors.prepare(sides)
        costs = {case: {side.name: Costs() for side in sides} for case in connectors.cases(sides[0], "")}
        for number in range(WARM_UPS + rounds):
            for case in costs:
                for side in sides if number % 2 else reversed(sides):
                    figures = connectors.run(side, case, checked=number == 0)
                    seconds, client, servers = figures
                    kind = f"round {number - WARM_UPS + 1}" if number >= WARM_UPS else "warm-up"
                    CONSOLE.print(
                        f"{kind}: {case}, {side.name}: {seconds:.2f} s, CPU of the client {client:.2f} s, "
                        f"of the servers {servers:.2f} s; load {os.getloadavg()[0]:.1f}"
                    )
                    if number >= WARM_UPS:
                        found = costs[case][side.name]
                        for figure, into in zip(
                            figures, (found.seconds, found.client_s, found.servers_s), strict=True
                        ):
                            into.append(figure)
        spark.stop()
    show(costs, rows, size)
    return {case: {side: vars(found) for side, found in of.items()} for case, of in costs.items()}


def show(costs: dict[str, dict[str, Costs]], rows: int, size: int) -> None:
    """Print the medians of every case, and Tidelog's figures divided by Kafka's."""
    CONSOLE.print(f"{rows} rows of {size / rows:.0f} B; medians; CPU in µs a row. Ratios: Tidelog / Kafka")
    table = Table("case", "connector", "s", "rows/s", "client", "servers", "together")
    for case, of_sides in costs.items():
        for side, found in of_sides.items():
            seconds, client, servers = found.medians()
            micros = (f"{cpu_s / rows * 1e6:.2f}" for cpu_s in (client, servers, client + servers))
            table.add_row(case, side, f"{seconds:.2f}", f"{rows / seconds:,.0f}", *micros)
        if len(of_sides) == 2:
            ours, theirs = ((*found.medians(), found.together_s()) for found in of_sides.values())
            seconds, *cpu = (one / other for one, other in zip(ours, theirs, strict=True))
            table.add_row("", "ratio", f"{seconds:.2f}", f"{1 / seconds:.2f}", *(f"{ratio:.2f}" for ratio in cpu))
    CONSOLE.print(table)
