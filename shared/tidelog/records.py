"""Record batches: the unit of everything that Tidelog stores and moves. Byte by byte: ``docs/batch-format.md``.

A producer builds a batch (``encode_batch``) and a consumer opens it (``decode_batch``); every server between them
reads only the fixed 64-byte header (``read_header``), checks the CRC (``check_batch``) and passes the bytes on.
The leader writes two fields, base offset and leader epoch. They stand before the CRC and outside it, so that
stamping a batch is 16 new bytes in front of the old rest (``stamp_prefix``) and copies nothing.

The body is a CBOR map of columns (values, keys, timestamp deltas, headers), one array each, so that encoding
and decoding are C loops and not a Python loop per record; it is compressed as a whole.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple

import cbor2
import lz4.frame
import zstandard
from crc32c import crc32c

from tidelog.errors import CorruptBatch
from tidelog.types import Buffer

HEADER = struct.Struct(">qIIHBBIHHIqqQII")
HEADER_BYTES = HEADER.size
MAGIC = 0x544C
VERSION = 1
MAX_BODY_BYTES = 64 << 20
"""Largest body before compression: what a reader must be ready to hold, whatever a header declares."""
MAX_OFFSET = 2**63 - 1

CODECS = ("none", "zstd", "lz4")
CODEC_MASK = 0b111
CONTROL_FLAG = 1 << 4

Codec = Literal["none", "zstd", "lz4"]
RecordHeaders = tuple[tuple[str, bytes], ...]
"""Headers of one record: (name, value) pairs in order; a name may come more than once."""

_PREFIX = struct.Struct(">qII")
_CHECKED_FROM = _PREFIX.size  # the CRC covers everything behind itself
_MAX_DEPTH = 8  # map, column, record's headers, pair: 4 levels
_OPTIONAL_BYTES = {bytes, type(None)}


class BatchHeader(NamedTuple):
    """The fixed part of a batch. A named tuple: servers read one per batch and hop, and it costs a third of a
    frozen dataclass."""

    base_offset: int
    """Offset of the first record; 0 from a producer, written by the leader."""
    leader_epoch: int
    """Epoch of the leader that appended it; 0 from a producer, written by the leader."""
    crc32c: int
    """Of everything behind this field."""
    magic: int
    version: int
    header_length: int
    batch_length: int
    """Of the whole batch with its header, in bytes."""
    attributes: int
    """Bits 0-2 codec (index into ``CODECS``), bit 4 control batch; the others are 0."""
    producer_epoch: int
    record_count: int
    first_timestamp: int
    """Of the first record, ms since 1970."""
    max_timestamp: int
    """Largest of the batch's records, ms since 1970."""
    producer_id: int
    """0: the producer is not idempotent."""
    base_sequence: int
    """Sequence number of the first record, within (producer id, producer epoch)."""
    body_length: int
    """Of the body before compression, in bytes."""

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.record_count

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length

    @property
    def is_control(self) -> bool:
        """Written by the broker for itself; readers skip it."""
        return bool(self.attributes & CONTROL_FLAG)


class NewRecord(NamedTuple):
    """A record to be written. ``timestamp_ms``: ms since 1970, not negative."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: RecordHeaders = ()


class Record(NamedTuple):
    """A record as a consumer gets it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: RecordHeaders


