"""Converts columns of byte strings: to text, or to the values that JSON texts stand for. Whole columns are converted
at once; only a column with a value that does not convert is looked at value by value."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

Reasons = dict[int, str]
"""Row -> why its value could not be converted. The value in the converted column is null."""

_PLACE = re.compile(r"Column\(/value(?:/([^)]*))?\)")


def to_text(column: pa.BinaryArray) -> tuple[pa.Array, Reasons]:
    """Return the column as text in UTF-8, and the reasons of the rows that are no such text."""
    try:
        return column.cast(pa.string()), {}
    except pa.ArrowInvalid:
        reasons: Reasons = {}
        for row, value in enumerate(column.to_pylist()):
            try:
                str(value or b"", "utf-8")
            except UnicodeDecodeError as error:
                reasons[row] = f"is not text in UTF-8: {error.reason} at byte {error.start}"
        return _without(column, reasons).cast(pa.string()), reasons


def json_type_of(column: pa.BinaryArray) -> pa.DataType:
    """Return the type of the values that the JSON texts of a column stand for; ``null`` if there is none. Texts that
    are no JSON do not count. Raises ``pa.ArrowInvalid`` if the values have no common type."""
    text, reasons = to_text(column)
    try:
        return _parsed(text, None).type
    except pa.ArrowInvalid:
        return _parsed(_without(text, reasons | _no_json(text)), None).type


def from_json(column: pa.BinaryArray, kind: pa.DataType, *, exact: bool) -> tuple[pa.Array, Reasons]:
    """Return the values that the JSON texts of a column stand for, as an array of type ``kind``, and the reasons of
    the rows that are no JSON, or do not fit the type. Fields of objects that the type lacks do not fit if ``exact``,
    and are otherwise left out."""
    text, reasons = to_text(column)
    try:
        return _parsed(text, kind, exact), reasons
    except pa.ArrowInvalid:
        reasons |= _no_json(text)
        parts = list(_fitting(_without(text, reasons), kind, exact, 0, reasons))
        return pa.concat_arrays(parts), reasons


def _parsed(text: pa.StringArray, kind: pa.DataType | None, exact: bool = False) -> pa.Array:
    """Return the values of JSON texts; a null stands for itself. ``kind`` is their type, None: the type is inferred.
    Raises ``pa.ArrowInvalid`` if that fails for any of them.

    Each text becomes a line ``{"value":TEXT}`` of a document that is parsed as a whole. A line always begins an
    object, so a text that is no JSON cannot shift the values of other rows without an error."""
    if not len(text):
        return pa.array([], kind or pa.null())
    lines = pc.binary_join_element_wise('{"value":', pc.fill_null(text, "null"), "}\n", "")
    size = pc.sum(pc.binary_length(lines)).as_py()
    table = pj.read_json(
        pa.BufferReader(lines.buffers()[2][:size]),
        pj.ReadOptions(use_threads=False, block_size=size + 1),
        pj.ParseOptions(
            explicit_schema=None if kind is None else pa.schema([pa.field("value", kind)]),
            newlines_in_values=True,
            unexpected_field_behavior="infer" if kind is None else "error" if exact else "ignore",
        ),
    )
    if table.num_rows != len(text) or table.column_names != ["value"]:
        raise pa.ArrowInvalid("not one JSON value in each row")
    chunks = table["value"].chunks
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def _fitting(text: pa.StringArray, kind: pa.DataType, exact: bool, first: int, reasons: Reasons) -> list[pa.Array]:
    """Return arrays of type ``kind`` with the values of JSON texts, in order. A value that does not fit is null, and
    its reason is added under its row, counted from ``first``. A column that fails is halved until its faults are
    found."""
    try:
        return [_parsed(text, kind, exact)]
    except pa.ArrowInvalid as error:
        if len(text) == 1:
            reasons[first] = "does not fit the schema: " + _shown(error)
            return [pa.nulls(1, kind)]
    middle = len(text) // 2
    return [
        *_fitting(text[:middle], kind, exact, first, reasons),
        *_fitting(text[middle:], kind, exact, first + middle, reasons),
    ]


def _shown(error: pa.ArrowInvalid) -> str:
    """Return the message of Arrow's parser about a single value, which names the value or its field in place of the
    parser's path."""
    message = str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
    return _PLACE.sub(lambda found: f"field {found[1].replace('/', '.')}" if found[1] else "the value", message)


def _no_json(text: pa.StringArray) -> Reasons:
    """Return the reasons of the rows that are no JSON."""
    reasons: Reasons = {}
    for row, value in enumerate(text.to_pylist()):
        if value is not None:
            try:
                json.loads(value, parse_constant=_refuse)
            except (ValueError, RecursionError) as error:
                reasons[row] = f"is not JSON: {error}"
    return reasons


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _without(column: pa.Array, reasons: Reasons) -> pa.Array:
    """Return the column with nulls in the rows that ``reasons`` names."""
    return pc.if_else(pa.array([row not in reasons for row in range(len(column))], pa.bool_()), column, None)
