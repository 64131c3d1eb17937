"""Record batches of Arrow have the rows that the record iterator has, whatever the batches of the log are."""

from __future__ import annotations

import base64
import random
import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.arrow.bodies import LogBatch, decode, decode_together
from tidelog.arrow.rows import RowBuffer, row_schema
from tidelog.batch.format import (
    CODECS,
    HEADER_BYTES,
    BatchHeader,
    NewRecord,
    Record,
    decode_batch,
    decode_columns,
    decompress_body,
    encode_batch,
    encode_control,
    read_header,
    seal_batch,
    stamp_prefix,
)
from tidelog.batch.sparse import thin_batch
from tidelog.errors import CorruptBatch
from tidelog.wire.cbor import array_head

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


def taken(rows: RowBuffer) -> list[dict[str, Any]]:
    """Take all rows of a buffer."""
    found: list[dict[str, Any]] = []
    while (table := rows.take()) is not None:
        table.validate(full=True)
        found += table.to_pylist()
    return found


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
    assert rows.count >= len(expected)
    assert taken(rows) == [{name: fields[name] for name in columns} for fields in expected]
    assert rows.count == 0 and rows.take() is None


def with_body(header: BatchHeader, body: bytes) -> bytes:
    """Return a batch with a right CRC and this body, without compression."""
    return seal_batch(header._replace(attributes=0, body_length=len(body)), body)


@st.composite
def unusual_batches(draw: st.DrawFn) -> bytes:
    """Return a batch as no producer of ours writes it: columns in another order, unknown or missing ones, items with
    long heads or of a wrong type, a byte that is changed, or bytes that are missing or too many."""
    records = draw(st.lists(new_records, min_size=1, max_size=40))
    batch = encode_batch(records)
    body = bytearray(batch[HEADER_BYTES:])
    kind = draw(st.sampled_from(["order", "byte", "length", "heads"]))
    if kind == "order":
        columns = cbor2.loads(body) | draw(st.sampled_from([{}, {"x": 1}, {"x": [None] * len(records)}, {"vv": 0}]))
        names = draw(st.permutations(list(columns)))
        body = bytearray(cbor2.dumps({name: columns[name] for name in names}))
    elif kind == "byte":
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    elif kind == "length":
        body = body[: draw(st.integers(1, len(body)))] + draw(st.binary(max_size=3))
    else:
        widths = {1: ">B", 2: ">H", 4: ">I", 8: ">Q"}
        items = []
        for value, *_ in records:
            width = draw(st.sampled_from([wide for wide in widths if len(value or b"") < 256**wide]))
            head = bytes([0x57 + width.bit_length()]) + struct.pack(widths[width], len(value or b""))
            items.append(b"\xf6" if value is None else head + value)
        body = bytearray(b"\xa1\x61v" + array_head(len(items)) + b"".join(items))
    header = read_header(batch)
    times = header.first_timestamp, draw(st.sampled_from([header.first_timestamp, header.max_timestamp]))
    return with_body(header._replace(first_timestamp=times[0], max_timestamp=times[1]), bytes(body))


@given(st.lists(unusual_batches(), min_size=1, max_size=3))
@settings(max_examples=600, deadline=None)
def test_what_the_record_iterator_refuses_is_refused_and_nothing_else(log: list[bytes]) -> None:
    """The iterator decides, batch by batch, also where several are decoded together. The rows before a refused batch
    come first, those behind it afterwards."""
    rows = RowBuffer("orders", row_schema(ALL), 10)
    expected: list[Any] = []
    for at, batch in enumerate(log):
        placed = stamp_prefix(100 * at, 3, read_header(batch).crc32c) + batch[16:]
        try:
            rows.add(0, placed, 0, 1000)
        except CorruptBatch:
            with pytest.raises(CorruptBatch):
                decode_batch(placed)
            continue
        try:
            expected += map(row, decode_batch(placed, topic="orders"))
        except CorruptBatch as error:
            expected.append((100 * at, str(error)))
    found: list[Any] = []
    while rows.count:
        try:
            table = rows.take()
            found += [] if table is None else table.to_pylist()
        except CorruptBatch as error:
            assert rows.refused is not None
            found.append((rows.refused.header.base_offset, str(error)))
    assert found == expected


FORMS = {
    "JSON": lambda n: b'{"id":%d,"kind":"k%d","X":"YX","note":"%s"}' % (n, n % 7, b"x" * (n % 90)),
    "base64": lambda n: base64.b64encode(random.Random(n).randbytes(30 + n % 40)),
    "random bytes": lambda n: random.Random(n).randbytes(60 + n % 90),
    "long values": lambda n: b"Y" * (200 + n % 900),
    "equal values": lambda n: b"Y" * 50,
    "numbers and nulls": lambda n: None if n % 5 == 0 else b"%d" % n,
    "short and long": lambda n: b"x" * (n * 7 % 400),
    "empty": lambda n: b"",
}


@pytest.mark.parametrize("form", FORMS)
def test_usual_values_are_found_without_an_object_for_each(form: str) -> None:
    records = [NewRecord(FORMS[form](n), b"k%d" % n if n % 9 else None, 10_000 + n // 3) for n in range(1000)]
    batches = [encode_batch(records, codec="lz4"), encode_batch([each._replace(key=None) for each in records[:40]])]
    log = []
    for batch in batches:
        header = read_header(batch)
        body = decompress_body(header, batch)
        log.append(LogBatch(0, header, batch, 5, 10_000, body, 5, header.record_count - 5))
    columns = {"v", "k", "t", "h"}
    rows = decode_together(log, columns)
    assert rows is not None
    expected = [decode(batch, columns) for batch in log]
    assert (rows.counts == [995, 35]).all()
    for at, begin in enumerate((0, 995)):
        end = begin + len(expected[at].offsets)
        assert (rows.offsets[begin:end] == expected[at].offsets).all()
        assert (rows.times[begin:end] == expected[at].times).all()
        for name in ("keys", "values", "headers"):
            assert getattr(rows, name)[begin:end].equals(getattr(expected[at], name)), name


def test_a_value_that_nobody_asked_for_is_not_decoded() -> None:
    good = encode_batch([NewRecord(b"x" * 20, b"k", 5)] * 3)
    bad_keys = with_body(read_header(good), cbor2.dumps({"v": [b"x" * 20] * 3, "k": [1, 2, 3]}))
    for column, readable in (("value", True), ("offset", True), ("timestamp", True), ("key", False)):
        rows = RowBuffer("orders", row_schema([column]), 10)
        rows.add(0, bad_keys, 0, 3)
        if readable:
            assert len(taken(rows)) == 3
        else:
            with pytest.raises(CorruptBatch):
                rows.take()
            assert rows.take() is None


def test_a_column_of_values_of_other_types_is_refused() -> None:
    good = encode_batch([NewRecord(b"x" * 20, None, 5)] * 3)
    for values in ([b"a", "b" * 40, b"c"], ["a" * 50, "b", "c"], [b"a" * 50, 1, None]):
        rows = RowBuffer("orders", row_schema(["value"]), 10)
        rows.add(0, with_body(read_header(good), cbor2.dumps({"v": values})), 0, 3)
        with pytest.raises(CorruptBatch, match="keys and values are bytes or None"):
            rows.take()


def test_a_record_of_10_mib_is_a_row() -> None:
    rows = RowBuffer("orders", row_schema(["value"]), 1000)
    rows.add(0, encode_batch([NewRecord(b"x" * (10 << 20))], codec="zstd"), 0, 1)
    assert rows.is_enough()
    table = rows.take()
    assert table is not None and len(table["value"][0].as_py()) == 10 << 20
