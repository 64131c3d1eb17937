"""Collects batches of the log, and makes Arrow record batches of them, column by column. No object is made for a
record, and columns that nobody asked for are not decoded where the format allows that."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.batch.format import check_batch, load_body
from tidelog.types import Buffer

BYTES = 2 << 20
"""A record batch is closed when the decompressed bodies of its log batches have this many bytes."""

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", _HEADER))
"""Type of the column ``headers``: the headers of a record in order, since a name may occur more than once."""

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
_FILL: dict[str, Any] = {"v": None, "k": None, "t": 0, "h": ()}
"""Column of a body -> what stands for it in the rows of a batch that lacks it."""


def row_schema(columns: Iterable[str], timestamp_unit: str = "ms") -> pa.Schema:
    """Return the schema of record batches with these columns, in this order: ``topic``, ``partition``, ``offset``,
    ``leader_epoch``, ``timestamp``, ``key``, ``value``, ``headers``."""
    types = _TYPES | {"timestamp": pa.timestamp(timestamp_unit, tz="UTC")}
    return pa.schema([pa.field(name, types[name]) for name in columns])


class RowBuffer:
    """The records of one topic that were decoded and not yet taken. The owner adds log batches, and takes an Arrow
    record batch when enough rows are buffered. ``schema`` is one of ``row_schema``; ``rows``: the number of rows that
    are enough."""

    def __init__(self, topic: str, schema: pa.Schema, rows: int) -> None:
        self._topic = topic
        self._schema = schema
        self._rows = rows
        self._wanted = frozenset(_IN_BODY[name] for name in schema.names if name in _IN_BODY)
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        self.bytes = 0
        self._partitions = _Runs()
        self._shifts = _Runs()
        self._epochs = _Runs()
        self._times = _Runs()
        self._columns: dict[str, _Items] = {
            name: _Items(fill) for name, fill in _FILL.items() if name in self._wanted
        }

    def add(self, partition: int, batch: Buffer, first: int, end: int) -> None:
        """Decode a log batch of a partition, and add its records with offsets from ``first`` up to, not including,
        ``end`` to the buffer. A control batch adds nothing. Raises ``CorruptBatch`` if the batch cannot be decoded;
        nothing is added then. If no column of the body is wanted, the body is not decoded, unless the batch is
        sparse: its offsets stand in the body."""
        header = check_batch(batch)
        if header.is_control:
            return
        columns = load_body(header, batch, self._wanted) if self._wanted or header.is_sparse else {}
        base = header.base_offset
        places: Sequence[int] = columns["o"] if header.is_sparse else range(header.record_count)
        part = slice(bisect_left(places, first - base), bisect_left(places, end - base))
        places = places[part]
        count = len(places)
        if isinstance(places, range):
            self._shifts.add(base + part.start - self.count, count)
        else:
            for at, place in enumerate(places, self.count):
                self._shifts.add(base + place - at, 1)
        self._partitions.add(partition, count)
        self._epochs.add(header.leader_epoch, count)
        self._times.add(header.first_timestamp, count)
        for name, items in self._columns.items():
            items.add(columns.get(name), part, count)
        self.count += count
        self.bytes += header.body_length

    def is_enough(self) -> bool:
        """Return whether the buffer has enough for a record batch: the number of rows that it was made with, or
        bodies of ``BYTES`` bytes."""
        return self.count >= self._rows or self.bytes >= BYTES

    def take(self) -> pa.RecordBatch | None:
        """Empty the buffer, and return its rows as one record batch; None if the buffer has no rows."""
        whole = None
        if self.count:
            arrays = [self._column(field) for field in self._schema]
            whole = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._clear()
        return whole

    def _column(self, field: pa.Field) -> pa.Array:
        """Return the buffered rows of one column."""
        match field.name:
            case "topic":
                return pa.repeat(pa.scalar(self._topic, field.type), self.count)
            case "partition":
                return self._partitions.array().cast(field.type)
            case "offset":
                ones = pa.repeat(pa.scalar(1, pa.int64()), self.count)
                return pc.add(pc.cumulative_sum(ones, start=-1), self._shifts.array())
            case "leader_epoch":
                return self._epochs.array()
            case "timestamp":
                times = self._times.array()
                if (deltas := self._columns["t"].filled()) is not None:
                    times = pc.add(times, pa.array(deltas, pa.int64()))
                return times.cast(pa.timestamp("ms", tz="UTC")).cast(field.type)
            case "headers":
                return _headers(self._columns["h"].filled() or [], self.count)
        items = self._columns["k" if field.name == "key" else "v"].filled()
        return pa.nulls(self.count, field.type) if items is None else pa.array(items, field.type)


class _Runs:
    """A column of integers that are equal over many rows, such as the partition of the rows of one log batch."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._values: list[int] = []

    def add(self, value: int, count: int) -> None:
        """Append a value ``count`` times."""
        if not count:
            return
        end = count + (self._ends[-1] if self._ends else 0)
        if self._values and self._values[-1] == value:
            self._ends[-1] = end
        else:
            self._values.append(value)
            self._ends.append(end)

    def array(self) -> pa.Array:
        """Return the column as 64-bit integers; there is at least one."""
        runs = pa.array(self._ends, pa.int32()), pa.array(self._values, pa.int64())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(*runs))


class _Items:
    """A column that log batches may lack, whose rows are then all ``fill``."""

    def __init__(self, fill: Any) -> None:
        self._items: list[Any] = []
        self._fill = fill
        self._lacking = 0

    def add(self, column: list[Any] | None, part: slice, count: int) -> None:
        """Append the part ``part``, of ``count`` rows, of a batch's column; None if the batch lacks it."""
        if column is None:
            self._lacking += count
            return
        if self._lacking:
            self._items += [self._fill] * self._lacking
            self._lacking = 0
        self._items += column if len(column) == count else column[part]

    def filled(self) -> list[Any] | None:
        """Return all rows; None if no batch had the column."""
        return self._items + [self._fill] * self._lacking if self._items else None


def _headers(column: list[Sequence[Any]], count: int) -> pa.Array:
    """Return the column ``headers`` of the headers of each of ``count`` records, which are pairs of a name and a
    value. An empty ``column``: no record has any."""
    pairs = list(chain.from_iterable(column))
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    lengths = (
        pa.array([0, *map(len, column)], pa.int32()) if column else pa.repeat(pa.scalar(0, pa.int32()), count + 1)
    )
    structs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pc.cumulative_sum(lengths), structs, type=HEADERS)
