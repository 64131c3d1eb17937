"""Log batches as Arrow: values, types, sizes, and the schema that Spark compares with."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import CorruptBatch
from tidelog.spark.read import arrow


def batch(base: int, records: list[NewRecord], epoch: int = 3) -> bytes:
    data = encode_batch(records)
    return stamp_prefix(base, epoch, read_header(data).crc32c) + data[16:]


def test_a_record_becomes_a_row() -> None:
    rows = arrow.row_buffer("orders", include_headers=True)
    rows.add(
        2, batch(40, [NewRecord(b"v", b"k", 1500, (("a", b"1"), ("a", b"2"))), NewRecord(None, None, 1501)]), 40, 42
    )
    [table] = arrow.take_tables(rows)
    assert table.to_pylist() == [
        {
            "key": b"k",
            "value": b"v",
            "topic": "orders",
            "partition": 2,
            "offset": 40,
            "leader_epoch": 3,
            "timestamp": datetime.fromtimestamp(1.5, UTC),
            "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}],
        },
        {
            "key": None,
            "value": None,
            "topic": "orders",
            "partition": 2,
            "offset": 41,
            "leader_epoch": 3,
            "timestamp": datetime.fromtimestamp(1.501, UTC),
            "headers": [],
        },
    ]


def test_only_the_offsets_of_the_range_are_taken() -> None:
    rows = arrow.row_buffer("orders", include_headers=False)
    rows.add(0, batch(10, [NewRecord(b"%d" % n) for n in range(10, 20)]), 13, 16)
    [table] = arrow.take_tables(rows)
    assert table.column("offset").to_pylist() == [13, 14, 15]
    assert table.column("value").to_pylist() == [b"13", b"14", b"15"]


def test_small_batches_are_joined_and_large_ones_cut() -> None:
    rows = arrow.row_buffer("orders", include_headers=False)
    for n in range(arrow.ROWS):
        assert not rows.is_enough()
        rows.add(0, batch(n, [NewRecord(b"x")]), n, n + 1)
    assert rows.is_enough()
    assert [table.num_rows for table in arrow.take_tables(rows)] == [arrow.ROWS]
    assert list(arrow.take_tables(rows)) == []
    rows.add(0, batch(0, [NewRecord(b"x")] * 25_000), 0, 25_000)
    assert [table.num_rows for table in arrow.take_tables(rows)] == [10_000, 10_000, 5_000]


def test_a_damaged_batch_is_an_error() -> None:
    data = bytearray(batch(0, [NewRecord(b"x")]))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        arrow.row_buffer("orders", include_headers=False).add(0, bytes(data), 0, 1)


@pytest.mark.parametrize("headers", [False, True])
def test_the_schema_is_what_spark_makes_of_the_columns(headers: bool) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    pandas_types = pytest.importorskip("pyspark.sql.pandas.types")
    header = types.StructType(
        [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
    )
    fields = [
        types.StructField("key", types.BinaryType()),
        types.StructField("value", types.BinaryType()),
        types.StructField("topic", types.StringType()),
        types.StructField("partition", types.IntegerType()),
        types.StructField("offset", types.LongType()),
        types.StructField("leader_epoch", types.LongType()),
        types.StructField("timestamp", types.TimestampType()),
        types.StructField("headers", types.ArrayType(header)),
    ]
    wanted = types.StructType(fields if headers else fields[:-1])
    assert pandas_types.to_arrow_schema(wanted, timezone="UTC").equals(arrow.schema(headers))
    assert isinstance(arrow.schema(headers), pa.Schema)
