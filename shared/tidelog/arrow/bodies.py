"""Decodes bodies of log batches into columns of Arrow: many at once without an object for each record where they have
the form that ``encode_batch`` writes, else one by one as the record iterator does."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence, Set
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidelog.arrow.positions import PADDING, Integers, Strings, find_integers, find_strings
from tidelog.batch import body as batch_body
from tidelog.batch.format import BatchHeader, load_columns
from tidelog.errors import CorruptBatch
from tidelog.types import Buffer
from tidelog.wire.cbor import array_head, map_head

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", _HEADER))
"""Type of the column ``headers``: the headers of a record in order, since a name may occur more than once."""
_TEXT = 0x61
"""The first byte of a text of one character, which every name of a column is."""


class LogBatch(NamedTuple):
    """A log batch of a partition, of which the records with offsets from ``first`` up to, not including, ``end`` are
    rows. Its header is checked, and it is no control batch."""

    partition: int
    header: BatchHeader
    data: Buffer
    first: int
    end: int
    body: Buffer
    """The decompressed body; empty if no column of it is needed."""
    skipped: int
    """The number of offsets before ``first``."""
    covered: int
    """The number of offsets that are rows, unless compaction has removed them."""


class Rows(NamedTuple):
    """The rows of several log batches as columns. A column that was not asked for is None."""

    counts: Integers
    """Number of rows of each log batch."""
    offsets: Integers
    times: Integers | None = None
    """Timestamp of each row, minus the first timestamp of its log batch."""
    keys: pa.BinaryArray | None = None
    values: pa.BinaryArray | None = None
    headers: pa.ListArray | None = None


def decode(batch: LogBatch, wanted: Set[str]) -> Rows:
    """Decode one log batch and return its rows. ``wanted``: the columns of the body, as ``docs/batch-format.md``
    names them. Raises ``CorruptBatch`` if the body cannot be decoded."""
    header = batch.header
    columns = load_columns(header, batch.body, wanted) if wanted or header.is_sparse else {}
    places = np.array(columns["o"], np.int64) if header.is_sparse else np.arange(header.record_count)
    limits = batch.first - header.base_offset, batch.end - header.base_offset
    part = slice(*(bisect_left(places, limit) for limit in limits))
    places = places[part]
    count = len(places)

    def strings(name: str) -> pa.Array | None:
        if name not in wanted:
            return None
        return pa.array(columns[name][part], pa.binary()) if name in columns else pa.nulls(count, pa.binary())

    times = np.array(columns["t"][part], np.int64) if "t" in columns else np.zeros(count, np.int64)
    return Rows(
        np.array([count]),
        header.base_offset + places,
        times if "t" in wanted else None,
        strings("k"),
        strings("v"),
        _headers(columns["h"][part] if "h" in columns else [], count) if "h" in wanted else None,
    )


def join(pieces: Sequence[Rows]) -> Rows:
    """Return the rows of all pieces, which have the same columns."""
    if len(pieces) == 1:
        return pieces[0]
    columns = zip(*pieces, strict=True)
    return Rows(*(_joined(parts) for parts in columns))


def _joined(parts: Sequence[Any]) -> Any:
    if parts[0] is None:
        return None
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else pa.concat_arrays(parts)


def decode_together(batches: Sequence[LogBatch], wanted: Set[str]) -> Rows | None:
    """Decode log batches, at least one, and return their rows. Return None if one of them does not have the form that
    ``encode_batch`` writes, which only ``decode`` can read or refuse."""
    if any(batch.header.is_sparse for batch in batches):
        return None
    kept = np.array([batch.covered for batch in batches])
    places = _ranges(np.array([batch.skipped for batch in batches]), kept)
    bases = np.repeat(np.array([batch.header.base_offset for batch in batches]), kept)
    rows = Rows(kept, bases + places)
    if not wanted:
        return rows
    counts = np.array([batch.header.record_count for batch in batches])
    chosen = None
    if (kept != counts).any():
        chosen = np.repeat(np.cumsum(counts) - counts, kept) + places
    return _Bodies(batches, counts, chosen).decode(rows, wanted)


def _ranges(starts: Integers, counts: Integers) -> Integers:
    """Return the integers from each start on, as many as ``counts`` says."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


