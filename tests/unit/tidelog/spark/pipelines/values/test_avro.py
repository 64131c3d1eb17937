"""Records of Avro, and the columns of their schemas."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")
pytest.importorskip("fastavro", reason="fastavro is not installed: pip install 'tidelog[formats]'")

import fastavro
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.values.avro import avro_columns, avro_decoder, avro_schema
from tidelog.spark.pipelines.values.conversion import BadValue, Rules, converter

POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]}
TYPES: dict[str, tuple[Any, str, Any, Any]] = {
    "flag": ("boolean", "boolean", True, True),
    "small": ("int", "int", -1, -1),
    "big": ("long", "bigint", 2**62, 2**62),
    "single": ("float", "float", 0.5, 0.5),
    "real": ("double", "double", 0.1, 0.1),
    "text": ("string", "string", "é", "é"),
    "data": ("bytes", "binary", b"\xff", b"\xff"),
    "two": ({"type": "fixed", "name": "Two", "size": 2}, "binary", b"ab", b"ab"),
    "suit": ({"type": "enum", "name": "Suit", "symbols": ["A", "B"]}, "string", "B", "B"),
    "none": ("null", "string", None, None),
    "maybe": (["null", "long"], "bigint", None, None),
    "either": (["null", "long", "string"], "string", 5, "5"),
    "many": ({"type": "array", "items": "int"}, "array<int>", [1], [1]),
    "named": ({"type": "map", "values": "int"}, "map<string,int>", {"a": 1}, [("a", 1)]),
    "point": (POINT, "struct<x:int>", {"x": 1}, {"x": 1}),
    "again": ({"type": "array", "items": "a.Point"}, "array<struct<x:int>>", [{"x": 2}], [{"x": 2}]),
    "money": ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, "decimal(6,2)",
              Decimal("1.50"), Decimal("1.50")),
    "day": ({"type": "int", "logicalType": "date"}, "date", date(2026, 1, 2), date(2026, 1, 2)),
    "clock": ({"type": "int", "logicalType": "time-millis"}, "string", time(1, 2, 3), "01:02:03"),
    "at": ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp",
           datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
    "local": ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz",
              datetime(2026, 1, 2), datetime(2026, 1, 2)),
    "id": ({"type": "string", "logicalType": "uuid"}, "string", UUID(int=1), str(UUID(int=1))),
}  # fmt: skip


def record(types: dict[str, Any]) -> bytes:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "a.All", "namespace": "a", "fields": fields}).encode()


def encoded(schema: Any, value: dict[str, Any]) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, schema, value)
    return file.getvalue()


def test_each_type_has_its_column() -> None:
    schema = avro_schema(record({name: kind for name, (kind, *_) in TYPES.items()}))
    columns = avro_columns(schema)
    assert {one.name: one.dataType.simpleString() for one in columns} == {name: one[1] for name, one in TYPES.items()}
    value = encoded(schema, {name: one[2] for name, one in TYPES.items()})
    found = avro_decoder(schema, None)(value, 0)
    assert found is not None
    made = {one.name: None if found[one.name] is None else converter(one.dataType, Rules())(found[one.name])
            for one in columns}  # fmt: skip
    assert made == {name: one[3] for name, one in TYPES.items()}


def test_what_is_not_a_record_is_bad() -> None:
    schema = avro_schema(record({"n": "long", "text": "string"}))
    value = encoded(schema, {"n": 1, "text": "abc"})
    for wrong in (b"", value[:-1], value + b"\0", b"\xff" * 20, b"\x02\x06\xff\xff\xff"):
        with pytest.raises(BadValue, match=r"^the value is not Avro of the schema: "):
            avro_decoder(schema, None)(wrong, 0)


def test_the_prefix_of_confluent_names_the_schema() -> None:
    schema = avro_schema(record({"n": "long"}))
    decode = avro_decoder(schema, 258)
    assert decode(b"\0\0\0\x01\x02\x02", 0) == {"n": 1}
    with pytest.raises(BadValue, match=r"^the value has the schema id 1, not 258$"):
        decode(b"\0\0\0\0\x01\x02", 0)
    for wrong in (b"\x02", b"\x01\0\0\x01\x02\x02", b""):
        with pytest.raises(BadValue, match=r"^the value does not begin with Confluent's prefix$"):
            decode(wrong, 0)


NO_TYPE = '{"type": "record", "name": "a", "fields": [{"name": "b", "type": "none"}]}'


@pytest.mark.parametrize(
    "text", ["{", "[]", '"int"', "5", '{"type": "record"}', '{"type": "array", "items": "int"}', NO_TYPE]
)
def test_what_is_no_schema_of_a_record_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        avro_schema(text.encode())


def test_a_record_inside_of_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the record a\.All contains itself"):
        avro_columns(avro_schema(record({"next": ["null", "a.All"]})))


def test_a_decimal_that_spark_has_not_is_refused() -> None:
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 2}
    with pytest.raises(ConfigError, match="a DECIMAL has at most 38 digits, not 39"):
        avro_columns(avro_schema(record({"money": wide})))
