"""What appends of JSON add to a stream, and how the bytes of streams become responses and events."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_gateway.http.responses import HttpError
from tidelog_gateway.http.streams.content import appended, data_event, whole

JSON = "application/json; charset=utf-8"
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
INDENTS = st.sampled_from([None, 0, 2])


def event_data(event: bytes) -> str:
    """Return the data of an event, as a browser reads it."""
    lines = event.decode().split("\n")
    assert lines[0] == "event: data"
    assert lines[-2:] == ["", ""]
    return "\n".join(line.removeprefix("data:").removeprefix(" ") for line in lines[1:-2])


@given(st.lists(st.tuples(VALUES, INDENTS, st.booleans())))
def test_any_appends_together_are_an_array_of_their_messages(appends: list[tuple[Any, int | None, bool]]) -> None:
    stream, messages = b"", []
    for value, indent, is_ascii in appends:
        if value == []:
            continue
        text = json.dumps(value, indent=indent, ensure_ascii=is_ascii)
        try:
            body = text.encode()
        except UnicodeEncodeError:
            continue
        stream += appended(JSON, b" \r\n" + body + b"\t\n")
        messages += value if isinstance(value, list) else [value]
    assert json.loads(whole(JSON, stream)) == messages
    if stream:
        assert json.loads(event_data(data_event(JSON, stream))) == messages


def test_a_message_stays_as_it_was_written() -> None:
    text = b'[1.50, {"a": 1, "a": 2}, 1e400, [ [] , "\\u00e9" ] ]'
    assert appended(JSON, text) == b'1.50,{"a": 1, "a": 2},1e400,[ [] , "\\u00e9" ],'


@pytest.mark.parametrize(
    "body", [b"[1", b"[1,]", b"[,1]", b"[1 2]", b"1 2", b"[1]]", b"NaN", b"[Infinity]", b"{", b"\xff", b"  ", b"'a'"]
)
def test_what_is_no_json_appends_nothing(body: bytes) -> None:
    with pytest.raises(HttpError) as refused:
        appended(JSON, body)
    assert refused.value.status == 400


def test_json_that_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(HttpError):
        appended(JSON, b"[" * 1_000_000)


def test_an_empty_array_only_creates() -> None:
    assert appended(JSON, b" [ ] ", creates=True) == b""
    assert whole(JSON, b"") == b"[]"
    with pytest.raises(HttpError):
        appended(JSON, b"[]")


@given(st.binary(min_size=1))
def test_bytes_are_sent_in_base64(data: bytes) -> None:
    assert base64.b64decode(event_data(data_event("image/png", data))) == data
    assert whole("image/png", data) == appended("image/png", data) == data


@given(st.text(min_size=1))
def test_text_makes_no_event_of_its_own(text: str) -> None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return
    event = data_event("text/plain", data)
    assert event.count(b"\n\n") == 1
    assert b"\r" not in event
    assert event_data(event) == text.replace("\r\n", "\n").replace("\r", "\n")