class _Bodies:
    """Bodies that are decoded together. ``counts``: the number of records in each. ``chosen``: the numbers of the
    records that are rows, counted through all bodies; None: all of them."""

    def __init__(self, batches: Sequence[LogBatch], counts: Integers, chosen: Integers | None) -> None:
        self._batches = batches
        self._counts = counts
        self._chosen = chosen

    def decode(self, rows: Rows, wanted: Set[str]) -> Rows | None:
        """Return ``rows`` with the columns ``wanted``; None if a body does not have the usual form."""
        batches = self._batches
        if not all(batch_body.begins_with_values(batch.body, batch.header.record_count) for batch in batches):
            return None
        begins = [len(batch_body.COLUMN_V) + 1 + len(array_head(batch.header.record_count)) for batch in batches]
        data = _Data([memoryview(batch.body) for batch in batches], begins)
        found = data.strings(self._counts)
        if found is None:
            return None
        if "v" in wanted:
            rows = rows._replace(values=self._array(data, found))
        if wanted == {"v"}:
            return rows
        ends = data.ends(found, self._counts)
        rests = [_Rest(batch, end, batch.body[0] - 0xA1) for batch, end in zip(batches, ends, strict=True)]
        keys = self._keys(rests)
        if keys is None:
            return None
        return self._others(rows._replace(keys=keys) if "k" in wanted else rows, rests, wanted)

    def _keys(self, rests: list[_Rest]) -> pa.Array | None:
        """Return the column of keys, and move the rests behind it; None if a body has another form."""
        having = [rest.enter_keys() for rest in rests]
        if not all(has or rest.has_no_keys() for has, rest in zip(having, rests, strict=True)):
            return None
        if not any(having):
            return pa.nulls(int(self._counts.sum()) if self._chosen is None else len(self._chosen), pa.binary())
        counts = self._counts[having]
        present = [rest for rest, has in zip(rests, having, strict=True) if has]
        data = _Data([memoryview(rest.body)[rest.at :] for rest in present], [0] * len(present))
        found = data.strings(counts)
        if found is None:
            return None
        for rest, end in zip(present, data.ends(found, counts), strict=True):
            rest.at += end
        if all(having):
            return self._array(data, found)
        return self._array(data, found, np.repeat(~np.array(having), self._counts))

    def _array(self, data: _Data, found: Strings, lacking: Any = None) -> pa.Array:
        """Return the byte strings of the rows. ``lacking``: the records that are null and have no item in ``found``;
        None if there are none."""
        nulls = found.nulls
        items = np.arange(len(nulls))
        if lacking is not None:
            items = np.maximum(np.cumsum(~lacking) - 1, 0)
            nulls = lacking | nulls[items]
        if self._chosen is not None:
            items, nulls = items[self._chosen], nulls[self._chosen]
        return data.array(found).take(pa.array(2 * items, mask=nulls if nulls.any() else None))

    def _others(self, rows: Rows, rests: list[_Rest], wanted: Set[str]) -> Rows | None:
        """Return ``rows`` with timestamps and headers, if they are wanted; None if a body has another form."""
        if not wanted & {"t", "h"}:
            return rows
        if not all(rest.load(wanted) for rest in rests):
            return None
        if "t" in wanted:
            pieces = zip(rests, self._counts.tolist(), strict=True)
            times = np.concatenate(
                [np.zeros(n, np.int64) if rest.times is None else rest.times for rest, n in pieces]
            )
            if not self._are_true(times):
                return None
            rows = rows._replace(times=times if self._chosen is None else times[self._chosen])
        if "h" in wanted:
            count = int(self._counts.sum()) if self._chosen is None else len(self._chosen)
            column: list[Sequence[Any]] = []
            if any(rest.headers is not None for rest in rests):
                column = list(chain.from_iterable(rest.headers or [()] * rest.count for rest in rests))
                if self._chosen is not None:
                    column = [column[at] for at in self._chosen.tolist()]
            rows = rows._replace(headers=_headers(column, count))
        return rows

    def _are_true(self, times: Integers) -> bool:
        """Return whether the timestamps are those that the headers of the batches declare."""
        headers = [batch.header for batch in self._batches]
        firsts = np.array([header.first_timestamp for header in headers])
        latest = np.array([header.max_timestamp for header in headers]) - firsts
        begins = np.cumsum(self._counts) - self._counts
        is_true = (times[begins] == 0) & (np.maximum.reduceat(times, begins) == latest)
        return bool((is_true & (np.minimum.reduceat(times, begins) >= -firsts)).all())


