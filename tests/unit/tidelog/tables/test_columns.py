"""Tests ``tidelog.tables.columns``: partition fields, and the rule for changes of the schema."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tidelog.tables.columns import (
    PartitionField,
    SchemaConflict,
    check_partition_fields,
    new_columns,
    parse_partition_field,
)


def test_partition_fields() -> None:
    assert parse_partition_field(" day(at) ") == PartitionField("at", by_day=True)
    assert parse_partition_field("_topic") == PartitionField("_topic")
    assert PartitionField("at", by_day=True).name == "at_day"
    for text in ("day(at", "at)", "month(at)", "a b", ""):
        with pytest.raises(ValueError, match="COLUMN or day"):
            parse_partition_field(text)


def test_a_partition_field_must_be_a_column_of_a_fitting_type() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("x", pa.float64()), ("s", pa.string())])
    check_partition_fields(schema, (PartitionField("at", by_day=True), PartitionField("s")))
    with pytest.raises(SchemaConflict, match=r"no column y.*; day\(s\) wants a time.*; x is double"):
        check_partition_fields(schema, (PartitionField("y"), PartitionField("s", by_day=True), PartitionField("x")))


def test_columns_that_formats_keep_alike_are_the_same() -> None:
    table = pa.schema(
        [
            ("s", pa.large_string()),
            ("n", pa.int32()),
            ("at", pa.timestamp("us", "Etc/UTC")),
            ("l", pa.large_list(pa.field("item", pa.large_string()))),
            ("t", pa.struct([("a", pa.int32())])),
        ]
    )
    rows = pa.schema(
        [
            ("s", pa.string()),
            ("n", pa.int16()),
            ("at", pa.timestamp("us", "UTC")),
            ("l", pa.list_(pa.field("element", pa.string()))),
            ("t", pa.struct([("a", pa.int8())])),
            pa.field("new", pa.bool_(), nullable=False),
        ]
    )
    assert new_columns(table, rows) == [pa.field("new", pa.bool_())]


def test_every_fault_is_said() -> None:
    table = pa.schema([("a", pa.int32()), pa.field("must", pa.string(), nullable=False)])
    with pytest.raises(SchemaConflict, match="a is int64, and in the table int32; must may not be null"):
        new_columns(table, pa.schema([("a", pa.int64())]))
