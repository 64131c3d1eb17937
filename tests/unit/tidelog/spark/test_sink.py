"""The sink without Spark around it: which rows become which batches, and what a second try writes."""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tidelog.sync
from support.fake_gateway import FakeCluster, Partition
from support.gateway_thread import served
from tidelog.batch.format import decode_batch, decode_columns, read_header
from tidelog.batch.sparse import thin_batch
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import refuse
from tidelog.types import MAX_TASKS
from tidelog.wire.messages import InitProducer, InitTaskProducer, Message, Produce, ProducerId, Read, ReadAnswer

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructField, StructType, TimestampType
from tidelog.spark import sink
from tidelog.spark.errors import SourceError
from tidelog.spark.sink import TidelogStreamWriter, TidelogWriter, checked
from tidelog.spark.write import task as sending
from tidelog.spark.write import task_input
from tidelog.spark.write.columns import check_columns
from tidelog.spark.write.options import parse
from tidelog.spark.write.row_encoder import RowEncoder
from tidelog.spark.write.task_data import Reserved, TaskIdentity, TopicLimits


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
        ({"appId": "me"}, "a batch write takes both appId and batchId, or neither"),
        ({"batchId": "1"}, "a batch write takes both appId and batchId, or neither"),
        ({"appId": "me", "batchId": "-1"}, "batchId is a whole number, at least 0; not '-1'"),
        ({"appId": "me", "batchId": "1", "delivery": "idempotent"}, "go with delivery exactly-once, not idempotent"),
        (
            {"delivery": "exactly-once", "acks": "leader"},
            "acks leader goes with delivery idempotent and at-least-once",
        ),
        ({"transactionTimeout": "5m"}, "transactionTimeout belongs to delivery exactly-once, not to idempotent"),
        ({"cert": "c.pem"}, "give both cert and key, or neither"),
    ],
)
def test_wrong_options_of_a_write_are_refused_with_the_reason(options: dict[str, str], text: str) -> None:
    assert text in refusal(**options)


def test_a_stream_is_written_exactly_once_unless_it_says_otherwise() -> None:
    stream = parse({"topic": "a", "transactionTimeout": "5m"}, streaming=True)
    assert (stream.delivery, stream.transaction_timeout_ms) == ("exactly-once", 300_000)
    assert parse({"topic": "a", "delivery": "idempotent", "appId": "me"}, streaming=True).app == "me"
    assert parse({"topic": "a"}, streaming=False).delivery == "idempotent"


def test_a_batch_write_with_a_number_is_written_exactly_once() -> None:
    numbered = parse({"topic": "a", "appId": "me", "batchId": "7"}, streaming=False)
    assert (numbered.delivery, numbered.app, numbered.batch) == ("exactly-once", "me", 7)
    assert "Spark numbers the batches of a stream" in refusal(streaming=True, topic="a", batchId="7")


def test_options_of_spark_itself_are_accepted() -> None:
    given = {"topic": "a", "delivery": "idempotent", "checkpointLocation": "/somewhere", "queryName": "q"}
    assert parse(given, streaming=True).topic == "a"


