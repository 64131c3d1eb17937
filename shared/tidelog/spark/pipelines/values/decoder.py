"""Decodes the values of an input in batches of Arrow: for each value its columns, or the reason why it has none."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.spark.pipelines.declaration import Input
from tidelog.spark.pipelines.input_check import ABOUT
from tidelog.spark.pipelines.values import avro, documents, lines, protobuf, syslog
from tidelog.spark.pipelines.values.conversion import (
    BadValue,
    Convert,
    Decode,
    Rules,
    as_json,
    converter,
    fields_of,
    text_converter,
    zone_of,
)

REASON, ROW, FIELDS = "reason", "row", "fields"
"""Fields of what ``decode`` of a decoder returns: why the value is bad, or null; whether it is a row, as all are but
headers of CSV; and the columns."""
MAX_REASON = 500
"""Length of a reason, in characters."""
_LIBRARIES = {"avro": ("fastavro", "fastavro"), "protobuf": ("google.protobuf", "protobuf")}
"""The module of a format's library, and the name of its package."""


@dataclass(frozen=True, slots=True)
class Decoder:
    """How the values of an input become columns. Tasks get a copy of it, and call ``make`` once."""

    columns: t.StructType
    """The columns with their types, as declared or as the schema file has them."""
    make: Callable[[], Decode]
    """Returns the function that decodes a value to its fields."""
    text: bool
    """Whether the fields are texts."""
    string_keys: bool
    """Whether maps can have keys of STRING only."""
    strict: bool
    unknown: str
    zone: str

    @property
    def type(self) -> t.StructType:
        """The type of what ``decode_batch`` returns."""
        columns = t.StructType([t.StructField(one.name, _nullable(one.dataType)) for one in self.columns])
        if self.unknown == "keep":
            columns = columns.add(documents.UNKNOWN_COLUMN, t.StringType())
        return t.StructType(
            [
                t.StructField(REASON, t.StringType()),
                t.StructField(ROW, t.BooleanType()),
                t.StructField(FIELDS, columns),
            ]
        )

    def batches_in_task(self) -> Callable[[Iterator[tuple[pa.Array, pa.Array]]], Iterator[pa.Array]]:
        """Return the function that decodes all batches of a task: values, and the timestamps of their records."""

        def decode(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            decode_batch = self.batches()
            for values, timestamps in batches:
                yield decode_batch(values, timestamps)

        return decode

    def batches(self) -> Callable[[pa.Array, pa.Array], pa.Array]:
        """Return the function that decodes a batch of values with the timestamps of their records."""
        rules = Rules(self.string_keys, self.strict, zone_of(self.zone), self.unknown == "bad")
        make = text_converter if self.text else converter
        convert = {one.name: make(one.dataType, rules) for one in self.columns}
        arrow_type = to_arrow_type(self.type, timezone="UTC")
        decode = self.make()
        return lambda values, timestamps: _decoded(values, timestamps, self, decode, convert, rules, arrow_type)


def decoder(declared: Input, folder: Path, zone: str) -> Decoder:
    """Return the decoder of an input whose values are not raw. Files are below ``folder``, and ``zone`` is the time
    zone of times that name none. Raises ``ConfigError`` for a schema, a schema file or a time zone that cannot be
    used, and if the library of the format is not installed."""
    try:
        made = _decoder(declared, folder, zone)
        made.batches()
    except ConfigError as error:
        raise ConfigError(f"[in.{declared.name}]: {error.message}") from None
    return made


def _decoder(declared: Input, folder: Path, zone: str) -> Decoder:
    if declared.value in _LIBRARIES:
        module, package = _LIBRARIES[declared.value]
        if not _is_installed(module):
            raise ConfigError(f"{declared.value} needs {package}: {install_hint('formats')}")
    columns = _of_sql(declared.schema) if declared.schema else t.StructType()
    text = False
    make: Callable[[], Decode]
    match declared.value:
        case "json" | "cbor":
            make = documents.json_decoder if declared.value == "json" else documents.cbor_decoder
        case "regex":
            columns, text = _of_groups(declared.pattern, columns), True
            make = partial(lines.regex_decoder, declared.pattern)
        case "csv":
            text = True
            dialect = lines.CsvDialect(declared.separator, declared.quote, declared.null, declared.header)
            make = partial(lines.csv_decoder, columns.names, dialect)
        case "syslog":
            columns = _of_sql(syslog.COLUMNS)
            make = partial(syslog.syslog_decoder, declared.year, zone_of(zone))
        case "avro":
            schema = avro.avro_schema(_read(folder / declared.schema_file))
            columns = avro.avro_columns(schema)
            make = partial(avro.avro_decoder, schema, declared.schema_id)
        case _:
            descriptors = _read(folder / declared.schema_file)
            columns = protobuf.message_columns(protobuf.message_descriptor(descriptors, declared.message))
            make = partial(protobuf.protobuf_decoder, descriptors, declared.message)
    _check_names(columns.names if declared.unknown != "keep" else [*columns.names, documents.UNKNOWN_COLUMN])
    return Decoder(columns, make, text, declared.value == "json", declared.strict, declared.unknown, zone)


def _is_installed(module: str) -> bool:
    """Return whether a module can be imported, also if the package that it is in is missing."""
    package = module.partition(".")[0]
    return importlib.util.find_spec(package) is not None and importlib.util.find_spec(module) is not None


def _check_names(names: list[str]) -> None:
    """Raise ``ConfigError`` if two columns of a table have one name, for which Spark takes ``id`` and ``ID``."""
    seen = {name.lower() for name in ABOUT}
    for name in names:
        if name.lower() in seen or name.startswith("__"):
            raise ConfigError(f"the column {name} has the name of another; the record has {', '.join(ABOUT)}")
        seen.add(name.lower())


def _decoded(
    values: pa.Array,
    timestamps: pa.Array,
    decoder: Decoder,
    decode: Decode,
    convert: Mapping[str, Convert],
    rules: Rules,
    arrow_type: pa.StructType,
) -> pa.Array:
    """Decode a batch. Whatever a value is made of, only its own row has a reason."""
    fields = list(decoder.columns)
    keep = decoder.unknown == "keep"
    nothing: list[Any] = [None] * (len(fields) + keep)
    rows, reasons, are_rows = [], [], []
    for value, at_us in zip(values.to_pylist(), timestamps.cast(pa.int64()).to_pylist(), strict=True):
        row, reason, is_row = nothing, None, True
        try:
            if value is None:
                raise BadValue("there is no value")
            found = decode(value, at_us)
            if found is None:
                is_row = False
            else:
                row = _row(fields, convert, found, rules, keep)
        except BadValue as error:
            reason = str(error)
        except Exception as error:  # of a library, at a value that nobody has thought of: the others are still good
            reason = f"the value cannot be decoded: {type(error).__name__} {error}"
        rows.append(row)
        reasons.append(_printable(reason))
        are_rows.append(is_row)
    return _as_arrow(rows, reasons, are_rows, arrow_type)


def _row(
    fields: list[t.StructField], convert: Mapping[str, Convert], found: Mapping[str, Any], rules: Rules, keep: bool
) -> list[Any]:
    """Return the columns of a value, and with ``keep`` the fields that are not in the schema as JSON text. A field
    with such a field inside of it is among them as a whole."""
    if rules.refuse_unknown and (unknown := found.keys() - convert.keys()):
        raise BadValue(f"there is no field {min(map(str, unknown))} in the schema")
    if not keep:
        return fields_of(fields, convert, found)
    unknown_fields = {name: value for name, value in found.items() if name not in convert}
    row = []
    for one in fields:
        rules.left_over = False
        row += fields_of([one], convert, found)
        if rules.left_over:
            unknown_fields[one.name] = found[one.name]
    row.append(as_json(unknown_fields) if unknown_fields else None)
    return row


def _printable(reason: str | None) -> str | None:
    """Return a reason as text that is UTF-8 and not too long, whatever the value had in it."""
    return None if reason is None else reason[:MAX_REASON].encode(errors="backslashreplace").decode()


def _as_arrow(
    rows: list[list[Any]], reasons: list[str | None], are_rows: list[bool], arrow_type: pa.StructType
) -> pa.Array:
    inner = arrow_type.field(FIELDS).type
    columns = [pa.array(column, inner.field(n).type) for n, column in enumerate(zip(*rows, strict=True))]
    if not rows:
        return pa.array([], arrow_type)
    missing = pa.array([reason is not None or not is_row for reason, is_row in zip(reasons, are_rows, strict=True)])
    struct = pa.StructArray.from_arrays(columns, fields=list(inner), mask=missing)
    return pa.StructArray.from_arrays(
        [pa.array(reasons, pa.string()), pa.array(are_rows, pa.bool_()), struct], fields=list(arrow_type)
    )


def _of_sql(schema: str) -> t.StructType:
    """Return the columns of a schema as in SQL. Raises ``ConfigError`` if it is not one."""
    try:
        kind = t.StructType.fromDDL(schema)
    except PySparkException as error:
        raise ConfigError(f"schema {schema!r} is not such as 'id BIGINT, at TIMESTAMP': {error}") from None
    if not isinstance(kind, t.StructType):
        raise ConfigError(f"schema {schema!r} is not such as 'id BIGINT, at TIMESTAMP'")
    return kind


def _of_groups(pattern: str, typed: t.StructType) -> t.StructType:
    """Return the columns of a pattern: its named groups in their order, STRING unless ``typed`` has them."""
    groups = lines.groups_of(pattern)
    if unknown := [name for name in typed.names if name not in groups]:
        raise ConfigError(f"schema has {', '.join(unknown)}, which is no named group of the pattern")
    columns = [typed[name] if name in typed.names else t.StructField(name, t.StringType()) for name in groups]
    return t.StructType(columns)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _nullable(kind: t.DataType) -> t.DataType:
    """Return a type whose parts can all be null, since Arrow has a bad row as nulls."""
    nullable: t.DataType = kind.toNullable() if isinstance(kind, (t.ArrayType, t.MapType, t.StructType)) else kind
    return nullable
