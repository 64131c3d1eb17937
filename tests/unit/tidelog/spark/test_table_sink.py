"""Tests ``tidelog.spark.table_sink``: its options, and what the driver commits."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from model.table_subjects import SCHEMA
from tidelog.spark.errors import SourceError
from tidelog.spark.table_sink import (
    Staged,
    TableOptions,
    TableStreamWriter,
    offsets_of,
    order_of,
    parse,
    table_errors,
)
from tidelog.tables.columns import PartitionField
from tidelog.tables.file_writer import WritePlan
from tidelog.tables.tables import TableAddress, open_table, open_writer, read_offset


def test_options() -> None:
    options = parse(
        {
            "format": "iceberg",
            "table": "a.b",
            "partitionby": "day(at), city",
            "appid": "x",
            "catalog.uri": "sqlite://",
            "s3.endpoint": "http://s",
            "checkpointLocation": "/c",
        }
    )
    assert options == TableOptions(
        TableAddress("iceberg", "a.b", {"uri": "sqlite://"}, {"s3.endpoint": "http://s"}),
        (PartitionField("at", by_day=True), PartitionField("city")),
        "x",
    )


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"format": "orc", "table": "x"}, "format is iceberg, delta or parquet"),
        ({"format": "delta"}, "table must be given"),
        ({"format": "delta", "table": "x", "partitionBy": "month(at)"}, r"COLUMN or day\(COLUMN\)"),
        ({"format": "delta", "table": "x", "tabel": "y"}, "no option tabel, perhaps table"),
        ({"format": "parquet", "table": "x", "upsertBy": "id"}, "upsertBy goes with"),
        ({"format": "delta", "table": "x", "upsertBy": "id", "partitionBy": "id"}, "upsertBy goes with"),
        (
            {"format": "parquet", "table": "x", "upsertBy": "id", "archive": "true"},
            "upsertBy goes.*; archive does not",
        ),
    ],
)
def test_wrong_options_are_said(options: dict[str, str], fault: str) -> None:
    with pytest.raises(SourceError, match=rf"\[TIDELOG_OPTION\] .*{fault}"):
        parse(options)


def test_rows_that_replace_others_must_have_an_order() -> None:
    options = parse({"format": "delta", "table": "x", "upsertby": "id"})
    assert order_of(options, ["id", "_offset"]) == "_offset"
    assert order_of(options, ["id", "offset"]) == "offset"
    assert order_of(replace(options, key=""), ["id"]) == ""
    for columns in (["id"], ["_offset"]):
        with pytest.raises(SourceError, match=r"\[TIDELOG_TABLE_SCHEMA\] upsertBy wants the columns id and _offset"):
            order_of(options, columns)


def test_the_offsets_of_rows() -> None:
    columns = {"_topic": ["a", "a", "b", None], "_partition": [0, 0, 3, 1], "_offset": [5, 7, 1, 9]}
    kinds = [("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]
    rows = pa.RecordBatch.from_pydict(columns, schema=pa.schema(kinds))
    assert offsets_of(rows) == {"a": {0: 8}, "b": {3: 2}}
    assert offsets_of(rows.rename_columns(["topic", "partition", "offset"])) == {"a": {0: 8}, "b": {3: 2}}
    assert offsets_of(rows.rename_columns(["t", "p", "o"])) == {}
    other = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.string())])
    assert offsets_of(pa.RecordBatch.from_pydict({"topic": [], "partition": [], "offset": []}, schema=other)) == {}


@pytest.fixture
def writer(tmp_path: Path) -> TableStreamWriter:
    options = parse({"format": "parquet", "table": str(tmp_path / "table"), "appId": "app"})
    return TableStreamWriter(options, open_table(options.address).prepare(SCHEMA, ()))


def staged(writer: TableStreamWriter, batch: int, task: int, query: str = "q") -> Staged:
    files = open_writer(writer.plan)
    files.add(pa.RecordBatch.from_pylist([{"app": "a", "batch": batch, "attempt": 0, "n": task}], schema=SCHEMA))
    return Staged(query, batch, files.finish(), {"t": {task: batch + 1}}, writer.plan.layout, time.time_ns())


def test_the_files_of_all_tasks_are_committed_together(writer: TableStreamWriter) -> None:
    writer.commit([staged(writer, 0, 0), None, staged(writer, 0, 1)], 0)
    table: Any = open_table(writer.options.address)
    assert len(table.files()) == 2
    assert [read_offset(table, "app", "t", n) for n in range(3)] == [1, 1, None]
    writer.commit([], 1)


def test_a_commit_that_is_asked_for_twice_deletes_nothing(writer: TableStreamWriter) -> None:
    first, second = [staged(writer, 0, 0)], [staged(writer, 1, 0)]
    for batch, messages in ((0, first), (0, first), (1, second), (0, first)):
        writer.commit(messages, batch)
    writer.abort(first, 0)
    files = open_table(writer.options.address).files()
    assert len(files) == 2
    assert all(Path(path).exists() for path in files)


def test_a_commit_that_is_asked_for_twice_leaves_what_a_compaction_replaced(writer: TableStreamWriter) -> None:
    messages = [staged(writer, 0, 0), staged(writer, 0, 1)]
    writer.commit(messages, 0)
    table = open_table(writer.options.address)
    files = table.files()
    table.compact(1 << 20)
    writer.commit(messages, 0)
    assert all(Path(path).exists() for path in files), "older readers may need them until they expire"


def test_a_new_checkpoint_wants_another_application(writer: TableStreamWriter) -> None:
    writer.commit([staged(writer, 7, 0)], 7)
    with pytest.raises(SourceError, match=r"\[TIDELOG_TABLE_APP\] the query q writes to the table as app"):
        writer.commit([staged(writer, 0, 0, query="another")], 0)


def test_files_that_are_too_old_are_refused(writer: TableStreamWriter) -> None:
    old = replace(staged(writer, 0, 0), begun_ns=0)
    with pytest.raises(SourceError, match=r"\[TIDELOG_NOT_WRITTEN\] the batch took more than 12 hours"):
        writer.commit([old], 0)


def test_a_value_that_does_not_fit_is_an_error_of_the_schema(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.int32())])
    files = open_writer(WritePlan(str(tmp_path), schema.serialize().to_pybytes()))
    with pytest.raises(SourceError, match=r"\[TIDELOG_TABLE_SCHEMA\]"), table_errors():
        files.add(pa.RecordBatch.from_pydict({"n": [2**40]}))
