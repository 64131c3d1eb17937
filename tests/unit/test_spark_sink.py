"""The sink without Spark around it: which rows become which batches, and what a second try writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tidelog.sync
from serving import served
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import refuse
from tidelog.records import read_header

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType
from tidelog.spark import sink
from tidelog.spark.errors import SourceError
from tidelog.spark.rows import Numbering, Producer, TopicLimits, check_columns
from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter, checked, producer_of
from tidelog.spark.write_options import parse


def refusal(streaming: bool = False, **options: str) -> str:
    with pytest.raises(SourceError) as caught:
        parse(options, streaming=streaming)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": "a"}, "there is no option topics, perhaps topic; a write takes gateway, ca"),
        ({"topic": "a/b"}, "topic is the name of a topic"),
        ({"acks": "one"}, "acks is none, leader or all; not 'one'"),
        ({"compression": "gzip"}, "compression is none, zstd or lz4; not 'gzip'"),
        ({"delivery": "twice"}, "delivery is exactly-once, idempotent or at-least-once; not 'twice'"),
        ({"acks": "none"}, "acks none goes with delivery at-least-once only, not with idempotent"),
        ({"appId": "me"}, "appId belongs to streams"),
        (
            {"delivery": "exactly-once", "acks": "leader"},
            "acks leader goes with delivery idempotent and at-least-once",
        ),
        ({"transactionTimeout": "5m"}, "transactionTimeout belongs to delivery exactly-once, not to idempotent"),
        ({"cert": "c.pem"}, "give both cert and key, or neither"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, str], text: str) -> None:
    assert text in refusal(**options)


def test_a_stream_is_written_exactly_once_unless_it_says_otherwise() -> None:
    stream = parse({"topic": "a", "transactionTimeout": "5m"}, streaming=True)
    assert (stream.delivery, stream.transaction_timeout_ms) == ("exactly-once", 300_000)
    assert parse({"topic": "a", "delivery": "idempotent", "appId": "me"}, streaming=True).app == "me"
    assert parse({"topic": "a"}, streaming=False).delivery == "idempotent"


def test_what_is_sparks_own_comes_along() -> None:
    given = {"topic": "a", "delivery": "idempotent", "checkpointLocation": "/somewhere", "queryName": "q"}
    assert parse(given, streaming=True).topic == "a"


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"key": "binary"}, True, "there is no column value"),
        ({"value": "int"}, True, "value is int, not binary or string"),
        ({"value": "string", "offset": "bigint"}, True, "offset is no column of a record"),
        ({"value": "string"}, False, "give the option topic, or a column topic"),
        ({"value": "string", "headers": "map<string,binary>"}, True, "headers is map<string,binary>, not array<"),
    ],
)
def test_columns_that_are_no_record_are_refused(columns: dict[str, str], topic: bool, text: str) -> None:
    with pytest.raises(SourceError, match="TIDELOG_SCHEMA") as caught:
        check_columns(columns, has_topic=topic)
    assert text in str(caught.value)


def test_a_log_is_not_overwritten() -> None:
    with pytest.raises(SourceError, match="never overwritten: use mode"):
        checked({"topic": "a"}, StructType(), overwrite=True, streaming=False)


def test_every_column_that_a_record_has_is_taken() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    full = [
        StructField("value", BinaryType()),
        StructField("key", StringType()),
        StructField("headers", ArrayType(header)),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
    ]
    checked({}, StructType(full), overwrite=False, streaming=False)


# --- rows to batches ---------------------------------------------------------------------------------------------


def table(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def numbering(partitions: int = 4, max_batch_bytes: int = 1 << 20, start: int = 1) -> Numbering:
    made = Numbering(Producer(9, 2), "none", "orders", start)
    made.know("orders", TopicLimits(partitions, max_batch_bytes))
    return made


def batches(made: Numbering, *tables: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """(partition, base sequence, records) of each."""
    found = [batch for each in tables for batch in made.add(each, 1000)] + list(made.finish())
    return [(each.target.partition, read_header(each.data).base_sequence, each.count) for each in found]


def test_partitions_are_those_of_the_row_or_the_key_or_one_after_the_other() -> None:
    rows = table(value=["a", "b", "c", "d"], key=["k", None, None, "k"], partition=[None, 3, None, 0])
    keyed = partition_of(b"k", 4)
    wanted = Counter([keyed, 3, 1, 0])
    assert {p: n for p, _, n in batches(numbering(), rows)} == wanted


def test_the_same_rows_make_the_same_batches_however_spark_hands_them_over() -> None:
    values = [b"%05d" % n for n in range(60_000)]
    whole = batches(numbering(), table(value=values))
    parts = batches(numbering(), *(table(value=values[n : n + 999]) for n in range(0, 60_000, 999)))
    assert whole == parts
    assert len(whole) > 4
    assert sum(n for _, _, n in whole) == 60_000
    for partition in range(4):
        mine = [(sequence, count) for p, sequence, count in whole if p == partition]
        assert [sequence for sequence, _ in mine] == [sum(n for _, n in mine[:at]) for at in range(len(mine))]


def test_batches_stay_within_what_the_topic_allows() -> None:
    made = numbering(partitions=1, max_batch_bytes=4096)
    found = [*made.add(table(value=[b"x" * 1000] * 20), 1000), *made.finish()]
    assert all(len(each.data) <= 4096 for each in found)
    with pytest.raises(SourceError, match="a record of 5016 bytes does not fit"):
        list(made.add(table(value=[b"x" * 5000]), 1000))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": ["a"], "partition": [4]}, "orders has partitions 0 to 3; a row names 4"),
        ({"value": ["a"], "headers": [[{"key": "k", "value": None}]]}, "a header without key or value"),
    ],
)
def test_a_row_that_is_no_record_is_refused(columns: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(SourceError, match=text):
        batches(numbering(), table(**columns))


def test_a_row_without_any_topic_is_refused() -> None:
    with pytest.raises(SourceError, match="a row has no topic"):
        Numbering(Producer(9, 2), "none", "", 0).topics_of(table(value=["a"], topic=[None]))


def test_producers_are_the_same_for_every_try_and_for_nobody_else() -> None:
    assert producer_of("app", 5, 1) == producer_of("app", 5, 1)
    ids = {producer_of(app, batch, task).id for app in "ab" for batch in (0, 70_000) for task in (0, 1)}
    assert len(ids) == 8
    assert all(id >= 1 << 63 for id in ids)
    assert producer_of("app", 6, 1) == Producer(producer_of("app", 5, 1).id, 6), (
        "the next batch fences the one before"
    )


# --- writing -----------------------------------------------------------------------------------------------------


@contextmanager
def task(patch: pytest.MonkeyPatch, number: int, **properties: str) -> Iterator[None]:
    context = SimpleNamespace(partitionId=lambda: number, getLocalProperty=properties.get)
    with patch.context() as local:
        local.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        yield


def values(url: str) -> list[bytes | None]:
    with tidelog.sync.connect(url) as log:
        return [record.value for record in log.consume("orders", start="earliest", end="latest")]


ROWS = table(value=[b"%d" % n for n in range(1000)], key=[b"k%d" % n for n in range(1000)])


def stream_writer(url: str, **options: str) -> TidelogStreamWriter:
    return TidelogStreamWriter(parse({"gateway": url, "topic": "orders", **options}, streaming=True))


def properties(query: str, batch: int) -> dict[str, str]:
    return {sink.QUERY_ID: query, sink.BATCH_ID: str(batch)}


@pytest.mark.parametrize(("delivery", "tries"), [("idempotent", 1), ("at-least-once", 2)])
def test_a_micro_batch_that_is_run_again(monkeypatch: pytest.MonkeyPatch, delivery: str, tries: int) -> None:
    with served(3) as (_, url):
        for _ in range(2):  # a task attempt is another process: nothing is shared
            with task(monkeypatch, 0, **properties("q", 7)):
                assert stream_writer(url, delivery=delivery).write(iter([ROWS])).rows == 1000
        assert len(values(url)) == tries * 1000
        assert len(set(values(url))) == 1000


def test_the_tasks_of_a_batch_write_are_told_apart_and_two_writes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(3) as (_, url):
        for _ in range(2):
            writer = TidelogWriter(parse({"gateway": url, "topic": "orders"}, streaming=False))
            for number in (0, 1, 1):
                with task(monkeypatch, number):
                    writer.write(iter([ROWS]))
        assert len(values(url)) == 4 * 1000


def test_a_write_waits_out_what_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("NOT_LEADER", "moved"), refuse("NOT_ENOUGH_REPLICAS", "soon")]
        with task(monkeypatch, 0, **properties("q", 0)):
            stream_writer(url, delivery="idempotent").write(iter([ROWS]))
        assert len(values(url)) == 1000


def test_a_write_that_is_refused_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("TOPIC_READ_ONLY", "orders/0 is read-only")]
        wanted = r"\[TIDELOG_NOT_WRITTEN\] orders/0: 1000 records are not in the log: orders/0 is read-only"
        with task(monkeypatch, 0, **properties("q", 0)), pytest.raises(SourceError, match=wanted):
            stream_writer(url, delivery="idempotent").write(iter([ROWS]))


def test_a_topic_that_does_not_exist_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (_, url), task(monkeypatch, 0, **properties("q", 0)):
        with pytest.raises(SourceError, match=r"\[TIDELOG_UNKNOWN_TOPIC\] there is no topic none"):
            stream_writer(url, delivery="idempotent", topic="none").write(iter([ROWS]))
        assert stream_writer(url, delivery="idempotent").write(iter([])).rows == 0
