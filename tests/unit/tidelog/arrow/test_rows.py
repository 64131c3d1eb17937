"""Record batches of Arrow have the rows that the record iterator has, whatever the batches of the log are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.arrow.rows import RowBuffer, row_schema
from tidelog.batch.format import (
    CODECS,
    HEADER_BYTES,
    NewRecord,
    Record,
    decode_batch,
    decode_columns,
    encode_batch,
    encode_control,
    read_header,
    seal_batch,
    stamp_prefix,
)
from tidelog.batch.sparse import thin_batch
from tidelog.errors import CorruptBatch

ALL = ("topic", "partition", "offset", "leader_epoch", "timestamp", "key", "value", "headers")
optional_bytes = st.none() | st.binary(max_size=300)
new_records = st.builds(
    NewRecord,
    optional_bytes,
    st.none() | optional_bytes,
    st.integers(0, 253_402_300_799_999) | st.just(5),
    st.just(()) | st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[int, bytes]]:
    """Return batches of a few partitions with the partition of each: plain, sparse and control batches."""
    found = []
    for base in range(0, draw(st.integers(1, 5)) * 30, 30):
        kind = draw(st.sampled_from(["plain", "sparse", "control"]))
        batch = encode_control("epoch")
        if kind != "control":
            records = draw(st.lists(new_records, min_size=1, max_size=30))
            batch = encode_batch(records, codec=draw(st.sampled_from(CODECS)))
            if kind == "sparse":
                keep = [at for at in range(len(records)) if draw(st.booleans())]
                batch = thin_batch(decode_columns(batch), batch, keep, 7)
        stamped = stamp_prefix(base, draw(st.integers(0, 9)), read_header(batch).crc32c) + batch[16:]
        found.append((draw(st.integers(0, 2)), stamped))
    return found


def row(record: Record) -> dict[str, Any]:
    """Return a record as the row that it becomes."""
    fields = record._asdict()
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=fields.pop("timestamp_ms"))
    headers = [{"key": name, "value": value} for name, value in fields.pop("headers")]
    return fields | {"timestamp": at, "headers": headers}


@given(logs(), st.integers(0, 40), st.integers(20, 160), st.lists(st.sampled_from(ALL), min_size=1, unique=True))
@settings(max_examples=300, deadline=None)
def test_the_rows_are_those_of_the_record_iterator(
    log: list[tuple[int, bytes]], first: int, end: int, columns: list[str]
) -> None:
    rows = RowBuffer("orders", row_schema(columns), 10)
    expected = []
    for partition, batch in log:
        rows.add(partition, batch, first, end)
        records = decode_batch(batch, topic="orders", partition=partition)
        expected += [row(record) for record in records if first <= record.offset < end]
    assert rows.count == len(expected)
    table = rows.take()
    found = [] if table is None else table.to_pylist()
    assert found == [{name: fields[name] for name in columns} for fields in expected]
    assert rows.take() is None


def test_a_value_that_nobody_asked_for_is_not_decoded() -> None:
    good = encode_batch([NewRecord(b"x" * 20, b"k", 5)] * 3)
    body = cbor2.dumps({"v": [b"x" * 20] * 3, "k": [1, 2, 3]})
    header = read_header(good)._replace(body_length=len(body))
    bad_keys = seal_batch(header, body)
    assert len(good) > HEADER_BYTES
    for column, readable in (("value", True), ("offset", True), ("timestamp", True), ("key", False)):
        rows = RowBuffer("orders", row_schema([column]), 10)
        if readable:
            rows.add(0, bad_keys, 0, 3)
            assert rows.count == 3
        else:
            with pytest.raises(CorruptBatch):
                rows.add(0, bad_keys, 0, 3)
            assert rows.take() is None


def test_a_column_of_values_of_other_types_is_refused() -> None:
    good = encode_batch([NewRecord(b"x" * 20, None, 5)] * 3)
    for values in ([b"a", "b" * 40, b"c"], ["a" * 50, "b", "c"], [b"a" * 50, 1, None]):
        body = cbor2.dumps({"v": values})
        batch = seal_batch(read_header(good)._replace(body_length=len(body)), body)
        with pytest.raises(CorruptBatch, match="keys and values are bytes or None"):
            RowBuffer("orders", row_schema(["value"]), 10).add(0, batch, 0, 3)


def test_a_record_of_10_mib_is_a_row() -> None:
    rows = RowBuffer("orders", row_schema(["value"]), 1000)
    rows.add(0, encode_batch([NewRecord(b"x" * (10 << 20))], codec="zstd"), 0, 1)
    assert rows.is_enough()
    table = rows.take()
    assert table is not None and len(table["value"][0].as_py()) == 10 << 20
