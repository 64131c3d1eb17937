"""Encodes rows of a table as batches of the log. Pure: the bytes of the batches are a function of the rows, the
producer and its timestamp, and the limits of the topics. The same rows in the same order from the same producer make
the same bytes, however Spark cuts them into tables. That is how leaders recognise a second attempt as a copy.

Columns: ``value``, and optionally ``key``, ``headers``, ``topic``, ``partition``, ``timestamp``. A record goes to the
partition that its row names, otherwise to the partition of its key (murmur2, as everywhere). Records with neither
fill a batch of one partition, then a batch of the next. A record without a timestamp gets that of its producer."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, NamedTuple

import cbor2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidelog.arrow.encoded_strings import encode_strings
from tidelog.arrow.positions import Integers
from tidelog.batch.body import COLUMN_H, COLUMN_K, COLUMN_T, COLUMN_V, check_items
from tidelog.batch.format import MAX_RECORDS, Codec, RecordHeaders, batch_of
from tidelog.client.core.batch import BATCH_OVERHEAD, RECORD_OVERHEAD, record_size
from tidelog.client.core.partitioner import Partitioner
from tidelog.spark.errors import SourceError
from tidelog.spark.write.key_hashes import partitions_of
from tidelog.spark.write.task_data import NumberedBatch, TaskIdentity, TopicLimits, WriteTarget
from tidelog.wire.cbor import array_head, map_head

BATCH_BYTES = 256 << 10
"""Size in bytes at which a batch is closed. The limit of its topic applies if it is lower."""
TABLE_BYTES = 1 << 30
"""A larger table is cut into halves, since a column of encoded byte strings holds at most 2 GiB."""
SHORT_RUN = 100
"""If fewer rows than this go to the same partition in a row, on average, their positions are kept in lists."""
STICKY = -1
"""In place of the partition of a row: its record goes where the others without key and partition go at the time."""


_Numbers = Integers | list[int]


class _Rows(NamedTuple):
    """Rows of one topic, in the order in which they become records, and already encoded."""

    values: memoryview
    """The values, encoded one behind the other."""
    value_at: _Numbers
    """Position of each value in ``values``; behind them, the position after the last one."""
    keys: memoryview
    key_at: _Numbers
    keyed: _Numbers
    """Number of rows with a key before each row; behind them, the number of all."""
    times_ms: Integers
    """The timestamp of each row, in milliseconds since 1970."""
    headers: list[RecordHeaders] | None
    """The headers of each row; None: no row has any."""
    size_before: _Numbers
    """Sum of ``record_size`` of the rows before each row; behind them, the sum of all."""

    def as_lists(self) -> _Rows:
        """Return the rows with lists in place of arrays, which take longer to make and less time to look up."""
        columns = ("value_at", "key_at", "keyed", "size_before")
        return self._replace(**{name: np.asarray(getattr(self, name)).tolist() for name in columns})


class _OpenBatch:
    """The encoded records of a batch that is not closed yet."""

    def __init__(self) -> None:
        self.count = 0
        self.size = BATCH_OVERHEAD
        """An upper bound of the bytes of the batch, uncompressed."""
        self._values = bytearray()
        self._keys = bytearray()
        self._keyed = 0
        self._times_ms: list[Integers] = []
        self._headers: list[RecordHeaders] = []
        """The headers of the records, up to the last that has any."""

    def fitting(self, rows: _Rows, first: int, end: int, full: int) -> int:
        """Return how many of the rows from ``first`` up to, not including, ``end`` fit into the batch until it has
        ``full`` bytes. A batch without records takes at least one."""
        room = rows.size_before[first] + full - self.size
        fit = bisect_right(rows.size_before, room, first, end + 1) - 1 - first
        return max(0 if self.count else 1, min(fit, MAX_RECORDS - self.count))

    def add(self, rows: _Rows, first: int, end: int) -> None:
        """Add the rows from ``first`` up to, not including, ``end``."""
        self._values += rows.values[rows.value_at[first] : rows.value_at[end]]
        self._keys += rows.keys[rows.key_at[first] : rows.key_at[end]]
        self._keyed += rows.keyed[end] - rows.keyed[first]
        self._times_ms.append(rows.times_ms[first:end])
        if rows.headers is not None:
            self._headers += [()] * (self.count - len(self._headers))
            self._headers += rows.headers[first:end]
        self.size += rows.size_before[end] - rows.size_before[first]
        self.count += end - first

    def encode(self) -> tuple[bytes, int, int]:
        """Return the body of the batch, as ``encode_batch`` encodes it, and the timestamp of the first record and the
        largest one. Raises ``ValueError`` if the body has too many CBOR items."""
        times_ms = np.concatenate(self._times_ms)
        first_ms, last_ms = int(times_ms[0]), int(times_ms.max())
        columns: list[tuple[bytes, bytes]] = [(COLUMN_V, array_head(self.count) + self._values)]
        counted: dict[str, Sequence[Any]] = {"v": range(self.count)}
        if self._keyed:
            columns.append((COLUMN_K, array_head(self.count) + self._keys))
            counted["k"] = range(self.count)
        if (times_ms != first_ms).any():
            counted["t"] = (times_ms - first_ms).tolist()
            columns.append((COLUMN_T, cbor2.dumps(counted["t"])))
        if any(self._headers):
            counted["h"] = self._headers + [()] * (self.count - len(self._headers))
            columns.append((COLUMN_H, cbor2.dumps(counted["h"])))
        check_items(counted)
        return b"".join([map_head(len(columns)), *chain.from_iterable(columns)]), first_ms, last_ms


class RowEncoder:
    """The encoder of one task attempt: it collects rows by partition, closes full batches, and numbers the records of
    each partition. ``start`` is the partition that gets the first records without key and partition; tasks differ in
    it, so that they spread.

    No Python object is made for a row, except for its headers and a timestamp of its own: whole columns are encoded,
    and slices of what comes out are put together to batches. The bytes are those that ``encode_batch`` makes of the
    same records."""

    def __init__(self, producer: TaskIdentity, codec: Codec, topic: str, start: int) -> None:
        self._frame = partial(
            batch_of,
            codec=codec,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            transactional=bool(producer.transaction),
        )
        self._timestamp_ms = producer.timestamp_ms
        self._topic = topic
        self._start = start
        self._limits: dict[str, TopicLimits] = {}
        self._partitioners: dict[str, Partitioner] = {}
        self._open: dict[WriteTarget, _OpenBatch] = {}
        self._sequences: dict[WriteTarget, int] = {}
        self.rows = 0

    def topics_of(self, table: pa.RecordBatch) -> list[str]:
        """Return the topics that the table's rows go to and whose limits are not set yet, sorted. Raises
        ``TIDELOG_VALUE`` if a row names no topic and the option ``topic`` is not given."""
        named = set(self._named(table).unique().to_pylist()) if "topic" in table.schema.names else {self._topic}
        if "" in named:
            raise SourceError("TIDELOG_VALUE", "a row has no topic (null), and the option topic is not given")
        return sorted(named - set(self._limits))

    def _named(self, table: pa.RecordBatch) -> pa.StringArray:
        """Return the topic of each row: that of its column ``topic``, or of the option where the column has none."""
        column = table.column("topic").cast(pa.string()).fill_null("")
        return pc.if_else(pc.equal(column, ""), self._topic, column)

    def set_limits(self, topic: str, limits: TopicLimits) -> None:
        """Set the limits of a topic. The caller must do this before the first ``add`` of a row for that topic."""
        self._limits[topic] = limits
        self._partitioners[topic] = Partitioner(limits.partitions, self._start)

    def add(self, table: pa.RecordBatch) -> Iterator[NumberedBatch]:
        """Add the rows of a table, and yield the batches that became full. The other rows stay in open batches.
        Raises ``TIDELOG_VALUE`` for a row that cannot be a record: it is too large, names a partition that does not
        exist, or has a header without key or value."""
        if table.num_rows > 1 and table.nbytes > TABLE_BYTES:
            middle = table.num_rows // 2
            yield from self.add(table.slice(0, middle))
            yield from self.add(table.slice(middle))
            return
        self.rows += table.num_rows
        if "topic" not in table.schema.names:
            yield from self._add(self._topic, table)
            return
        named = self._named(table)
        for topic in named.unique().to_pylist():
            yield from self._add(topic, table.filter(pc.equal(named, topic)))

    def _add(self, topic: str, table: pa.RecordBatch) -> Iterator[NumberedBatch]:
        """Add rows of one topic, and yield the batches that became full."""
        if not table.num_rows:
            return
        targets = self._targets(topic, table)
        if targets.min() >= 0 and targets.min() != targets.max():
            order = np.argsort(targets, kind="stable")
            table, targets = table.take(pa.array(order)), targets[order]
        ends = [*(np.flatnonzero(np.diff(targets)) + 1).tolist(), len(targets)]
        rows = self._encode(topic, table)
        if len(ends) * SHORT_RUN > len(targets):
            rows = rows.as_lists()
        for first, end in pairwise([0, *ends]):
            yield from self._fill(topic, int(targets[first]), rows, first, end)

    def _targets(self, topic: str, table: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return the partition of each row; ``STICKY`` where neither the row nor its key says it. Raises
        ``TIDELOG_VALUE`` if a row names a partition that does not exist."""
        partitions = self._limits[topic].partitions
        targets = np.full(table.num_rows, STICKY, np.int32)
        if "key" in table.schema.names:
            keys = table.column("key").cast(pa.binary())
            if keys.null_count < len(keys):
                hashed = partitions_of(keys.fill_null(b""), partitions).astype(np.int32)
                targets = np.where(keys.is_valid().to_numpy(zero_copy_only=False), hashed, STICKY)
        if "partition" in table.schema.names:
            column = table.column("partition")
            named = column.fill_null(0).to_numpy()
            wrong = (named < 0) | (named >= partitions)
            if wrong.any():
                found = named[wrong][0]
                text = f"{topic} has partitions 0 to {partitions - 1}; a row names {found}"
                raise SourceError("TIDELOG_VALUE", text)
            targets = np.where(column.is_valid().to_numpy(zero_copy_only=False), named, targets)
        return targets

    def _encode(self, topic: str, table: pa.RecordBatch) -> _Rows:
        """Return the rows of a topic, encoded. Raises ``TIDELOG_VALUE`` if a row is larger than a batch may be, or
        has a header without key or value."""
        count, names = table.num_rows, table.schema.names
        columns = [
            table.column(name).cast(pa.binary()) if name in names else pa.nulls(count, pa.binary())
            for name in ("value", "key")
        ]
        headers = None
        if "headers" in names and table.column("headers").null_count < count:
            headers = [_pairs(of_row) for of_row in table.column("headers").to_pylist()]
        sizes = np.full(count, RECORD_OVERHEAD, np.int64)
        for column in columns:
            sizes += pc.binary_length(column).fill_null(0).to_numpy()
        if headers is not None:
            sizes += [record_size(None, None, of_row) - RECORD_OVERHEAD for of_row in headers]
        largest, limit = int(sizes.max()), self._limits[topic].max_batch_bytes
        if BATCH_OVERHEAD + largest > limit:
            raise SourceError(
                "TIDELOG_VALUE",
                f"{topic}: a record of {largest} bytes does not fit into a batch of max_batch_bytes {limit}",
            )
        is_keyed = columns[1].is_valid().to_numpy(zero_copy_only=False)
        values, keys = map(encode_strings, columns)
        return _Rows(*values, *keys, _sums(is_keyed), self._times_ms(table), headers, _sums(sizes))

    def _times_ms(self, table: pa.RecordBatch) -> Integers:
        """Return the timestamp of each row, in milliseconds since 1970. Raises ``TIDELOG_VALUE`` for a time before
        1970, which no record has."""
        if "timestamp" not in table.schema.names:
            return np.full(table.num_rows, self._timestamp_ms)
        times = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        found: Integers = times.fill_null(self._timestamp_ms * 1000).to_numpy() // 1000
        if found.min() < 0:
            raise SourceError("TIDELOG_VALUE", "a timestamp before 1970")
        return found

    def _fill(self, topic: str, target: int, rows: _Rows, first: int, end: int) -> Iterator[NumberedBatch]:
        """Add the rows from ``first`` up to, not including, ``end`` to open batches of the partition ``target``, or
        of one partition after the other if it is ``STICKY``. Yield the batches that had to be closed to make
        room."""
        partitioner = self._partitioners[topic]
        full = min(BATCH_BYTES, self._limits[topic].max_batch_bytes)
        while first < end:
            where = WriteTarget(topic, partitioner.sticky if target == STICKY else target)
            batch = self._open.setdefault(where, _OpenBatch())
            behind = first + batch.fitting(rows, first, end, full)
            batch.add(rows, first, behind)
            first = behind
            if first < end:
                yield self._close(where)
                if target == STICKY:
                    partitioner.move_on()

    def finish(self) -> Iterator[NumberedBatch]:
        """Close and yield the batches that are still open, in the order of topics and partitions. Called after the
        last ``add``."""
        for target in sorted(self._open):
            yield self._close(target)

    def _close(self, target: WriteTarget) -> NumberedBatch:
        """Encode the open batch of a partition under the partition's next sequence number, and return it. Raises
        ``TIDELOG_VALUE`` if it cannot be encoded."""
        batch = self._open.pop(target)
        sequence = self._sequences.get(target, 0)
        self._sequences[target] = sequence + batch.count
        try:
            body, first_ms, last_ms = batch.encode()
            data = self._frame(body, batch.count, first_ms, last_ms, base_sequence=sequence)
        except ValueError as error:
            raise SourceError("TIDELOG_VALUE", f"{target.topic}/{target.partition}: {error}") from None
        return NumberedBatch(target, data, batch.count)


def _sums(numbers: np.ndarray[Any, Any]) -> Integers:
    """Return the sum of the numbers before each one, and behind them the sum of all."""
    sums = np.zeros(len(numbers) + 1, np.int64)
    np.cumsum(numbers, out=sums[1:])
    return sums


def _pairs(headers: Any) -> RecordHeaders:
    """Return the headers of a row as (key, value) pairs; an empty tuple for null. Raises ``TIDELOG_VALUE`` if a key
    or a value is null."""
    if not headers:
        return ()
    if any(pair is None or pair["key"] is None or pair["value"] is None for pair in headers):
        raise SourceError("TIDELOG_VALUE", "a header without key or value (null)")
    return tuple((pair["key"], pair["value"]) for pair in headers)