@dataclass(frozen=True, slots=True)
class Columns:
    """A decoded batch as columns of equal length; the offsets are ``header.base_offset`` and up."""

    header: BatchHeader
    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps_ms: list[int]
    headers: list[RecordHeaders]


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at ``position`` and check what can be checked without the batch behind it.

    Raises ``CorruptBatch`` when it is cut short, or is no header (magic, version, lengths, count, offset).
    """
    try:
        header = BatchHeader._make(HEADER.unpack_from(buf, position))
    except struct.error:
        raise CorruptBatch(f"batch is shorter than its {HEADER_BYTES}-byte header") from None
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch has magic {header.magic:#06x}, not {MAGIC:#06x}")
    if header.version != VERSION:
        raise CorruptBatch(f"batch has version {header.version}; this program knows {VERSION}")
    if header.header_length != HEADER_BYTES:
        raise CorruptBatch(f"batch has header length {header.header_length}, not {HEADER_BYTES}")
    if header.batch_length < HEADER_BYTES:
        raise CorruptBatch(f"batch length {header.batch_length} is less than its header")
    if not header.record_count:
        raise CorruptBatch("batch has record count 0")
    if not 0 <= header.base_offset <= MAX_OFFSET - header.record_count:
        raise CorruptBatch(f"batch has base offset {header.base_offset}")
    return header


def check_batch(buf: Buffer) -> BatchHeader:
    """Check one whole batch as far as a server does: everything but the inside of the body.

    Raises ``CorruptBatch``, naming the check that failed: length, CRC, attributes, count, timestamps.
    """
    header = read_header(buf)
    size = memoryview(buf).nbytes
    if header.batch_length != size:
        raise CorruptBatch(f"batch declares length {header.batch_length} but has {size} bytes")
    crc = crc32c(memoryview(buf)[_CHECKED_FROM:])
    if crc != header.crc32c:
        raise CorruptBatch(f"batch declares CRC {header.crc32c:#010x} but has {crc:#010x}")
    if header.attributes & ~(CODEC_MASK | CONTROL_FLAG) or header.attributes & CODEC_MASK >= len(CODECS):
        raise CorruptBatch(f"batch has unknown attributes or codec: {header.attributes:#06x}")
    if header.body_length > MAX_BODY_BYTES:
        raise CorruptBatch(f"batch body of {header.body_length} bytes is larger than {MAX_BODY_BYTES}")
    if not header.attributes & CODEC_MASK and header.body_length != size - HEADER_BYTES:
        raise CorruptBatch(f"batch declares body length {header.body_length} but has {size - HEADER_BYTES}")
    if header.record_count > header.body_length:  # a record takes a byte at least
        raise CorruptBatch(f"batch declares {header.record_count} records in {header.body_length} bytes")
    if not 0 <= header.first_timestamp <= header.max_timestamp:
        raise CorruptBatch(f"batch has timestamps {header.first_timestamp}, max {header.max_timestamp}")
    return header


def split(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The consecutive batches in ``buf``, by their headers alone. Raises ``CorruptBatch`` where a header is bad or
    the last batch is cut short; what was yielded before stands."""
    view = memoryview(buf)
    position = 0
    while position < len(view):
        header = read_header(view, position)
        end = position + header.batch_length
        if end > len(view):
            raise CorruptBatch(f"batch declares length {header.batch_length} but {len(view) - position} bytes follow")
        yield header, view[position:end]
        position = end


def stamp_prefix(base_offset: int, leader_epoch: int, crc: int) -> bytes:
    """The first 16 bytes of a batch as the leader writes them: ``prefix + batch[16:]`` is the stamped batch."""
    return _PREFIX.pack(base_offset, leader_epoch, crc)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    codec: Codec = "none",
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
) -> bytes:
    """Build a batch, with base offset and leader epoch 0, which the leader replaces.

    Raises ``ValueError`` for what no batch can hold: no records, keys or values that are not bytes, negative
    timestamps, a body above ``MAX_BODY_BYTES``.
    """
    if not records:
        raise ValueError("a batch holds at least one record")
    values, keys, timestamps, headers = zip(*records, strict=True)
    _check_columns(values, keys, timestamps, headers, ValueError)
    first = timestamps[0]
    columns: dict[str, Any] = {"v": values}
    if keys.count(None) != len(keys):
        columns["k"] = keys
    if timestamps.count(first) != len(timestamps):
        columns["t"] = [t - first for t in timestamps]
    if any(headers):
        columns["h"] = headers
    body = cbor2.dumps(columns)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"batch body of {len(body)} bytes is larger than {MAX_BODY_BYTES}")
    stored = _compress(codec, body)
    header = BatchHeader(
        base_offset=0,
        leader_epoch=0,
        crc32c=0,
        magic=MAGIC,
        version=VERSION,
        header_length=HEADER_BYTES,
        batch_length=HEADER_BYTES + len(stored),
        attributes=CODECS.index(codec),
        producer_epoch=producer_epoch,
        record_count=len(records),
        first_timestamp=first,
        max_timestamp=max(timestamps),
        producer_id=producer_id,
        base_sequence=base_sequence,
        body_length=len(body),
    )
    try:
        rest = HEADER.pack(*header)[_CHECKED_FROM:]
    except struct.error as error:
        raise ValueError(f"a header field is out of range: {error}") from None
    return b"".join((stamp_prefix(0, 0, crc32c(stored, crc32c(rest))), rest, stored))