class _Data:
    """Pieces of bodies, one behind the other, with an array of byte strings in each. ``begins``: the position of the
    first item in each piece."""

    def __init__(self, pieces: Sequence[memoryview], begins: Sequence[int]) -> None:
        sizes = np.array([len(piece) for piece in pieces])
        self._bytes = b"".join([*pieces, PADDING])
        self._limits = np.cumsum(sizes)
        self._at = self._limits - sizes
        self._begins = self._at + np.array(begins)

    def strings(self, counts: Integers) -> Strings | None:
        """Return the items of the arrays; None if they cannot be found (``find_strings``)."""
        return find_strings(self._bytes, self._begins, self._limits, counts)

    def ends(self, found: Strings, counts: Integers) -> list[int]:
        """Return the position behind the array in each piece."""
        behind: list[int] = (found.ends[np.cumsum(counts) - 1] - self._at).tolist()
        return behind

    def array(self, found: Strings) -> pa.BinaryArray:
        """Return an array of Arrow with the items at its even places, and what is between them at the others."""
        offsets = np.empty(2 * len(found.starts), np.int32)
        offsets[0::2] = found.starts
        offsets[1::2] = found.ends
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(self._bytes)]
        return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


class _Rest:
    """The columns of a body behind its values, which ``encode_batch`` writes in the order keys, timestamps, headers.
    ``at``: where they begin; ``left``: how many there are. ``count``: the number of records."""

    def __init__(self, batch: LogBatch, at: int, left: int) -> None:
        self.body = batch.body
        self.at = at
        self.times: Integers | None = None
        """The timestamps, minus the first one; None if all are equal."""
        self.headers: Sequence[Any] | None = None
        """The headers of each record; None if no record has any."""
        self.count = batch.header.record_count
        self._left = left
        self._header = batch.header
        self._has_keys = self._has_times = False

    def enter_keys(self) -> bool:
        """Return whether the next column is that of keys. If so, move to its first item."""
        self._has_keys = self._enter("k")
        return self._has_keys

    def has_no_keys(self) -> bool:
        """Return whether it is certain that the body lacks keys, of which the next column has none."""
        if self._left <= 1:
            return not (self._left and self._is_next("k"))
        return self._take_times() and self._left == 1 and self._is_next("h")

    def _is_next(self, name: str) -> bool:
        return self.body[self.at : self.at + 2] == bytes((_TEXT, ord(name)))

    def _enter(self, name: str) -> bool:
        """Return whether the next column has this name, and an item for each record. If so, move to its first
        item."""
        begin = bytes((_TEXT, ord(name))) + array_head(self.count)
        end = self.at + len(begin)
        if not self._left or self.body[self.at : end] != begin:
            return False
        self.at, self._left = end, self._left - 1
        return True

    def _take_times(self) -> bool:
        """Return whether the timestamps are known: they were taken before, or are the next column, which is taken
        then."""
        before = self.at, self._left
        if self._has_times or not self._enter("t"):
            return self._has_times
        found = find_integers(np.frombuffer(self.body, np.uint8)[self.at :], self.count)
        if found is None:
            self.at, self._left = before
            return False
        self.times, size = found
        self.at += size
        self._has_times = True
        return True

    def every_time(self) -> Integers:
        """Return the timestamp of each record, minus the first one."""
        return np.zeros(self.count, np.int64) if self.times is None else self.times

    def load(self, wanted: Set[str]) -> bool:
        """Decode the timestamps and headers that are wanted. Return False if the body has another form, or cannot be
        decoded."""
        self._take_times()
        if self._has_times and "h" not in wanted and self._left:
            return self._left == 1 and self._is_next("h")
        if self._left:
            return self._load_left(wanted & ({"h"} if self._has_times else {"t", "h"}))
        return self.at == len(self.body)

    def _load_left(self, wanted: Set[str]) -> bool:
        """Decode the columns that are left as objects. Return False if that fails, or a column comes twice."""
        header = self._header
        try:
            columns = batch_body.load(map_head(self._left) + self.body[self.at :])
            batch_body.check_columns(
                columns,
                header.record_count,
                header.first_timestamp,
                header.max_timestamp,
                is_sparse=False,
                wanted=wanted,
            )
        except CorruptBatch:
            return False
        if "t" in wanted and "t" in columns:
            self.times = np.array(columns["t"], np.int64)
        self.headers = columns.get("h")
        twice = {"v"} | ({"k"} if self._has_keys else set()) | ({"t"} if self._has_times else set())
        return not twice & columns.keys()


def _headers(column: Sequence[Sequence[Any]], count: int) -> pa.ListArray:
    """Return the column ``headers`` of the headers of each of ``count`` records, which are pairs of a name and a
    value. An empty ``column``: no record has any."""
    offsets = np.zeros(count + 1, np.int32)
    if column:
        np.cumsum(np.fromiter(map(len, column), np.int32, count), out=offsets[1:])
    pairs = list(chain.from_iterable(column))
    names = pa.array([name for name, _ in pairs], pa.string())
    values = pa.array([value for _, value in pairs], pa.binary())
    structs = pa.StructArray.from_arrays([names, values], fields=list(_HEADER))
    return pa.ListArray.from_arrays(pa.array(offsets), structs, type=HEADERS)
