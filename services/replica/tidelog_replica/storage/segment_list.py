"""A log as it is read: offsets, batches, headers, times, the hash chain. ``log.py`` changes it."""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tidelog.batch.format import BatchHeader
from tidelog.types import Buffer

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.checkpoints import HighWatermarkCheckpoint
from tidelog_replica.storage.retention import Extent
from tidelog_replica.storage.segment import CorruptLog, Segment
from tidelog_replica.storage.tail_cache import PartitionTail

_STAMP = struct.Struct(">qI")  # base offset, leader epoch: how a batch begins


class Beginning(NamedTuple):
    """What a copy of a log must know that begins where this one does."""

    start: int
    last_epoch: int
    """Leader epoch of the record before ``start``; -1 for none."""
    chain: bytes
    """Hash chain of everything before ``start``."""
    producers: bytes
    """Their state as of ``start``, as ``ProducerState.to_bytes``."""


class Readable:
    """A log as readers see it; ``Log`` fills its attributes."""

    epochs: LeaderEpochCache
    """Which leader epoch each offset belongs to; only the log changes it."""
    end: int
    """Log end offset: the offset that the next record gets."""
    _segments: list[Segment]
    _bases: list[int]
    _tail: PartitionTail
    _committed: HighWatermarkCheckpoint

    @property
    def start(self) -> int:
        """Offset of the first record kept."""
        return self._bases[0]

    @property
    def comparable_from(self) -> int:
        """From here on the hash chain can be compared with that of another replica. Compaction does not change it."""
        return self.start

    def extents(self) -> list[Extent]:
        """Every segment in numbers; the last one is written."""
        return [
            Extent(each.base, each.end_offset, each.size, each.max_timestamp, each.since_ms)
            for each in self._segments
        ]

    def aged_extents(self, oldest_ms: int) -> list[Extent]:
        """Return every segment in numbers, for retention by age: the timestamps of full segments that claim to be
        younger than ``oldest_ms`` are held against the time of their files. Raises ``OSError``."""
        full = [
            extent._replace(max_timestamp=segment.newest_ms()) if extent.max_timestamp >= oldest_ms else extent
            for segment, extent in zip(self._segments[:-1], self.extents(), strict=False)
        ]
        return [*full, *self.extents()[-1:]]

    def extent(self) -> tuple[int, int]:
        """How many segments there are, and their size in bytes."""
        return len(self._segments), sum(segment.size for segment in self._segments)

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> list[Buffer]:
        """Whole batches, one a buffer, from the one that holds ``offset``, none that reaches past ``end`` (default:
        the log end). About ``max_bytes`` at most, but one batch if there is any; perhaps fewer than there are.
        Raises ``OSError``."""
        end = self.end if end is None else min(end, self.end)
        if not self.start <= offset < end:
            return []
        found = self._tail.read(offset, max_bytes, end)
        if found is not None:
            return found
        segment = self._segments[self._segment_of(offset)]
        found = segment.read(offset, max_bytes, end)
        self._check_stamps(segment, found)
        return found

    def _check_stamps(self, segment: Segment, batches: list[Buffer]) -> None:
        """No CRC covers base offset and leader epoch of a batch: its reader could not tell that they are damaged."""
        for batch in batches:
            offset, epoch = _STAMP.unpack_from(batch)
            if epoch != self.epochs.epoch_before(offset + 1):
                raise CorruptLog(segment.path, f"batch at offset {offset} names leader epoch {epoch}")

    def full_segment_after(self, base: int) -> Segment | None:
        """The first segment that begins later than ``base`` and is not written any more."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) - 1 else None

    def segment_after(self, base: int) -> Segment | None:
        """The first segment that begins later than ``base``; the last one is written."""
        place = bisect_right(self._bases, base)
        return self._segments[place] if place < len(self._segments) else None

    def segment_at(self, offset: int) -> Segment:
        """The segment that holds ``offset``, which is in the log."""
        return self._segments[self._segment_of(offset)]

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record before ``offset``; -1 where there is none."""
        return self.epochs.epoch_before(offset)

    def offset_for_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """First batch below ``end`` with a record at or after ``timestamp_ms``: its first offset, and that record's
        timestamp, which may be earlier. None where there is no such batch. Raises ``OSError``."""
        for segment in self._segments:
            if segment.base >= end:
                return None
            header = segment.first_since(timestamp_ms)
            if header is not None:
                return (header.base_offset, header.first_timestamp) if header.end_offset <= end else None
        return None

    def headers(self, start: int | None = None) -> Iterator[BatchHeader]:
        """The headers of all batches from the one that holds ``start`` (default: the log start), each with the CRC
        that its producer sent. Not to be used across a truncation. Raises ``OSError``."""
        offset = self.start if start is None else start
        if offset < self.end:
            for segment in self._segments[self._segment_of(offset) :]:
                yield from segment.headers(offset)

    def sent_header_at(self, offset: int) -> BatchHeader:
        """The header of the batch that holds ``offset``, which is in the log, with the CRC-32C that its producer
        sent. Raises ``OSError``."""
        return next(self.headers(offset))

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """The last end of a batch at or below ``offset``, and the hash chain up to there; the log start, where
        ``offset`` is below it. Raises ``OSError``."""
        return self._segments[max(0, self._segment_of(offset))].chain_at(offset)

    def _segment_of(self, offset: int) -> int:
        return bisect_right(self._bases, offset) - 1

    def read_high_watermark(self) -> int:
        """The HW as last written down, not above the log end; the log start where it is not known."""
        return max(self.start, min(self.written_high_watermark, self.end))

    def remember_high_watermark(self, high_watermark: int) -> None:
        """The log is damaged: this was committed once, whatever is left of it. Raises ``OSError``."""
        self._committed.remember(high_watermark)

    @property
    def written_high_watermark(self) -> int:
        """The high watermark as last written, also where it is above the log end: what lies between is lost here."""
        return self._committed.once
