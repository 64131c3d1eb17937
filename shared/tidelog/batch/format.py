"""Record batches: the unit of everything that Tidelog stores and moves. Byte by byte: ``docs/batch-format.md``.

A producer encodes a batch (``encode_batch``) and a consumer decodes it (``decode_batch``). Every server between them
reads only the fixed 64-byte header (``read_header``), checks the CRC (``check_batch``) and passes the bytes on.
The leader writes two fields, base offset and leader epoch. They stand before the CRC, which does not cover them. So
the leader only replaces the first 16 bytes (``stamp_prefix``) and copies nothing.

The body is a CBOR map of columns (values, keys, timestamp deltas, headers), one array each, so that encoding
and decoding are loops in C and not a Python loop for each record. It is compressed as a whole (``batch/body.py``).

A *sparse* batch is one from which compaction has removed records (``batch/sparse.py``). It covers the same offsets
and sequence numbers, keeps its header except for CRC and lengths, and names the records that are left. The former
values of these fields stand behind its header, so the hash chain of a log (``chain_after``) is the same before and
after compaction. A *control* batch is written by a server for its own use (``encode_control``): it covers an offset
and has no records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence, Set
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
"""What stands behind the header of a sparse batch: the CRC, batch length, body length and attributes that it had
before its first compaction, 16 zero bits, and the time of that compaction (ms since 1970)."""
SPARSE_HEADER_BYTES = HEADER_BYTES + THINNED.size
MAGIC = 0x544C
VERSION = 1
MAX_BODY_BYTES = 64 << 20
"""Most bytes of a body before compression. A reader needs memory for so many, and refuses a header that declares
more."""
MAX_RECORDS = 1 << 18
"""Most records of a batch. Without this bound a body that compresses well could take a reader seconds and hundreds of
MB."""
MAX_OFFSET = 2**63 - 1

CODEC_MASK = 0b111
TRANSACTIONAL_FLAG = 1 << 3
CONTROL_FLAG = 1 << 4
SPARSE_FLAG = 1 << 5
_KNOWN_ATTRIBUTES = CODEC_MASK | TRANSACTIONAL_FLAG | CONTROL_FLAG | SPARSE_FLAG
CHAIN_BYTES = 16
NO_CHAIN = bytes(CHAIN_BYTES)
"""The hash chain before the first batch of a partition."""

_ALL_BUT_VALUES = batch_body.COLUMNS - {"v"}
_PREFIX = struct.Struct(">qII")
_CHECKED_FROM = _PREFIX.size  # the CRC covers everything behind itself
_HEADER_LENGTH_AT = 19


class BatchHeader(NamedTuple):
    """The decoded fixed-size header of a batch. It is a named tuple because a server decodes one for each batch that
    passes, and a named tuple costs a third of a frozen dataclass."""

    base_offset: int
    """Offset of the first record. 0 in a producer's batch; the leader writes it."""
    leader_epoch: int
    """Epoch of the leader that appended the batch. 0 in a producer's batch; the leader writes it."""
    crc32c: int
    """CRC-32C of everything behind this field."""
    magic: int
    version: int
    header_length: int
    """``HEADER_BYTES``, or ``SPARSE_HEADER_BYTES``."""
    batch_length: int
    """Bytes of the whole batch with its header."""
    attributes: int
    """Bits 0-2: codec (index into ``CODECS``); bit 3: part of a transaction; bit 4: control batch; bit 5: sparse. The
    others are 0."""
    producer_epoch: int
    record_count: int
    """Number of offsets that the batch covers. It has as many records, unless it is sparse or a control batch."""
    first_timestamp: int
    """Timestamp of the first record, ms since 1970."""
    max_timestamp: int
    """Largest timestamp of the batch's records, ms since 1970."""
    producer_id: int
    """Id of the producer; 0: the producer is not idempotent."""
    base_sequence: int
    """Sequence number of the first record, within (producer id, producer epoch)."""
    body_length: int
    """Bytes of the body before compression."""

    @property
    def end_offset(self) -> int:
        """Return the offset after the last one that the batch covers."""
        return self.base_offset + self.record_count

    @property
    def size(self) -> int:
        """Return the number of bytes of the whole batch, with its header."""
        return self.batch_length

    @property
    def is_control(self) -> bool:
        """Return whether a server has written the batch for its own use, for example as a marker. Readers skip it."""
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_sparse(self) -> bool:
        """Return whether compaction has removed records from the batch, so that not every offset that it covers has
        one."""
        return bool(self.attributes & SPARSE_FLAG)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch is part of a transaction; for a control batch, whether it is the marker that ends
        one."""
        return bool(self.attributes & TRANSACTIONAL_FLAG)


Fields = tuple[bytes | None, bytes | None, int, RecordHeaders]
"""The fields of a ``NewRecord`` as a plain tuple. Python's garbage collector soon stops tracking such a tuple, but
not a named one."""


class NewRecord(NamedTuple):
    """A record that is to be encoded into a batch. ``timestamp_ms`` is in ms since 1970 and not negative."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    headers: RecordHeaders = ()


