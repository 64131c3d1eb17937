"""The records that ``tidelog produce`` reads: lines, lines of JSON, and whole files."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from io import RawIOBase
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import trio

from tidelog.cli.records.template import EPOCH
from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from tidelog.batch.format import RecordHeaders

CHUNK_BYTES = 64 << 10
"""Most bytes that are read from the input at a time."""
MOST_BYTES = 128 << 20
"""Longest line or file that is read. JSON may take six times the bytes of the record."""
FIELDS = ("key", "key_b64", "value", "value_b64", "headers", "partition", "timestamp")
IGNORED = ("topic", "offset", "leader_epoch")
"""Fields of ``consume --format json`` that say where a record was. They are not read."""
MAX_TIMESTAMP_MS = 2**63 - 1


class InputRecord(NamedTuple):
    """A record as it is read. ``partition`` and ``timestamp_ms`` None: the client chooses them."""

    value: bytes | None
    key: bytes | None = None
    headers: RecordHeaders = ()
    partition: int | None = None
    timestamp_ms: int | None = None


Parse = Callable[[bytes], InputRecord | None]
"""A function that returns the record of a line, or None if the line holds none. Raises ``ValueError``, which says
what is wrong with the line."""


class Lines:
    r"""The lines of an input, without their ends (``\n`` or ``\r\n``), as they arrive; a last line without an end
    counts. The input is read in a thread, so earlier lines are sent while a terminal or a pipe has no input."""

    def __init__(self, stream: RawIOBase | BinaryIO) -> None:
        self._stream = stream
        self._begun: list[bytes] = []
        self._begun_bytes = 0

    async def more(self) -> list[bytes]:
        """Wait for input, and return the complete lines that have arrived, at least one. At the end of the input,
        return a last line without an end, if there is one, and then an empty list. Raises ``ValueError`` for a line
        of more than ``MOST_BYTES``."""
        while chunk := await _read(self._stream):
            first, *others = chunk.split(b"\n")
            self._begun.append(first)
            self._begun_bytes += len(first)
            if self._begun_bytes > MOST_BYTES:
                raise ValueError(f"it is longer than {MOST_BYTES} bytes")
            if others:
                found = [b"".join(self._begun), *others]
                self._begun = [found.pop()]
                self._begun_bytes = len(self._begun[0])
                return [line.removesuffix(b"\r") for line in found]
        last, self._begun = b"".join(self._begun), []
        return [last] if last else []


async def _read(stream: RawIOBase | BinaryIO) -> bytes:
    """Wait for input in a thread, and return it; an empty text at the end."""
    return await trio.to_thread.run_sync(stream.read, CHUNK_BYTES, abandon_on_cancel=True) or b""


async def read_all(stream: RawIOBase | BinaryIO) -> bytes:
    """Return all that an input has. Raises ``ValueError`` if that is more than ``MOST_BYTES``."""
    parts, size = [], 0
    while chunk := await _read(stream):
        parts.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    return b"".join(parts)


def open_input(name: str) -> RawIOBase | BinaryIO:
    """Open an input for reading and return it; ``-`` is stdin. It is unbuffered, since a thread that waits for a
    terminal would hold the buffer's lock at the end of the process. Raises ``ConfigError`` if the file cannot be
    opened."""
    if name == "-":
        return getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
    try:
        return open(name, "rb", buffering=0)  # noqa: PTH123 (a path or what the shell makes of one; closed by the caller)
    except OSError as error:
        raise ConfigError(f"cannot read {name}: {error.strerror}") from error


def record_of_line(line: bytes, separator: bytes) -> InputRecord:
    """Return the record of a line of text: the text before the first ``separator`` is its key. A line without the
    separator is the value of a record without a key."""
    key, found, value = line.partition(separator)
    return InputRecord(value, key) if found else InputRecord(line)


def record_of_json(line: bytes) -> InputRecord | None:
    """Return the record of a line of JSON, as ``consume --format json`` writes it; None for an empty line. The value
    must be there, null for a record without one; key, headers, partition and timestamp may be missing. Raises
    ``ValueError``, which says what is wrong."""
    if not line.strip():
        return None
    try:
        document = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8: byte {error.start + 1}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg}, at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError(f"it is {_KINDS[type(document)]}, not an object with the value of a record")
    if unknown := [name for name in document if name not in FIELDS and name not in IGNORED]:
        raise ValueError(f"there is no field {unknown[0]!r}; there are {', '.join(FIELDS)}")
    if "value" not in document and "value_b64" not in document:
        raise ValueError('it has no value; a record without one has "value": null')
    return InputRecord(
        _bytes(document, "value"),
        _bytes(document, "key"),
        _headers(document.get("headers")),
        _partition(document.get("partition")),
        _timestamp_ms(document.get("timestamp")),
    )


_KINDS = {dict: "an object", list: "an array", str: "a text", int: "a number", float: "a number", bool: "a boolean"}
_KINDS[type(None)] = "null"


def _bytes(document: dict[str, Any], name: str) -> bytes | None:
    """Return the bytes of a text field, or of its twin in base64; None if it is null or missing. Raises
    ``ValueError`` for anything else."""
    twin = f"{name}_b64"
    if name in document and twin in document:
        raise ValueError(f"it has both {name} and {twin}")
    found = document.get(name, document.get(twin))
    if found is None:
        return None
    if not isinstance(found, str):
        raise ValueError(f"{name} is {_KINDS[type(found)]}, not a text; JSON as a value is a text that holds it")
    if twin in document:
        try:
            return base64.b64decode(found, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValueError(f"{twin} is not base64: {error}") from error
    return _encoded(found, name)


def _encoded(text: str, name: str) -> bytes:
    """Return a text in UTF-8. Raises ``ValueError`` for half a surrogate pair, which has no UTF-8."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a surrogate pair, at character {error.start + 1}") from error


