"""Columns become the batches that the same records would become one at a time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.batch.format import Codec, NewRecord, decode_batch, encode_batch
from tidelog.client.core.batch import BATCH_OVERHEAD, record_size
from tidelog.client.core.partitioner import Partitioner
from tidelog.spark.errors import SourceError
from tidelog.spark.write import row_encoder
from tidelog.spark.write.row_encoder import RowEncoder
from tidelog.spark.write.task_data import TaskIdentity, TopicLimits

LIMITS = {"orders": TopicLimits(4, 700), "trades": TopicLimits(1, 300)}
START = 3
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
TYPES = {
    "value": pa.binary(),
    "key": pa.string(),
    "headers": pa.list_(HEADER),
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
Row = dict[str, Any]
Batches = list[tuple[str, int, bytes]]


def one_by_one(rows: list[Row], codec: Codec) -> Batches:
    """The batches as a producer makes them that takes one record after the other."""
    partitioners = {topic: Partitioner(limits.partitions, START) for topic, limits in LIMITS.items()}
    waiting: dict[tuple[str, int], list[NewRecord]] = {}
    sent: dict[tuple[str, int], int] = {}
    found: Batches = []

    def close(target: tuple[str, int]) -> None:
        records = waiting.pop(target)
        sequence = sent.get(target, 0)
        sent[target] = sequence + len(records)
        found.append((*target, encode_batch(records, codec=codec, producer_id=9, base_sequence=sequence)))

    def size(records: list[NewRecord]) -> int:
        return BATCH_OVERHEAD + sum(record_size(one.value, one.key, one.headers) for one in records)

    for row in rows:
        topic = row.get("topic") or "orders"
        partitioner = partitioners[topic]
        key = None if row.get("key") is None else row["key"].encode()
        headers = tuple((pair["key"], pair["value"]) for pair in row.get("headers") or ())
        timestamp_ms = 1000 if row.get("timestamp") is None else row["timestamp"] // 1000
        record = NewRecord(row["value"], key, timestamp_ms, headers)
        sticky = row.get("partition") is None and key is None
        partition = row.get("partition")
        if partition is None:
            partition = partitioner.sticky if key is None else partitioner.of_key(key)
        while waiting.get((topic, partition)) and (
            size([*waiting[topic, partition], record]) > LIMITS[topic].max_batch_bytes
        ):
            close((topic, partition))
            if sticky:
                partitioner.move_on()
                partition = partitioner.sticky
        waiting.setdefault((topic, partition), []).append(record)
    for target in sorted(waiting):
        close(target)
    return by_partition(found)


def by_partition(batches: Batches) -> Batches:
    """The batches of each partition in order; the order of partitions means nothing."""
    return sorted(batches, key=lambda batch: batch[:2])


def encoder(codec: Codec = "none") -> RowEncoder:
    made = RowEncoder(TaskIdentity(9, 0, 1000), codec, "orders", START)
    for topic, limits in LIMITS.items():
        made.set_limits(topic, limits)
    return made


def together(tables: list[pa.RecordBatch], codec: Codec) -> Batches:
    made = encoder(codec)
    found = [batch for table in tables for batch in made.add(table)] + list(made.finish())
    assert made.rows == sum(batch.count for batch in found)
    return by_partition([(*batch.target, batch.data) for batch in found])


FIELDS = {
    "key": st.text(max_size=12),
    "headers": st.lists(
        st.fixed_dictionaries({"key": st.text(max_size=2), "value": st.binary(max_size=4)}), max_size=2
    ),
    "topic": st.sampled_from(["", "orders", "trades"]),
    "partition": st.just(0),
    "timestamp": st.sampled_from([0, 1000, 1001, 9999, 70_000, 1 << 40]).map(lambda ms: ms * 1000 + 999),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], list[pa.RecordBatch]]:
    """Rows, and the same rows as tables, cut somewhere. Columns may be missing, and have nulls or none."""
    fields = {"value": st.binary(max_size=130)}
    fields |= {name: field for name, field in FIELDS.items() if draw(st.booleans())}
    if "partition" in fields and "topic" not in fields:
        fields["partition"] = st.integers(0, 3)
    fields = {name: st.none() | field if draw(st.booleans()) else field for name, field in fields.items()}
    rows = draw(st.lists(st.fixed_dictionaries(fields), min_size=1, max_size=60))
    whole = pa.RecordBatch.from_pylist(rows, pa.schema([(name, TYPES[name]) for name in fields]))
    cuts = sorted({0, len(rows), *draw(st.lists(st.integers(0, len(rows)), max_size=3))})
    return rows, [whole.slice(at, end - at) for at, end in pairwise(cuts)]


@given(tables(), st.sampled_from(["none", "zstd", "lz4"]))
def test_the_bytes_are_those_of_records_that_are_added_one_by_one(
    case: tuple[list[Row], list[pa.RecordBatch]], codec: Codec
) -> None:
    rows, pieces = case
    assert together(pieces, codec) == one_by_one(rows, codec)


@pytest.mark.parametrize("size", [0, 23, 24, 255, 256, 65_535, 65_536])
def test_lengths_of_every_head_are_encoded_as_records_are(size: int) -> None:
    made = RowEncoder(TaskIdentity(9, 0, 1000), "none", "orders", START)
    made.set_limits("orders", TopicLimits(1, 1 << 20))
    values = [b"", None, b"v" * size]
    table = pa.RecordBatch.from_pydict({"value": values, "key": [b"k" * size, None, b""]})
    (batch,) = [*made.add(table), *made.finish()]
    keys = [b"k" * size, None, b""]
    records = [NewRecord(value, key, 1000) for value, key in zip(values, keys, strict=True)]
    assert batch.data == encode_batch(records, producer_id=9)


def test_text_and_large_columns_are_taken() -> None:
    for kind in (pa.string(), pa.large_string(), pa.large_binary()):
        made = encoder()
        rows = pa.RecordBatch.from_arrays([pa.array(["ä", "b"]).cast(kind)], ["value"])
        (batch,) = [*made.add(rows), *made.finish()]
        assert [record.value for record in decode_batch(batch.data)] == ["ä".encode(), b"b"]


def test_a_very_large_table_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.RecordBatch.from_pydict({"value": [b"%03d" % n for n in range(100)]})
    whole = together([table], "none")
    encoded: list[int] = []

    def watched(column: Any) -> Any:
        encoded.append(len(column))
        return encode(column)

    encode = row_encoder.encode_strings
    monkeypatch.setattr(row_encoder, "encode_strings", watched)
    monkeypatch.setattr(row_encoder, "TABLE_BYTES", 100)
    assert together([table], "none") == whole
    assert max(encoded) < 20


def test_more_items_than_a_body_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.batch.body.MAX_ITEMS", 20)
    made = encoder()
    pairs = [{"key": "a", "value": b""}] * 6
    list(made.add(pa.RecordBatch.from_pylist([{"value": b"", "headers": pairs}])))
    with pytest.raises(SourceError, match="orders/3: a batch body holds at most 20 CBOR items, not"):
        list(made.finish())


def test_a_batch_has_no_more_records_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_encoder, "MAX_RECORDS", 5)
    found = together([pa.RecordBatch.from_pydict({"value": [b""] * 4, "partition": [1] * 4})] * 3, "none")
    assert [len(decode_batch(data)) for _, _, data in found] == [5, 5, 2]


def test_a_time_before_1970_is_refused() -> None:
    table = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([-1], TYPES["timestamp"])], ["value", "timestamp"])
    with pytest.raises(SourceError, match="a timestamp before 1970"):
        list(encoder().add(table))
