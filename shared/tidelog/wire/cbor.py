"""Strict CBOR: cbor2 without the liberties that the protocol does not need.

cbor2's defaults are for trusted data. Tags run decoders (dates, regular expressions, numbers with a billion digits),
maps accept keys whose hashes collide, and nesting may be deep. Here every tag is refused before its content is read.
Indefinite lengths, duplicate keys, keys that are neither texts nor byte strings, and deep nesting are refused, too.
The callers check the rest: NaN, ``undefined``, simple values, bytes after the end, and very many very small items.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from io import BytesIO
from typing import Any

import cbor2

from tidelog.errors import ProtocolError
from tidelog.types import Buffer

QUICK_BYTES = 4096
"""An item up to this length cannot hold enough other items to do harm. The items inside a longer one are counted
before it is decoded."""
MAX_DEPTH = 8
"""Deepest nesting of maps and arrays; the protocol needs 6."""
UNDECODABLE = 1007
"""WebSocket close code for bytes that are no CBOR, or CBOR that is never accepted."""
TOO_LONG = 1009
"""WebSocket close code for an item with more bytes than its receiver accepts."""
ENTRY_BYTES = 64
"""Longest text that ``leading_entries`` returns."""
_LONGEST_INTEGER = 8
_KIND, _BYTES, _TEXT, _ARRAY, _MAP = 0xE0, 0x40, 0x60, 0x80, 0xA0
"""The bits of an item's first byte that give its major type; and four major types."""


def load_prefix(data: Buffer, max_bytes: int, max_items: int) -> tuple[Any, int]:
    """Decode the header of a message: the first item of ``data``. Return its value and the position after its last
    byte; later bytes are not looked at. Raises ``ProtocolError`` if the item is CBOR that is not accepted (see the
    module), does not end within ``max_bytes``, or contains more than ``max_items`` items."""
    quick = data if len(data) <= QUICK_BYTES else data[:QUICK_BYTES]
    try:
        return _load(quick)
    except cbor2.CBORDecodeEOF as error:
        if quick is data:
            raise refuse_cbor(error) from error
    except _FAULTS as error:
        raise refuse_cbor(error) from error
    prefix = data[:max_bytes]
    check_item_count(prefix, max_items)
    try:
        return _load(prefix)
    except _FAULTS as error:
        if len(data) > max_bytes and isinstance(error, cbor2.CBORDecodeEOF):
            text = f"the header is longer than the {max_bytes} bytes that it may have"
            raise ProtocolError(text, close_code=TOO_LONG) from error
        raise refuse_cbor(error) from error


def loads_strict(data: Buffer, *, max_items: int | None = None) -> Any:
    """Decode ``data``, which must be exactly one CBOR item, and return its value. ``max_items`` bounds the items in
    it; None (no bound) is for data that a server of the cluster wrote. Raises ``ProtocolError`` if the item is CBOR
    that is not accepted, contains more items, or does not fill ``data``."""
    if max_items is not None:
        check_item_count(data, max_items)
    try:
        value, end = _load(data)
    except _FAULTS as error:
        raise refuse_cbor(error) from error
    if end != len(data):
        raise ProtocolError("bytes after the end", close_code=UNDECODABLE)
    return value


def refuse_cbor(error: Exception) -> ProtocolError:
    """Return the ``ProtocolError`` that refuses a peer's bytes, from the error of cbor2 or of a check of this module.
    Its WebSocket close code is 1007."""
    return ProtocolError(f"not the CBOR we accept: {str(error)[:80]}", close_code=UNDECODABLE)


def check_item_count(data: Buffer, most: int) -> None:
    """Raise ``ProtocolError`` if the first item of ``data`` contains more than ``most`` items, itself included. The
    check decodes nothing and reads at most ``most`` heads, because the declared length of an array or map counts at
    once. It returns at the first malformed item, which the decoder then refuses."""
    position, length, pending, count = 0, len(data), 1, 0
    while pending and position < length:
        if count + pending > most:
            raise ProtocolError(f"more than {most} items in a header", close_code=UNDECODABLE)
        pending -= 1
        count += 1
        first = data[position]
        position += 1
        kind, value = first >> 5, first & 31
        if value >= 24:
            if value > 27:
                return
            width = 1 << (value - 24)
            value = int.from_bytes(data[position : position + width], "big")
            position += width
        if kind == 2 or kind == 3:
            position += value
        elif kind == 4:
            pending += value
        elif kind == 5:
            pending += 2 * value
        elif kind == 6:
            pending += 1


