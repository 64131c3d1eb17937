"""Writes sparse batches: what compaction leaves of a batch. The format: ``docs/batch-format.md``. The log decides
which records stay."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import cbor2

from tidelog.batch import body as batch_body
from tidelog.batch.format import (
    CODEC_MASK,
    CODECS,
    HEADER_BYTES,
    MAX_BODY_BYTES,
    SPARSE_FLAG,
    SPARSE_HEADER_BYTES,
    THINNED,
    Codec,
    Columns,
    Fields,
    encode_batch,
    read_header,
    seal_batch,
)
from tidelog.types import Buffer

MOST_BYTES = 11 << 20
"""The largest ``max_batch_bytes`` of a topic, in bytes: a message has room for a full answer to a fetch (4 MiB) and
one such batch. A record of 10 MiB fits."""


def thin_batch(columns: Columns, original: Buffer, keep: Sequence[int], compacted_ms: int) -> bytes:
    """Return the sparse batch that holds only the records of ``columns`` at the indexes ``keep`` (rising).
    ``original`` is the batch that ``columns`` were decoded from; it is returned unchanged if the sparse batch would
    have a body above ``MAX_BODY_BYTES``, or would be larger than both ``original`` and ``MOST_BYTES``.
    ``compacted_ms`` (ms since 1970) is stored as the time of the first compaction, unless the batch was sparse
    already."""
    header = columns.header
    if header.is_sparse:
        before = bytes(original[HEADER_BYTES:SPARSE_HEADER_BYTES])
    else:
        fields = header.crc32c, header.batch_length, header.body_length, header.attributes
        before = THINNED.pack(*fields, 0, compacted_ms)
    body: dict[str, Any] = {
        "o": [columns.offsets[place] - header.base_offset for place in keep],
        "v": [columns.values[place] for place in keep],
    }
    if any(columns.keys[place] is not None for place in keep):
        body["k"] = [columns.keys[place] for place in keep]
    if any(columns.timestamps_ms[place] != header.first_timestamp for place in keep):
        body["t"] = [columns.timestamps_ms[place] - header.first_timestamp for place in keep]
    if any(columns.headers[place] for place in keep):
        body["h"] = [columns.headers[place] for place in keep]
    data = cbor2.dumps(body)
    if len(data) > MAX_BODY_BYTES:
        return bytes(original)
    stored = batch_body.compress(CODECS[header.attributes & CODEC_MASK], data)
    if len(stored) + SPARSE_HEADER_BYTES > max(MOST_BYTES, len(original)):
        return bytes(original)
    header = header._replace(
        header_length=SPARSE_HEADER_BYTES,
        batch_length=SPARSE_HEADER_BYTES + len(stored),
        attributes=header.attributes | SPARSE_FLAG,
        body_length=len(data),
    )
    return seal_batch(header, before + stored)


def encode_sparse(
    records: Sequence[Fields], places: Sequence[int], count: int, *, codec: Codec = "none", compacted_ms: int
) -> bytes:
    """Encode records as one sparse batch that covers ``count`` offsets, and return its bytes. ``places`` (rising,
    from 0): how far the offset of each record is behind the batch's base offset. ``compacted_ms`` (ms since 1970) is
    stored as the time of the first compaction. Base offset and leader epoch are 0.

    Raises ``ValueError`` for what ``encode_batch`` refuses, and if the batch would be larger than any log takes."""
    whole = encode_batch(records, codec=codec)
    values, keys, timestamps, headers = (list(map(itemgetter(at), records)) for at in range(4))
    header = read_header(whole)._replace(record_count=count)
    columns = Columns(header, places, values, keys, timestamps, headers)
    batch = thin_batch(columns, whole, range(len(records)), compacted_ms)
    if batch == whole:
        raise ValueError(f"a sparse batch of {len(whole)} bytes is too large")
    return batch


def emptied(batch: Buffer) -> bytes:
    """Return the sparse batch without records that covers the offsets of ``batch``. If ``batch`` was not sparse, its
    time of compaction is its largest timestamp. Raises ``CorruptBatch`` if it has no valid header."""
    header = read_header(batch)
    columns = Columns(header, (), [], [], [], [])
    return thin_batch(columns, batch, (), max(0, header.max_timestamp))


def first_compacted_ms(batch: Buffer) -> int | None:
    """Return when the batch was first compacted, in ms since 1970; None if it never was. Raises ``CorruptBatch`` if
    it has no valid header."""
    if not read_header(batch).is_sparse:
        return None
    when: int = THINNED.unpack_from(batch, HEADER_BYTES)[-1]
    return when
