"""Checks the settings of an input of a pipeline: what each encoding of values takes and needs. Pure."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.spark.pipelines.declaration import Input

VALUES = ("raw", "json", "cbor", "regex", "syslog", "csv", "avro", "protobuf")
"""Encodings of the values of an input."""
UNKNOWN = ("drop", "keep", "bad")
"""What becomes of fields of a document that the schema does not have."""
ABOUT = ("_key", "_topic", "_partition", "_offset", "_timestamp")
"""Columns of the tables of values that are not raw: what the record has besides its value."""
_DOCUMENTS = ("json", "cbor")
_ONLY = {
    "schema": (*_DOCUMENTS, "csv", "regex"),
    "schema_file": ("avro", "protobuf"),
    "schema_id": ("avro",),
    "message": ("protobuf",),
    "pattern": ("regex",),
    **dict.fromkeys(("separator", "quote", "null", "header"), ("csv",)),
    "year": ("syslog",),
    **dict.fromkeys(("strict", "unknown"), _DOCUMENTS),
}
"""Encodings with which a setting can be given."""
_NEEDS = {
    "schema": (*_DOCUMENTS, "csv"),
    "schema_file": ("avro", "protobuf"),
    "message": ("protobuf",),
    "pattern": ("regex",),
}
"""Encodings with which a setting must be given."""
_LITERAL = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_CHANGING = re.compile(
    r"\b(rand|randn|random|randstr|uuid|uniform|shuffle|now|current_timestamp|current_date|current_time|localtimestamp|"
    r"curdate|unix_timestamp(?=\s*\(\s*\))|monotonically_increasing_id|spark_partition_id|input_file_name)\b",
    re.IGNORECASE,
)
"""Functions of SQL that give another value when the same row is read again."""


def input_faults(one: Input) -> list[str]:
    """Return the errors of an input whose settings do not fit together; an empty list if there are none."""
    return _of_format(one) + _of_rules(one)


def _of_format(one: Input) -> list[str]:
    """Return the errors of the settings that only some encodings have."""
    faults = []
    defaults = {each.name: each.default for each in fields(one)}
    for name, formats in _ONLY.items():
        setting = name.replace("_", "-")
        given = getattr(one, name) != defaults[name]
        if given and one.value not in formats:
            faults.append(f"{setting} goes with value {' or '.join(formats)}, not with {one.value}")
        elif not given and one.value in _NEEDS.get(name, ()):
            faults.append(f"value {one.value} needs {setting}")
    if len(one.separator) != 1 or len(one.quote) > 1:
        faults.append('separator is one character, and quote is one or ""')
    if one.schema_id is not None and not 0 <= one.schema_id < 1 << 32:
        faults.append("schema-id is a number of 4 bytes")
    if one.year is not None and not 1 <= one.year <= 9999:
        faults.append("year is a number from 1 to 9999")
    if one.pattern:
        try:
            if not re.compile(one.pattern).groupindex:
                faults.append("pattern has no named group, such as (?P<name>…), and so the table has no column")
        except re.error as error:
            faults.append(f"pattern is no regular expression of Python: {error}")
    return faults


def _of_rules(one: Input) -> list[str]:
    """Return the errors of the settings that say which rows are good."""
    faults = []
    for name in one.columns:
        if not (name.isascii() and name.isidentifier()) or name in ABOUT or name.startswith("__"):
            faults.append(f"columns: a name is letters, digits and _, not that of another column; not {name}")
    expressions = {f"columns: {name}": text for name, text in one.columns.items()} | {"valid": one.valid}
    for name, expression in expressions.items():
        if changing := _CHANGING.search(_LITERAL.sub("''", expression)):
            faults.append(
                f"{name}: {changing[1]} can differ each time, and a row must be good or bad for every query"
            )
    if one.bad and one.value == "raw" and not (one.valid or one.columns or one.required):
        faults.append("bad goes with valid, columns or required: every raw value is a good one")
    return faults