def bytes_head(size: int) -> bytes:
    """Return the bytes that begin a CBOR byte string of ``size`` bytes (RFC 8949 §3.1)."""
    return _head(_BYTES, size)


@functools.lru_cache(256)
def array_head(size: int) -> bytes:
    """Return the bytes that begin a CBOR array of ``size`` items."""
    return _head(_ARRAY, size)


def map_head(size: int) -> bytes:
    """Return the bytes that begin a CBOR map of ``size`` keys."""
    return _head(_MAP, size)


def is_array(data: Buffer) -> bool:
    """Return whether the first item of ``data``, which must not be empty, is a CBOR array."""
    return data[0] & _KIND == _ARRAY


def _head(kind: int, size: int) -> bytes:
    """Return the shortest CBOR head for a major type (its three bits) and a length."""
    if size < 24:
        return bytes((kind | size,))
    for info, width in ((24, 1), (25, 2), (26, 4)):
        if size < 1 << (8 * width):
            return bytes((kind | info,)) + size.to_bytes(width, "big")
    return bytes((kind | 27,)) + size.to_bytes(_LONGEST_INTEGER, "big")


def read_bytes_item(data: bytes | bytearray, position: int) -> memoryview:
    """Return the content of the CBOR byte string that begins at ``position`` and must end with ``data``, as a view of
    ``data``. Raises ``ProtocolError`` if there is another kind of item, an indefinite length, or another end."""
    first = data[position]
    info = first & 31
    if first >> 5 != 2 or info > 27:
        raise ProtocolError("what follows the header is no definite byte string", close_code=UNDECODABLE)
    width = 0 if info < 24 else 1 << (info - 24)
    start = position + 1 + width
    size = int.from_bytes(data[position + 1 : start], "big") if width else info
    if start + size != len(data):
        there = max(0, len(data) - start)
        raise ProtocolError(f"the payload says {size} bytes, {there} are there", close_code=UNDECODABLE)
    return memoryview(data)[start:]


def leading_entries(data: Buffer) -> dict[str, int | str]:
    """Return the entries with which the map at the beginning of ``data`` begins: those before the first value that is
    neither a text nor an integer from 0 on. The rest of ``data`` is not looked at and may be anything. A text has at
    most ``ENTRY_BYTES`` bytes. The result is empty if ``data`` begins with no map of definite length."""
    found: dict[str, int | str] = {}
    with suppress(IndexError, UnicodeDecodeError):
        kind, entries, position = _read_head(data, 0)
        for _ in range(entries if kind == _MAP else 0):
            key, position = _read_scalar(data, position)
            value, position = _read_scalar(data, position)
            if type(key) is not str or value is None or key in found:
                break
            found[key] = value
    return found


def _read_scalar(data: Buffer, position: int) -> tuple[int | str | None, int]:
    """Return the integer or text at ``position``, and the position after it; None for any other item, and for a text
    of more than ``ENTRY_BYTES`` bytes. Raises ``IndexError`` if ``data`` ends before, ``UnicodeDecodeError`` for a
    text that is none."""
    kind, value, position = _read_head(data, position)
    if kind == 0:
        return value, position
    if kind != _TEXT or value > ENTRY_BYTES:
        return None, position
    if position + value > len(data):
        raise IndexError
    return bytes(data[position : position + value]).decode(), position + value


def _read_head(data: Buffer, position: int) -> tuple[int, int, int]:
    """Return the major type (its three bits) and the value of the head at ``position``, and the position after it.
    The major type of a malformed or indefinite head is -1. Raises ``IndexError`` if ``data`` ends before."""
    first = data[position]
    info = first & 31
    if info > 27:
        return -1, 0, position
    width = 0 if info < 24 else 1 << (info - 24)
    end = position + 1 + width
    if end > len(data):
        raise IndexError
    return first & _KIND, int.from_bytes(data[position + 1 : end], "big") if width else info, end


def _refuse_tag(*_: object) -> object:
    raise cbor2.CBORDecodeError("tags are not accepted")


_FAULTS = (cbor2.CBORError, ValueError, OverflowError, RecursionError)
_BUILT_IN_TAGS = (*range(6), 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_REFUSE_BUILT_IN = dict.fromkeys(_BUILT_IN_TAGS, _refuse_tag)


def _load(data: Buffer) -> tuple[Any, int]:
    """Decode the first item of ``data``, and return its value and the position after it. Raises one of
    ``_FAULTS``."""
    stream = BytesIO(data)
    value = cbor2.load(
        stream,
        max_depth=MAX_DEPTH,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
        tag_hook=_refuse_tag,
        semantic_decoders=_REFUSE_BUILT_IN,
    )
    return value, stream.tell()
