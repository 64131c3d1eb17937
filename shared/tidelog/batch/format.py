"""Record batches: the unit of everything that Tidelog stores and moves. Byte by byte: ``docs/batch-format.md``.

A producer builds a batch (``encode_batch``) and a consumer opens it (``decode_batch``); every server between them
reads only the fixed 64-byte header (``read_header``), checks the CRC (``check_batch``) and passes the bytes on.
The leader writes two fields, base offset and leader epoch. They stand before the CRC and outside it, so that
stamping a batch is 16 new bytes in front of the old rest (``stamp_prefix``) and copies nothing.

The body is a CBOR map of columns (values, keys, timestamp deltas, headers), one array each, so that encoding
and decoding are C loops and not a Python loop per record; it is compressed as a whole (``batch/body.py``).

A *sparse* batch is one that compaction has thinned out (``batch/sparse.py``): it covers the same offsets and sequence
numbers, keeps its header but for CRC and lengths, and names the records that are left. What those fields were stands
behind its header, so the hash chain of a log (``chain_after``) is the same before and after compaction. A *control*
batch is the broker's own (``encode_control``): it covers an offset and has no records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple

import cbor2
from crc32c import crc32c

from tidelog.batch import body as batch_body
from tidelog.batch.body import CODECS as CODECS
from tidelog.batch.body import Codec as Codec
from tidelog.batch.body import RecordHeaders as RecordHeaders
from tidelog.errors import CorruptBatch
from tidelog.types import Buffer

HEADER = struct.Struct(">qIIHBBIHHIqqQII")
HEADER_BYTES = HEADER.size
THINNED = struct.Struct(">IIIHHq")
"""Behind the header of a sparse batch: CRC, batch length, body length and attributes that it had before it was first
compacted, 16 bits 0, and when that was, ms since 1970."""
SPARSE_HEADER_BYTES = HEADER_BYTES + THINNED.size
MAGIC = 0x544C
VERSION = 1
MAX_BODY_BYTES = 64 << 20
"""Largest body before compression: what a reader must be ready to hold, whatever a header declares."""
MAX_RECORDS = 1 << 18
"""Most records of a batch: nothing that compresses well takes a reader seconds and hundreds of MB."""
MAX_OFFSET = 2**63 - 1

CODEC_MASK = 0b111
TRANSACTIONAL_FLAG = 1 << 3
CONTROL_FLAG = 1 << 4
SPARSE_FLAG = 1 << 5
_KNOWN_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG | SPARSE_FLAG
CHAIN_BYTES = 16
NO_CHAIN = bytes(CHAIN_BYTES)
"""The hash chain before the first batch of a partition."""

_PREFIX = struct.Struct(">qII")
_CHECKED_FROM = _PREFIX.size  # the CRC covers everything behind itself
_HEADER_LENGTH_AT = 19


class BatchHeader(NamedTuple):
    """The decoded fixed part of a batch. It is a named tuple because servers read one per batch and hop, and it costs
    a third of a frozen dataclass."""

    base_offset: int
    """Offset of the first record; 0 from a producer, written by the leader."""
    leader_epoch: int
    """Epoch of the leader that appended it; 0 from a producer, written by the leader."""
    crc32c: int
    """CRC-32C of everything behind this field."""
    magic: int
    version: int
    header_length: int
    """``HEADER_BYTES``, or ``SPARSE_HEADER_BYTES``."""
    batch_length: int
    """Bytes of the whole batch with its header."""
    attributes: int
    """Bits 0-2 codec (index into ``CODECS``), bit 3 of a transaction, bit 4 control batch, bit 5 sparse; the others
    are 0."""
    producer_epoch: int
    record_count: int
    """Offsets that the batch covers; as many records, unless it is sparse or a control batch."""
    first_timestamp: int
    """Timestamp of the first record, ms since 1970."""
    max_timestamp: int
    """Largest of the batch's records, ms since 1970."""
    producer_id: int
    """0: the producer is not idempotent."""
    base_sequence: int
    """Sequence number of the first record, within (producer id, producer epoch)."""
    body_length: int
    """Bytes of the body before compression."""

    @property
    def end_offset(self) -> int:
        """Return the offset after the last record."""
        return self.base_offset + self.record_count

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch with its header."""
        return self.batch_length

    @property
    def is_control(self) -> bool:
        """Return whether the batch was written by the broker for itself, so that readers skip it."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_sparse(self) -> bool:
        """Return whether compaction has removed records from the batch, so that not every offset that it covers has
        one."""
        return bool(self.attributes & SPARSE_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch is part of a transaction; of a control batch: whether it ends one."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)


Fields = tuple[bytes | None, bytes | None, int, RecordHeaders]
"""Of a ``NewRecord``. Python's garbage collector soon lets a plain tuple of such go, but not a named one."""


class NewRecord(NamedTuple):
    """A record to be written into a batch. ``timestamp_ms``: milliseconds since 1970, not negative."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: RecordHeaders = ()


class Record(NamedTuple):
    """A record as a consumer gets it, with its place in the log. ``timestamp_ms``: milliseconds since 1970."""

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
    """A decoded batch as columns of equal length, with one item for each record in it."""

    header: BatchHeader
    offsets: Sequence[int]
    """Rising, from ``header.base_offset``; without gaps unless the batch is sparse."""
    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps_ms: list[int]
    headers: list[RecordHeaders]


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header of a batch at ``position`` and check what can be checked without the batch behind it.

    Raises ``CorruptBatch`` if the header is cut short or is none (magic, version, lengths, count, offset).
    """
    try:
        header = tuple.__new__(BatchHeader, HEADER.unpack_from(buf, position))  # in half the time of _make
    except struct.error:
        raise CorruptBatch(f"batch is shorter than its {HEADER_BYTES}-byte header") from None
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch has magic {header.magic:#06x}, not {MAGIC:#06x}")
    if header.version != VERSION:
        raise CorruptBatch(f"batch has version {header.version}; this program knows {VERSION}")
    if header.header_length != (SPARSE_HEADER_BYTES if header.attributes & SPARSE_FLAG else HEADER_BYTES):
        raise CorruptBatch(f"batch has header length {header.header_length}, attributes {header.attributes:#06x}")
    if header.batch_length < header.header_length:
        raise CorruptBatch(f"batch length {header.batch_length} is less than its header")
    if not header.record_count:
        raise CorruptBatch("batch has record count 0")
    if not 0 <= header.base_offset <= MAX_OFFSET - header.record_count:
        raise CorruptBatch(f"batch has base offset {header.base_offset}")
    return header


def with_sent_crc(header: BatchHeader, batch: Buffer) -> BatchHeader:
    """Return the header with the CRC that the batch had when its producer sent it. Compaction gives a batch another
    CRC; the CRC before its first compaction stands behind the header of the sparse batch. ``batch``: the bytes that
    ``header`` was read from, at least ``header_length`` of them."""
    if not header.attributes & SPARSE_FLAG:
        return header
    sent: int = THINNED.unpack_from(batch, HEADER_BYTES)[0]
    return header._replace(crc32c=sent)


def check_batch(buf: Buffer, header: BatchHeader | None = None) -> BatchHeader:
    """Check one whole batch as far as a server does, everything but the inside of the body, and return its header.
    ``header``: the batch's, if ``read_header`` has read it already.

    Raises ``CorruptBatch``, naming the check that failed: length, CRC, attributes, count, timestamps.
    """
    if header is None:
        header = read_header(buf)
    check_length(header, buf)
    crc = crc32c(memoryview(buf)[_CHECKED_FROM:])
    if crc != header.crc32c:
        raise CorruptBatch(f"batch declares CRC {header.crc32c:#010x} but has {crc:#010x}")
    check_fields(header)
    return header


def has_right_crc(buf: Buffer) -> bool:
    """Return whether the CRC in the header of a whole batch is that of its bytes. Raises ``CorruptBatch`` if there is
    no header."""
    return bool(crc32c(memoryview(buf)[_CHECKED_FROM:]) == read_header(buf).crc32c)


def check_length(header: BatchHeader, buf: Buffer) -> None:
    """Raise ``CorruptBatch`` unless ``buf`` has exactly the bytes that the batch's header declares."""
    size = memoryview(buf).nbytes
    if header.batch_length != size:
        raise CorruptBatch(f"batch declares length {header.batch_length} but has {size} bytes")


def check_fields(header: BatchHeader) -> None:
    """Check the header's fields against each other. Raises ``CorruptBatch``, naming the field."""
    if header.attributes & ~_KNOWN_ATTRIBUTES or header.attributes & CODEC_MASK >= len(CODECS):
        raise CorruptBatch(f"batch has unknown attributes or codec: {header.attributes:#06x}")
    if header.body_length > MAX_BODY_BYTES:
        raise CorruptBatch(f"batch body of {header.body_length} bytes is larger than {MAX_BODY_BYTES}")
    stored = header.batch_length - header.header_length
    if not header.attributes & CODEC_MASK and header.body_length != stored:
        raise CorruptBatch(f"batch declares body length {header.body_length} but has {stored}")
    if header.record_count > MAX_RECORDS:
        raise CorruptBatch(f"batch declares {header.record_count} records; at most {MAX_RECORDS} are allowed")
    if header.record_count > header.body_length and not header.is_sparse:  # a record takes a byte at least
        raise CorruptBatch(f"batch declares {header.record_count} records in {header.body_length} bytes")
    if not 0 <= header.first_timestamp <= header.max_timestamp:
        raise CorruptBatch(f"batch has timestamps {header.first_timestamp}, max {header.max_timestamp}")


def declares_size(header: BatchHeader, buf: Buffer) -> bool:
    """Return whether the body itself declares its size before compression. Of the codecs only zstd may leave that
    out. ``header`` has passed ``check_fields``. Raises ``CorruptBatch`` if a zstd body is no zstd frame."""
    codec = CODECS[header.attributes & CODEC_MASK]
    return codec != "zstd" or batch_body.zstd_declares_size(memoryview(buf)[header.header_length :])


def load_body(header: BatchHeader, buf: Buffer) -> dict[str, Any]:
    """Decompress and decode the body of the batch ``buf``, check it against ``header``, and return the columns by
    name, as ``docs/batch-format.md`` has them. No records are built.

    ``header`` has passed ``check_fields``; the batch is no control batch. Raises ``CorruptBatch`` if a reader could
    not make records of the body. Never needs more memory than ``MAX_BODY_BYTES`` asks for, whatever the bytes
    declare.
    """
    columns = _load_columns(header, _decompress(header, buf))
    _check_columns(header, columns)
    return columns


def check_body(header: BatchHeader, buf: Buffer) -> None:
    """Raise ``CorruptBatch`` if a reader could not make records of the batch ``buf``, as ``load_body`` does, at less
    cost: of values only the heads are read if the body has the form that ``encode_batch`` writes. ``header`` has
    passed ``check_fields``; the batch is no control batch."""
    body = _decompress(header, buf)
    columns = None if header.is_sparse else batch_body.load_without_values(body, header.record_count)
    if columns is None:
        _check_columns(header, _load_columns(header, body))
    elif columns or header.first_timestamp != header.max_timestamp:
        _check_columns(header, columns, has_values=False)


def _check_columns(header: BatchHeader, columns: dict[str, Any], *, has_values: bool = True) -> None:
    batch_body.check_columns(
        columns,
        header.record_count,
        header.first_timestamp,
        header.max_timestamp,
        is_sparse=header.is_sparse,
        has_values=has_values,
    )


def _decompress(header: BatchHeader, buf: Buffer) -> Buffer:
    """Return the decompressed body of a batch. Raises ``CorruptBatch`` if it does not decompress to the declared
    length."""
    stored = memoryview(buf)[header.header_length :]
    return batch_body.decompress(CODECS[header.attributes & CODEC_MASK], stored, header.body_length)


def _load_columns(header: BatchHeader, body: Buffer) -> dict[str, Any]:
    """Return the columns of a body by name, without checking their contents. Raises ``CorruptBatch`` if it does not
    decode."""
    return batch_body.load(body, batch_body.MAX_ITEMS + (header.record_count if header.is_sparse else 0))


def split(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the consecutive batches in ``buf`` with their headers; only the headers are read. Raises ``CorruptBatch``
    at a bad header or a last batch that is cut short; the batches yielded before are whole."""
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
    """Return the first 16 bytes of a batch as its leader writes them: ``prefix + batch[16:]`` is the batch with this
    base offset and leader epoch."""
    return _PREFIX.pack(base_offset, leader_epoch, crc)


def encode_batch(
    records: Sequence[Fields],
    *,
    codec: Codec = "none",
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    transactional: bool = False,
) -> bytes:
    """Build a batch, with base offset and leader epoch 0, which the leader replaces.

    Raises ``ValueError`` for what no batch can hold: no records, keys or values that are not bytes, negative
    timestamps, more than ``MAX_RECORDS``, a body above ``MAX_BODY_BYTES`` or of more than ``MAX_ITEMS`` CBOR items.
    """
    if not 1 <= len(records) <= MAX_RECORDS:
        raise ValueError(f"a batch holds 1 to {MAX_RECORDS} records, not {len(records)}")
    values, keys, timestamps, headers = (tuple(map(of, records)) for of in map(itemgetter, range(4)))
    batch_body.check_new_records(values, keys, timestamps, headers)
    first = timestamps[0]
    columns: dict[str, Any] = {"v": values}
    if keys.count(None) != len(keys):
        columns["k"] = keys
    if timestamps.count(first) != len(timestamps):
        columns["t"] = [t - first for t in timestamps]
    if any(headers):
        columns["h"] = headers
    if (items := batch_body.items_in(columns)) > batch_body.MAX_ITEMS:
        raise ValueError(f"a batch body holds at most {batch_body.MAX_ITEMS} CBOR items, not {items}: fewer headers")
    body = cbor2.dumps(columns)
    if len(body) > MAX_BODY_BYTES:
        raise ValueError(f"batch body of {len(body)} bytes is larger than {MAX_BODY_BYTES}")
    stored = batch_body.compress(codec, body)
    header = BatchHeader(
        base_offset=0,
        leader_epoch=0,
        crc32c=0,
        magic=MAGIC,
        version=VERSION,
        header_length=HEADER_BYTES,
        batch_length=HEADER_BYTES + len(stored),
        attributes=CODECS.index(codec) | (TRANSACTIONAL_FLAG if transactional else 0),
        producer_epoch=producer_epoch,
        record_count=len(records),
        first_timestamp=first,
        max_timestamp=max(timestamps),
        producer_id=producer_id,
        base_sequence=base_sequence,
        body_length=len(body),
    )
    return seal_batch(header, stored)


def encode_control(kind: str, *, timestamp_ms: int = 0) -> bytes:
    """Return a control batch, with base offset and leader epoch 0, which covers one offset and which readers skip.
    ``kind`` is its value, for people."""
    header = read_header(encode_batch([NewRecord(kind.encode(), None, timestamp_ms)]))
    return seal_batch(header._replace(attributes=CONTROL_FLAG), cbor2.dumps({"v": (kind.encode(),)}))


def encode_marker(producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int = 0) -> bytes:
    """Return the control batch that commits or aborts a transaction in a partition. Its base sequence is 1 if it
    commits, else 0."""
    header = read_header(encode_control("commit" if commit else "abort", timestamp_ms=timestamp_ms))
    header = header._replace(
        attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=int(commit),
    )
    return seal_batch(header, cbor2.dumps({"v": (b"commit" if commit else b"abort",)}))


def chain_after(chain: bytes, batch: Buffer) -> bytes:
    """Return the hash chain after ``batch``, given the chain before it. Only its header is read, with what stands
    behind that of a sparse one. Equal chains at equal offsets mean equal headers from the beginning of the partition
    on, stamps and CRCs included.

    The hash is taken over the header that the batch had before it was ever compacted.
    """
    header = bytes(batch[:HEADER_BYTES])
    if header[_HEADER_LENGTH_AT] != HEADER_BYTES:
        crc, batch_length, body_length, attributes, _, _ = THINNED.unpack_from(batch, HEADER_BYTES)
        thin = BatchHeader._make(HEADER.unpack(header))
        header = HEADER.pack(
            *thin._replace(
                crc32c=crc,
                header_length=HEADER_BYTES,
                batch_length=batch_length,
                attributes=attributes,
                body_length=body_length,
            )
        )
    return blake2b(chain + header, digest_size=CHAIN_BYTES).digest()


def seal_batch(header: BatchHeader, stored: bytes) -> bytes:
    """Return the bytes of a batch with this header, whose batch length and CRC are set right, and ``stored``:
    everything after the 64-byte header. Raises ``ValueError`` if a field is out of range."""
    header = header._replace(batch_length=HEADER_BYTES + len(stored))
    try:
        rest = HEADER.pack(*header)[_CHECKED_FROM:]
    except struct.error as error:
        raise ValueError(f"a header field is out of range: {error}") from None
    prefix = stamp_prefix(header.base_offset, header.leader_epoch, crc32c(stored, crc32c(rest)))
    return b"".join((prefix, rest, stored))


def decode_columns(buf: Buffer) -> Columns:
    """Check one whole batch and decode it into columns; those of a control batch are empty. Raises ``CorruptBatch``.
    A body that declares more than ``MAX_BODY_BYTES`` is refused before it is decompressed, so hostile bytes cannot
    use up the memory."""
    header = check_batch(buf)
    base = header.base_offset
    if header.is_control:
        return Columns(header, range(base, base), [], [], [], [])
    columns = load_body(header, buf)
    values = columns["v"]
    count = len(values)
    offsets: Sequence[int] = range(base, base + count)
    if header.is_sparse:
        offsets = [base + place for place in columns["o"]]
    timestamps = [header.first_timestamp] * count
    if "t" in columns:
        timestamps = [header.first_timestamp + delta for delta in columns["t"]]
    headers: list[RecordHeaders] = [()] * count
    if "h" in columns:
        headers = [tuple((name, value) for name, value in pairs) for pairs in columns["h"]]
    return Columns(header, offsets, values, columns.get("k", [None] * count), timestamps, headers)


def decode_batch(buf: Buffer, *, topic: str = "", partition: int = 0) -> list[Record]:
    """Check and decode one whole batch into records; topic and partition are the caller's.

    Raises ``CorruptBatch`` as ``decode_columns`` does.
    """
    columns = decode_columns(buf)
    header = columns.header
    rows = zip(
        repeat(topic),
        repeat(partition),
        columns.offsets,
        repeat(header.leader_epoch),
        columns.timestamps_ms,
        columns.keys,
        columns.values,
        columns.headers,
        strict=False,  # the repeats have no end
    )
    return list(map(partial(tuple.__new__, Record), rows))  # Record(*row), without a Python call per record
