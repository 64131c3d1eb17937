"""The segments of one log, in order: reading, finding offsets and times, the hash chain, and the tail in memory.

The list is never empty. Its segments join without a gap, and only the last one, the *active* segment, is written. The
other segments are *closed*: each has an index file, and their indexes share a bounded cache. The newest batches are
in memory, too (``tail_cache.py``), so that a read at the log's end costs no disk read. What is removed from the list,
at either end, is removed from the tail as well.

The list knows no flush, no producer and no high watermark: ``log.py`` decides what is appended, removed and closed.
A batch that is read from the disk is held against the leader epochs of the log, because no CRC covers them.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from tidelog.batch.format import BatchHeader
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.index import INDEX_BYTES, IndexCache, SparseIndex
from tidelog_replica.storage.segment import CorruptLog, Segment, SegmentExtent, remove
from tidelog_replica.storage.tail_cache import LogTailCache, PartitionTail

_STAMP = struct.Struct(">qI")  # base offset, leader epoch: how a batch begins


class SegmentList:
    """Made of ``segments``, of which the last is the active one. ``epochs`` are those of the log; the list only reads
    them. ``tails`` and ``indexes`` are shared with other logs. Every method may raise ``OSError``."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        segments: Sequence[Segment],
        epochs: LeaderEpochCache,
        tails: LogTailCache | None = None,
        indexes: IndexCache | None = None,
    ) -> None:
        self.start = segments[0].base
        """Offset of the first record kept."""
        self.active = segments[-1]
        """The segment that is written: the last one."""
        self._disk = disk
        self._directory = directory
        self._epochs = epochs
        self._indexes = IndexCache(INDEX_BYTES) if indexes is None else indexes
        self._segments = list(segments)
        self._bases = [segment.base for segment in segments]
        self._tail = PartitionTail(self.end_offset, cache=tails)
        for segment in self._segments[:-1]:
            segment.release_memory(self._indexes)

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, place: int) -> Segment:
        return self._segments[place]

    @property
    def end_offset(self) -> int:
        """The offset behind the last record in the files."""
        return self.active.end_offset

    # --- the segments ------------------------------------------------------------------------------------

    def extents(self) -> list[SegmentExtent]:
        """Every segment in numbers; the last one is the active one."""
        return [segment.extent() for segment in self._segments]

    def aged_extents(self, oldest_ms: int) -> list[SegmentExtent]:
        """Return every segment in numbers, for retention by age: the timestamps of full segments that claim to be
        younger than ``oldest_ms`` are held against the time of their files."""
        full = [
            extent._replace(max_timestamp=segment.newest_ms()) if extent.max_timestamp >= oldest_ms else extent
            for segment, extent in zip(self._segments[:-1], self.extents(), strict=False)
        ]
        return [*full, *self.extents()[-1:]]

    def count_and_bytes(self) -> tuple[int, int]:
        """How many segments there are, and their size in bytes."""
        return len(self._segments), sum(segment.size for segment in self._segments)

    def closed(self) -> list[Segment]:
        """All segments but the active one."""
        return self._segments[:-1]

    def closed_segment_after(self, base: int) -> Segment | None:
        """The first closed segment that begins later than ``base``."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) - 1 else None

    def segment_after(self, base: int) -> Segment | None:
        """The first segment that begins later than ``base``, closed or active."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) else None

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds ``offset``, which is not below the start."""
        return self._segments[self._place_of(offset)]

    def from_offset(self, offset: int) -> list[Segment]:
        """The segments that hold ``offset`` and what follows."""
        return self._segments[self._place_of(offset) :]

    def behind(self, segment: Segment) -> list[Segment]:
        """The segments that follow this one."""
        return self._segments[self._place_of(segment.base) + 1 :]

    def up_to(self, offset: int) -> list[Segment]:
        """The segments from the start to the one that holds ``offset``."""
        return self._segments[: self._place_of(offset) + 1]

    def files_from(self, offset: int) -> list[File]:
        """The files that hold ``offset`` and what follows."""
        return [segment.file for segment in self._segments[self._place_of(offset) :]]

    def _place_of(self, offset: int) -> int:
        return bisect_right(self._bases, offset) - 1

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer]:
        """Whole batches, one a buffer, from the one that holds ``offset``, none that reaches past ``end``. About
        ``max_bytes`` at most, but one batch if there is any; perhaps fewer than there are."""
        if not self.start <= offset < end:
            return []
        found = self._tail.read(offset, max_bytes, end)
        if found is not None:
            return found
        segment = self._segments[self._place_of(offset)]
        found = segment.read(offset, max_bytes, end)
        self._check_epochs(segment, found)
        return found

    def _check_epochs(self, segment: Segment, batches: list[Buffer]) -> None:
        """Raise ``CorruptLog`` where a batch names another leader epoch than the log has there. No CRC covers base
        offset and leader epoch of a batch: its reader could not notice that they are damaged."""
        for batch in batches:
            offset, epoch = _STAMP.unpack_from(batch)
            if epoch != self._epochs.epoch_before(offset + 1):
                raise CorruptLog(segment.path, f"batch at offset {offset} names leader epoch {epoch}")

    def headers(self, start: int | None = None) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds ``start`` (default: the log start), each with the CRC
        that its producer sent. Not to be used across a truncation."""
        offset = self.start if start is None else start
        if offset < self.end_offset:
            for segment in self.from_offset(offset):
                yield from segment.headers(offset)

    def offset_for_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """First batch below ``end`` with a record at or after ``timestamp_ms``: its first offset, and that record's
        timestamp, which may be earlier. None where there is no such batch."""
        for segment in self._segments:
            if segment.base >= end:
                return None
            header = segment.first_since(timestamp_ms)
            if header is not None:
                return (header.base_offset, header.first_timestamp) if header.end_offset <= end else None
        return None

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """Return the last batch boundary at or below ``offset``, and the hash chain up to it. If ``offset`` is below
        the log start, the boundary is the log start."""
        return self._segments[max(0, self._place_of(offset))].chain_at(offset)

    # --- what the list holds -----------------------------------------------------------------------------

    def remember(self, header: BatchHeader, batch: bytes) -> None:
        """Keep a batch in memory that was written to the active segment."""
        self._tail.append(header.base_offset, header.end_offset, batch)

    def roll(self) -> Segment:
        """Close the active segment, and begin a new one behind it, which is returned. Neither is synced."""
        full = self.active
        full.write_index_file()
        full.release_memory(self._indexes)
        segment = Segment(self._disk, self._directory, full.end_offset, full.chain)
        segment.create()
        self._segments.append(segment)
        self._bases.append(segment.base)
        self.active = segment
        return segment

    def drop_first(self, count: int) -> None:
        """Forget the oldest ``count`` segments, and nothing of their files."""
        del self._segments[:count], self._bases[:count]
        self.start = self._bases[0]
        self._tail.forget_below(self.start)

    def make_active(self, segment: Segment) -> None:
        """Forget all segments behind this one, which is written again. Its index file goes, since it would not
        describe what is written; the removal is not synced."""
        count = self._place_of(segment.base) + 1
        del self._segments[count:], self._bases[count:]
        self.active = segment
        segment.keep_in_memory()
        remove(self._disk, segment.index_path)

    def cut_tail(self) -> None:
        """Forget what is in memory behind the end of the active segment, which was cut."""
        self._tail.truncate_to(self.end_offset)

    def forget_tail(self) -> None:
        """Keep no batch in memory: reads go to the disk until more is appended."""
        self._tail.shrink_to(0)

    def replace_file(self, segment: Segment, index: SparseIndex, size: int) -> None:
        """Use another file that stands in place of that of a closed segment: the same batches, thinned out."""
        segment.replace(index, size)
        self._tail.forget_below(segment.end_offset)
