"""Converts values of Python to the columns of a declared type, exactly: a value that the type cannot hold is an error
with its path and the reason, and never NULL, rounded or wrapped."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Context, Decimal, InvalidOperation
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pyspark.sql import types as t

from tidelog.errors import ConfigError

Convert = Callable[[Any], Any]
"""Converts a value that is not None; raises ``BadValue`` if the type cannot hold it."""
Decode = Callable[[bytes, int], "Mapping[str, Any] | None"]
"""Returns the fields of a value by name, given the value and the record's timestamp (microseconds since 1970), or
None for a value that is no row. Raises an error if the value is not of its format."""
INTEGERS: Mapping[type[t.DataType], int] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
"""Number of bits of the types of whole numbers."""
_SHOWN = 60
_WIDE = Context(prec=100)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
_OFFSET = re.compile(r"(?:UTC|GMT)?(?P<sign>[+-])(?P<hours>\d{1,2})(?::(?P<minutes>\d\d))?", re.ASCII)


class BadValue(ValueError):
    """A value that does not match its declaration. ``reason`` says why; ``path`` is the column, and the field or the
    element in it, or "" for the whole value."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(f"{path}: {reason}" if path else reason)
        self.reason, self.path = reason, path

    def below(self, name: str) -> BadValue:
        """Return this error with its path inside of a column, field or element ``name``."""
        inner = self.path if not self.path or self.path.startswith("[") else f".{self.path}"
        return BadValue(self.reason, f"{name}{inner}")


@dataclass(slots=True)
class Rules:
    """How values are converted. An object serves one task, since it also says what the latest value had left over."""

    string_keys: bool = False
    """Whether maps can have keys of STRING only, as those of JSON have."""
    strict: bool = False
    """Each type takes its own kind of value only. Otherwise STRING takes every value as its text, DECIMAL takes texts
    of numbers, and TIMESTAMP takes whole seconds since 1970."""
    zone: tzinfo = UTC
    """The time zone of times that name none."""
    refuse_unknown: bool = False
    """Whether a struct with a field that is not declared is an error."""
    left_over: bool = field(default=False, init=False)
    """Whether a nested struct had a field that is not declared, since this was set to false."""


def zone_of(name: str) -> tzinfo:
    """Return a time zone by the name that Spark has for it, such as ``UTC``, ``Europe/Paris`` or ``+02:00``. Raises
    ``ConfigError`` if it is unknown."""
    if name in ("UTC", "Z"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(found["hours"]), minutes=int(found["minutes"] or 0))
        return timezone(offset if found["sign"] == "+" else -offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError(f"there is no time zone {name}") from None


def text_of(value: bytes) -> str:
    """Return a value as text. Raises ``BadValue`` if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise BadValue(f"the value is not UTF-8: {error.reason} at byte {error.start}") from None


def converter(kind: t.DataType, rules: Rules) -> Convert:
    """Return the function that converts values to a type of Spark. Raises ``ConfigError`` for a type that values
    cannot have."""
    simple: dict[type[t.DataType], Callable[[Rules], Convert]] = {
        t.BooleanType: lambda rules: _boolean,
        t.FloatType: lambda rules: _float,
        t.DoubleType: lambda rules: _double,
        t.StringType: lambda rules: _exact_string if rules.strict else _string,
        t.BinaryType: lambda rules: _binary,
        t.DateType: lambda rules: _date,
        t.TimestampType: _timestamp,
        t.TimestampNTZType: lambda rules: _timestamp_ntz,
    }
    if type(kind) in simple:
        return simple[type(kind)](rules)
    if type(kind) in INTEGERS:
        return _integer(kind)
    if isinstance(kind, t.DecimalType):
        return _decimal(kind, rules.strict)
    if isinstance(kind, t.ArrayType):
        return _array(kind, rules)
    if isinstance(kind, t.MapType):
        return _map(kind, rules)
    if isinstance(kind, t.StructType):
        return _struct(kind, rules)
    raise ConfigError(f"values have no type {kind.simpleString()}: take STRING, and convert it in columns")


def text_converter(kind: t.DataType, rules: Rules) -> Convert:
    """Return the function that converts texts, such as the fields of a CSV row, to a type of Spark. Raises
    ``ConfigError`` for a type that texts cannot have."""
    convert = converter(kind, rules)
    if type(kind) in INTEGERS:
        return lambda text: convert(_parsed(_WHOLE, int, text, kind))
    if isinstance(kind, (t.FloatType, t.DoubleType, t.DecimalType)):
        return lambda text: convert(_parsed(_NUMBER, Decimal, text, kind))
    if isinstance(kind, t.BooleanType):
        return _boolean_of_text
    if isinstance(kind, (t.StringType, t.DateType, t.TimestampType, t.TimestampNTZType)):
        return convert
    raise ConfigError(f"a text cannot be {kind.simpleString()}: take STRING, and convert it in columns")


def as_json(value: Any) -> str:
    """Return a value of a document as JSON text: numbers keep their digits, bytes are base64, times ISO 8601."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(_as_key(key))}:{as_json(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(as_json, value)) + "]"
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return json.dumps(value)
    return json.dumps(_as_key(value))


def fields_of(
    columns: Iterable[t.StructField], convert: Mapping[str, Convert], values: Mapping[str, Any]
) -> list[Any]:
    """Return the values of ``columns``, in order, each converted by the function of its name. A column that is
    missing is None. Raises ``BadValue`` if a value does not fit, or is None in a column that is NOT NULL."""
    made: list[Any] = []
    for column in columns:
        value = values.get(column.name)
        if value is None:
            if not column.nullable:
                raise BadValue("is null" if column.name in values else "is missing", column.name)
            made.append(None)
            continue
        try:
            made.append(convert[column.name](value))
        except BadValue as error:
            raise error.below(column.name) from None
    return made


