"""Values that are lines of text: a regular expression with named groups, or a row of CSV. All fields are texts."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from tidelog.spark.pipelines.values.conversion import BadValue, Decode, text_of


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How the rows of a CSV input are written."""

    separator: str
    quote: str
    null: str
    """A field with exactly this text is null."""
    header: bool
    """Whether a record with the names of the columns is a header, and no row."""


def line_of(value: bytes) -> str:
    """Return a value as text, without the end of a line at its end. Raises ``BadValue`` if it is not UTF-8."""
    return text_of(value).removesuffix("\n").removesuffix("\r")


def groups_of(pattern: str) -> list[str]:
    """Return the named groups of a pattern, in their order."""
    groups = re.compile(pattern).groupindex
    return sorted(groups, key=groups.__getitem__)


def regex_decoder(pattern: str) -> Decode:
    """Return a decoder for lines that a regular expression matches as a whole. The fields are its named groups; a
    group that takes no part in a match is None. Other lines raise ``BadValue``."""
    match = re.compile(pattern).fullmatch

    def decode(value: bytes, at_us: int) -> Mapping[str, Any]:
        found = match(line_of(value))
        if found is None:
            raise BadValue("the line does not match the pattern")
        return found.groupdict()

    return decode


def csv_decoder(columns: Sequence[str], dialect: CsvDialect) -> Decode:
    """Return a decoder for values that are one row of CSV with a field for each column. Values that are not that
    raise ``BadValue``; the header is None."""
    csv.field_size_limit(sys.maxsize)
    names = list(columns)
    quotes = {"quotechar": dialect.quote} if dialect.quote else {"quotechar": None, "quoting": csv.QUOTE_NONE}

    def decode(value: bytes, at_us: int) -> Mapping[str, Any] | None:
        try:
            text = StringIO(text_of(value), newline="")
            rows = list(csv.reader(text, delimiter=dialect.separator, strict=True, **quotes))
        except csv.Error as error:
            raise BadValue(f"the value is not CSV: {error}") from None
        if len(rows) != 1:
            raise BadValue(f"the value has {len(rows)} rows of CSV, not 1")
        fields = rows[0]
        if dialect.header and fields == names:
            return None
        if len(fields) != len(names):
            raise BadValue(f"the row has {len(fields)} fields, not {len(names)}")
        return {name: None if one == dialect.null else one for name, one in zip(names, fields, strict=True)}

    return decode
