"""What a coordinator writes to its partition of ``__streams``, and reads again when it begins.

Key and value are CBOR: the key an array that says what it is about, the value a map, or nothing where that is gone.

    ["stream", path]               see ``StreamRecord``: the stream, and its first bytes
    ["append", stream_id, number]  see ``AppendRecord``; appends are numbered from 1 on

Each key is written once, and once more without a value when the stream is deleted. So compaction keeps a stream whole
as long as it lives. A value has ``format`` 1; a reader that finds a greater one must not coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cbor2
from tidelog.wire.schema import STORED

from tidelog_replica.coordinators.runtime import Entry

FORMAT = 1


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The stored record of a stream, written when it is created."""

    id: str
    content_type: str
    ttl_s: int
    """Seconds without a read or an append after which the stream is deleted; -1: never."""
    expires_ms: int
    """Wall clock at which the stream is deleted, in ms since 1970; -1: never."""
    principal: str
    """The principal that has created the stream; "": not known."""
    ms: int
    """Wall clock at the creation, in ms since 1970."""
    closed: bool
    """The stream was created complete."""
    data: bytes
    """The first bytes of the stream."""


@dataclass(frozen=True, slots=True)
class AppendRecord:
    """The stored record of one append. ``data`` is empty if it only closed the stream. The fields of an idempotent
    producer are "", -1 and -1 without one."""

    ms: int
    """Wall clock of the append, in ms since 1970."""
    seq: str
    """Order mark of the writer; "": none."""
    producer: str
    producer_epoch: int
    producer_seq: int
    closed: bool
    """The append has completed the stream."""
    data: bytes


def stream_entry(path: str, record: StreamRecord | None) -> Entry:
    """Return the encoded key and value of a stream's record. If ``record`` is None the value is None, which deletes
    the stream."""
    return _entry(("stream", path), record)


def append_entry(stream_id: str, number: int, record: AppendRecord | None) -> Entry:
    """Return the encoded key and value of the record of an append. If ``record`` is None the value is None, which
    deletes the record."""
    return _entry(("append", stream_id, number), record)


def read_key(key: bytes | None) -> tuple[str, str, int]:
    """Return what a key is about: ``stream``, its path and 0, or ``append``, the id of its stream and its number.
    Raises ``ValueError`` for any other key."""
    try:
        kind, name, *number = cbor2.loads(key or b"")
    except (ValueError, TypeError, cbor2.CBORDecodeError) as error:
        raise ValueError(f"a key of __streams cannot be read: {error}") from error
    if (kind, len(number)) not in (("stream", 0), ("append", 1)):
        raise ValueError(f"there are no records about a {kind}")
    return kind, name, number[0] if number else 0


def read_stream(value: bytes) -> StreamRecord:
    """Return the record of a stream. Raises ``ValueError`` if it cannot be decoded, or a newer version of Tidelog has
    written it."""
    return STORED.from_map(StreamRecord, _fields(value))


def read_append(value: bytes) -> AppendRecord:
    """Return the record of an append. Raises ``ValueError`` if it cannot be decoded, or a newer version of Tidelog
    has written it."""
    return STORED.from_map(AppendRecord, _fields(value))


def data_of(value: bytes) -> bytes:
    """Return the bytes of a stream in the record of the stream or of an append. Raises ``ValueError`` if it cannot be
    decoded."""
    return bytes(_fields(value)["data"])


def _entry(key: tuple[Any, ...], record: StreamRecord | AppendRecord | None) -> Entry:
    return cbor2.dumps(key), None if record is None else cbor2.dumps({"format": FORMAT} | STORED.to_map(record))


def _fields(value: bytes) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = cbor2.loads(value)
        if fields.pop("format") > FORMAT:
            raise ValueError("a newer version of Tidelog wrote it")
    except (ValueError, TypeError, KeyError, AttributeError, cbor2.CBORDecodeError) as error:
        raise ValueError(f"a record of __streams cannot be read: {error}") from error
    return fields