class Record(NamedTuple):
    """A record as a consumer gets it, with its topic, partition and offset. ``timestamp_ms`` is in ms since 1970."""

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
    """A decoded batch: its header, and the fields of its records as columns of equal length."""

    header: BatchHeader
    offsets: Sequence[int]
    """Offset of each record, rising; without gaps from ``header.base_offset`` on, unless the batch is sparse."""
    values: list[bytes | None]
    keys: list[bytes | None]
    timestamps_ms: list[int]
    headers: list[RecordHeaders]


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """Decode the batch header at byte ``position`` of ``buf``, and check those fields that need no other bytes of the
    batch. Raises ``CorruptBatch`` if there are too few bytes, or if magic, version, lengths, record count or base
    offset are wrong."""
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
    """Return ``header`` with the CRC that the batch had when its producer sent it. A sparse batch, which has another
    CRC, keeps the first one behind its header. ``batch`` holds the bytes of the batch, at least the first
    ``header_length``."""
    if not header.attributes & SPARSE_FLAG:
        return header
    sent: int = THINNED.unpack_from(batch, HEADER_BYTES)[0]
    return header._replace(crc32c=sent)


def check_batch(buf: Buffer, header: BatchHeader | None = None) -> BatchHeader:
    """Check one whole batch as a server does, except for the contents of its body, and return its header: length,
    CRC, attributes, record count, timestamps. ``header`` may be passed if ``read_header`` has decoded it already.
    Raises ``CorruptBatch``, which names the failed check."""
    if header is None:
        header = read_header(buf)
    check_length(header, buf)
    crc = crc32c(memoryview(buf)[_CHECKED_FROM:])
    if crc != header.crc32c:
        raise CorruptBatch(f"batch declares CRC {header.crc32c:#010x} but has {crc:#010x}")
    check_fields(header)
    return header


def has_right_crc(buf: Buffer) -> bool:
    """Return whether the CRC in the header of a whole batch fits its bytes. Raises ``CorruptBatch`` if ``buf`` has no
    valid header."""
    return bool(crc32c(memoryview(buf)[_CHECKED_FROM:]) == read_header(buf).crc32c)


def check_length(header: BatchHeader, buf: Buffer) -> None:
    """Check that ``buf`` has exactly as many bytes as the batch's header declares. Raises ``CorruptBatch``."""
    size = memoryview(buf).nbytes
    if header.batch_length != size:
        raise CorruptBatch(f"batch declares length {header.batch_length} but has {size} bytes")


def check_fields(header: BatchHeader) -> None:
    """Check the fields of a batch header against each other and against the limits: attributes, codec, body length,
    record count, timestamps. Raises ``CorruptBatch``, which names the field."""
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
    """Return whether the compressed body of the batch ``buf`` declares its decompressed size. Always true unless the
    codec is zstd. ``header`` has passed ``check_fields``. Raises ``CorruptBatch`` if the body should be a zstd frame
    and is none."""
    codec = CODECS[header.attributes & CODEC_MASK]
    return codec != "zstd" or batch_body.zstd_declares_size(memoryview(buf)[header.header_length :])


def load_body(header: BatchHeader, buf: Buffer, wanted: Set[str] = batch_body.COLUMNS) -> dict[str, Any]:
    """Decompress and decode the body of the batch ``buf``, and check it against ``header``. Return the columns by
    name, as ``docs/batch-format.md`` lists them, without building records. Columns that are not ``wanted`` may be
    missing from the result, and are not checked; if the body has the form that ``encode_batch`` writes, that saves
    time.

    ``header`` has passed ``check_fields``, and the batch is no control batch. Raises ``CorruptBatch`` if no records
    could be made of the body. The memory for the decompressed body is bounded by ``MAX_BODY_BYTES``, whatever the
    bytes declare."""
    return load_columns(header, decompress_body(header, buf), wanted)


def load_columns(header: BatchHeader, body: Buffer, wanted: Set[str] = batch_body.COLUMNS) -> dict[str, Any]:
    """Decode and check the decompressed body of a batch, as ``load_body`` does."""
    columns = None
    if not header.is_sparse and "v" not in wanted:
        columns = batch_body.load_without_values(body, header.record_count)
    elif not header.is_sparse and len(wanted) == 1:
        columns = batch_body.load_values(body, header.record_count)
    if columns is None:
        columns = batch_body.load(body, batch_body.MAX_ITEMS + (header.record_count if header.is_sparse else 0))
        wanted = batch_body.COLUMNS
    batch_body.check_columns(
        columns,
        header.record_count,
        header.first_timestamp,
        header.max_timestamp,
        is_sparse=header.is_sparse,
        wanted=wanted,
    )
    return columns


