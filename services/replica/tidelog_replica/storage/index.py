"""The sparse index of one segment: where to begin to read for an offset or a timestamp.

Theory. About every 4 KiB the index has an entry for a batch: its base offset, its position in the file, and the
largest timestamp of the segment *before* it. None of these three columns ever decreases, so an offset or a timestamp
is found by bisection and a short walk over headers. Each entry also has the hash chain before its batch
(``tidelog.batch.format.chain_after``). The index of the segment that is written is in memory. When the segment is
full, its index is written to a file beside it, unsynced, with CRCs and with the length and the end of the segment. If
that file is missing, damaged or of another segment, the index is made again from the batch headers.

An index takes about a hundredth of the bytes of its segment. The indexes of full segments are in memory only as far
as the server's ``IndexCache`` has room.

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
"""Least distance in the file between the batches of two entries, in bytes."""
INDEX_BYTES = 64 << 20
"""Most bytes that the indexes of full segments take in memory, for a log that shares no cache with others."""

_HEAD = struct.Struct(">4sIqqqq16s16sI")
_CRC = struct.Struct(">I")
_MAGIC = b"TLX2"
_ENTRY_BYTES = 3 * 8 + CHAIN_BYTES
HEAD_BYTES = _HEAD.size + _CRC.size
"""Bytes of an index file that hold the summary and its CRC."""


class SegmentSummary(NamedTuple):
    """A segment as a whole, as its index file describes it: offsets, size in bytes, largest timestamp (ms) and the
    hash chain before and after it."""

    base: int
    end_offset: int
    size: int
    max_timestamp: int
    chain_before: bytes = NO_CHAIN
    chain: bytes = NO_CHAIN


class IndexEntry(NamedTuple):
    """An entry of a segment's index: the position and offset of a batch, from which a reader may begin, and two facts
    about everything before that batch."""

    offset: int
    """The offset with which the batch there begins; -1 if the index is empty."""
    position: int
    earlier: int
    """Largest timestamp of the segment before the batch, ms since 1970; -1 if there is none."""
    chain: bytes
    """The hash chain of the log up to the batch."""


class SparseIndex:
    """The sparse index of one segment, in the order of the file: entries of offset, byte position, largest timestamp
    before the batch, and hash chain before the batch. ``chain`` is the hash chain of the log before the segment."""

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
        """Return an independent copy of the index, which another thread may use while this one grows. It is cheap."""
        copied = SparseIndex(self._before)
        copied._chains = self._chains.copy()
        copied._offsets, copied._positions, copied._earlier = (column[:] for column in self._columns())
        return copied

    def add(self, offset: int, position: int, earlier: int, chain: bytes) -> None:
        """Add an entry for the batch at byte ``position`` whose first offset is ``offset``. ``earlier`` is the
        largest timestamp (ms) of the records before it in the segment, and ``chain`` is the hash chain up to the
        batch. Does nothing if the last entry is less than ``INTERVAL_BYTES`` before ``position``."""
        if not self._positions or position - self._positions[-1] >= INTERVAL_BYTES:
            self._offsets.append(offset)
            self._positions.append(position)
            self._earlier.append(earlier)
            self._chains += chain

    def for_offset(self, offset: int) -> IndexEntry:
        """Return the last entry at or before the batch that holds ``offset``. If there is no such entry, return one
        that describes the start of the segment."""
        return self._entry(bisect_right(self._offsets, offset) - 1)

    def for_timestamp(self, timestamp_ms: int) -> IndexEntry:
        """Return an entry from which a reader finds the first batch with a record at or after ``timestamp_ms`` (ms
        since 1970): the last entry that is surely not behind that batch. If there is none, return one that describes
        the start of the segment."""
        return self._entry(bisect_left(self._earlier, timestamp_ms) - 1)

    def edge_after(self, position: int, last: tuple[int, bytes]) -> tuple[int, bytes]:
        """Return the byte position and hash chain of the first entry behind byte ``position``. If there is no entry
        between it and the end of the segment, return ``last``, the position and hash chain of that end."""
        place = bisect_right(self._positions, position)
        if place == len(self._positions) or self._positions[place] >= last[0]:
            return last
        return self._positions[place], self._entry(place).chain

    def _entry(self, place: int) -> IndexEntry:
        """Return the entry number ``place``; for -1, an entry that describes the start of the segment."""
        if place < 0:
            return IndexEntry(self._offsets[0] if self._offsets else -1, 0, -1, self._before)
        chain = bytes(self._chains[place * CHAIN_BYTES : (place + 1) * CHAIN_BYTES])
        return IndexEntry(self._offsets[place], self._positions[place], self._earlier[place], chain)

    def truncate_to(self, position: int) -> None:
        """Remove the entries of batches at or behind byte ``position``."""
        place = bisect_left(self._positions, position)
        del self._offsets[place:], self._positions[place:], self._earlier[place:]
        del self._chains[place * CHAIN_BYTES :]

    def to_bytes(self, summary: SegmentSummary) -> bytes:
        """Return the content of the index file: this index, and ``summary``, which describes its full segment."""
        columns = b"".join(map(_big_endian, self._columns())) + self._chains
        head = _HEAD.pack(_MAGIC, len(self), *summary, crc32c(columns))
        return head + _CRC.pack(crc32c(head)) + columns

    @classmethod
    def from_bytes(cls, data: Buffer) -> SparseIndex | None:
        """Return the index that ``data``, the content of an index file, describes; None if the bytes are damaged."""
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
    """A segment whose index may be dropped from memory by the shared cache."""

    def drop_index(self) -> None:
        """Remove the index from memory. The shared cache calls this when its limit is exceeded."""


class IndexCache:
    """A bound on the memory of the indexes of all full segments of a server, ``limit`` bytes together. If the indexes
    exceed it, those that were loaded longest ago are dropped. Any thread may use it."""

    def __init__(self, limit: int) -> None:
        self.bytes = 0
        self._limit = limit
        self._lock = threading.Lock()
        self._sizes: dict[_IndexHolder, int] = {}

    def loaded(self, holder: _IndexHolder, entries: int) -> None:
        """Count the index of ``holder`` with its ``entries``, which is in memory from now on. While the limit is
        exceeded, other holders are made to drop their indexes, the one loaded longest ago first."""
        with self._lock:
            self._forget(holder)
            self._sizes[holder] = entries * _ENTRY_BYTES
            self.bytes += entries * _ENTRY_BYTES
            while self.bytes > self._limit and len(self._sizes) > 1:
                oldest = next(iter(self._sizes))
                self._forget(oldest)
                oldest.drop_index()

    def forget(self, holder: _IndexHolder) -> None:
        """Stop counting the index of ``holder``, which keeps its index in memory. Does nothing if the index is not
        counted."""
        with self._lock:
            self._forget(holder)

    def _forget(self, holder: _IndexHolder) -> None:
        self.bytes -= self._sizes.pop(holder, 0)


def _big_endian(column: array[int]) -> bytes:
    """Return the bytes of a column of numbers in big-endian order, on any machine. The same conversion leads back."""
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def read_summary(data: Buffer) -> SegmentSummary | None:
    """Return the summary of the segment from the first ``HEAD_BYTES`` of an index file; None if these bytes are
    damaged or too few. The rest of the file is not checked."""
    head = _head(data)
    return None if head is None else head[1]


def _head(data: Buffer) -> tuple[int, SegmentSummary, int] | None:
    """Return the number of entries, the summary and the CRC of the columns from the head of an index file; None if it
    is damaged."""
    if len(data) < HEAD_BYTES:
        return None
    head = memoryview(data)[: _HEAD.size]
    magic, count, *summary, crc = _HEAD.unpack(head)
    if magic != _MAGIC or _CRC.unpack_from(data, _HEAD.size)[0] != crc32c(head):
        return None
    return count, SegmentSummary._make(summary), crc