def _headers(found: Any) -> RecordHeaders:
    """Return headers that are an array of objects with ``name`` and ``value`` or ``value_b64``, or an object of texts
    by name; none if they are null. Raises ``ValueError`` for anything else."""
    if found is None:
        return ()
    if isinstance(found, dict):
        found = [{"name": name, "value": value} for name, value in found.items()]
    if not isinstance(found, list):
        raise ValueError(f"headers are {_KINDS[type(found)]}, not an array of objects with name and value")
    pairs = []
    for header in found:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise ValueError("a header is no object with a name and a value")
        value = _bytes(header, "value")
        if value is None or header.keys() - {"name", "value", "value_b64"}:
            raise ValueError(f"header {header['name']!r} has other fields than name, and value or value_b64")
        _encoded(header["name"], "the name of a header")
        pairs.append((header["name"], value))
    return tuple(pairs)


def _partition(found: Any) -> int | None:
    if found is not None and type(found) is not int:
        raise ValueError(f"partition is {_KINDS[type(found)]}, not an integer")
    return found


def _timestamp_ms(found: Any) -> int | None:
    """Return a timestamp in ms since 1970 of a text in ISO 8601 (local time if it has no zone), or of a number of ms;
    None if it is null. Raises ``ValueError`` for anything else, and for a time that no record can have."""
    if found is None:
        return None
    if isinstance(found, str):
        try:
            moment = datetime.fromisoformat(found)
            number = ((moment if moment.tzinfo else moment.astimezone()) - EPOCH) // timedelta(milliseconds=1)
        except (ValueError, OverflowError, OSError) as error:
            raise ValueError(f"timestamp {found!r} is no time such as 2026-01-31T12:00:00Z") from error
    elif type(found) is int:
        number = found
    else:
        raise ValueError(f"timestamp is {_KINDS[type(found)]}, not a time or a number of ms since 1970")
    if not 0 <= number <= MAX_TIMESTAMP_MS:
        raise ValueError(f"timestamp {found} is before 1970, or greater than {MAX_TIMESTAMP_MS} ms")
    return number