def check_body(header: BatchHeader, buf: Buffer) -> None:
    """Check that records can be made of the body of the batch ``buf``, at less cost than ``load_body``: the values
    are not decoded if the body has the form that ``encode_batch`` writes. ``header`` has passed ``check_fields``, and
    the batch is no control batch. Raises ``CorruptBatch``."""
    load_body(header, buf, _ALL_BUT_VALUES)


def decompress_body(header: BatchHeader, buf: Buffer) -> Buffer:
    """Return the decompressed body of the batch ``buf``, whose header has passed ``check_fields``. Raises
    ``CorruptBatch`` if it does not decompress to the length that the header declares."""
    stored = memoryview(buf)[header.header_length :]
    return batch_body.decompress(CODECS[header.attributes & CODEC_MASK], stored, header.body_length)


def split(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Iterate over the consecutive batches in ``buf``: yield each with its header, as a view of its bytes. Only the
    headers are checked. Raises ``CorruptBatch`` at an invalid header, or if the last batch is cut short; all batches
    yielded before are complete."""
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
    """Return the first 16 bytes of a batch as its leader writes them: base offset, leader epoch, CRC. Followed by the
    batch's bytes from the 17th on, they are the batch with this offset and epoch."""
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
    """Encode records as one batch and return its bytes. Base offset and leader epoch are 0 until the leader writes
    them.

    Raises ``ValueError`` for what no batch can hold: no records, keys or values that are not bytes, negative
    timestamps, more than ``MAX_RECORDS``, a body above ``MAX_BODY_BYTES`` or of more than ``MAX_ITEMS`` CBOR items,
    or an unknown codec."""
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
    batch_body.check_items(columns)
    return batch_of(
        cbor2.dumps(columns),
        len(records),
        first,
        max(timestamps),
        codec=codec,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def batch_of(
    body: bytes,
    record_count: int,
    first_timestamp: int,
    max_timestamp: int,
    *,
    codec: Codec = "none",
    producer_id: int = 0,
    producer_epoch: int = 0,
    base_sequence: int = 0,
    transactional: bool = False,
) -> bytes:
    """Return the bytes of a batch with the encoded, uncompressed ``body`` of its records. Base offset and leader
    epoch are 0 until the leader writes them. The body is not checked, except for its size: raises ``ValueError`` if
    it is above ``MAX_BODY_BYTES``, and for an unknown codec."""
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
        record_count=record_count,
        first_timestamp=first_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        base_sequence=base_sequence,
        body_length=len(body),
    )
    return seal_batch(header, stored)


def encode_control(kind: str, *, timestamp_ms: int = 0) -> bytes:
    """Return a control batch, which covers one offset, has no records for readers, and has base offset and leader
    epoch 0 until the leader writes them. Its value is ``kind``, which only people read."""
    header = read_header(encode_batch([NewRecord(kind.encode(), None, timestamp_ms)]))
    return seal_batch(header._replace(attributes=CONTROL_FLAG), cbor2.dumps({"v": (kind.encode(),)}))


def encode_marker(producer_id: int, producer_epoch: int, *, commit: bool, timestamp_ms: int = 0) -> bytes:
    """Return the marker that ends a producer's transaction in a partition: the control batch that commits it, or
    aborts it if ``commit`` is False. Its base sequence is 1 if it commits, otherwise 0."""
    header = read_header(encode_control("commit" if commit else "abort", timestamp_ms=timestamp_ms))
    header = header._replace(
        attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=int(commit),
    )
    return seal_batch(header, cbor2.dumps({"v": (b"commit" if commit else b"abort",)}))


def chain_after(chain: bytes, batch: Buffer) -> bytes:
    """Return the hash chain (16 bytes) after ``batch``, given the chain before it. If two logs have equal chains at
    an offset, the headers of all their batches up to there are equal, with leader epochs and CRCs.

    The hash is that of the header which the batch had before its first compaction, so compaction does not change the
    chain. Only the header is read, and for a sparse batch the bytes behind it."""
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
    """Return the bytes of a batch from its header and ``stored``, everything that follows the 64-byte header. Batch
    length and CRC of the header are computed here. Raises ``ValueError`` if a field is out of range."""
    header = header._replace(batch_length=HEADER_BYTES + len(stored))
    try:
        rest = HEADER.pack(*header)[_CHECKED_FROM:]
    except struct.error as error:
        raise ValueError(f"a header field is out of range: {error}") from None
    prefix = stamp_prefix(header.base_offset, header.leader_epoch, crc32c(stored, crc32c(rest)))
    return b"".join((prefix, rest, stored))


def decode_columns(buf: Buffer) -> Columns:
    """Check one whole batch and decode it into columns; those of a control batch are empty. Raises ``CorruptBatch``
    if the batch is damaged or malformed. A body that declares more than ``MAX_BODY_BYTES`` is refused before it is
    decompressed, so hostile bytes cannot use up the memory."""
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
    """Check one whole batch and decode it into records, with the given topic and partition; an empty list for a
    control batch. Raises ``CorruptBatch`` as ``decode_columns`` does."""
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