def _as_key(value: Any) -> str:
    """Return a text for a value that JSON has no type for, and for keys of objects."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def _not(value: Any, kind: str) -> BadValue:
    """Return the error for a value that is not of a type, with the beginning of the value."""
    shown = as_json(value)
    return BadValue(f"{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'} is not {kind}")


def _parsed(pattern: re.Pattern[str], parse: Callable[[str], Any], text: str, kind: t.DataType) -> Any:
    if not pattern.fullmatch(text):
        raise _not(text, kind.simpleString().upper())
    return parse(text)


def _boolean(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise _not(value, "BOOLEAN")


def _boolean_of_text(text: str) -> bool:
    found = {"true": True, "false": False}.get(text.lower())
    if found is None:
        raise _not(text, "BOOLEAN")
    return found


def _integer(kind: t.DataType) -> Convert:
    limit = 1 << (INTEGERS[type(kind)] - 1)
    name = kind.simpleString().upper()

    def convert(value: Any) -> int:
        if type(value) is int and -limit <= value < limit:
            return value
        raise _not(value, name)

    return convert


def _double(value: Any, name: str = "DOUBLE") -> float:
    if type(value) is float:
        return value
    if type(value) is int or isinstance(value, Decimal):
        try:
            made = float(value)
        except (OverflowError, ValueError):
            raise _not(value, name) from None
        if math.isfinite(made):
            return made
    raise _not(value, name)


def _float(value: Any) -> float:
    made = _double(value, "FLOAT")
    try:
        struct.pack("<f", made)  # which rounds to the nearest, as Arrow does
    except OverflowError:
        raise _not(value, "FLOAT") from None
    return made


def _decimal(kind: t.DecimalType, strict: bool) -> Convert:
    unit = Decimal(1).scaleb(-kind.scale)
    limit = Decimal(10) ** (kind.precision - kind.scale)
    name = kind.simpleString().upper()

    def convert(value: Any) -> Decimal:
        number = value
        if type(number) is float and not strict:
            number = Decimal(repr(number))
        elif (type(number) is str and not strict and _NUMBER.fullmatch(number)) or type(number) is int:
            number = Decimal(number)
        if isinstance(number, Decimal) and number.is_finite():
            try:
                made = _WIDE.quantize(number, unit)
            except InvalidOperation:
                raise _not(value, name) from None
            if made == number and abs(made) < limit:
                return made
        raise _not(value, name)

    return convert


def _exact_string(value: Any) -> str:
    if not isinstance(value, str):
        raise _not(value, "STRING")
    return _string(value)


def _string(value: Any) -> str:
    if isinstance(value, str):
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _not(value, "STRING: it has half of a surrogate pair") from None
        return value
    return as_json(value) if isinstance(value, (bool, dict, list, tuple)) else _string(_as_key(value))


def _binary(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise _not(value, "BINARY in base64") from None
    raise _not(value, "BINARY")


def _date(value: Any) -> date:
    if type(value) is date:
        return value
    if isinstance(value, str) and _DATE.fullmatch(value):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise _not(value, "DATE") from None
    raise _not(value, "DATE")


def _moment(text: str) -> datetime | None:
    """Return the date and time of a text in ISO 8601, to the microsecond, or None if it is not one. It has a time
    zone if the text names one."""
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _timestamp(rules: Rules) -> Convert:
    def convert(value: Any) -> datetime:
        moment = value if isinstance(value, datetime) else None
        try:
            if type(value) is int and not rules.strict:
                moment = datetime.fromtimestamp(value, UTC)
            elif isinstance(value, str):
                moment = _moment(value)
            if moment is not None:
                moment = moment if moment.tzinfo else moment.replace(tzinfo=rules.zone)
                return moment.astimezone(UTC)
        except (OverflowError, ValueError, OSError):
            raise _not(value, "TIMESTAMP") from None
        raise _not(value, "TIMESTAMP")

    return convert


def _timestamp_ntz(value: Any) -> datetime:
    moment = value if isinstance(value, datetime) else _moment(value) if isinstance(value, str) else None
    if moment is None or moment.tzinfo is not None:
        raise _not(value, "TIMESTAMP_NTZ")
    return moment


def _array(kind: t.ArrayType, rules: Rules) -> Convert:
    element = converter(kind.elementType, rules)

    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (list, tuple)):
            raise _not(value, "ARRAY")
        made = []
        for n, one in enumerate(value):
            try:
                made.append(None if one is None else element(one))
            except BadValue as error:
                raise error.below(f"[{n}]") from None
        return made

    return convert


def _map(kind: t.MapType, rules: Rules) -> Convert:
    if rules.string_keys and not isinstance(kind.keyType, t.StringType):
        raise ConfigError(f"keys of maps are STRING, not {kind.keyType.simpleString().upper()}")
    convert_key, convert_value = converter(kind.keyType, rules), converter(kind.valueType, rules)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise _not(value, "MAP")
        made = []
        for key, one in value.items():
            try:
                if key is None:
                    raise BadValue("null is not a key")
                made.append((convert_key(key), None if one is None else convert_value(one)))
            except BadValue as error:
                raise error.below(_as_key(key)) from None
        return made

    return convert


def _struct(kind: t.StructType, rules: Rules) -> Convert:
    convert_field = {one.name: converter(one.dataType, rules) for one in kind.fields}
    names = convert_field.keys()

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _not(value, "STRUCT")
        if value.keys() - names:
            if rules.refuse_unknown:
                raise BadValue(f"there is no field {_as_key(min(value.keys() - names, key=str))} in the schema")
            rules.left_over = True
        return dict(zip(names, fields_of(kind.fields, convert_field, value), strict=True))

    return convert
