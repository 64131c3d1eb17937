"""Lines by a regular expression, and rows of CSV."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from tidelog.spark.pipelines.values.conversion import BadValue
from tidelog.spark.pipelines.values.lines import CsvDialect, csv_decoder, groups_of, regex_decoder

COMMAS = CsvDialect(",", '"', "", header=False)


def test_the_groups_of_a_pattern_are_fields() -> None:
    pattern = r"(?P<who>\w+)( (?P<what>\w+))? (?P<n>\d+)"
    decode = regex_decoder(pattern)
    assert groups_of(pattern) == ["who", "what", "n"]
    assert decode(b"a b 1\r\n", 0) == {"who": "a", "what": "b", "n": "1"}
    assert decode("é 1".encode(), 0) == {"who": "é", "what": None, "n": "1"}
    for value in (b"a b 1 and more", b"x a b 1", b"a b 1\n\n", b"", b"\xff"):
        with pytest.raises(BadValue):
            decode(value, 0)


@pytest.mark.parametrize(
    ("dialect", "value", "row"),
    [
        (COMMAS, b"1,2\n", ["1", "2"]),
        (COMMAS, b'"a ""b"", c\nd",', ['a "b", c\nd', None]),
        (COMMAS, b"a,b", ["a", "b"]),
        (CsvDialect("\t", "", "-", header=False), b'"\t-', ['"', None]),
        (CsvDialect(",", "'", "", header=False), b"'a,b',2", ["a,b", "2"]),
        (COMMAS, b"1," + b"x" * 200_000, ["1", "x" * 200_000]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_row_of_csv(dialect: CsvDialect, value: bytes, row: list[str | None]) -> None:
    assert csv_decoder(["a", "b"], dialect)(value, 0) == dict(zip("ab", row, strict=True))


def test_a_header_is_no_row() -> None:
    decode = csv_decoder(["a", "b"], CsvDialect(",", '"', "", header=True))
    assert decode(b"a,b\n", 0) is None
    assert decode(b"b,a", 0) == {"a": "b", "b": "a"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1", "the row has 1 fields, not 2"),
        (b"1,2,3", "the row has 3 fields, not 2"),
        (b"1,2\n3,4", "the value has 2 rows of CSV, not 1"),
        (b"", "the value has 0 rows of CSV, not 1"),
        (b'"1"x,2', "the value is not CSV: "),
        (b'"1,2', "the value is not CSV: "),
        (b"\xff,1", "the value is not UTF-8: "),
    ],
)
def test_what_is_not_one_row_of_csv(value: bytes, reason: str) -> None:
    with pytest.raises(BadValue) as caught:
        csv_decoder(["a", "b"], COMMAS)(value, 0)
    assert str(caught.value).startswith(reason)
