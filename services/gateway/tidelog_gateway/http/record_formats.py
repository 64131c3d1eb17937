"""How records are written for a client: NDJSON, JSON, CBOR, the value of one record, or server-sent events.

The ``Accept`` header chooses; without one the answer is JSON. The text of an event is the line that NDJSON has for
the record.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import cbor2
from tidelog.batch.format import Record
from tidelog.errors import TidelogError
from tidelog.types import Position

from tidelog_gateway.http.record_bodies import JSON, NDJSON
from tidelog_gateway.http.responses import Headers, HttpError, Response, as_json, problem

CBOR = "application/cbor"
RAW = "application/octet-stream"
EVENTS = "text/event-stream"
FORMATS = (JSON, NDJSON, CBOR, RAW)
MAX_RANGES = 32
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r"))


class Window(NamedTuple):
    """The records of one answer, and where to go on."""

    records: Sequence[Record]
    next_offset: int
    next_epoch: int
    """Leader epoch of the record before ``next_offset``; -1: not known."""
    high_watermark: int


def negotiate(accept: str, offered: Sequence[str]) -> str:
    """Return the media type that a client prefers of those that are offered (RFC 9110 §12.5.1); the first offered one
    without an ``Accept`` header. Raises ``HttpError`` (406) if it accepts none."""
    if not accept.strip():
        return offered[0]
    ranges = [_range_of(text) for text in accept.split(",")[:MAX_RANGES]]
    best = max(offered, key=lambda offer: (_quality(offer, ranges), -offered.index(offer)))
    if _quality(best, ranges) <= 0:
        raise HttpError(406, f"here there is {', '.join(offered)}", code="UNSUPPORTED")
    return best


def _range_of(text: str) -> tuple[str, float]:
    """Return media range and quality of one part of an ``Accept`` header."""
    name, *parameters = (part.strip() for part in text.split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                quality = min(1.0, max(0.0, float(value)))
            except ValueError:
                quality = 0.0
    return name.lower(), quality


def _quality(offer: str, ranges: Sequence[tuple[str, float]]) -> float:
    """Return the quality that the most specific range gives a media type; 0 if no range has it."""
    for wanted in (offer, f"{offer.partition('/')[0]}/*", "*/*"):
        found = [quality for name, quality in ranges if name == wanted]
        if found:
            return max(found)
    return 0.0


def written(window: Window, media_type: str) -> Response:
    """Return the answer with the records of a window, in a media type of ``FORMATS``."""
    headers = position_headers(window)
    match media_type:
        case "application/x-ndjson":
            return Response(200, b"".join(line(record) for record in window.records), NDJSON, headers)
        case "application/cbor":
            return Response(
                200, cbor2.dumps(_answer(window, [_with_bytes(r) for r in window.records])), CBOR, headers
            )
        case "application/octet-stream":
            return _single(window, headers)
        case _:
            return Response(200, as_json(_answer(window, [as_document(r) for r in window.records])), JSON, headers)


def position_headers(window: Window) -> Headers:
    """Return the headers that say where to go on."""
    return (
        ("tidelog-next-offset", str(window.next_offset)),
        ("tidelog-next-epoch", str(window.next_epoch)),
        ("tidelog-high-watermark", str(window.high_watermark)),
    )


def _answer(window: Window, records: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "records": records,
        "next_offset": window.next_offset,
        "next_epoch": window.next_epoch,
        "high_watermark": window.high_watermark,
    }


def _single(window: Window, headers: Headers) -> Response:
    """Return the value of the only record of a window; 204 if there is no record, or the record has no value."""
    if not window.records:
        return Response(204, b"", "", headers)
    record = window.records[0]
    more: list[tuple[str, str]] = [
        ("tidelog-offset", str(record.offset)),
        ("tidelog-leader-epoch", str(record.leader_epoch)),
        ("tidelog-timestamp", str(record.timestamp_ms)),
    ]
    if record.key is not None:
        more.append(("tidelog-key", quote(record.key)))
    if record.value is None:
        return Response(204, b"", "", (*headers, *more))
    return Response(200, record.value, RAW, (*headers, *more))


def as_document(record: Record) -> dict[str, Any]:
    """Return a record as a document for JSON."""
    return {
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        **_text_or_b64("key", record.key),
        **_text_or_b64("value", record.value),
        "headers": [{"name": name, **_text_or_b64("value", value)} for name, value in record.headers],
    }


def _with_bytes(record: Record) -> dict[str, Any]:
    """Return a record as a document for CBOR, which has byte strings."""
    return {
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": record.key,
        "value": record.value,
        "headers": [[name, value] for name, value in record.headers],
    }


def _text_or_b64(name: str, data: bytes | None) -> dict[str, Any]:
    """Return ``{name: text}`` for text in UTF-8, ``{NAME_b64: base64}`` for other data, and ``{name: None}`` for
    None. Data with control characters is no text: each of them would take six bytes in JSON."""
    if data is None:
        return {name: None}
    text = _text_of(data)
    return {name: text} if text is not None else {f"{name}_b64": base64.b64encode(data).decode()}


def _text_of(data: bytes) -> str | None:
    """Return data as text; None if it is no UTF-8, or has control characters."""
    if len(data.translate(None, _CONTROLS)) < len(data):
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def line(record: Record) -> bytes:
    """Return a record as a line of NDJSON."""
    return as_json(as_document(record))


def event(record: Record) -> bytes:
    """Return a record as a server-sent event. Its id is the record's position: offset and leader epoch."""
    return b"id: %d:%d\ndata: %b\n" % (record.offset, record.leader_epoch, line(record))


def first_event(start: Position) -> bytes:
    """Return the beginning of a stream: how long a browser waits before it connects again, and the id of the record
    before ``start``. So a browser that loses the connection before the first record goes on at ``start``, too."""
    return b"retry: 1000\nid: %d:%d\n\n" % (start.offset - 1, start.leader_epoch)


def error_event(error: TidelogError) -> bytes:
    """Return the event with the problem document of the error that has ended a stream."""
    return b"event: error\ndata: %b\n" % as_json(problem(error))


def end_event(reason: str) -> bytes:
    """Return the event that says that the stream ends here and may be continued."""
    return b"event: end\ndata: %b\n" % (json.dumps({"reason": reason}).encode() + b"\n")


HEARTBEAT = b":\n\n"
"""A comment, by which both ends notice a lost connection."""
