"""Which records ``--grep`` and ``--json-path`` let pass, and which parts of their values."""

from __future__ import annotations

import pytest
from tidelog.batch.format import Record
from tidelog.cli.records.record_filter import RecordFilter


def record(value: bytes | None) -> Record:
    return Record("orders", 0, 0, 0, 0, b"key", value, ())


def chosen(value: bytes | None, *, grep: str | None = None, path: str | None = None) -> list[bytes | None]:
    found = RecordFilter(grep, path).choose(record(value))
    assert all(one.key == b"key" for one in found)
    return [one.value for one in found]


@pytest.mark.parametrize(
    ("value", "expression", "passes"),
    [
        (b"an error", "error|failed", True),
        (b"an Error", "error|failed", False),
        (b"an Error", "(?i)error", True),
        ("Größe".encode(), r"^\w+$", True),
        (b"\xff error \xfe", "error", True),
        (b"one\ntwo", "(?m)^two$", True),
        (b"", "^$", True),
        (None, "^$", False),
        (b"value", "key", False),
    ],
)
def test_grep_searches_the_value(value: bytes | None, expression: str, passes: bool) -> None:
    assert chosen(value, grep=expression) == ([value] if passes else [])


@pytest.mark.parametrize(
    ("value", "path", "parts"),
    [
        (b'{"a": {"b": "text \\u00e9"}}', "$.a.b", ["text é".encode()]),
        (b'{"a": {"b": [1, true, null]}}', "$.a.b", [b"[1, true, null]"]),
        (b'{"a": [{"x": 1}, {"x": "2"}, {}]}', "$.a[*].x", [b"1", b"2"]),
        (b'{"a": [{"x": 1}, {"x": 3}]}', "$.a[?@.x > 2].x", [b"3"]),
        (b'{"a": null}', "$.a", [b"null"]),
        (b'{"b": 1}', "$.a", []),
        (b"[7]", "$[0]", [b"7"]),
        (b"no JSON", "$", []),
        (b"\xff", "$", []),
        (b"9" * 5000, "$", []),
        (b"[" * 100_000, "$", []),
        (b'{"a":' * 900 + b"1" + b"}" * 900, "$..b", []),
        (None, "$", []),
    ],
)
def test_a_path_prints_the_matched_parts_and_skips_what_has_none(
    value: bytes | None, path: str, parts: list[bytes]
) -> None:
    assert chosen(value, path=path) == parts


def test_grep_searches_the_whole_value_before_the_path_takes_its_part() -> None:
    value = b'{"level": "error", "text": "no"}'
    assert chosen(value, grep="error", path="$.text") == [b"no"]
    assert chosen(value, grep="warning", path="$.text") == []


@pytest.mark.parametrize(
    ("grep", "path", "words"),
    [
        ("[", None, "--grep: '[' is no regular expression: unterminated character set"),
        ("(" * 5000, None, "is no regular expression"),
        (None, "$[", "--json-path: '$[' is no JSONPath: unexpected end of query"),
        (None, "$.a.b()", "is no JSONPath"),
    ],
)
def test_an_invalid_expression_is_refused_in_one_line(grep: str | None, path: str | None, words: str) -> None:
    with pytest.raises(ValueError, match=r"^--[^\n]*$") as raised:
        RecordFilter(grep, path)
    assert words in str(raised.value)
