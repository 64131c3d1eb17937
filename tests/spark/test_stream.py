"""A stream from topic to topic: real Spark, a real cluster. Batches are replayed as after a crash: Spark has planned
one and not noted that it is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync
from tidelog.cli.explain.retention_waits import kept_in
from tidelog.spark.progress import lag

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

Go = Callable[..., Any]


@pytest.fixture
def client(cluster: Any) -> Any:
    with tidelog.sync.connect(cluster.url) as log:
        yield log


def fill(client: tidelog.sync.Log, topic: str, numbers: range) -> None:
    with client.producer(topic) as producer:
        for n in numbers:
            producer.submit(b"%d" % n, key=b"k%d" % n, headers={"n": b"%d" % n}, partition=n % 3)


def values(client: tidelog.sync.Log, topic: str) -> list[int]:
    return sorted(int(r.value or b"-1") for r in client.consume(topic, start="earliest", end="latest"))


@pytest.fixture
def copy(spark: Any, cluster: Any, tmp_path: Path) -> Go:
    """Run a query from topic ``calls`` to topic ``copies`` to the end of what there is, in so many tasks a batch, if
    they are not to be those of the source."""

    def go(delivery: str = "exactly-once", tasks: int = 0, **options: str) -> Any:
        reading = spark.readStream.format("tidelog").options(
            gateway=cluster.url, subscribe="calls", includeHeaders="true", **options
        )
        rows = reading.load().select("key", "value", "headers", "partition")
        writing = (rows.repartition(tasks) if tasks else rows).writeStream.format("tidelog")
        writing = writing.options(gateway=cluster.url, topic="copies", delivery=delivery)
        query = writing.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    return go


def test_a_stream_that_is_interrupted_and_grows_writes_every_record_once(
    copy: Go, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    client.topics.create("calls", partitions=3, replication_factor=3, config={"flush": "os"})
    client.topics.create("copies", partitions=3, replication_factor=3, config={"flush": "os"})
    fill(client, "calls", range(3000))
    how = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000", "groupId": "copying"}
    query = copy(**how)
    batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
    assert [progress["numInputRows"] for progress in batches] == [2000, 1000]
    told = batches[-1]["sources"][0]["latestOffset"]
    told = json.loads(told) if isinstance(told, str) else told
    assert told["lost"] == 0
    assert [sum(lag(progress)["calls"].values()) for progress in batches] == [1000, 0]
    assert lag(query) == {"calls": {0: 0, 1: 0, 2: 0}}
    assert {at["offset"] for at in told["topics"]["calls"]["partitions"].values()} == {1000}
    assert values(client, "copies") == list(range(3000))
    assert [(at.offset, at.lag) for at in client.groups.progress("copying")] == [(1000, 0)] * 3

    for noted in (tmp_path / "commits").glob("*1*"):
        noted.unlink()
    fill(client, "calls", range(3000, 3500))
    copy(tasks=5, **how)
    assert values(client, "copies") == list(range(3500)), "the second batch was run twice, cut differently"
    first = next(iter(client.consume("copies", start="earliest", end="latest")))
    assert (first.key, first.headers) == (b"k" + first.value, (("n", first.value),))


def test_a_first_batch_is_replayed_from_where_it_was_planned(
    spark: Any, copy: Go, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    """With ``latest`` Spark asks for another start after the crash, and has not kept the first."""
    before = len(values(client, "copies"))
    copy("idempotent", startingOffsets=json.dumps({"calls": {"0": -2, "1": -1, "2": -1}}), maxOffsetsPerTrigger="100")
    done = len(values(client, "copies")) - before
    assert done == len([n for n in values(client, "calls") if n % 3 == 0])
    shutil.rmtree(tmp_path / "commits")
    copy("idempotent", startingOffsets="latest")
    assert len(values(client, "copies")) == before + done


def test_rows_of_a_table_become_records(spark: Any, cluster: Any, client: tidelog.sync.Log) -> None:
    client.topics.create("table", partitions=3, config={"flush": "os"})
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS value", "CAST(id % 3 AS INT) AS partition")
    writing = (
        rows.repartition(4).write.format("tidelog").options(gateway=cluster.url, topic="table", compression="lz4")
    )
    writing.mode("append").save()
    assert values(client, "table") == list(range(1000))
    with pytest.raises(Exception, match="a log is appended to, never overwritten"):
        writing.mode("overwrite").save()


def test_a_topic_keeps_what_a_query_has_not_read(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    config = {"flush": "os", "segment_max_bytes": "1024", "retention_records": "1", "retention_waits_for": "archive"}
    client.topics.create("awaited", config=config)
    client.topics.create("archived", config={"flush": "os"})

    def state() -> Any:
        return client.topics.describe("awaited", offsets=True).partitions[0]

    def archive(first: int, after: int) -> None:
        with client.producer("awaited", tidelog.ProducerOptions(linger_s=0, max_in_flight=1)) as producer:
            for n in range(first, after):
                producer.send(b"%d" % n)
        while not kept_in([client.cluster.metrics(state().leader).page]):
            assert state().log_start <= first, "retention did not wait"
        reading = spark.readStream.format("tidelog").options(
            gateway=cluster.url, subscribe="awaited", startingOffsets="earliest", groupId="archive"
        )
        writing = reading.load().select("value").writeStream.format("tidelog").options(gateway=cluster.url)
        writing = writing.option("topic", "archived").option("checkpointLocation", str(tmp_path))
        writing.trigger(availableNow=True).start().awaitTermination()

    archive(0, 60)
    assert values(client, "archived") == list(range(60))
    while state().log_start == 0:
        pass
    archive(60, 120)
    assert values(client, "archived") == list(range(120))