@pytest.mark.parametrize(
    ("columns", "topic", "text"),
    [
        ({"key": "binary"}, True, "there is no column value"),
        ({"value": "int"}, True, "value is int, not binary or string"),
        ({"value": "string", "offset": "bigint"}, True, "offset is no column of a record"),
        ({"value": "string"}, False, "give the option topic, or a column topic"),
        ({"value": "string", "timestamp": "bigint"}, True, "timestamp is bigint, not timestamp"),
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


def test_mode_complete_takes_rows_with_keys() -> None:
    value, key = StructField("value", BinaryType()), StructField("key", BinaryType())
    with pytest.raises(SourceError, match=r"\[TIDELOG_MODE\].*takes a column key"):
        checked({"topic": "a"}, StructType([value]), overwrite=True, streaming=True)
    assert checked({"topic": "a"}, StructType([value, key]), overwrite=True, streaming=True).keyed
    assert not checked({"topic": "a"}, StructType([value, key]), overwrite=False, streaming=True).keyed


def test_every_column_that_a_record_has_is_taken() -> None:
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    full = [
        StructField("value", BinaryType()),
        StructField("key", StringType()),
        StructField("headers", ArrayType(header)),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("timestamp", TimestampType()),
    ]
    checked({}, StructType(full), overwrite=False, streaming=False)


# --- rows to batches ---------------------------------------------------------------------------------------------


def table(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def encoder(partitions: int = 4, max_batch_bytes: int = 1 << 20, start: int = 1) -> RowEncoder:
    made = RowEncoder(TaskIdentity(9, 2, 1000), "none", "orders", start)
    made.set_limits("orders", TopicLimits(partitions, max_batch_bytes))
    return made


def batches(made: RowEncoder, *tables: pa.RecordBatch) -> list[tuple[int, int, int]]:
    """(partition, base sequence, records) of each."""
    found = [batch for each in tables for batch in made.add(each)] + list(made.finish())
    return [(each.target.partition, read_header(each.data).base_sequence, each.count) for each in found]


def test_partitions_are_those_of_the_row_or_the_key_or_one_after_the_other() -> None:
    rows = table(value=["a", "b", "c", "d"], key=["k", None, None, "k"], partition=[None, 3, None, 0])
    keyed = partition_of(b"k", 4)
    wanted = Counter([keyed, 3, 1, 0])
    assert {p: n for p, _, n in batches(encoder(), rows)} == wanted


def test_the_same_rows_make_the_same_batches_however_spark_hands_them_over() -> None:
    values = [b"%05d" % n for n in range(60_000)]
    whole = batches(encoder(), table(value=values))
    parts = batches(encoder(), *(table(value=values[n : n + 999]) for n in range(0, 60_000, 999)))
    assert whole == parts
    assert len(whole) > 4
    assert sum(n for _, _, n in whole) == 60_000
    for partition in range(4):
        mine = [(sequence, count) for p, sequence, count in whole if p == partition]
        assert [sequence for sequence, _ in mine] == [sum(n for _, n in mine[:at]) for at in range(len(mine))]


def test_batches_stay_within_the_bound_of_the_topic() -> None:
    made = encoder(partitions=1, max_batch_bytes=4096)
    found = [*made.add(table(value=[b"x" * 1000] * 20)), *made.finish()]
    assert all(len(each.data) <= 4096 for each in found)
    with pytest.raises(SourceError, match="a record of 5016 bytes does not fit"):
        list(made.add(table(value=[b"x" * 5000])))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": ["a"], "partition": [4]}, "orders has partitions 0 to 3; a row names 4"),
        ({"value": ["a"], "headers": [[{"key": "k", "value": None}]]}, "a header without key or value"),
        ({"value": ["a"], "timestamp": [datetime(1969, 12, 31, tzinfo=UTC)]}, "a timestamp before 1970"),
    ],
)
def test_a_row_that_is_no_record_is_refused(columns: dict[str, list[Any]], text: str) -> None:
    with pytest.raises(SourceError, match=text):
        batches(encoder(), table(**columns))


def test_a_row_has_its_own_time_or_that_of_its_task() -> None:
    times = [datetime(2026, 1, 2, 3, 4, 5, 678_999, UTC), None, datetime(1970, 1, 1, tzinfo=UTC)]
    made = encoder(partitions=1)
    rows = table(value=["a", "b", "c"], timestamp=pa.array(times, pa.timestamp("us", "UTC")))
    [batch] = [*made.add(rows), *made.finish()]
    assert [record.timestamp_ms for record in decode_batch(batch.data)] == [1_767_323_045_678, 1000, 0]


def test_a_row_without_any_topic_is_refused() -> None:
    with pytest.raises(SourceError, match="a row has no topic"):
        RowEncoder(TaskIdentity(9, 2, 1000), "none", "", 0).topics_of(table(value=["a"], topic=[None]))


def test_a_batch_write_has_a_producer_for_each_task_up_to_a_bound() -> None:
    reserved = Reserved(500, 7)
    assert reserved.of_task(0) == reserved.of_task(0) == TaskIdentity(500, 0, 7)
    assert reserved.of_task(MAX_TASKS - 1) == TaskIdentity(500 + MAX_TASKS - 1, 0, 7)
    with pytest.raises(SourceError, match=r"TIDELOG_OPTION.*at most 100000 tasks"):
        reserved.of_task(MAX_TASKS)


# --- writing -----------------------------------------------------------------------------------------------------


WHOLE, BROKEN_OFF = b"\xff\xff\xff\xfc", b""
"""What Spark sends after the last table."""


def as_worker(after: bytes, call: Callable[[], Any]) -> Any:
    """Call it on a stack as that of ``pyspark.worker``."""

    def main(infile: io.BufferedReader) -> Any:
        return call()

    return main(io.BufferedReader(io.BytesIO(after)))


@contextmanager
def task(patch: pytest.MonkeyPatch, number: int, *, worker: bool = True, **properties: str) -> Iterator[None]:
    """What is done in the block is done by a task that gets all of its rows; without ``worker`` it has to look for
    itself whether it does."""
    context = SimpleNamespace(partitionId=lambda: number, getLocalProperty=properties.get)
    with patch.context() as local:
        local.setattr(sink, "TaskContext", SimpleNamespace(get=lambda: context))
        if worker:
            local.setattr(task_input, "_input", lambda: io.BufferedReader(io.BytesIO(WHOLE)))
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


def sent(cluster: FakeCluster) -> list[bytes]:
    """The payloads of all produce requests so far, one batch each."""
    found = []
    for message in cluster.seen:
        if isinstance(message, Produce):
            assert len(message.parts) == 1
            found.append(bytes(memoryview(message.payload)))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_a_replayed_micro_batch_sends_the_very_same_bytes(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Another process, another clock, and Spark hands the rows over in other pieces."""
    rows = table(value=[b"%05d" % n for n in range(30_000)])
    pieces = [rows.slice(at, 777) for at in range(0, 30_000, 777)]
    with served(2) as (cluster, url):
        tries = []
        for clock_ms, tables in ((1_000_000, [rows]), (9_000_000, pieces)):
            monkeypatch.setattr(sending, "wall_ms", lambda clock_ms=clock_ms: clock_ms)
            with task(monkeypatch, 1, **properties("q", 7)):
                stream_writer(url, delivery="idempotent", compression=codec).write(iter(tables))
            tries.append(sorted(sent(cluster), key=lambda data: read_header(data)[:]))
            cluster.seen.clear()
        assert tries[0] == tries[1]
        assert len(tries[0]) > 1
        assert len(values(url)) == 30_000


def test_tasks_of_a_batch_write_are_distinguished_and_so_are_two_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(3) as (_, url):
        for _ in range(2):
            writer = TidelogWriter(parse({"gateway": url, "topic": "orders"}, streaming=False))
            for number in (0, 1, 1):
                with task(monkeypatch, number):
                    writer.write(iter([ROWS]))
        assert len(values(url)) == 4 * 1000


def test_a_write_waits_until_passing_errors_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_task_whose_rows_break_off_writes_no_short_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """To an Arrow reader the end of the input is the end of the rows. The retry has the sequence for other bytes."""
    rows = table(value=[b"%05d" % n for n in range(30_000)])
    with served() as (_, url), task(monkeypatch, 0, worker=False, **properties("q", 7)):
        for delivery in ("at-least-once", "idempotent"):
            writer = stream_writer(url, delivery=delivery)
            cut = iter([rows.slice(0, 20_000)])
            with pytest.raises(SourceError, match="Spark ended the task before it had handed over all of its rows"):
                as_worker(BROKEN_OFF, partial(writer.write, cut))
        before = len(values(url))
        assert 0 < before < 40_000, "full batches only"
        assert as_worker(WHOLE, partial(writer.write, iter([rows]))).rows == 30_000
        assert sorted(values(url)[-30_000:]) == sorted(rows.column("value").to_pylist())


def test_a_worker_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    without = task(monkeypatch, 0, worker=False, **properties("q", 7))
    with without, pytest.raises(SourceError, match="does not show where"):
        stream_writer("ws://nowhere", delivery="idempotent").write(iter([]))


# --- producers ---------------------------------------------------------------------------------------------------


def producers(cluster: FakeCluster) -> list[tuple[int, int, int]]:
    """(producer id, epoch, timestamp) of what was sent since the last look, without repetitions."""
    found = [read_header(data) for data in sent(cluster)]
    cluster.seen.clear()
    return list(dict.fromkeys((one.producer_id, one.producer_epoch, one.first_timestamp) for one in found))


def test_the_cluster_says_which_producer_a_task_is_and_what_time_its_records_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with served() as (cluster, url):
        seen = []
        for query, batch, number in (("q", 7, 0), ("q", 7, 2), ("q", 7, 0), ("q", 8, 0), ("other", 7, 0)):
            with task(monkeypatch, number, **properties(query, batch)):
                stream_writer(url, delivery="idempotent").write(iter([ROWS]))
            (producer,) = producers(cluster)
            seen.append(producer)
        first, second, again, later, other = seen
        assert again == first
        assert second == (first[0] + 2, first[1], first[2]), "all tasks of a batch have its time"
        assert later[:2] == (first[0], first[1] + 1) and later[2] > first[2]
        assert other[0] not in (first[0], second[0])


@pytest.mark.parametrize("delivery", ["idempotent", "at-least-once"])
def test_a_write_of_no_rows_asks_for_no_producer(monkeypatch: pytest.MonkeyPatch, delivery: str) -> None:
    with served() as (cluster, url), task(monkeypatch, 0, **properties("q", 7)):
        assert stream_writer(url, delivery=delivery).write(iter([ROWS.slice(0, 0)])).rows == 0
        assert not cluster.seen


def test_every_attempt_of_at_least_once_is_a_new_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (cluster, url):
        for _ in range(2):
            with task(monkeypatch, 0, **properties("q", 7)):
                stream_writer(url, delivery="at-least-once").write(iter([ROWS]))
        assert len({id for id, _, _ in producers(cluster)}) == 2


def test_the_attempts_of_a_batch_write_send_the_very_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (cluster, url):
        writer = TidelogWriter(parse({"gateway": url, "topic": "orders"}, streaming=False))
        tries = []
        for clock_ms in (1, 2):
            monkeypatch.setattr(sending, "wall_ms", lambda clock_ms=clock_ms: clock_ms)
            with task(monkeypatch, 3):
                pickle.loads(pickle.dumps(writer)).write(iter([ROWS]))
            tries.append(sent(cluster))
            cluster.seen.clear()
        assert tries[0] == tries[1]


def test_a_query_cannot_take_the_application_of_another_nor_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (_, url):
        for query, batch, wanted in (
            ("q", 7, ""),
            ("other", 8, r"\[TIDELOG_APP_ID\] application me belongs to q, not to other: use another name"),
            ("q", 6, "batch 6 of me is over: batch 7 has begun"),
        ):
            with task(monkeypatch, 0, **properties(query, batch)):
                writer = stream_writer(url, delivery="idempotent", appId="me")
                if not wanted:
                    writer.write(iter([ROWS]))
                    continue
                with pytest.raises(SourceError, match=wanted):
                    writer.write(iter([ROWS]))
        assert len(values(url)) == 1000


def replay(
    patch: pytest.MonkeyPatch,
    cluster: FakeCluster,
    url: str,
    first: list[bytes],
    second: list[bytes],
    forgotten: int,
    times: list[datetime] | None = None,
) -> int:
    """Two attempts of a task with these rows. Of the second one's batches the leader cannot compare so many."""
    more = {} if times is None else {"timestamp": pa.array(times, pa.timestamp("us", "UTC"))}
    cluster.add_topic("small", max_batch_bytes="4096")
    for values, refused in ((first, 0), (second, forgotten)):
        cluster.refusals = [refuse("DUPLICATE_SEQUENCE", "too long ago", unknown_outcome=True)] * refused
        with task(patch, 0, **properties("q", 7)):
            rows = pa.RecordBatch.from_pydict({"value": values, **more})
            written = stream_writer(url, delivery="idempotent", topic="small").write(iter([rows]))
    return written.rows  # type: ignore[attr-defined, no-any-return]


LINES = [b"%0500d" % n for n in range(100)]


@pytest.mark.parametrize("forgotten", [1, 10])
def test_batches_that_a_leader_cannot_compare_are_compared_with_the_log(
    monkeypatch: pytest.MonkeyPatch, forgotten: int
) -> None:
    with served() as (cluster, url):
        assert replay(monkeypatch, cluster, url, LINES, LINES, forgotten) == 100
        assert not cluster.refusals
        assert [record.value for record in cluster.log("small").records()] == LINES


def test_batches_with_times_of_their_own_are_found_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be older than the attempt, and than records before them."""
    times = [datetime(2020, 1, 1, 0, 0, 59 - n % 60, tzinfo=UTC) for n in range(100)]
    with served() as (cluster, url):
        assert replay(monkeypatch, cluster, url, LINES, LINES, 10, times) == 100
        assert not cluster.refusals
        assert [record.value for record in cluster.log("small").records()] == LINES


def test_a_batch_that_was_compacted_meanwhile_is_compared_by_the_crc_that_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    append = Partition.append

    def compacted(self: Partition, data: bytes, epoch: int, expected_offset: int) -> tuple[int, bool]:
        """Only the last record of a batch is left."""
        answer = append(self, data, epoch, expected_offset)
        if not answer[1]:
            columns = decode_columns(self.batches[-1])
            self.batches[-1] = thin_batch(columns, self.batches[-1], [columns.header.record_count - 1], 7)
        return answer

    monkeypatch.setattr(Partition, "append", compacted)
    with served() as (cluster, url):
        assert replay(monkeypatch, cluster, url, LINES, LINES, 3) == 100
        assert all(read_header(batch).is_sparse for batch in cluster.log("small").batches)


@pytest.mark.parametrize(
    ("first", "second"),
    [(LINES, LINES[1::-1] + LINES[2:]), (LINES[:3], LINES)],
    ids=["another order", "a shorter batch"],
)
def test_other_rows_that_the_leader_does_not_remember_are_no_copy(
    monkeypatch: pytest.MonkeyPatch, first: list[bytes], second: list[bytes]
) -> None:
    with served() as (cluster, url):
        wanted = (
            r"are not in the log: the log has other bytes under their sequence \(SEQUENCE_CONFLICT\)\. An earlier"
        )
        with pytest.raises(SourceError, match=wanted):
            replay(monkeypatch, cluster, url, first, second, 1)


def test_records_that_cannot_be_compared_with_the_log_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention took it; or the task has no right to look."""
    with served() as (cluster, url):
        answer = FakeCluster.answer

        def emptied(self: FakeCluster, link: Any, message: Message) -> Message:
            if isinstance(message, Read):
                raise refuse("FORBIDDEN", "no right to read topic:small")
            return answer(self, link, message)

        def gone(self: FakeCluster, link: Any, message: Message) -> Message:
            return ReadAnswer(4, 0, 0) if isinstance(message, Read) else answer(self, link, message)

        for case, wanted in ((emptied, "cannot be read to compare: no right to read"), (gone, "too long ago")):
            monkeypatch.setattr(FakeCluster, "answer", case)
            with pytest.raises(SourceError, match=f"records may not be in the log: .*{wanted}"):
                replay(monkeypatch, cluster, url, LINES, LINES, 1)
            cluster.refusals = []


def test_other_rows_under_the_same_numbers_are_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with served() as (cluster, url):
        cluster.refusals = [refuse("SEQUENCE_CONFLICT", "other bytes")]
        wanted = r"\[TIDELOG_NOT_WRITTEN\].*An earlier attempt of this task wrote other rows.*exactly-once"
        with task(monkeypatch, 0, **properties("q", 0)), pytest.raises(SourceError, match=wanted):
            stream_writer(url, delivery="idempotent").write(iter([ROWS]))


@pytest.mark.parametrize("code", ["UNSUPPORTED", "UNSUPPORTED_LEVEL"])
def test_a_cluster_that_cannot_give_producers_is_to_be_upgraded(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """An older gateway does not know the op and gives one id at a time; an older server is at an older level."""
    answer = FakeCluster.answer

    def older(self: FakeCluster, link: Any, message: Message) -> Message:
        if isinstance(message, InitTaskProducer):
            raise refuse(code, "older")
        return ProducerId(7) if isinstance(message, InitProducer) else answer(self, link, message)

    monkeypatch.setattr(FakeCluster, "answer", older)
    wanted = rf"\[TIDELOG_FAILED\].*{code}.*raise its feature level to 4 .*, or use another delivery"
    with served() as (cluster, url):
        cluster.key = 0
        with task(monkeypatch, 0, **properties("q", 0)):
            with pytest.raises(SourceError, match=wanted):
                stream_writer(url, delivery="idempotent").write(iter([ROWS]))
            stream_writer(url, delivery="at-least-once").write(iter([ROWS]))
        with pytest.raises(SourceError, match=r"does not give 100000 producer ids.*or use another delivery"):
            TidelogWriter(parse({"gateway": url, "topic": "orders"}, streaming=False))
        TidelogWriter(parse({"gateway": url, "topic": "orders", "delivery": "at-least-once"}, streaming=False))
