"""The bytes of a stream, by its content type. Sans-I/O.

A stream of JSON has messages. An append of an array appends each element as a message, one of any other value appends
that value. In the stream each message ends with a comma, so that any number of appends together, between brackets,
are an array. All other streams are bytes without borders.
"""

from __future__ import annotations

import base64
import json
import re

from tidelog_gateway.http.responses import HttpError

JSON = "application/json"


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def appended(content_type: str, body: bytes, *, creates: bool = False) -> bytes:
    """Return the bytes that a body appends to a stream of this content type. Raises ``HttpError`` (400) for text that
    is no JSON, and for an empty array, which only a creation may have (``creates``)."""
    if media_type(content_type) != JSON or not body:
        return body
    try:
        messages = _messages(body.decode())
    except (ValueError, RecursionError):
        raise HttpError(400, "the body is not JSON in UTF-8", code="INVALID_VALUE") from None
    if not messages and not creates:
        raise HttpError(400, "an empty array appends nothing", code="INVALID_VALUE")
    return b"".join(message.encode() + b"," for message in messages)


def _messages(text: str) -> list[str]:
    """Return the elements of a JSON array, or the one other value, as they are written in ``text``. Raises
    ``ValueError`` if it is no JSON, and ``RecursionError`` if it is nested too deeply."""
    begin = _after_space(text, 0)
    if text[begin : begin + 1] != "[":
        _, end = _DECODER.raw_decode(text, begin)
        _refuse_rest(text, end)
        return [text[begin:end]]
    messages: list[str] = []
    begin = _after_space(text, begin + 1)
    if text[begin : begin + 1] == "]":
        _refuse_rest(text, begin + 1)
        return messages
    while True:
        _, end = _DECODER.raw_decode(text, begin)
        messages.append(text[begin:end])
        end = _after_space(text, end)
        if text[end : end + 1] == "]":
            _refuse_rest(text, end + 1)
            return messages
        if text[end : end + 1] != ",":
            raise ValueError("an element is followed by a comma or the end of the array")
        begin = _after_space(text, end + 1)


def _after_space(text: str, begin: int) -> int:
    """Return the place of the first character from ``begin`` on that is no white space of JSON."""
    match = _SPACE.match(text, begin)
    assert match is not None
    return match.end()


def _refuse_rest(text: str, end: int) -> None:
    if _after_space(text, end) != len(text):
        raise ValueError("there is more behind the value")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SPACE = re.compile(r"[ \t\r\n]*")


def whole(content_type: str, data: bytes) -> bytes:
    """Return the body of a response with these bytes of a stream."""
    return b"[" + data[:-1] + b"]" if media_type(content_type) == JSON else data


def is_text(content_type: str) -> bool:
    """Return whether a stream is sent as text in events; otherwise it is sent in base64."""
    kind = media_type(content_type)
    return kind.startswith("text/") or kind == JSON


def data_event(content_type: str, data: bytes) -> bytes:
    """Return the event with these bytes of a stream."""
    body = whole(content_type, data)
    text = body.decode(errors="replace") if is_text(content_type) else base64.b64encode(body).decode()
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return b"event: data\n" + b"".join(_line(line) for line in lines) + b"\n"


def _line(text: str) -> bytes:
    """Return a line of an event. Its reader takes away one space at the beginning."""
    return b"data:" + (b" " if text.startswith(" ") else b"") + text.encode() + b"\n"
