"""The body of a record batch: columns as CBOR, compressed as a whole. ``records.py`` is the way in.

Everything here takes bytes from anywhere: what does not fit is ``CorruptBatch``, and no input needs more memory than
the length that its header was allowed to declare.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import lt
from typing import Any, Literal

import cbor2
import lz4.frame
import zstandard

from tidelog.errors import CorruptBatch, ProtocolError
from tidelog.types import Buffer
from tidelog.wire.cbor import count_items

Codec = Literal["none", "zstd", "lz4"]
CODECS: tuple[Codec, ...] = ("none", "zstd", "lz4")
RecordHeaders = tuple[tuple[str, bytes], ...]
"""Headers of one record: (name, value) pairs in order; a name may come more than once."""

MAX_ITEMS = 1 << 21
"""Most CBOR items in a body: values, keys, arrays, names (a compacted batch may hold one more per record). In 64 MiB
there is room for 64 million empty ones, which would take a reader gigabytes and minutes."""
_MAX_DEPTH = 8  # map, column, record's headers, pair: 4 levels
_OPTIONAL_BYTES = {bytes, type(None)}


def check_columns(
    values: Sequence[Any],
    keys: Sequence[Any],
    timestamps: Sequence[Any],
    headers: Sequence[Any],
    error: type[Exception],
) -> None:
    """The types inside the columns, checked in C loops (``set(map(type, …))``). Raises ``error``."""
    if not values:
        return
    if not set(map(type, values)) <= _OPTIONAL_BYTES or not set(map(type, keys)) <= _OPTIONAL_BYTES:
        raise error("keys and values are bytes or None")
    if not set(map(type, timestamps)) <= {int}:
        raise error("timestamps are integers")
    if not 0 <= min(timestamps) <= max(timestamps) < 2**63:
        raise error("timestamps are 0 to 2**63 - 1")
    if any(headers):
        pairs: Iterable[tuple[Any, ...]] = chain.from_iterable(headers)
        for pair in pairs:
            if type(pair) is not tuple or tuple(map(type, pair)) != (str, bytes):
                raise error("headers are (text, bytes) pairs")


def offsets_left(column: Any, base_offset: int, record_count: int) -> list[int]:
    """Column ``o`` of a compacted batch as offsets. Raises ``CorruptBatch``."""
    if not isinstance(column, list) or not set(map(type, column)) <= {int}:
        raise CorruptBatch("batch column o is not an array of integers")
    if not all(map(lt, column, column[1:])) or (column and not 0 <= column[0] <= column[-1] < record_count):
        raise CorruptBatch(f"batch column o does not rise within the {record_count} records of the batch")
    return [base_offset + place for place in column]


def pairs_of(column: list[Any]) -> list[RecordHeaders]:
    """Column ``h``. Raises ``CorruptBatch``."""
    try:
        return [tuple((name, value) for name, value in pairs) for pairs in column]
    except (TypeError, ValueError):
        raise CorruptBatch("batch column h does not hold pairs") from None


def compress(codec: Codec, body: bytes) -> bytes:
    """The body as it is stored. Raises ``ValueError`` for a codec that there is not."""
    if codec == "none":
        return body
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=1).compress(body)
    if codec == "lz4":
        return bytes(lz4.frame.compress(body))
    raise ValueError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")


def decompress(codec: str, stored: memoryview, length: int) -> Buffer:
    """Exactly ``length`` bytes (at most ``MAX_BODY_BYTES``: checked), or ``CorruptBatch``. A frame that would grow
    larger is refused before it does: zstd by the size in its own header, lz4 by a bounded output."""
    if codec == "none":
        return stored
    try:
        if codec == "zstd":
            if zstandard.frame_content_size(stored) != length:
                raise CorruptBatch(f"zstd frame does not declare the {length} bytes of the batch header")
            body: bytes = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
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


def _refuse_tag(_: Any) -> Any:
    raise CorruptBatch("batch body holds a CBOR tag")


class _RefuseTags(dict[int, Any]):
    """Every CBOR tag is refused: dates, patterns and shared references have no place in a batch."""

    def get(self, key: int, default: Any = None) -> Any:
        return _refuse_tag

    def __missing__(self, key: int) -> Any:
        return _refuse_tag


def items_in(columns: dict[str, Sequence[Any]]) -> int:
    """How many CBOR items a body of these columns has."""
    inside = sum(map(len, columns.get("h", ())))
    return 1 + sum(2 + len(column) for column in columns.values()) + 3 * inside


def load(body: Buffer, max_items: int = MAX_ITEMS) -> dict[str, Any]:
    """The columns by name; what they hold is not checked yet. Raises ``CorruptBatch``, also for more than so many
    items, before one is made."""
    if memoryview(body).nbytes > max_items:
        try:
            count_items(body, max_items)
        except ProtocolError as error:
            raise CorruptBatch(f"batch body has {error.message}") from None
    source = io.BytesIO(body)
    decoder = cbor2.CBORDecoder(
        source,
        semantic_decoders=_RefuseTags(),
        max_depth=_MAX_DEPTH,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
    try:
        columns = decoder.decode()
    except (cbor2.CBORError, ValueError, OverflowError) as error:
        raise CorruptBatch(f"batch body is not CBOR: {error}") from None
    if not isinstance(columns, dict) or source.tell() != memoryview(body).nbytes:
        raise CorruptBatch("batch body is not exactly one CBOR map")
    return columns
