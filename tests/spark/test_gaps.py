"""Logs that change under a query: real Spark, a real cluster, with retention and compaction at work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync
import trio

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

PATIENCE_S = 240
SMALL = {"flush": "os", "segment_max_bytes": "1024"}
"""Segments of a few batches: retention deletes whole ones."""


@pytest.fixture
def client(cluster: Any) -> Any:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def produce(client: tidelog.sync.Log, topic: str, numbers: range, keys: int = 1000, partition: int = 0) -> None:
    """One batch for each ten."""
    with client.producer(topic) as producer:
        for n in numbers:
            pending = producer.submit(b"%d" % n, key=b"k%d" % (n % keys), partition=partition)
            if n % 10 == 9:
                pending.wait()


def wait_until(cluster: Any, seen: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not seen():
        assert time.monotonic() < until
        cluster.run(trio.sleep, 0.1)  # it has the same process, and work to do


def test_F3_retention_overtakes_a_query_and_F7_its_topic_is_created_again(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    def run(**options: str) -> Any:
        reading = spark.readStream.format("tidelog").options(gateway=cluster.url, subscribe="ages", **options)
        rows = reading.load().select("offset").writeStream.format("parquet").option("path", f"{tmp_path}/rows")
        query = rows.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def offsets() -> list[int]:
        return sorted(row.offset for row in spark.read.parquet(f"{tmp_path}/rows").collect())

    client.topics.create("ages", config=SMALL)
    produce(client, "ages", range(100))
    run(startingOffsets="earliest")
    assert offsets() == list(range(100))

    produce(client, "ages", range(100, 400))
    client.topics.alter("ages", {"retention_records": "50"})
    wait_until(cluster, lambda: client.partitions.list_offset("ages", 0, "earliest").offset > 100)
    client.topics.alter("ages", {"retention_records": "-1"})
    begin = client.partitions.list_offset("ages", 0, "earliest").offset
    with pytest.raises(Exception) as caught:
        run()
    assert (
        "[TIDELOG_DATA_LOSS] ages/0: offsets 100 to 399 cannot all be read. "
        f"offsets 100 to {begin - 1}: deleted by retention, the log begins at {begin}; "
        f"offsets {begin} to 399: retained."
    ) in str(caught.value)
    assert offsets() == list(range(100)), "nothing of such a batch"

    produce(client, "ages", range(400, 410))
    query = run(failOnDataLoss="false")
    left = [*range(100), *range(begin, 410)]
    assert offsets() == left
    _, progress = (progress for progress in query.recentProgress if progress["numInputRows"])  # once more, and news
    assert json.loads(progress["sources"][0]["latestOffset"])["lost"] == begin - 100

    client.topics.delete("ages")
    client.topics.create("ages", config=SMALL)
    produce(client, "ages", range(500))
    with pytest.raises(Exception) as caught:
        run(failOnDataLoss="false")
    first = str(caught.value).partition("Traceback (most recent call last)")[0]
    assert "[TIDELOG_TOPIC_CHANGED] ages was deleted and created again" in first
    assert offsets() == left, "nothing of the other topic"


def test_F4_partitions_are_added_and_F5_offsets_go_in_compaction(
    spark: Any, cluster: Any, client: tidelog.sync.Log
) -> None:
    def kept() -> list[tuple[int, int]]:
        with client.consume("kept", start="earliest", end="latest") as records:
            return [(record.partition, record.offset) for record in records]

    def rows(topic: str) -> list[tuple[int, int]]:
        found = spark.table("seen").where(f"topic = '{topic}'").select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in found)

    client.topics.create("kept", config=SMALL | {"cleanup": "compact"})
    client.topics.create("grown", config=SMALL)
    produce(client, "kept", range(300), keys=10)
    produce(client, "grown", range(50))
    wait_until(cluster, lambda: len(kept()) < 200)
    before = kept()

    reading = spark.readStream.format("tidelog").options(gateway=cluster.url, subscribe="kept,grown")
    rows_of = reading.option("startingOffsets", "earliest").load().select("topic", "partition", "offset")
    query = rows_of.writeStream.format("memory").queryName("seen").trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        assert set(kept()) <= set(rows("kept")) <= set(before), "offsets without a record are no loss"
        assert rows("grown") == [(0, n) for n in range(50)]

        client.topics.grow("grown", 2)
        produce(client, "grown", range(30), partition=1)
        query.processAllAvailable()
        assert rows("grown") == [(0, n) for n in range(50)] + [(1, n) for n in range(30)], "from its start"

        client.topics.delete("grown")
        with pytest.raises(Exception, match="TIDELOG_UNKNOWN_TOPIC"):
            query.awaitTermination(PATIENCE_S)
    finally:
        query.stop()
