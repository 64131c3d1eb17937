"""What the sink refuses and takes, in a real Spark with a real cluster: an application that is used again, batch
writes with numbers, modes, times, and the texts of errors."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tidelog.sync

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


def values(client: tidelog.sync.Log, topic: str) -> list[bytes | None]:
    return sorted(record.value or b"" for record in client.consume(topic, start="earliest", end="latest"))


def latest(client: tidelog.sync.Log, topic: str) -> dict[bytes | None, bytes | None]:
    """The last value of each key."""
    return {record.key: record.value for record in client.consume(topic, start="earliest", end="latest")}


def send(client: tidelog.sync.Log, topic: str, *words: bytes) -> None:
    with client.producer(topic) as producer:
        for word in words:
            producer.submit(word, key=word)


def rows_of(spark: Any, cluster: Any, topic: str) -> Any:
    reading = spark.readStream.format("tidelog").options(gateway=cluster.url, startingOffsets="earliest")
    return reading.option("subscribe", topic).load()


def counts_of(spark: Any, cluster: Any, topic: str) -> Any:
    counts = rows_of(spark, cluster, topic).groupBy("key").count()
    return counts.selectExpr("key", "CAST(count AS STRING) AS value")


def finish(writing: Any, checkpoint: Path) -> Any:
    query = writing.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_an_app_id_is_refused_to_a_query_with_another_checkpoint(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    """Its batches are counted from 0 again: the first would be taken for written, and five rows in would be three
    out."""
    for topic in ("called", "copied"):
        client.topics.create(topic, config={"flush": "os"})

    def copy(checkpoint: str) -> None:
        writing = rows_of(spark, cluster, "called").select("key", "value").writeStream.format("tidelog")
        writing = writing.options(gateway=cluster.url, topic="copied", appId="copying")
        finish(writing, tmp_path / checkpoint)

    send(client, "called", b"1", b"2", b"3")
    copy("first")
    send(client, "called", b"4", b"5")
    with pytest.raises(Exception, match=r"\[TIDELOG_APP_ID\] application copying belongs to .*Give another appId"):
        copy("second")
    assert values(client, "copied") == [b"1", b"2", b"3"]
    copy("first")
    assert values(client, "copied") == [b"1", b"2", b"3", b"4", b"5"], "the query that it belongs to goes on"


def test_a_query_in_mode_update_writes_each_batch_once(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    """Spark has no mode ``update`` for sinks in Python; ``foreachBatch`` has."""
    client.topics.create("words", config={"flush": "os"})
    client.topics.create("counts", config={"flush": "os", "cleanup": "compact"})
    client.topics.create("others", config={"flush": "os"})
    counts = counts_of(spark, cluster, "words")

    def write(topics: tuple[str, ...], table: Any, batch: int) -> None:
        for topic in topics:
            writing = table.write.format("tidelog").options(gateway=cluster.url, topic=topic)
            writing.options(appId="counting", batchId=str(batch)).mode("append").save()

    def run(*topics: str, checkpoint: str = "update") -> None:
        query = counts.writeStream.outputMode("update").foreachBatch(lambda table, batch: write(topics, table, batch))
        finish(query, tmp_path / checkpoint)

    send(client, "words", b"a", b"b", b"a")
    run("counts")
    send(client, "words", b"a")
    run("counts")
    assert values(client, "counts") == [b"1", b"2", b"3"], "what did not change is not written"
    assert latest(client, "counts") == {b"a": b"3", b"b": b"1"}

    for noted in (tmp_path / "update" / "commits").glob("*1*"):
        noted.unlink()
    run("counts")
    assert values(client, "counts") == [b"1", b"2", b"3"], "a batch that Spark runs again is there once"

    send(client, "words", b"c")
    for topics, checkpoint in ((("counts", "others"), "update"), (("counts",), "another")):
        with pytest.raises(Exception, match=r"\[TIDELOG_APP_ID\]"):
            run(*topics, checkpoint=checkpoint)
    assert latest(client, "counts") == {b"a": b"3", b"b": b"1", b"c": b"1"}
    assert values(client, "others") == []


def test_mode_complete_goes_to_a_compacted_topic_by_key(
    spark: Any, cluster: Any, client: tidelog.sync.Log, tmp_path: Path
) -> None:
    client.topics.create("seen", config={"flush": "os"})
    client.topics.create("totals", config={"flush": "os", "cleanup": "compact"})
    client.topics.create("plain", config={"flush": "os"})
    counts = counts_of(spark, cluster, "seen")

    def run(topic: str, rows: Any) -> None:
        writing = rows.writeStream.outputMode("complete").format("tidelog").options(gateway=cluster.url, topic=topic)
        finish(writing, tmp_path / topic)

    send(client, "seen", b"a", b"b", b"a")
    run("totals", counts)
    send(client, "seen", b"a")
    run("totals", counts)
    assert values(client, "totals") == [b"1", b"1", b"2", b"3"], "each batch has all rows"
    assert latest(client, "totals") == {b"a": b"3", b"b": b"1"}
    with pytest.raises(Exception, match=r"\[TIDELOG_MODE\] .*plain has cleanup=delete"):
        run("plain", counts)
    shutil.rmtree(tmp_path / "plain")
    with pytest.raises(Exception, match=r"\[TIDELOG_MODE\] .*takes a column key"):
        run("plain", counts.select("value"))
    assert values(client, "plain") == []


def test_a_row_has_the_time_that_it_names(spark: Any, cluster: Any, client: tidelog.sync.Log) -> None:
    client.topics.create("timed", config={"flush": "os"})
    sql = "VALUES ('a', TIMESTAMP '2026-01-02 03:04:05.678999'), ('b', TIMESTAMP '1970-01-01 00:00:00'), ('c', NULL)"
    rows = spark.sql(f"SELECT * FROM {sql} AS t(value, timestamp)")
    for delivery in ("exactly-once", "idempotent", "at-least-once"):
        writing = rows.coalesce(1).write.format("tidelog").options(gateway=cluster.url, topic="timed")
        writing.option("delivery", delivery).mode("append").save()
    times = [(r.value, r.timestamp_ms) for r in client.consume("timed", start="earliest", end="latest")]
    assert times.count((b"a", 1_767_323_045_678)) == times.count((b"b", 0)) == 3
    assert min(ms for value, ms in times if value == b"c") > 1_767_323_045_678, "of when it was written"


def test_an_error_has_its_code_before_the_trace(spark: Any, cluster: Any, client: tidelog.sync.Log) -> None:
    """On the driver, where options are checked, and in a task."""
    rows = spark.range(1).selectExpr("CAST(id AS STRING) AS value")
    for options, code in (({"topic": "none"}, "TIDELOG_UNKNOWN_TOPIC"), ({"topics": "none"}, "TIDELOG_OPTION")):
        with pytest.raises(Exception) as caught:
            rows.write.format("tidelog").options(gateway=cluster.url, **options).mode("append").save()
        before, _, after = str(caught.value).partition(f"[{code}]")
        assert after and "Traceback" not in before
        assert "Traceback (most recent call last):" in after and "spark/sink.py" in after
