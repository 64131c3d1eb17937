"""Batch reads: real Spark, a real cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from typing import Any

import pytest
import tidelog
import tidelog.sync
from tidelog.spark.errors import error_in
from unit.tidelog.client.test_unreadable_batches import garbage

pyspark = pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # py4j leaves its sockets to the garbage collector
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark.*"),
]

COUNT = 20_000


@pytest.fixture(scope="module")
def log(cluster: Any) -> Iterator[tidelog.sync.Log]:
    with tidelog.sync.connect(cluster.url) as client:
        client.topics.create("orders", partitions=3, replication_factor=3, config={"flush": "os"})
        with client.producer("orders") as producer:
            for n in range(COUNT):
                headers = {"n": b"%d" % n} if n % 100 == 0 else None
                key = b"k%d" % n if n % 2 else None
                producer.submit(b"v%d" % n, key=key, headers=headers, partition=n % 3, timestamp_ms=1_000_000 + n)
        yield client


@pytest.fixture
def read(spark: Any, cluster: Any, log: tidelog.sync.Log) -> Any:
    def load(**options: str) -> Any:
        reading = spark.read.format("tidelog").option("gateway", cluster.url)
        for name, value in options.items():
            reading = reading.option(name, value)
        return reading.load()

    return load


def before_the_trace(error: BaseException) -> str:
    """What a user of Spark reads first, which ``error_in`` finds as well."""
    first, trace, _ = str(error).partition("Traceback (most recent call last)")
    assert trace
    assert str(error_in(error)) in first
    return first


def test_processes_of_spark_import_pyspark_from_where_it_is_installed(spark: Any) -> None:
    asked = spark.sparkContext.parallelize(["pyspark"], 1).map(import_module).map(attrgetter("__file__"))
    assert asked.collect() == [pyspark.__file__]


def test_all_rows_come_back_in_order_without_registration(read: Any, log: tidelog.sync.Log) -> None:
    rows = read(subscribe="orders").select("key", "value", "topic", "partition", "offset", "leader_epoch").collect()
    assert len(rows) == COUNT
    for partition in range(3):
        mine = [row for row in rows if row.partition == partition]
        assert [row.offset for row in mine] == list(range(len(mine)))
        assert [bytes(row.value) for row in mine] == [b"v%d" % n for n in range(partition, COUNT, 3)]
        assert [row.key and bytes(row.key) for row in mine] == [
            b"k%d" % n if n % 2 else None for n in range(partition, COUNT, 3)
        ]
    assert {row.topic for row in rows} == {"orders"}
    with log.consume("orders", start="earliest", end="latest") as consumer:
        told = {(record.partition, record.offset, record.leader_epoch) for record in consumer}
    assert {(row.partition, row.offset, row.leader_epoch) for row in rows} == told  # whatever was elected meanwhile


def test_registration_works_too(spark: Any, read: Any) -> None:
    from tidelog.spark.source import TidelogDataSource

    spark.dataSource.register(TidelogDataSource)
    assert len(read(subscribe="orders").limit(3).collect()) == 3


def test_timestamps_and_headers(read: Any) -> None:
    table = read(subscribe="orders", includeHeaders="true")
    found = table.selectExpr("min(unix_millis(timestamp))", "max(unix_millis(timestamp))").collect()[0]
    assert tuple(found) == (1_000_000, 1_000_000 + COUNT - 1)
    rows = table.where("size(headers) > 0").select("headers").collect()
    assert len(rows) == COUNT // 100
    assert {(header.key, bytes(header.value)) for row in rows for header in row.headers} == {
        ("n", b"%d" % n) for n in range(0, COUNT, 100)
    }


def test_ranges_of_offsets_are_half_open_and_cut_for_parallel_tasks(read: Any) -> None:
    start = json.dumps({"orders": {"0": 100, "1": 0, "2": -2}})
    end = json.dumps({"orders": {"0": 200, "1": 0, "2": -1}})
    table = read(subscribe="orders", startingOffsets=start, endingOffsets=end, minPartitions="8")
    last = len(range(2, COUNT, 3))
    assert table.rdd.getNumPartitions() >= 8
    rows = table.groupBy("partition").agg({"offset": "min", "*": "count"}).orderBy("partition").collect()
    assert [(row["partition"], row["min(offset)"], row["count(1)"]) for row in rows] == [(0, 100, 100), (2, 0, last)]


def test_assign_reads_some_partitions(read: Any) -> None:
    assert {row.partition for row in read(assign='{"orders": [1]}').select("partition").distinct().collect()} == {1}


def test_several_topics(read: Any, log: tidelog.sync.Log) -> None:
    log.topics.create("returns", config={"flush": "os"})
    with log.producer("returns") as producer:
        producer.send(b"r")
    rows = read(subscribe="orders,returns").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in rows} == {"orders": COUNT, "returns": 1}


def test_a_filter_on_offsets_reads_no_more_than_it_needs(read: Any) -> None:
    table = read(subscribe="orders", filterPushdown="true").where("partition = 1 and offset between 10 and 12")
    assert table.rdd.getNumPartitions() == 1
    assert [row.offset for row in table.select("offset").collect()] == [10, 11, 12]


def test_a_filter_on_times_reads_no_more_than_it_can_leave_out_and_loses_no_row(
    read: Any, log: tidelog.sync.Log
) -> None:
    times = [5_000, 1_000, 9_000, 2_000, 8_000, 3_000, 9_500, 100]
    log.topics.create("clocks", config={"flush": "os"})
    with log.producer("clocks") as producer:
        for at in times:
            producer.send(b"x", timestamp_ms=at)
    table = read(subscribe="clocks", filterPushdown="true")
    for after in (0, 5_001, 8_000, 9_501):
        wanted = [offset for offset, at in enumerate(times) if at >= after]
        some = table.where(f"timestamp >= timestamp_millis({after})")
        assert sorted(row.offset for row in some.select("offset").collect()) == wanted
    assert table.where("timestamp >= timestamp_millis(9501)").rdd.getNumPartitions() == 1, "Spark's empty one"
    some = table.where("timestamp > timestamp_millis(2000) and timestamp < timestamp_millis(9000)")
    assert sorted(row.offset for row in some.select("offset").collect()) == [0, 4, 5]


def test_nothing(read: Any) -> None:
    here = json.dumps({"orders": {"0": 5, "1": 5, "2": 5}})
    assert read(subscribe="orders", startingOffsets=here, endingOffsets=here).count() == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"subscribe": "orders", "startOffsets": "earliest"},
            "[TIDELOG_OPTION] there is no option startoffsets, perhaps startingOffsets",
        ),
        ({"subscribe": "nothing"}, "[TIDELOG_UNKNOWN_TOPIC] there is no topic nothing"),
        (
            {"assign": '{"orders": [0]}', "endingOffsets": '{"orders": {"0": 1000000}}'},
            "offsets 6667 to 999999: never existed, the log ends at 6667",
        ),
    ],
)
def test_errors_reach_the_user_with_their_codes(read: Any, options: dict[str, str], text: str) -> None:
    with pytest.raises(Exception) as caught:
        read(**options).count()
    assert text in before_the_trace(caught.value)


def test_a_batch_that_cannot_be_decoded_is_named_or_skipped(read: Any, cluster: Any, log: tidelog.sync.Log) -> None:
    async def send_garbage(topic_id: str) -> None:
        async with tidelog.connect(cluster.url) as plain:
            await plain.sender("all").send(topic_id, 0, garbage(producer_id=0), 30.0)

    topic = log.topics.create("trusting", replication_factor=3, config={"validate_batches": "false"})
    with log.producer("trusting") as producer:
        producer.send(b"before")
    cluster.run(send_garbage, topic.topic_id)
    with log.producer("trusting") as producer:
        producer.send(b"behind")

    with pytest.raises(Exception) as caught:
        read(subscribe="trusting").collect()
    assert "[TIDELOG_CORRUPT] trusting/0: the batch at offsets 1 to 3" in before_the_trace(caught.value)
    rows = read(subscribe="trusting", onUnreadable="skip").select("offset", "value").collect()
    assert [(row.offset, bytes(row.value)) for row in rows] == [(0, b"before"), (4, b"behind")]


def test_a_schema_of_ones_own_is_refused(spark: Any, cluster: Any) -> None:
    reading = spark.read.format("tidelog").option("gateway", cluster.url).option("subscribe", "orders")
    with pytest.raises(Exception) as caught:
        reading.schema("value STRING").load().count()
    assert "[TIDELOG_SCHEMA] the columns are key, value" in str(caught.value)


def test_a_leader_that_ends_during_the_read_changes_no_row(cluster: Any, log: tidelog.sync.Log) -> None:
    """F2, at the level of a task: the first rows from one leader, the rest from the next."""
    from tidelog.spark.options import parse
    from tidelog.spark.source import TidelogReader

    source = TidelogReader(parse({"gateway": cluster.url, "assign": '{"orders": [0]}', "fetchMaxBytes": "65536"}))
    [partition] = source.partitions()
    calm = [row for batch in source.read(partition) for row in batch.to_pylist()]
    reading = source.read(partition)
    rows = next(reading).to_pylist()
    leader = log.topics.describe("orders").partitions[0].leader
    cluster.stop(leader)
    rows += [row for batch in reading for row in batch.to_pylist()]
    cluster.start(leader)
    assert rows == calm
    assert [row["value"] for row in rows] == [b"v%d" % n for n in range(0, COUNT, 3)]
