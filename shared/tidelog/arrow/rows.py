"""Makes Arrow record batches of batches of the log, with exactly the types, names and nullability that Spark
expects."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tidelog.batch.format import RecordHeaders, decode_columns
from tidelog.types import Buffer

ROWS = 4096
"""A record batch is closed when it has this many rows."""
MAX_ROWS = 10_000
"""Most rows of a record batch."""
BYTES = 8 << 20
"""A record batch is also closed when its log batches have this many bytes."""

_FIELDS = [
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("leader_epoch", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
]
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = pa.list_(pa.field("element", _HEADER))

DDL = "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, leader_epoch BIGINT, timestamp TIMESTAMP"
DDL_HEADERS = DDL + ", headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def schema(include_headers: bool) -> pa.Schema:
    """Return the Arrow schema of every record batch of the source; it has the column ``headers`` only if
    ``include_headers``."""
    return pa.schema([*_FIELDS, pa.field("headers", _HEADERS)] if include_headers else _FIELDS)


class RowBuffer:
    """The records of one partition that a read task has decoded and not yet handed to Spark. The task adds log
    batches, and takes Arrow record batches when enough rows are buffered."""

    def __init__(self, topic: str, partition: int, include_headers: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._schema = schema(include_headers)
        self._include_headers = include_headers
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.bytes = 0
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._offsets: list[int] = []
        self._epochs: list[int] = []
        self._timestamps: list[int] = []
        self._headers: list[RecordHeaders] = []

    def add(self, batch: Buffer, first: int, end: int) -> None:
        """Decode a log batch, and add its records with offsets from ``first`` up to, not including, ``end`` to the
        buffer. Raises ``CorruptBatch`` if the batch cannot be decoded; nothing is added then."""
        columns = decode_columns(batch)
        part = slice(bisect_left(columns.offsets, first), bisect_left(columns.offsets, end))
        offsets = columns.offsets[part]
        self._keys += columns.keys[part]
        self._values += columns.values[part]
        self._timestamps += columns.timestamps_ms[part]
        self._offsets += offsets
        self._epochs += [columns.header.leader_epoch] * len(offsets)
        if self._include_headers:
            self._headers += columns.headers[part]
        self.count += len(offsets)
        self.bytes += columns.header.size

    def is_enough(self) -> bool:
        """Return whether the buffer has enough for a record batch: ``ROWS`` rows, or log batches of ``BYTES``
        bytes."""
        return self.count >= ROWS or self.bytes >= BYTES

    def take_tables(self) -> Iterator[pa.RecordBatch]:
        """Empty the buffer, and yield its rows as record batches of at most ``MAX_ROWS`` rows. Yields nothing if the
        buffer has no rows."""
        if not self.count:
            self._clear()
            return
        arrays = [
            pa.array(self._keys, pa.binary()),
            pa.array(self._values, pa.binary()),
            pa.repeat(pa.scalar(self._topic, pa.string()), self.count),
            pa.repeat(pa.scalar(self._partition, pa.int32()), self.count),
            pa.array(self._offsets, pa.int64()),
            pa.array(self._epochs, pa.int64()),
            pa.array(self._timestamps, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
        ]
        if self._include_headers:
            arrays.append(_headers(self._headers))
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        for at in range(0, whole.num_rows, MAX_ROWS):
            yield whole.slice(at, MAX_ROWS)


def _headers(column: Iterable[RecordHeaders]) -> pa.Array:
    return pa.array([[{"key": name, "value": value} for name, value in pairs] for pairs in column], _HEADERS)
