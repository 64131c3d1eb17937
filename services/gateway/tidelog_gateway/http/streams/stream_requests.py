"""What the path, parameters and headers of a request about a stream say. Sans-I/O.

A position of a reader is ``ID_NUMBER``: the id of the stream, and the number of bytes before it in 16 digits. So
positions of one stream sort as text, and a position of a deleted stream is never taken for one of its successor.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import HttpError

MAX_PATH_BYTES = 1024
START, NOW = "-1", "now"
_PART = re.compile(r"[A-Za-z0-9._~:@=+-]+", re.ASCII)
_POSITION = re.compile(r"([0-9a-f]+-[0-9a-f]+)_([0-9]{16})", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_MARK = re.compile(r"[\x21-\x7e]{1,256}", re.ASCII)
_PRODUCER = ("producer-id", "producer-epoch", "producer-seq")
_MAX_MS = 1 << 52


@dataclass(frozen=True, slots=True)
class Producer:
    """The idempotent producer of an append."""

    name: str = ""
    epoch: int = -1
    seq: int = -1


@dataclass(frozen=True, slots=True)
class Lifetime:
    """When a stream ends: after so many seconds without a read or an append, or at a time; -1: not so."""

    ttl_s: int = -1
    expires_ms: int = -1


def stream_path(parts: tuple[str, ...]) -> str:
    """Return the path of a stream from the parts of a request's path. Raises ``HttpError`` if no stream can have
    it."""
    path = "/".join(parts)
    if not all(map(_PART.fullmatch, parts)) or len(path) > MAX_PATH_BYTES:
        raise HttpError(
            400, f"the parts of a stream's path are of A-Z a-z 0-9 . _ ~ : @ = + -, {MAX_PATH_BYTES} in all"
        )
    return path


def position_text(stream_id: str, position: int) -> str:
    """Return a position as readers send it again."""
    return f"{stream_id}_{position:016d}"


def position_of(text: str) -> tuple[str, int]:
    """Return the stream id and the number of bytes that a position of a reader names: "" and 0 for the beginning of
    the stream, "" and -1 for its end. Raises ``HttpError``."""
    if text in (START, NOW):
        return "", 0 if text == START else -1
    match = _POSITION.fullmatch(text)
    if match is None:
        raise HttpError(400, f"offset is {START}, {NOW}, or one that this stream has given")
    return match[1], int(match[2])


def lifetime_of(head: RequestHead) -> Lifetime:
    """Return the lifetime that the headers of a creation ask for. Raises ``HttpError``."""
    ttl, expires = head.header("stream-ttl"), head.header("stream-expires-at")
    if "stream-ttl" in head.headers and "stream-expires-at" in head.headers:
        raise HttpError(400, "a stream has a Stream-TTL or a Stream-Expires-At, not both")
    if "stream-ttl" in head.headers:
        return Lifetime(ttl_s=_number(ttl, "Stream-TTL"))
    if "stream-expires-at" not in head.headers:
        return Lifetime()
    try:
        when = datetime.fromisoformat(expires)
        if when.tzinfo is None:
            raise ValueError
        ms = round(when.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise HttpError(400, "Stream-Expires-At is a time such as 2030-01-31T12:00:00Z") from None
    if not 0 <= ms <= _MAX_MS:
        raise HttpError(400, "Stream-Expires-At is out of range")
    return Lifetime(expires_ms=ms)


def lifetime_headers(ttl_s: int, expires_ms: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that tell the lifetime of a stream."""
    if ttl_s >= 0:
        return (("stream-ttl", str(ttl_s)),)
    if expires_ms < 0:
        return ()
    when = datetime.fromtimestamp(expires_ms / 1000, UTC)
    return (("stream-expires-at", when.isoformat(timespec="milliseconds").replace("+00:00", "Z")),)


def producer_of(head: RequestHead) -> Producer:
    """Return the idempotent producer that the headers of an append name. Raises ``HttpError``: the three headers are
    given together, or none."""
    given = [name for name in _PRODUCER if name in head.headers]
    if not given:
        return Producer()
    if len(given) < len(_PRODUCER):
        raise HttpError(400, "Producer-Id, Producer-Epoch and Producer-Seq are given together")
    name = head.header("producer-id")
    if _MARK.fullmatch(name) is None:
        raise HttpError(400, "Producer-Id is 1 to 256 printable characters")
    epoch, seq = (_number(head.header(header), header.title()) for header in _PRODUCER[1:])
    return Producer(name, epoch, seq)


def order_mark_of(head: RequestHead) -> str:
    """Return the order mark of an append, the header ``Stream-Seq``; "" if it has none. Raises ``HttpError``."""
    mark = head.header("stream-seq")
    if "stream-seq" in head.headers and _MARK.fullmatch(mark) is None:
        raise HttpError(400, "Stream-Seq is 1 to 256 printable characters")
    return mark


def closes(head: RequestHead) -> bool:
    """Return whether a request completes its stream."""
    return head.header("stream-closed").lower() == "true"


def live_mode(query: Mapping[str, str]) -> str:
    """Return how a read follows the stream: ``long-poll``, ``sse`` or "" for not. Raises ``HttpError``."""
    mode = query.get("live", "")
    if mode not in ("", "long-poll", "sse"):
        raise HttpError(400, "live is long-poll or sse")
    if mode and "offset" not in query:
        raise HttpError(400, "a read that follows the stream names an offset")
    return mode


def _number(text: str, name: str) -> int:
    if _NUMBER.fullmatch(text) is None:
        raise HttpError(400, f"{name} is a whole number, not {text!r}")
    return int(text)
