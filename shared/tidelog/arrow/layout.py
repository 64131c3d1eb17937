"""The columns of a table that is read from a topic, as the application asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidelog.arrow.rows import RowBuffer, row_schema
from tidelog.arrow.values import Reasons, from_json, json_type_of, to_text
from tidelog.errors import ConfigError, InvalidValue

ALL_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers", "leader_epoch")
VALUES = ("raw", "string", "json")
KEYS = ("raw", "string")
ON_INVALID = ("raise", "null", "report")
INVALID = "invalid"
"""Name of the column with the reasons why keys and values are null, with ``on_invalid`` ``report``."""
ROWS = 1 << 14
"""Rows that are enough for a record batch."""


@dataclass(frozen=True)
class Layout:
    """The columns of a table, and what happens at a key or value that does not have the requested form. The fields
    are the arguments of ``Log.read_arrow``. Raises ``ConfigError`` if they contradict each other."""

    topic: str
    columns: Sequence[str]
    values: str
    keys: str
    schema: pa.Schema | None
    on_invalid: str

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in ALL_COLUMNS]
        named = ", ".join(map(repr, unknown))
        faults = {
            f"there are no columns {named}: the columns are {', '.join(ALL_COLUMNS)}": unknown,
            "columns names no column, or one twice": not 0 < len(self.columns) == len(set(self.columns)),
            f"values must be one of {', '.join(VALUES)}, not {self.values!r}": self.values not in VALUES,
            f"keys must be one of {', '.join(KEYS)}, not {self.keys!r}": self.keys not in KEYS,
            f"on_invalid must be one of {', '.join(ON_INVALID)}, not {self.on_invalid!r}": self.on_invalid
            not in ON_INVALID,
            "a schema is for values='json'": self.schema is not None and self.values != "json",
        }
        found = [text for text, wrong in faults.items() if wrong]
        if not found and self.schema is not None:
            found = _faults_of(self.schema)
        if found:
            raise ConfigError("\n".join(found))

    @property
    def infers(self) -> bool:
        """Whether the type of the values has to be inferred from values."""
        return self.values == "json" and self.schema is None and "value" in self.columns

    def row_buffer(self) -> RowBuffer:
        """Return a buffer for the rows of the topic, whose record batches ``finish`` takes."""
        places = () if self.on_invalid != "raise" else ("partition", "offset")
        extra = [name for name in places if name not in self.columns] if self._converts else []
        return RowBuffer(self.topic, row_schema([*self.columns, *extra]), ROWS)

    @property
    def _converts(self) -> bool:
        is_wanted = {"value": self.values != "raw", "key": self.keys != "raw"}
        return any(is_wanted.get(name, False) for name in self.columns)

    def infer(self, rows: pa.RecordBatch | None) -> pa.DataType:
        """Return the type of the values that stand as JSON in these rows; ``null`` if there are none. Raises
        ``ConfigError`` if they have no common type."""
        if rows is None:
            return pa.null()
        try:
            return json_type_of(rows["value"])
        except pa.ArrowInvalid as error:
            text = str(error).removeprefix("JSON parse error: ")
            raise ConfigError(
                f"the first {rows.num_rows} values of {self.topic} have no common schema: {text}. "
                "Give a schema, or read with values='string'"
            ) from None

    def result(self, inferred: pa.DataType | None = None) -> pa.Schema:
        """Return the schema of the table. ``inferred``: the type of the values, if it had to be inferred."""
        fields = [self._field(field, inferred) for field in row_schema(self.columns)]
        if self._converts and self.on_invalid == "report":
            fields.append(pa.field(INVALID, pa.string()))
        return pa.schema(fields)

    def _field(self, field: pa.Field, inferred: pa.DataType | None) -> pa.Field:
        if field.name == "key" and self.keys == "string":
            return field.with_type(pa.string())
        if field.name == "value" and self.values == "string":
            return field.with_type(pa.string())
        if field.name == "value" and self.values == "json":
            kind = inferred if self.schema is None else pa.struct(list(self.schema))
            assert kind is not None
            return field.with_type(kind)
        return field

    def finish(self, rows: pa.RecordBatch, result: pa.Schema) -> pa.RecordBatch:
        """Return the record batch of the table that these rows of ``row_buffer`` become; ``result`` is its schema. A
        key or value that does not have its form is null; with ``on_invalid`` ``raise`` it raises ``InvalidValue``
        instead."""
        arrays: dict[str, Any] = {name: rows[name] for name in self.columns}
        found: dict[str, Reasons] = {}
        if "key" in arrays and self.keys == "string":
            arrays["key"], found["key"] = to_text(arrays["key"])
        if "value" in arrays and self.values == "string":
            arrays["value"], found["value"] = to_text(arrays["value"])
        if "value" in arrays and self.values == "json":
            kind = result.field("value").type
            arrays["value"], found["value"] = from_json(arrays["value"], kind, exact=self.schema is None)
        reasons: Reasons = {}
        for name, of in found.items():
            for row, reason in of.items():
                reasons[row] = f"{reasons[row]}; {name}: {reason}" if row in reasons else f"{name}: {reason}"
        if reasons and self.on_invalid == "raise":
            raise self._invalid(rows, *min(reasons.items()))
        if INVALID in result.names:
            arrays[INVALID] = pa.array([reasons.get(row) for row in range(rows.num_rows)], pa.string())
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=result)

    def _invalid(self, rows: pa.RecordBatch, row: int, reason: str) -> InvalidValue:
        partition, offset = rows["partition"][row].as_py(), rows["offset"][row].as_py()
        how = "on_invalid 'null' reads on, values 'raw' converts nothing"
        if self.schema is None and self.values == "json":
            how = f"the schema was inferred from the first values: give one; {how}"
        return InvalidValue(
            f"{self.topic}/{partition} at offset {offset}: the {reason.replace(':', '', 1)} ({how})",
            topic=self.topic,
            partition=partition,
            offset=offset,
        )


def _faults_of(schema: Any) -> list[str]:
    """Return what is wrong with a schema for JSON values, in words; an empty list if it can be used."""
    if not isinstance(schema, pa.Schema):
        return [f"schema must be a pyarrow.Schema, not {type(schema).__name__}"]
    try:
        from_json(pa.array([b"{}"]), pa.struct(list(schema)), exact=False)
    except pa.ArrowException as error:
        return [f"the schema cannot be read from JSON: {error}"]
    return []
