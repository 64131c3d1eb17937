"""The body of a record batch: columns as CBOR, compressed as a whole. ``batch/format.py`` is the way in.

Everything here takes bytes from anywhere: what does not fit is ``CorruptBatch``, and no input needs more memory than
the length that its header was allowed to declare.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence, Set
from itertools import chain
from operator import itemgetter, lt
from typing import Any, Literal

import cbor2
import lz4.frame
import zstandard

from tidelog.errors import CorruptBatch, ProtocolError
from tidelog.types import Buffer
from tidelog.wire.cbor import array_head, check_item_count

Codec = Literal["none", "zstd", "lz4"]
CODECS: tuple[Codec, ...] = ("none", "zstd", "lz4")
RecordHeaders = tuple[tuple[str, bytes], ...]
"""The headers of one record: (name, value) pairs in order. A name may occur more than once."""

MAX_ITEMS = 1 << 21
"""Most CBOR items in a body: values, keys, arrays, names. A sparse batch may have one more for each record that it
covers. Without this bound 64 MiB could hold 64 million empty items, which would cost a reader gigabytes and
minutes."""
_UNKNOWN_SIZE = -1
"""``zstandard.frame_content_size`` of a frame that does not declare its size, as streaming compressors write it."""
MAX_ZSTD_BLOCKS = 512
"""Most blocks of a zstd frame that does not declare its size. A block holds at most 128 KiB, so such a frame cannot
decompress to more than 64 MiB."""
_MAX_DEPTH = 8  # map, column, record's headers, pair: 4 levels
_OPTIONAL_BYTES = {bytes, type(None)}
COLUMN_V, COLUMN_K, COLUMN_T, COLUMN_H = b"\x61v", b"\x61k", b"\x61t", b"\x61h"
"""The names of the columns of values, keys, timestamps and headers, encoded."""
COLUMNS = frozenset("vkth")
"""The columns of a body that records are made of: values, keys, timestamps, headers."""


def check_new_records(
    values: Sequence[Any], keys: Sequence[Any], timestamps: Sequence[Any], headers: Sequence[Any]
) -> None:
    """Check the columns of records that are to be written: the types of values, keys and headers, and the range of
    the timestamps (ms since 1970). Raises ``ValueError``, which says what is wrong."""
    if not _are_optional_bytes(values) or not _are_optional_bytes(keys):
        raise ValueError("keys and values are bytes or None")
    if not set(map(type, timestamps)) <= {int}:
        raise ValueError("timestamps are integers")
    if not 0 <= min(timestamps) <= max(timestamps) < 2**63:
        raise ValueError("timestamps are 0 to 2**63 - 1")
    if any(headers) and not _are_pairs(chain.from_iterable(headers), tuple):
        raise ValueError("headers are (text, bytes) pairs")


def check_columns(
    columns: dict[str, Any],
    record_count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    is_sparse: bool,
    wanted: Set[str] = COLUMNS,
) -> None:
    """Check the columns of a decoded body, so that records can be made of them: types, lengths, and timestamps,
    against the fields of the batch header that have the names of the parameters.

    Only the columns ``wanted`` are checked; others may be missing. A sparse batch has column ``o`` with the places of
    its records. Raises ``CorruptBatch``, which says what is wrong."""
    count = record_count
    if is_sparse:
        places = columns.get("o")
        if not isinstance(places, list) or not set(map(type, places)) <= {int}:
            raise CorruptBatch("batch column o is not an array of integers")
        if not all(map(lt, places, places[1:])) or (places and not 0 <= places[0] <= places[-1] < count):
            raise CorruptBatch(f"batch column o does not rise within the {count} records of the batch")
        count = len(places)
    for name in wanted:
        is_needed = name == "v" or name in columns
        if is_needed and not _is_array(columns.get(name), count):
            raise CorruptBatch(f"batch column {name} is not an array of {count}, its record count")
    if not all(_are_optional_bytes(columns[name]) for name in ("v", "k") if name in columns and name in wanted):
        raise CorruptBatch("keys and values are bytes or None")
    latest = max_timestamp - first_timestamp
    if "t" not in wanted:
        pass
    elif "t" in columns:
        _check_deltas(columns["t"], -first_timestamp, latest, is_sparse=is_sparse)
    elif latest and not is_sparse:
        raise CorruptBatch("batch timestamps are not those that its header declares")
    if "h" in columns and "h" in wanted:
        of_records = columns["h"]
        if not set(map(type, of_records)) <= {list} or not _are_pairs(chain.from_iterable(of_records), list):
            raise CorruptBatch("batch column h does not hold pairs of a text and a byte string")


def _check_deltas(deltas: list[Any], earliest: int, latest: int, *, is_sparse: bool) -> None:
    """Check column ``t``, milliseconds since the header's first timestamp. None may be below ``earliest``, and the
    largest must be ``latest``; that of a sparse batch may be less. Raises ``CorruptBatch``."""
    if not set(map(type, deltas)) <= {int}:
        raise CorruptBatch("batch column t is not an array of integers")
    if deltas:
        is_true = max(deltas) <= latest if is_sparse else deltas[0] == 0 and max(deltas) == latest
        if not is_true or min(deltas) < earliest:
            raise CorruptBatch("batch timestamps are not those that its header declares")


def _is_array(column: Any, length: int) -> bool:
    """Return whether the column is a list of exactly ``length`` items."""
    return isinstance(column, list) and len(column) == length


def _are_optional_bytes(column: Sequence[Any]) -> bool:
    """Return whether each item of the column is a byte string or None."""
    return set(map(type, column)) <= _OPTIONAL_BYTES


def _are_pairs(found: Iterable[Any], kind: type) -> bool:
    """Return whether each item is a pair of a text and a byte string, as an object of class ``kind`` (tuple or list).
    All loops run in C."""
    pairs = list(found)
    if not set(map(type, pairs)) <= {kind} or not set(map(len, pairs)) <= {2}:
        return False
    names, values = map(itemgetter(0), pairs), map(itemgetter(1), pairs)
    return set(map(type, names)) <= {str} and set(map(type, values)) <= {bytes}


def compress(codec: Codec, body: bytes) -> bytes:
    """Return the encoded body, compressed with the codec; unchanged for "none". Raises ``ValueError`` for an unknown
    codec."""
    if codec == "none":
        return body
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=1).compress(body)
    if codec == "lz4":
        return bytes(lz4.frame.compress(body))
    raise ValueError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")


class _Decompressors(threading.local):
    """The zstd decompressor of the current thread. Making one takes 7 µs, and two threads must not use one at the
    same time."""

    def __init__(self) -> None:
        self.zstd = zstandard.ZstdDecompressor()


_OWN = _Decompressors()


def decompress(codec: str, stored: memoryview, length: int) -> Buffer:
    """Return the body of a batch, decompressed to exactly ``length`` bytes. For codec "none" return ``stored``
    itself. The caller has checked the header (``check_fields``): ``length`` is at most ``MAX_BODY_BYTES``, and for
    "none" it is the size of ``stored``.

    Never needs memory for more than ``length`` bytes, whatever the frame declares. Raises ``CorruptBatch`` if
    ``stored`` is not exactly one frame of that size, or is a zstd frame that does not declare its size and has more
    than ``MAX_ZSTD_BLOCKS`` blocks. Bytes behind an empty zstd frame are not noticed."""
    if codec == "none":
        return stored
    try:
        if codec == "zstd":
            declared = zstandard.frame_content_size(stored)
            if declared == _UNKNOWN_SIZE:
                _check_blocks(stored)
            elif declared != length:
                raise CorruptBatch(f"zstd frame does not declare the {length} bytes of the batch header")
            body: bytes = _OWN.zstd.decompress(stored, max_output_size=length, allow_extra_data=False)
            whole = True
        else:
            frame = lz4.frame.LZ4FrameDecompressor()
            body = frame.decompress(stored, max_length=length + 1)
            whole = frame.eof and not frame.unused_data
    except (zstandard.ZstdError, RuntimeError, EOFError) as error:
        raise CorruptBatch(f"batch body does not decompress: {error}") from None
    if not whole or len(body) != length:
        raise CorruptBatch(f"batch body is not one {codec} frame of {length} bytes")
    return body


def _check_blocks(frame: memoryview) -> None:
    """Check that a zstd frame has at most ``MAX_ZSTD_BLOCKS`` blocks, from the heads of its blocks (RFC 8878, section
    3.1.1). Raises ``CorruptBatch``. A frame that is cut short passes: its decompression fails."""
    flags = frame[4]
    is_single_segment = flags & 0x20
    at = 5 + (0 if is_single_segment else 1) + (0, 1, 2, 4)[flags & 3]
    blocks, head = 0, 0
    while at + 3 <= len(frame) and not head & 1:
        head = int.from_bytes(frame[at : at + 3], "little")
        is_run = head >> 1 & 3 == 1
        at += 3 + (1 if is_run else head >> 3)
        blocks += 1
        if blocks > MAX_ZSTD_BLOCKS:
            text = f"zstd frame does not declare its size and has more than {MAX_ZSTD_BLOCKS} blocks"
            raise CorruptBatch(text)


def zstd_declares_size(stored: memoryview) -> bool:
    """Return whether a zstd frame declares the size of its decompressed content. Raises ``CorruptBatch`` if
    ``stored`` does not begin with a zstd frame."""
    try:
        return bool(zstandard.frame_content_size(stored) != _UNKNOWN_SIZE)
    except zstandard.ZstdError as error:
        raise CorruptBatch(f"batch body is no zstd frame: {error}") from None


def _refuse_tag(_: Any) -> Any:
    raise CorruptBatch("batch body holds a CBOR tag")


class _RefuseTags(dict[int, Any]):
    """A table of CBOR tags for the decoder in which every tag raises ``CorruptBatch``: dates, patterns and shared
    references have no place in a batch."""

    def get(self, key: int, default: Any = None) -> Any:
        return _refuse_tag

    def __missing__(self, key: int) -> Any:
        return _refuse_tag


_REFUSE_TAGS = _RefuseTags()


def items_in(columns: dict[str, Sequence[Any]]) -> int:
    """Return the number of CBOR items in the body that these columns are encoded to, for a comparison with
    ``MAX_ITEMS``."""
    inside = sum(map(len, columns.get("h", ())))
    return 1 + sum(2 + len(column) for column in columns.values()) + 3 * inside


def check_items(columns: dict[str, Sequence[Any]]) -> None:
    """Raise ``ValueError`` if the body that these columns are encoded to has more than ``MAX_ITEMS`` CBOR items."""
    if (items := items_in(columns)) > MAX_ITEMS:
        raise ValueError(f"a batch body holds at most {MAX_ITEMS} CBOR items, not {items}: fewer headers")


def load_values(body: Buffer, count: int) -> dict[str, Any] | None:
    """Decode column ``v`` of a body alone, which saves time, and return it by its name; the rest of the body is not
    looked at. Return None if the body does not begin with a column ``v`` of ``count`` items, as ``encode_batch``
    writes it; the caller then uses ``load``. Raises ``CorruptBatch`` if the column cannot be decoded."""
    if not begins_with_values(body, count):
        return None
    return {"v": _load_item(body, 1 + len(COLUMN_V), MAX_ITEMS)[0]}


def begins_with_values(body: Buffer, count: int) -> bool:
    """Return whether the body is a map whose first item is a column ``v`` with ``count`` items."""
    start = COLUMN_V + array_head(count)
    return bool(body) and 0xA1 <= body[0] <= 0xA4 and body[1 : 1 + len(start)] == start


def load_without_values(body: Buffer, count: int) -> dict[str, Any] | None:
    """Decode a body without making its values, which saves time, and return all columns but ``v`` by name. Only the
    heads of the ``count`` values are read. Return None if the body does not begin with a column ``v`` of ``count``
    byte strings or nulls, as ``encode_batch`` writes it; the caller then uses ``load``. Raises ``CorruptBatch`` if
    the other columns cannot be decoded, or if column ``v`` comes twice."""
    if not begins_with_values(body, count):
        return None
    end = _end_of_values(body, 1 + len(COLUMN_V) + len(array_head(count)), count)
    if end > len(body):
        return None
    if end == len(body) and body[0] == 0xA1:
        return {}
    columns = load(bytes([body[0] - 1]) + bytes(body[end:]), MAX_ITEMS - 2 - count)
    if "v" in columns:
        raise CorruptBatch("batch body has column v twice")
    return columns


def _end_of_values(body: Buffer, at: int, count: int) -> int:
    """Return the position in ``body`` after the ``count`` byte strings or nulls that begin at position ``at``. If
    there are fewer of them, or other items among them, return more than ``len(body)``."""
    nowhere = len(body) + 1
    try:
        for _ in range(count):
            head = body[at]
            if head == 0x58:
                at += 2 + body[at + 1]
            elif head == 0x59:
                at += 3 + (body[at + 1] << 8) + body[at + 2]
            elif 0x40 <= head < 0x58:
                at += head - 0x3F
            elif head == 0x5A:
                at += 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            elif head == 0xF6:
                at += 1
            else:
                return nowhere
    except IndexError:
        return nowhere
    return at


def load(body: Buffer, max_items: int = MAX_ITEMS) -> dict[str, Any]:
    """Decode a body and return its columns by name; their contents are not checked. Raises ``CorruptBatch`` if the
    body is not exactly one CBOR map, holds a tag, or has more than ``max_items`` items. The items are counted before
    any of them is made."""
    columns, end = _load_item(body, 0, max_items)
    if not isinstance(columns, dict) or end != memoryview(body).nbytes:
        raise CorruptBatch("batch body is not exactly one CBOR map")
    return columns


def _load_item(body: Buffer, at: int, max_items: int) -> tuple[Any, int]:
    """Decode the CBOR item at position ``at`` of a body, and return it, and the position behind it. Raises
    ``CorruptBatch`` if it cannot be decoded or holds a tag, or if the body has more than ``max_items`` items."""
    if memoryview(body).nbytes > max_items:
        try:
            check_item_count(body, max_items)
        except ProtocolError as error:
            raise CorruptBatch(f"batch body has {error.message}") from None
    source = io.BytesIO(body)
    source.seek(at)
    try:
        item = cbor2.load(
            source,
            semantic_decoders=_REFUSE_TAGS,
            max_depth=_MAX_DEPTH,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            strict_hashable_types=True,
        )
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise CorruptBatch(f"batch body is not CBOR: {error}") from None
    return item, source.tell()
