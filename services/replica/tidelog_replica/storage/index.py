"""The sparse index of one segment: where to begin to read for an offset or a timestamp.

Theory. About every 4 KiB the index notes a batch: its base offset, its position in the file, and the largest
timestamp of the segment *before* it. All three columns never decrease, so both questions are a bisection followed by
a short walk over headers. Beside them stands the hash chain before that batch (``tidelog.batch.format.chain_after``).
The index of the segment that is written lives in memory; when the segment is full it is written beside it, unsynced,
with CRCs and the length and end of the segment that it describes. A file that is missing, damaged or of another
length is no loss: the index is made again from the batch headers.

An index takes about a hundredth of its segment. Those of full segments are in memory only while they are read, and so
far as the server's ``IndexCache`` has room.

The file, big-endian: magic ``TLX2``, count u32, base offset, end offset, segment size, max timestamp (i64 each),
chain before the segment and after it (16 bytes each), CRC32C of the columns, CRC32C of all that precedes it; then the
three columns, ``count`` i64 each, and the chains, 16 bytes each.
"""

from __future__ import annotations

import struct
import sys
import threading
from array import array
from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from crc32c import crc32c
from tidelog.batch.format import CHAIN_BYTES, NO_CHAIN
from tidelog.types import Buffer

INTERVAL_BYTES = 4096
"""Least distance between two entries."""
INDEX_BYTES = 64 << 20
"""Most bytes of indexes of full segments in memory, where a log shares them with no other."""

_HEAD = struct.Struct(">4sIqqqq16s16sI")
_CRC = struct.Struct(">I")
_MAGIC = b"TLX2"
_ENTRY_BYTES = 3 * 8 + CHAIN_BYTES
HEAD_BYTES = _HEAD.size + _CRC.size


class SegmentSummary(NamedTuple):
    """The segment as a whole, as its index file describes it."""

    base: int
    end_offset: int
    size: int
    max_timestamp: int
    chain_before: bytes = NO_CHAIN
    chain: bytes = NO_CHAIN


class IndexEntry(NamedTuple):
    """Where to begin to read: at ``position``; what is true before it."""

    offset: int
    """With which the batch there begins; -1 where the index is empty."""
    position: int
    earlier: int
    """Largest timestamp of the segment before it, ms; -1 for none."""
    chain: bytes


class SparseIndex:
    """Entries (offset, position, largest timestamp before it, chain before it), in the order of the file. ``chain``
    is the one before the segment."""

    def __init__(self, chain: bytes = NO_CHAIN) -> None:
        self._before = chain
        self._chains = bytearray()
        self._offsets = array("q")
        self._positions = array("q")
        self._earlier = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SparseIndex)
            and self._columns() == other._columns()
            and (self._before, self._chains) == (other._before, other._chains)
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def copy(self) -> SparseIndex:
        """The index as it is now, for another thread; cheap."""
        copied = SparseIndex(self._before)
        copied._chains = self._chains.copy()
        copied._offsets, copied._positions, copied._earlier = (column[:] for column in self._columns())
        return copied

    def add(self, offset: int, position: int, earlier: int, chain: bytes) -> None:
        """The batch at ``position`` begins with ``offset``; no record before it is later than ``earlier``, ms, and
        ``chain`` ends there. Kept only when it is far enough from the last entry."""
        if not self._positions or position - self._positions[-1] >= INTERVAL_BYTES:
            self._offsets.append(offset)
            self._positions.append(position)
            self._earlier.append(earlier)
            self._chains += chain

    def for_offset(self, offset: int) -> IndexEntry:
        """At or before the batch that holds ``offset``."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def for_timestamp(self, timestamp_ms: int) -> IndexEntry:
        """At or before the first batch with a record at or after ``timestamp_ms``."""
        return self._entry(bisect_left(self._earlier, timestamp_ms) - 1)

    def edge_after(self, position: int, last: tuple[int, bytes]) -> tuple[int, bytes]:
        """Position and chain of the next entry behind ``position``; ``last``, the segment's end, behind them all."""
        place = bisect_right(self._positions, position)
        if place == len(self._positions) or self._positions[place] >= last[0]:
            return last
        return self._positions[place], self._entry(place).chain

    def _entry(self, place: int) -> IndexEntry:
        if place < 0:
            return IndexEntry(self._offsets[0] if self._offsets else -1, 0, -1, self._before)
        chain = bytes(self._chains[place * CHAIN_BYTES : (place + 1) * CHAIN_BYTES])
        return IndexEntry(self._offsets[place], self._positions[place], self._earlier[place], chain)

    def truncate_to(self, position: int) -> None:
        """Forget the entries at or past ``position``."""
        place = bisect_left(self._positions, position)
        del self._offsets[place:], self._positions[place:], self._earlier[place:]
        del self._chains[place * CHAIN_BYTES :]

    def to_bytes(self, summary: SegmentSummary) -> bytes:
        """The index file of a segment that is finished."""
        columns = b"".join(map(_big_endian, self._columns())) + self._chains
        head = _HEAD.pack(_MAGIC, len(self), *summary, crc32c(columns))
        return head + _CRC.pack(crc32c(head)) + columns

    @classmethod
    def from_bytes(cls, data: Buffer) -> SparseIndex | None:
        """The index in the file; None where the file is damaged."""
        head = _head(data)
        if head is None:
            return None
        count, summary, crc = head
        columns = memoryview(data)[HEAD_BYTES:]
        if len(columns) != _ENTRY_BYTES * count or crc32c(columns) != crc:
            return None
        index = cls(summary.chain_before)
        for place, column in enumerate(index._columns()):
            stored = array("q", bytes(columns[place * 8 * count : (place + 1) * 8 * count]))
            column.frombytes(_big_endian(stored))
        index._chains += columns[3 * 8 * count :]
        return index

    def _columns(self) -> tuple[array[int], array[int], array[int]]:
        return self._offsets, self._positions, self._earlier


class _IndexHolder(Protocol):
    """A segment whose index is in memory."""

    def drop_index(self) -> None:
        """It is to go."""


class IndexCache:
    """Bounds the indexes of all full segments of a server together, to ``limit`` bytes: where there is no more room,
    the one that was loaded longest ago goes. Used by all threads."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit
        self._lock = threading.Lock()
        self._sizes: dict[_IndexHolder, int] = {}

    def loaded(self, holder: _IndexHolder, entries: int) -> None:
        """Its index is in memory now."""
        with self._lock:
            self._forget(holder)
            self._sizes[holder] = entries * _ENTRY_BYTES
            self.bytes += entries * _ENTRY_BYTES
            while self.bytes > self._limit and len(self._sizes) > 1:
                oldest = next(iter(self._sizes))
                self._forget(oldest)
                oldest.drop_index()

    def forget(self, holder: _IndexHolder) -> None:
        """Its index is no concern of this cache any more."""
        with self._lock:
            self._forget(holder)

    def _forget(self, holder: _IndexHolder) -> None:
        self.bytes -= self._sizes.pop(holder, 0)


def _big_endian(column: array[int]) -> bytes:
    """The column as the file has it, or back."""
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def read_summary(data: Buffer) -> SegmentSummary | None:
    """The summary from the first ``HEAD_BYTES`` of an index file; None where they are damaged."""
    head = _head(data)
    return None if head is None else head[1]


def _head(data: Buffer) -> tuple[int, SegmentSummary, int] | None:
    if len(data) < HEAD_BYTES:
        return None
    head = memoryview(data)[: _HEAD.size]
    magic, count, *summary, crc = _HEAD.unpack(head)
    if magic != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        return None
    return count, SegmentSummary._make(summary), crc
