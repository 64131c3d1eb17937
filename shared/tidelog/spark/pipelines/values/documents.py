"""Values that are documents, JSON or CBOR: a map of fields, with the columns of the declared schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from io import BytesIO
from typing import Any

import cbor2

from tidelog.spark.pipelines.values.conversion import BadValue, Decode, text_of

UNKNOWN_COLUMN = "_unknown"
"""Column of JSON text with the fields that are not in the schema, with ``unknown = "keep"``."""


def json_decoder() -> Decode:
    """Return a decoder for values that are one JSON object. Numbers with a fraction or an exponent are ``Decimal``.
    All else raises ``BadValue``: other JSON, text after the object, a name that occurs twice in an object, NaN."""
    return _json_fields


def cbor_decoder() -> Decode:
    """Return a decoder for values that are one CBOR map. All else raises ``BadValue``: other CBOR, bytes after the
    map, a key that occurs twice in a map."""
    return _cbor_fields


def _json_fields(value: bytes, at_us: int) -> Mapping[str, Any]:
    try:
        found = _JSON.decode(text_of(value))
    except BadValue:
        raise
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise BadValue(f"the value is not JSON: {error}") from None
    return _fields(found, "JSON")


def _cbor_fields(value: bytes, at_us: int) -> Mapping[str, Any]:
    file = BytesIO(value)
    try:
        found = cbor2.CBORDecoder(file, allow_duplicate_keys=False).decode()
    except (cbor2.CBORError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise BadValue(f"the value is not CBOR: {error}") from None
    if file.tell() != len(value):
        raise BadValue(f"the value is not CBOR: {len(value) - file.tell()} bytes follow the first item")
    return _fields(found, "CBOR")


def _fields(found: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(found, dict):
        raise BadValue(f"the value is not a map of {name}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise BadValue(f"{next(name for name in names if names.count(name) > 1)} occurs twice in an object")
    return made


def _constant(name: str) -> Any:
    raise ValueError(f"{name} is no number")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_float=Decimal, parse_constant=_constant)
