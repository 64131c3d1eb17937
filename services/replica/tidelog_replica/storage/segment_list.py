"""The segments of one log, in order: reading, finding offsets and times, the hash chain, and the tail in memory.

The list is never empty. Its segments join without a gap, and only the last one, the *active* segment, is written. The
other segments are *closed*: each has an index file, and their indexes share a bounded cache. The newest batches are
in memory, too (``tail_cache.py``), so that a read at the log's end needs no disk read. What is removed from the list,
at either end, is removed from the tail as well.

The list knows no flush, no producer and no high watermark: ``log.py`` decides what is appended, removed and closed.
A batch that is read from the disk is checked against the leader epochs of the log, because no CRC covers them.
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

_STAMP = struct.Struct(">qI")  # base offset and leader epoch, with which a batch begins


class SegmentList:
    """The segments of one open log, oldest first; the last one of ``segments`` becomes the active one. It lives as
    long as the log is open, or until a reset. ``epochs`` are the leader epochs of the log, which the list only reads.
    ``tails`` and ``indexes`` are caches shared with other logs; by default the list makes its own. Every method may
    raise ``OSError``."""

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
        """Log start: the offset of the first record that is kept."""
        self.active = segments[-1]
        """The last segment, the only one that is written."""
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
        """Return the log end offset: the offset that the next record gets."""
        return self.active.end_offset

    # --- the segments ------------------------------------------------------------------------------------

    def extents(self) -> list[SegmentExtent]:
        """Return bounds, size and age of every segment, oldest first; the last one is the active segment."""
        return [segment.extent() for segment in self._segments]

    def aged_extents(self, oldest_ms: int) -> list[SegmentExtent]:
        """Return bounds, size and age of every segment, oldest first, for retention by age. The newest timestamp of a
        closed segment is replaced by the time at which its file was last written if that is earlier. Only segments
        whose newest timestamp is ``oldest_ms`` or later (ms since 1970) are looked up, because the others are old
        enough anyway."""
        full = [
            extent._replace(max_timestamp=segment.newest_ms()) if extent.max_timestamp >= oldest_ms else extent
            for segment, extent in zip(self._segments[:-1], self.extents(), strict=False)
        ]
        return [*full, *self.extents()[-1:]]

    def written_extents(self, end: int) -> list[SegmentExtent]:
        """Return bounds and size of every closed segment that ends at or below offset ``end``, oldest first, each
        with the time at which its file was last written in place of the newest timestamp."""
        closed = [segment for segment in self._segments[:-1] if segment.end_offset <= end]
        return [segment.extent()._replace(max_timestamp=segment.written_ms()) for segment in closed]

    def count_and_bytes(self) -> tuple[int, int]:
        """Return the number of segments of the log, and the bytes of their batches together."""
        return len(self._segments), sum(segment.size for segment in self._segments)

    def closed(self) -> list[Segment]:
        """Return all segments but the active one, oldest first."""
        return self._segments[:-1]

    def closed_segment_after(self, base: int) -> Segment | None:
        """Return the first closed segment that begins above offset ``base``; None if there is none."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) - 1 else None

    def segment_after(self, base: int) -> Segment | None:
        """Return the first segment, closed or active, that begins above offset ``base``; None if there is none."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) else None

    def segment_at(self, offset: int) -> Segment:
        """Return the segment that holds ``offset``; the active one if the offset is at or above the end. The offset
        must not be below the start."""
        return self._segments[self._place_of(offset)]

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that holds ``offset`` and all later ones, oldest first. The offset must not be below the
        log start."""
        return self._segments[self._place_of(offset) :]

    def behind(self, segment: Segment) -> list[Segment]:
        """Return the segments that follow ``segment`` in the log, oldest first; an empty list if it is the last
        one."""
        return self._segments[self._place_of(segment.base) + 1 :]

    def up_to(self, offset: int) -> list[Segment]:
        """Return the segments from the log start to the one that holds ``offset``, inclusive, oldest first."""
        return self._segments[: self._place_of(offset) + 1]

    def files_from(self, offset: int) -> list[File]:
        """Return the files of the segment that holds ``offset`` and of all later ones; those that are not open are
        opened. The offset must not be below the log start."""
        return [segment.file for segment in self._segments[self._place_of(offset) :]]

    def _place_of(self, offset: int) -> int:
        """Return the place in the list of the segment that holds ``offset``; -1 if the offset is below the start."""
        return bisect_right(self._bases, offset) - 1

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int) -> list[Buffer]:
        """Return whole batches, one per buffer, from the one that holds ``offset`` on, none of which reaches past
        ``end``. They have about ``max_bytes`` at most, but there is at least one if the log has one; a read may
        return fewer than would fit. Return an empty list if ``offset`` is below the start or not below ``end``.
        Batches in memory cost no disk read. Raises ``CorruptLog`` if what the disk returns is damaged or of a wrong
        leader epoch."""
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
        """Raise ``CorruptLog`` if a batch names another leader epoch than the log has at its offset. This check is
        needed because no CRC covers base offset and leader epoch of a batch."""
        for batch in batches:
            offset, epoch = _STAMP.unpack_from(batch)
            if epoch != self._epochs.epoch_before(offset + 1):
                raise CorruptLog(segment.path, f"batch at offset {offset} names leader epoch {epoch}")

    def headers(self, start: int | None = None) -> Iterator[BatchHeader]:
        """Yield the headers of all batches from the one that holds ``start`` (default: the log start) to the log end,
        each with the CRC that its producer sent. Yields nothing if ``start`` is at or above the end. The iteration
        must not go on after the log was cut. Raises ``CorruptLog`` if a header is damaged."""
        offset = self.start if start is None else start
        if offset < self.end_offset:
            for segment in self.from_offset(offset):
                yield from segment.headers(offset)

    def offset_for_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """Return the first offset of the first batch that has a record at or after ``timestamp_ms`` (ms since 1970),
        and the timestamp of that batch's first record, which may be earlier. Return None if there is no such batch,
        or if it ends above ``end``."""
        for segment in self._segments:
            if segment.base >= end:
                return None
            header = segment.first_since(timestamp_ms)
            if header is not None:
                return (header.base_offset, header.first_timestamp) if header.end_offset <= end else None
        return None

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """Return the offset of the last batch boundary at or below ``offset``, and the hash chain of the log up to
        that boundary. If ``offset`` is below the log start, the boundary is the log start."""
        return self._segments[max(0, self._place_of(offset))].chain_at(offset)

    # --- what the list holds -----------------------------------------------------------------------------

    def remember(self, header: BatchHeader, batch: bytes) -> None:
        """Add a batch that was just written to the active segment to the tail in memory, from which reads at the
        log's end are served."""
        self._tail.append(header.base_offset, header.end_offset, batch)

    def roll(self) -> Segment:
        """Close the active segment: write its index file and release its index from memory. Create the file of a new,
        empty segment behind it, make that the active one, and return it. Nothing is synced."""
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
        """Remove the oldest ``count`` segments from the list, and their batches from the tail in memory, so that the
        log start moves up. Their files stay."""
        del self._segments[:count], self._bases[:count]
        self.start = self._bases[0]
        self._tail.forget_below(self.start)

    def make_active(self, segment: Segment) -> None:
        """Remove all segments behind ``segment`` from the list, so that it becomes the active one again. Its index
        file is deleted, unsynced, since it would not describe what is written from now on. The files of the removed
        segments stay."""
        count = self._place_of(segment.base) + 1
        del self._segments[count:], self._bases[count:]
        self.active = segment
        segment.keep_in_memory()
        remove(self._disk, segment.index_path)

    def cut_tail(self) -> None:
        """Remove the batches behind the end of the active segment, which was just cut, from the tail in memory."""
        self._tail.truncate_to(self.end_offset)

    def forget_tail(self) -> None:
        """Remove all batches from the tail in memory. Reads go to the disk until more is appended."""
        self._tail.shrink_to(0)

    def replace_file(self, segment: Segment, index: SparseIndex, size: int) -> None:
        """Use the compacted file that was just renamed over a closed segment's file, with its ``index`` and its
        ``size`` in bytes. The log's batches up to the end of that segment are removed from the tail in memory."""
        segment.replace(index, size)
        self._tail.forget_below(segment.end_offset)
