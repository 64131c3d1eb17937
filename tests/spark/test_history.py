"""A batch read that begins in a table and goes on in the log: real Spark, a real cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync
import trio

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.declaration import parse
from tidelog.spark.pipelines.run import Run
from tidelog.tables.tables import TableAddress, open_table

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

PATIENCE_S = 240
PARTITIONS = 2
SMALL = {"flush": "os", "segment_max_bytes": "1024"}
"""Segments of a few batches: retention deletes whole ones."""
PIPELINE = """
    name = "lake"
    [in.sales]
    topic = "sales"
    options = { maxOffsetsPerTrigger = 100 }
    [out.archive]
    from = "sales"
    delta = "archive"
    partition-by = ["day(timestamp)"]
    [out.files]
    from = "sales"
    manifest = "files"
    [table.some]
    sql = "SELECT * FROM sales WHERE offset % 2 = 0"
    [out.some]
    from = "some"
    manifest = "some"
"""


def produce(client: tidelog.sync.Log, numbers: range) -> None:
    """One batch for each ten of a partition."""
    with client.producer("sales") as producer:
        for n in numbers:
            pending = producer.submit(b"%d" % n, partition=n % PARTITIONS)
            if n % 20 >= 18:
                pending.wait()


def wait_until(cluster: Any, seen: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < until
        cluster.run(trio.sleep, 0.1)  # it has the same process, and work to do


def test_records_that_the_log_has_deleted_come_from_the_table_and_each_once(
    spark: Any, cluster: Any, tmp_path: Path
) -> None:
    def archive() -> None:
        started = Run(parse(PIPELINE), spark, tmp_path, cluster.url)
        started.finish(started.start())

    def read(table: str, **options: str) -> Any:
        reading = spark.read.format("tidelog").options(gateway=cluster.url, subscribe="sales", history=table)
        return reading.options(**options).load()

    def starts() -> list[int]:
        return [
            client.partitions.list_offset("sales", partition, "earliest").offset for partition in range(PARTITIONS)
        ]

    with tidelog.sync.connect(cluster.url) as client:
        client.topics.create("sales", partitions=PARTITIONS, config=SMALL)
        produce(client, range(400))
        archive()
        for address in (TableAddress("delta", f"{tmp_path}/archive"), TableAddress("parquet", f"{tmp_path}/files")):
            assert open_table(address).compact(1 << 20).added == 1
        produce(client, range(400, 500))
        client.topics.alter("sales", {"retention_records": "70"})
        wait_until(cluster, lambda: min(starts()) > 100)
        client.topics.alter("sales", {"retention_records": "-1"})
        assert max(starts()) <= 200, "the log has what the table has not"

        for table, app in ((f"delta:{tmp_path}/archive", "lake.archive"), (f"manifest:{tmp_path}/files", "")):
            rows = read(table, **{"history.appId": app}, minPartitions="6").collect()
            for partition in range(PARTITIONS):
                mine = [row for row in rows if row.partition == partition]
                assert [row.offset for row in mine] == list(range(250))
                assert [bytes(row.value) for row in mine] == [b"%d" % n for n in range(partition, 500, PARTITIONS)]
            assert {row.topic for row in rows} == {"sales"}

        with pytest.raises(Exception, match=r"\[TIDELOG_HISTORY\] the table is not known to have every record"):
            read(f"manifest:{tmp_path}/some").count()
        source = spark.readStream.format("tidelog").options(gateway=cluster.url, subscribe="sales")
        stream = source.options(history=f"manifest:{tmp_path}/files", maxOffsetsPerTrigger="70").load()
        sizes: list[int] = []
        got: list[tuple[int, int, bytes]] = []

        def take(batch: Any, number: int) -> None:
            rows = [(row.partition, row.offset, bytes(row.value)) for row in batch.collect()]
            if number == 2 and len(sizes) == 2:
                sizes.append(0)
                assert open_table(TableAddress("parquet", f"{tmp_path}/files")).compact(1 << 30).added <= 1
                raise RuntimeError("the driver is lost")
            sizes.append(len(rows))
            got.extend(rows)

        def follow() -> Any:
            writing = stream.writeStream.foreachBatch(take).option("checkpointLocation", f"{tmp_path}/followed")
            return writing.trigger(availableNow=True).start()

        with pytest.raises(Exception, match="the driver is lost"):
            follow().awaitTermination()
        follow().awaitTermination()
        assert sorted(got) == [(n % 2, n // 2, b"%d" % n) for n in sorted(range(500), key=lambda n: (n % 2, n))]
        produce(client, range(500, 540))
        follow().awaitTermination()
        assert sorted(got)[-20:] == [(1, n // 2, b"%d" % n) for n in range(501, 540, 2)]
        assert max(sizes) <= 71

        client.topics.delete("sales")
        client.topics.create("sales", partitions=PARTITIONS, config=SMALL)
        produce(client, range(500))
        with pytest.raises(Exception, match=r"\[TIDELOG_TOPIC_CHANGED\] sales was deleted and created again"):
            read(f"manifest:{tmp_path}/files").count()
