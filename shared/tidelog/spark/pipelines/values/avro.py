"""Values that are records of Avro, without the header of a file, described by the schema of an ``.avsc`` file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from pyspark.sql import types as t

from tidelog.errors import ConfigError
from tidelog.spark.pipelines.values.conversion import BadValue, Decode

PREFIX_BYTES = 5
"""Length of Confluent's prefix: a byte 0 and the id of the schema, 4 bytes."""
MAX_DIGITS = 38
"""Digits of a DECIMAL of Spark."""
_SIMPLE: Mapping[str, t.DataType] = {
    "null": t.StringType(),
    "boolean": t.BooleanType(),
    "int": t.IntegerType(),
    "long": t.LongType(),
    "float": t.FloatType(),
    "double": t.DoubleType(),
    "bytes": t.BinaryType(),
    "fixed": t.BinaryType(),
    "string": t.StringType(),
    "enum": t.StringType(),
}
_LOGICAL: Mapping[tuple[str, str], t.DataType] = {
    ("int", "date"): t.DateType(),
    ("int", "time-millis"): t.StringType(),
    ("long", "time-micros"): t.StringType(),
    ("long", "timestamp-millis"): t.TimestampType(),
    ("long", "timestamp-micros"): t.TimestampType(),
    ("long", "local-timestamp-millis"): t.TimestampNTZType(),
    ("long", "local-timestamp-micros"): t.TimestampNTZType(),
    ("string", "uuid"): t.StringType(),
}


def avro_schema(content: bytes) -> Any:
    """Parse the content of an ``.avsc`` file. Raises ``ConfigError`` if it is not a schema of a record."""
    from fastavro.schema import SchemaParseException, UnknownType, parse_schema

    try:
        schema = parse_schema(json.loads(content))
    except (ValueError, SchemaParseException, UnknownType, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"it is not a schema of Avro: {error}") from None
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("the schema of Avro is not one of a record")
    return schema


def avro_columns(schema: Any) -> t.StructType:
    """Return the columns of a record. A union with null is a column that can be null, one of several types is a
    STRING with JSON. Raises ``ConfigError`` for a record inside of itself, and for a decimal with too many digits."""
    kind = _kind(schema, {}, ())
    assert isinstance(kind, t.StructType)
    return kind


def avro_decoder(schema: Any, schema_id: int | None) -> Decode:
    """Return a decoder for values that are one record, after Confluent's prefix with ``schema_id`` if that is given.
    Other values, and those with bytes after the record, raise ``BadValue``."""
    from fastavro import parse_schema, schemaless_reader

    parsed = parse_schema(schema)
    prefix = b"" if schema_id is None else b"\0" + schema_id.to_bytes(4, "big")

    def decode(value: bytes, at_us: int) -> Mapping[str, Any]:
        if not value.startswith(prefix):
            raise BadValue(_other_prefix(value, schema_id))
        file = BytesIO(value)
        file.seek(len(prefix))
        try:
            found = schemaless_reader(file, parsed, None)
        except Exception as error:  # of many kinds, some of them from the C code of the library
            raise BadValue(f"the value is not Avro of the schema: {type(error).__name__} {error}".rstrip()) from None
        if file.tell() != len(value):
            raise BadValue(f"the value is not Avro of the schema: {len(value) - file.tell()} bytes follow the record")
        assert isinstance(found, dict)
        return found

    return decode


def _other_prefix(value: bytes, schema_id: int | None) -> str:
    if len(value) < PREFIX_BYTES or value[0]:
        return "the value does not begin with Confluent's prefix"
    return f"the value has the schema id {int.from_bytes(value[1:PREFIX_BYTES], 'big')}, not {schema_id}"


def _kind(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> t.DataType:
    """Return the type of a schema. ``named`` has the definitions so far by full name, and ``inside`` are the names of
    the records around it."""
    if isinstance(schema, list):
        kinds = [_kind(one, named, inside) for one in schema if one != "null"]
        return kinds[0] if len(kinds) == 1 else t.StringType()
    if isinstance(schema, str):
        if schema in inside:
            raise ConfigError(f"the record {schema} contains itself, which a column cannot")
        return _SIMPLE[schema] if schema in _SIMPLE else _kind(named[schema], named, inside)
    name = schema["type"]
    if name in ("record", "enum", "fixed"):
        named[schema["name"]] = schema
    match name:
        case "record" | "error":
            inner = (*inside, schema["name"])
            fields = [t.StructField(one["name"], _kind(one["type"], named, inner)) for one in schema["fields"]]
            return t.StructType(fields)
        case "array":
            return t.ArrayType(_kind(schema["items"], named, inside))
        case "map":
            return t.MapType(t.StringType(), _kind(schema["values"], named, inside))
    if not isinstance(name, str) or name not in _SIMPLE:
        return _kind(name, named, inside)
    if schema.get("logicalType") == "decimal":
        if schema["precision"] > MAX_DIGITS:
            raise ConfigError(f"a DECIMAL has at most {MAX_DIGITS} digits, not {schema['precision']}")
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    return _LOGICAL.get((name, schema.get("logicalType", "")), _SIMPLE[name])
