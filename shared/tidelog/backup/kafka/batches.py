"""Records of Kafka as batches of Tidelog, at the offsets that the records have in Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidelog.backup.batches import empty_batches
from tidelog.batch.format import MAX_RECORDS, Codec, Fields, encode_batch, read_header, stamp_prefix
from tidelog.batch.sparse import encode_sparse
from tidelog.errors import TidelogError

BATCH_BYTES = 256 << 10
"""Size in bytes, before compression, at which a batch is closed. A larger record has a batch of its own."""
OVERHEAD = 16
"""Bytes that are counted for each record, and for each of its headers, besides their contents."""
_CHECKED_FROM = 16

Row = tuple[int, Fields]
"""An offset and the record that is there."""


class ImportFailed(TidelogError):
    """Raised if records of Kafka cannot be imported as they are, or if Kafka refuses; the message gives the
    reason."""

    code = "IMPORT_FAILED"


class RecordTooLarge(ImportFailed):
    """Raised for a record that alone makes a batch larger than the topic takes. ``offset`` is the record's, ``size``
    the size of the batch; 0 if no topic could take it."""

    def __init__(self, offset: int, size: int) -> None:
        super().__init__(f"the record at offset {offset} is too large")
        self.offset = offset
        self.size = size


def pack(rows: Sequence[Row], start: int, end: int, most: int, codec: Codec, now_ms: int) -> Iterator[bytes]:
    """Yield batches that cover the offsets from ``start`` up to ``end`` (exclusive), without a gap, and have the
    records ``rows``, which rise and lie between these offsets. No batch is larger than ``most`` bytes. Offsets
    without a record are covered as compaction leaves them, at the time ``now_ms`` (ms since 1970). Yields nothing if
    ``start`` is ``end``. Raises ``RecordTooLarge``."""
    group: list[Row] = []
    at, size = start, 0
    for row in rows:
        cost = _size(row[1])
        if group and (size + cost > BATCH_BYTES or row[0] - at >= MAX_RECORDS):
            behind = group[-1][0] + 1
            yield from _encoded(group, at, behind, most, codec, now_ms)
            group, at, size = [], behind, 0
        if row[0] - at >= MAX_RECORDS:
            yield from empty_batches(at, row[0])
            at = row[0]
        group.append(row)
        size += cost
    if group:
        behind = end if end - at <= MAX_RECORDS else group[-1][0] + 1
        yield from _encoded(group, at, behind, most, codec, now_ms)
        at = behind
    yield from empty_batches(at, end)


def _encoded(group: list[Row], start: int, end: int, most: int, codec: Codec, now_ms: int) -> Iterator[bytes]:
    """Yield one batch that covers the offsets from ``start`` up to ``end`` (exclusive) and has the records of
    ``group``, or several if one would be larger than ``most`` bytes. Raises ``RecordTooLarge``."""
    records = [fields for _, fields in group]
    size = 0
    try:
        if len(records) == end - start:
            batch = encode_batch(records, codec=codec)
        else:
            places = [offset - start for offset, _ in group]
            batch = encode_sparse(records, places, end - start, codec=codec, compacted_ms=now_ms)
        size = len(batch)
    except ValueError as error:
        if len(group) == 1:
            raise RecordTooLarge(group[0][0], 0) from error
    if 0 < size <= most:
        crc = read_header(batch).crc32c
        yield b"".join((stamp_prefix(start, 0, crc), memoryview(batch)[_CHECKED_FROM:]))
    elif len(group) == 1:
        raise RecordTooLarge(group[0][0], size)
    else:
        half = len(group) // 2
        middle = group[half][0]
        yield from _encoded(group[:half], start, middle, most, codec, now_ms)
        yield from _encoded(group[half:], middle, end, most, codec, now_ms)


def _size(fields: Fields) -> int:
    """Return about how many bytes a record takes in a batch that is not compressed."""
    value, key, _, headers = fields
    size = OVERHEAD + len(value or b"") + len(key or b"")
    for name, content in headers:
        size += OVERHEAD + len(name) + len(content)
    return size
