"""What ``produce`` makes of lines: the records of ``consume --format json`` exactly, and a reason for every other
line."""

from __future__ import annotations

import json
from io import BytesIO

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tidelog.batch.format import Record
from tidelog.cli.records import record_input
from tidelog.cli.records.formats import style_of
from tidelog.cli.records.record_input import InputRecord, Lines, read_all, record_of_json, record_of_line

DATA = st.none() | st.binary() | st.text().map(str.encode)
HEADERS = st.lists(st.tuples(st.text(), st.binary() | st.text().map(str.encode))).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["value", "key", "headers", "x"]) | st.text(), inner)
    ),
)


@given(DATA, DATA, HEADERS, st.integers(0, 2**31), st.integers(0, 2**63 - 1))
@example(b"\xed\xa0\x80", b"\x1b]0;\x07\n", (("\u2028\x85", b"\n"), ("a", b""), ("a", b"\xff")), 0, 1)
def test_what_consume_prints_as_json_is_read_exactly(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes], ...], partition: int, timestamp: int
) -> None:
    line = style_of("json", b"", False)(Record("orders", partition, 5, 4, timestamp, key, value, headers))
    assert line.count(b"\n") == 1 and line.endswith(b"\n"), "one line"
    assert record_of_json(line[:-1]) == InputRecord(value, key, headers, partition, timestamp)


@given(JSON | st.fixed_dictionaries({"value": JSON, "headers": JSON, "timestamp": JSON, "key_b64": JSON}))
def test_other_json_is_a_record_or_refused_with_a_reason(document: object) -> None:
    try:
        found = record_of_json(json.dumps(document).encode())
    except ValueError as error:
        assert type(error) is ValueError and str(error)
    else:
        assert isinstance(document, dict) and isinstance(found, InputRecord)
        assert found.value is None or isinstance(found.value, bytes)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b'{"value": "v"}', InputRecord(b"v")),
        (b'{"value": null, "key": "k"}', InputRecord(None, b"k")),
        (b'{"value": "v", "headers": {"a": "1", "b": "2"}}', InputRecord(b"v", None, (("a", b"1"), ("b", b"2")))),
        (b'{"value": "v", "timestamp": 1500}', InputRecord(b"v", timestamp_ms=1500)),
        (b'{"value": "v", "timestamp": "1970-01-01T02:00:01.5+02:00"}', InputRecord(b"v", timestamp_ms=1500)),
        (
            b'{"value": "v", "topic": "t", "offset": 1, "leader_epoch": 2, "partition": 3}',
            InputRecord(b"v", partition=3),
        ),
        (b"  ", None),
    ],
)
def test_fields_may_be_missing(line: bytes, found: InputRecord | None) -> None:
    assert record_of_json(line) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"plain text", "it is not JSON: Expecting value, at character 1"),
        (b'{"value": "v"', "it is not JSON"),
        (b'{"value": "\xff"}', "it is not UTF-8: byte 12"),
        (b"[" * 100_000, "nested too deeply"),
        (b"9" * 5000, ""),
        (b"[1]", "it is an array, not an object"),
        (b'"text"', "it is a text, not an object"),
        (b"null", "it is null, not an object"),
        (b"{}", 'it has no value; a record without one has "value": null'),
        (b'{"value": {"a": 1}}', "value is an object, not a text"),
        (b'{"value": "v", "key": 7}', "key is a number, not a text"),
        (b'{"value": "v", "value_b64": "dg=="}', "it has both value and value_b64"),
        (b'{"value_b64": "d"}', "value_b64 is not base64"),
        (b'{"value_b64": "d!g=="}', "value_b64 is not base64"),
        (b'{"value_b64": "d\xc3\xa9=="}', "value_b64 is not base64"),
        (b'{"value": "\\ud800"}', "value has half a surrogate pair"),
        (b'{"value": "v", "header": {}}', "there is no field 'header'; there are key,"),
        (b'{"value": "v", "headers": "a=1"}', "headers are a text, not an array"),
        (b'{"value": "v", "headers": ["a"]}', "a header is no object"),
        (b'{"value": "v", "headers": {"a": null}}', "header 'a' has other fields"),
        (b'{"value": "v", "headers": [{"name": "a", "value": "1", "x": 1}]}', "header 'a' has other fields"),
        (b'{"value": "v", "headers": [{"name": "\\udc00", "value": "1"}]}', "half a surrogate pair"),
        (b'{"value": "v", "partition": "1"}', "partition is a text"),
        (b'{"value": "v", "partition": true}', "partition is a boolean"),
        (b'{"value": "v", "timestamp": "yesterday"}', "'yesterday' is no time such as"),
        (b'{"value": "v", "timestamp": 1.5}', "timestamp is a number, not"),
        (b'{"value": "v", "timestamp": -1}', "before 1970"),
        (b'{"value": "v", "timestamp": 9223372036854775808}', "greater than"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line: bytes, words: str) -> None:
    with pytest.raises(ValueError) as raised:
        record_of_json(line)
    assert type(raised.value) is ValueError and words in str(raised.value)


def test_a_line_without_the_separator_has_no_key() -> None:
    assert record_of_line(b"k\x1fv\x1fw", b"\x1f") == InputRecord(b"v\x1fw", b"k")
    assert record_of_line(b"kv", b"\x1f") == InputRecord(b"kv")


async def test_a_line_or_file_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "MOST_BYTES", 10)
    monkeypatch.setattr(record_input, "CHUNK_BYTES", 4)
    assert await Lines(BytesIO(b"0123456789\n")).more() == [b"0123456789"]
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        await Lines(BytesIO(b"0123456789a\n")).more()
    assert await read_all(BytesIO(b"0123456789")) == b"0123456789"
    with pytest.raises(ValueError, match="longer than 10 bytes"):
        await read_all(BytesIO(b"0123456789a"))
