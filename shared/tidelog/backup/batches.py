"""A batch of one log as it is written into another, at the same offsets.

Keys, values, headers and timestamps stay as they are, to the byte. Three things belong to the log that a batch was
written into and mean nothing, or something else, in another one:

    producer id, epoch, sequence   another cluster gives the same numbers to other producers: the copy has none
    part of a transaction          only what is decided is copied, and what was aborted is empty already: the copy is
                                   of no transaction
    control batches                (markers, beginnings of epochs) an empty batch stands for each, with its offset

An *empty* batch, as compaction leaves one, covers offsets that have no record. Runs of empty batches stand for the
offsets below the beginning of the source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidelog.batch.format import (
    CODEC_MASK,
    CONTROL_FLAG,
    HEADER_BYTES,
    MAX_RECORDS,
    THINNED,
    TRANSACTIONAL_FLAG,
    NewRecord,
    encode_batch,
    read_header,
    seal_batch,
)
from tidelog.batch.sparse import emptied
from tidelog.types import Buffer

_OWN = CONTROL_FLAG | TRANSACTIONAL_FLAG
"""Attributes of a batch that mean something in its own log only."""
_CRC_AT = 12
"""The leader writes the bytes before this position: base offset and leader epoch."""


def as_copy(batch: Buffer) -> Buffer:
    """Return the batch as it is written into another log, at its base offset: without producer and transaction, and
    emptied if it is a control batch. A batch that has none of these is returned unchanged. Raises ``CorruptBatch`` if
    its header is damaged."""
    header = read_header(batch)
    if header.is_control:
        batch = emptied(batch)
        header = read_header(batch)
    if not header.producer_id and not header.attributes & _OWN and not header.producer_epoch | header.base_sequence:
        return batch
    header = header._replace(attributes=header.attributes & ~_OWN, producer_id=0, producer_epoch=0, base_sequence=0)
    return seal_batch(header, bytes(memoryview(batch)[HEADER_BYTES:]))


def empty_batches(start: int, end: int) -> Iterator[bytes]:
    """Yield as few batches without records as possible that cover the offsets from ``start`` up to ``end``
    (exclusive); nothing if there are no such offsets."""
    while start < end:
        count = min(end - start, MAX_RECORDS)
        header = read_header(_EMPTY)._replace(base_offset=start, record_count=count)
        yield seal_batch(header, _EMPTY[HEADER_BYTES:])
        start += count


_EMPTY = emptied(encode_batch([NewRecord(None)]))
"""A batch without records that covers one offset."""


class Likeness(NamedTuple):
    """The properties in which a batch and its copy always agree, also when one of the two was compacted."""

    base_offset: int
    record_count: int
    first_timestamp: int
    max_timestamp: int
    codec: int
    body_length: int


def likeness(batch: Buffer) -> Likeness:
    """Return the ``Likeness`` of a batch. For a compacted batch it is computed from the batch as its producer sent
    it. Raises ``CorruptBatch`` if the header is damaged."""
    header = read_header(batch)
    attributes, body_length = header.attributes, header.body_length
    if header.is_sparse:
        _, _, body_length, attributes, _, _ = THINNED.unpack_from(batch, HEADER_BYTES)
    codec = attributes & CODEC_MASK
    covered = header.base_offset, header.record_count, header.first_timestamp, header.max_timestamp
    return Likeness(*covered, codec, body_length)


def is_same(copy: Buffer, found: Buffer) -> bool:
    """Return whether ``found``, a batch of a log, equals ``copy`` in all bytes except the leader epoch, which the
    log's own leader sets."""
    if read_header(copy).base_offset != read_header(found).base_offset:
        return False
    return memoryview(copy)[_CRC_AT:] == memoryview(found)[_CRC_AT:]


def chunks(batches: Iterable[Buffer], max_bytes: int, max_batches: int) -> Iterator[list[Buffer]]:
    """Yield the batches in lists of at most ``max_batches`` batches and ``max_bytes`` bytes, in order. A list has at
    least one batch, however large the batch is."""
    chunk: list[Buffer] = []
    size = 0
    for batch in batches:
        if chunk and (size + len(batch) > max_bytes or len(chunk) == max_batches):
            yield chunk
            chunk, size = [], 0
        chunk.append(batch)
        size += len(batch)
    if chunk:
        yield chunk
