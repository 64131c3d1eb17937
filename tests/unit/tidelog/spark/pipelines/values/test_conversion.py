"""Values of Python as columns of a type, exactly or not at all."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type
from tidelog.errors import ConfigError
from tidelog.spark.pipelines.values.conversion import BadValue, Rules, as_json, converter, text_converter, zone_of

PARIS = ZoneInfo("Europe/Paris")
INT, DECIMAL, TIME = t.IntegerType(), t.DecimalType(4, 2), t.TimestampType()
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.decimals() | st.text(st.characters()) | st.binary()
    | st.datetimes(timezones=st.none() | st.just(UTC)) | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
SIMPLE = [
    t.BooleanType(), t.ByteType(), t.ShortType(), INT, t.LongType(), t.FloatType(), t.DoubleType(), DECIMAL,
    t.DecimalType(38, 10), t.StringType(), t.BinaryType(), t.DateType(), TIME, t.TimestampNTZType(),
]  # fmt: skip
KINDS = st.recursive(
    st.sampled_from(SIMPLE),
    lambda inner: (
        inner.map(t.ArrayType)
        | inner.map(lambda kind: t.MapType(t.StringType(), kind))
        | inner.map(lambda kind: t.StructType([t.StructField("a", kind)]))
    ),
    max_leaves=3,
)


@given(KINDS, DOCUMENTS, st.booleans())
def test_whatever_a_value_is_it_fits_its_type_or_is_bad(kind: t.DataType, value: Any, strict: bool) -> None:
    if value is None:
        return
    try:
        made = converter(kind, Rules(strict=strict))(value)
    except BadValue as error:
        str(error).encode(errors="backslashreplace")
        return
    (back,) = pa.array([made], to_arrow_type(kind, timezone="UTC"))
    assert back.is_valid, "nothing becomes null"


@given(st.integers(), st.sampled_from([t.ByteType(), t.ShortType(), INT, t.LongType()]))
def test_whole_numbers_are_the_same_or_bad(value: int, kind: t.DataType) -> None:
    bits = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}[kind.simpleString()]
    fits = -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    try:
        assert converter(kind, Rules())(value) == value and fits
    except BadValue:
        assert not fits


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_decimals_are_the_same_or_bad(value: Decimal) -> None:
    try:
        assert converter(DECIMAL, Rules())(value) == value
    except BadValue:
        assert abs(value) >= 100 or value != round(value, 2)


@given(st.floats(allow_nan=False))
@example(1e39)
@example(3.4028235677973366e38)
@example(3.4028235677973362e38)
def test_a_float_overflows_or_is_rounded_as_floats_are(value: float) -> None:
    try:
        (made,) = struct.unpack("<f", struct.pack("<f", value))
    except OverflowError:
        with pytest.raises(BadValue):
            converter(t.FloatType(), Rules())(value)
    else:
        assert struct.unpack("<f", struct.pack("<f", converter(t.FloatType(), Rules())(value))) == (made,)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-02", datetime(2026, 1, 1, 23, tzinfo=UTC)),
        ("2026-01-02 03:04", datetime(2026, 1, 2, 2, 4, tzinfo=UTC)),
        ("2026-07-02T03:04:05", datetime(2026, 7, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02 03:04:05+05:30", datetime(2026, 1, 1, 21, 34, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05-0100", datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05+01", datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC)),
        *((text, None) for text in ("12:00", "2026", "20260102", "2026-W01-1", "2026-13-01", "2026-01-01T25:00", "")),
        *((text, None) for text in ("2026-01-01 ", "2026-01-01T00:00:00 UTC", "2026-01-01T00:00:60", "tomorrow")),
        ("0001-01-01T00:00:00+05:00", None),
    ],
)
def test_times(text: str, moment: datetime | None) -> None:
    convert = converter(TIME, Rules(zone=PARIS))
    if moment is not None:
        assert convert(text) == moment
        assert text_converter(TIME, Rules(zone=PARIS))(text) == moment
    else:
        with pytest.raises(BadValue, match="is not TIMESTAMP"):
            convert(text)


@pytest.mark.parametrize(
    ("kind", "value", "made"),
    [
        (t.StringType(), 1, "1"),
        (t.StringType(), Decimal("1.10"), "1.10"),
        (t.StringType(), True, "true"),
        (t.StringType(), {"a": [1, Decimal("1.10"), None, b"\0"]}, '{"a":[1,1.10,null,"AA=="]}'),
        (DECIMAL, "1.5", Decimal("1.50")),
        (DECIMAL, 0.1, Decimal("0.10")),
        (TIME, 5, datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)),
    ],
    ids=str,
)
def test_what_strict_refuses(kind: t.DataType, value: Any, made: Any) -> None:
    assert converter(kind, Rules())(value) == made
    with pytest.raises(BadValue):
        converter(kind, Rules(strict=True))(value)


@pytest.mark.parametrize(
    ("kind", "text", "made"),
    [
        (INT, "+12", 12),
        (INT, "1_000", None),
        (INT, " 1", None),
        (INT, "\u0661", None),
        (INT, "1.0", None),
        (INT, "", None),
        (t.DoubleType(), "1e3", 1000.0),
        (t.DoubleType(), "nan", None),
        (t.DoubleType(), "1e999", None),
        (DECIMAL, ".5", Decimal("0.50")),
        (DECIMAL, "1.234", None),
        (t.BooleanType(), "TRUE", True),
        (t.BooleanType(), "1", None),
        (t.StringType(), "1", "1"),
        (t.DateType(), "2026-02-28", date(2026, 2, 28)),
        (t.DateType(), "2026-02-29", None),
    ],
    ids=str,
)
def test_texts(kind: t.DataType, text: str, made: Any) -> None:
    if made is not None:
        assert text_converter(kind, Rules())(text) == made
    else:
        with pytest.raises(BadValue, match="is not"):
            text_converter(kind, Rules())(text)


def test_the_path_of_a_bad_value() -> None:
    inner = t.StructType([t.StructField("b", t.MapType(t.StringType(), t.ArrayType(INT)), nullable=False)])
    convert = converter(t.ArrayType(inner), Rules())
    with pytest.raises(BadValue, match=r"^\[1\]\.b\.c\[0\]: \"x\" is not INT$"):
        convert([{"b": {}}, {"b": {"c": ["x"]}}])
    with pytest.raises(BadValue, match=r"^\[0\]\.b: is null$"):
        convert([{"b": None}])
    with pytest.raises(BadValue, match=r'"x{59}… is not ARRAY$'):
        convert("x" * 100)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
       | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_documents_as_json(value: Any) -> None:
    assert json.loads(as_json(value)) == value


def test_time_zones_have_the_names_of_spark() -> None:
    assert (zone_of("UTC"), zone_of("Europe/Paris")) == (UTC, PARIS)
    assert zone_of("GMT-1") == timezone(-timedelta(hours=1))
    assert zone_of("+05:30") == timezone(timedelta(hours=5, minutes=30))
    for name in ("Nowhere/City", "", "../etc"):
        with pytest.raises(ConfigError):
            zone_of(name)
