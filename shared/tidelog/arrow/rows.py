"""Collects batches of the log, and makes Arrow record batches of them, column by column. Columns that nobody asked
for are not decoded where the format allows that."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidelog.arrow.bodies import HEADERS, LogBatch, Rows, decode, decode_together, join
from tidelog.batch.format import check_batch, decompress_body
from tidelog.errors import CorruptBatch
from tidelog.types import Buffer

BYTES = 2 << 20
"""A record batch is closed when the decompressed bodies of its log batches have this many bytes."""
KEPT_BYTES = 31 << 20
"""Size of a block of memory that makes glibc keep what is freed (``_keep_freed_memory``)."""

_TYPES = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "leader_epoch": pa.int64(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}
_IN_BODY = {"value": "v", "key": "k", "timestamp": "t", "headers": "h"}
"""Column -> the column of a batch's body that it is made of."""


def row_schema(columns: Iterable[str], timestamp_unit: str = "ms") -> pa.Schema:
    """Return the schema of record batches with these columns, in this order: ``topic``, ``partition``, ``offset``,
    ``leader_epoch``, ``timestamp``, ``key``, ``value``, ``headers``."""
    types = _TYPES | {"timestamp": pa.timestamp(timestamp_unit, tz="UTC")}
    return pa.schema([pa.field(name, types[name]) for name in columns])


@functools.cache
def _keep_freed_memory() -> None:
    """Make the process keep freed memory, up to twice ``KEPT_BYTES``, for the next record batches. Otherwise glibc
    gives it back to the system each time, and to touch new memory costs half as much again as decoding. It keeps more
    once it has freed a block that large; the block itself is never touched. Elsewhere this does nothing."""
    bytes(KEPT_BYTES)


class RowBuffer:
    """Batches of the log of one topic that were added and not yet taken as rows. ``schema`` is one of ``row_schema``;
    ``rows``: the number of rows that are enough for a record batch."""

    def __init__(self, topic: str, schema: pa.Schema, rows: int) -> None:
        self._topic = topic
        self._schema = schema
        self._rows = rows
        self._wanted = frozenset(_IN_BODY[name] for name in schema.names if name in _IN_BODY)
        self.refused: LogBatch | None = None
        """The log batch of which ``take`` last raised ``CorruptBatch``."""
        _keep_freed_memory()
        self.clear()

    def clear(self) -> None:
        """Drop all batches."""
        self._keep([])

    def _keep(self, batches: list[LogBatch]) -> None:
        self._batches = batches
        self.count = sum(batch.covered for batch in batches)
        """Number of offsets that the batches cover: their rows, and the gaps of compacted batches."""
        self._bytes = sum(batch.header.body_length for batch in batches)

    def add(self, partition: int, batch: Buffer, first: int, end: int) -> None:
        """Add the records of a log batch of a partition with offsets from ``first`` up to, not including, ``end``. A
        control batch adds nothing. Checks header and CRC and decompresses the body, but decodes nothing. If no column
        of the body is wanted, the body is not even decompressed, unless the batch is sparse: its offsets stand in the
        body. Raises ``CorruptBatch``; nothing is added then."""
        header = check_batch(batch)
        if header.is_control:
            return
        body = decompress_body(header, batch) if self._wanted or header.is_sparse else b""
        base = header.base_offset
        skipped = max(0, first - base)
        covered = max(0, min(end - base, header.record_count) - skipped)
        self._batches.append(LogBatch(partition, header, batch, first, end, body, skipped, covered))
        self.count += covered
        self._bytes += header.body_length

    def is_enough(self) -> bool:
        """Return whether the buffer has enough for a record batch: the number of rows that it was made with, or
        bodies of ``BYTES`` bytes."""
        return self.count >= self._rows or self._bytes >= BYTES

    def take(self) -> pa.RecordBatch | None:
        """Empty the buffer, and return its rows as one record batch; None if it has no rows. If a log batch cannot be
        decoded, only the rows before it are returned, and those behind it stay. If there are none before it, raises
        ``CorruptBatch``; the log batch is removed then and kept as ``refused``."""
        while self._batches:
            batches = self._batches
            rows = decode_together(batches, self._wanted) or self._decode_each(batches)
            self._keep(batches[len(rows.counts) :])
            if len(rows.offsets):
                arrays = [self._column(field, rows, batches) for field in self._schema]
                return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return None

    def _decode_each(self, batches: Sequence[LogBatch]) -> Rows:
        """Return the rows of the log batches before the first that cannot be decoded. Raises ``CorruptBatch``, as
        ``take`` does, if that is the first of all."""
        pieces: list[Rows] = []
        for batch in batches:
            try:
                pieces.append(decode(batch, self._wanted))
            except CorruptBatch:
                if pieces:
                    break
                self.refused = batch
                self._keep([*batches[1:]])
                raise
        return join(pieces)

    def _column(self, field: pa.Field, rows: Rows, batches: Sequence[LogBatch]) -> pa.Array:
        """Return one column of the rows, which are those of the first batches."""
        of_rows = batches[: len(rows.counts)]

        def repeated(values: list[int]) -> Any:
            return np.repeat(np.array(values, np.int64), rows.counts)

        match field.name:
            case "topic":
                return pa.repeat(pa.scalar(self._topic, field.type), len(rows.offsets))
            case "partition":
                return pa.array(repeated([batch.partition for batch in of_rows]).astype(np.int32))
            case "offset":
                return pa.array(rows.offsets)
            case "leader_epoch":
                return pa.array(repeated([batch.header.leader_epoch for batch in of_rows]))
            case "timestamp":
                times = repeated([batch.header.first_timestamp for batch in of_rows]) + rows.times
                return pa.array(times).cast(pa.timestamp("ms", tz="UTC")).cast(field.type)
            case "headers":
                return rows.headers
        return rows.keys if field.name == "key" else rows.values