def decode_columns(buf: Buffer) -> Columns:
    """Check and decode one whole batch into columns. Raises ``CorruptBatch``; never needs more memory than
    ``MAX_BODY_BYTES`` asks for, whatever the bytes declare."""
    header = check_batch(buf)
    body = _decompress(CODECS[header.attributes & CODEC_MASK], memoryview(buf)[HEADER_BYTES:], header.body_length)
    columns = _load(body)
    count = header.record_count
    values = columns.get("v")
    keys = columns.get("k", [None] * count)
    deltas = columns.get("t")
    headers = columns.get("h", [()] * count)
    timestamps = [header.first_timestamp] * count
    if deltas is not None:
        if not isinstance(deltas, list) or not set(map(type, deltas)) <= {int}:
            raise CorruptBatch("batch column t is not an array of integers")
        timestamps = [header.first_timestamp + delta for delta in deltas]
    for name, column in (("v", values), ("k", keys), ("t", timestamps), ("h", headers)):
        if not isinstance(column, list) or len(column) != count:
            raise CorruptBatch(f"batch column {name} is not an array of {count}, its record count")
    assert isinstance(values, list)
    if "h" in columns:
        headers = _pairs(headers)
    _check_columns(values, keys, timestamps, headers, CorruptBatch)
    if timestamps[0] != header.first_timestamp or max(timestamps) != header.max_timestamp:
        raise CorruptBatch("batch timestamps are not those that its header declares")
    return Columns(header, values, keys, timestamps, headers)


def decode_batch(buf: Buffer, *, topic: str = "", partition: int = 0) -> list[Record]:
    """Check and decode one whole batch into records; topic and partition are the caller's.

    Raises ``CorruptBatch`` as ``decode_columns`` does.
    """
    columns = decode_columns(buf)
    header = columns.header
    rows = zip(
        repeat(topic),
        repeat(partition),
        range(header.base_offset, header.end_offset),
        repeat(header.leader_epoch),
        columns.timestamps_ms,
        columns.keys,
        columns.values,
        columns.headers,
        strict=False,  # the repeats have no end
    )
    return list(map(partial(tuple.__new__, Record), rows))  # Record(*row), without a Python call per record


def _check_columns(
    values: Sequence[Any],
    keys: Sequence[Any],
    timestamps: Sequence[Any],
    headers: Sequence[Any],
    error: type[Exception],
) -> None:
    """The types inside the columns, checked in C loops (``set(map(type, …))``)."""
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


def _pairs(column: list[Any]) -> list[RecordHeaders]:
    try:
        return [tuple((name, value) for name, value in pairs) for pairs in column]
    except (TypeError, ValueError):
        raise CorruptBatch("batch column h does not hold pairs") from None


def _compress(codec: Codec, body: bytes) -> bytes:
    if codec == "none":
        return body
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=1).compress(body)
    if codec == "lz4":
        return bytes(lz4.frame.compress(body))
    raise ValueError(f"unknown codec {codec!r}: one of {', '.join(CODECS)}")


def _decompress(codec: str, stored: memoryview, length: int) -> Buffer:
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


def _load(body: Buffer) -> dict[str, Any]:
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
