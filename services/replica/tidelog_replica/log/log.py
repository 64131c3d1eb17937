"""The log of one partition: append, read, flush, truncate.

Theory. The log is a row of segments; the last one is written. Three offsets: ``start`` <= ``durable`` <= ``end``.
Appends go to the page cache in the caller's thread and move ``end``. A flush is in two halves, so that the sync
between them can run in a thread while appends go on: ``begin_flush`` names the files that hold what is not durable
yet (full segments among them, the leader-epoch file where it has grown, the directory where it has), and
``complete_flush`` moves ``durable``. Whatever is appended meanwhile is the next flush's: group commit.

Invariants: every segment is whole batches with consecutive offsets; the leader-epoch file tells each batch's epoch
before the batch is written; the recovery mark is never above what is synced (see ``recovery``).

After an ``OSError`` in a call that writes nobody can say what is on the disk: half a batch, or a whole one that was
reported as failed. Its offsets must not be used again in the same leader epoch, so the log refuses every further
change until it is opened again. A flush that failed is not completed, and no other is begun.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidelog.disk import Disk, File
from tidelog.records import BatchHeader, read_header
from tidelog.types import Buffer, TopicConfig

from tidelog_replica.core.epochs import ENTRY_BYTES, EpochCache
from tidelog_replica.log.recovery import Recovered, recover, remove
from tidelog_replica.log.segment import CorruptLog, Segment
from tidelog_replica.log.tail import Tail, TailCache

__all__ = ["CorruptLog", "Flush", "Log"]


@dataclass(frozen=True, slots=True)
class Flush:
    """What has to be synced so that everything below ``end`` is durable. ``run`` does it, in any thread."""

    files: tuple[File, ...]
    end: int
    directory: tuple[Disk, str] | None = None
    """Set where new names must be made durable too."""
    generation: int = 0
    """How often the log had been truncated."""

    def run(self) -> None:
        """Sync everything. Raises ``OSError``; the flush has then failed for good."""
        for file in self.files:
            file.sync()
        if self.directory is not None:
            disk, path = self.directory
            disk.sync_dir(path)


class Log:
    """Made by ``open``. One owner; only ``Flush.run`` may run beside the other methods."""

    def __init__(
        self, disk: Disk, directory: str, config: TopicConfig, found: Recovered, tails: TailCache | None = None
    ) -> None:
        self.epochs: EpochCache = found.epochs
        """Which leader epoch each offset belongs to; only the log changes it."""
        self.end = found.segments[-1].end_offset
        """Log end offset: the offset that the next record gets."""
        self._disk = disk
        self._directory = directory
        self._segment_max_bytes = config.segment_max_bytes
        self._lazy = config.flush == "os"
        self._segments = found.segments
        self._bases = [segment.base for segment in found.segments]
        self._tail = Tail(self.end, cache=tails)
        self._epochs_file = found.epochs_file
        self._mark = found.mark
        self._high_watermark = found.high_watermark
        self._synced = self.end
        self._epochs_grown = False
        self._directory_grown = False
        self._generation = 0
        self._flush: Flush | None = None
        self._retired: list[File] = []
        self._usable = True

    @classmethod
    def open(cls, disk: Disk, directory: str, config: TopicConfig, tails: TailCache | None = None) -> Log:
        """Recover the log in ``directory``, or make a new one; everything in it is then synced. ``tails``:
        shared with other logs. Raises ``CorruptLog`` where durable bytes are damaged, and other ``OSError``s."""
        return cls(disk, directory, config, recover(disk, directory), tails)

    @property
    def start(self) -> int:
        """Offset of the first record kept."""
        return self._bases[0]

    @property
    def durable(self) -> int:
        """Everything below it is durable under the topic's flush policy; under ``os`` that is the log end."""
        return self.end if self._lazy else self._synced

    # --- append ------------------------------------------------------------------------------------------

    def append(self, batches: Sequence[Buffer]) -> None:
        """Append whole, checked batches as their leader stamped them, consecutive from ``end``. They are copied.
        Raises ``OSError``: their outcome is then unknown, and the log is unusable."""
        owned = [bytes(batch) for batch in batches]
        headers = [read_header(batch) for batch in owned]
        with _Change(self):
            active, first, size = self._segments[-1], 0, self._segments[-1].size
            end = self.end
            for number, header in enumerate(headers):
                assert header.base_offset == end, f"batch at offset {header.base_offset} appended at {end}"
                end = header.base_offset + header.record_count
                if header.leader_epoch != self.epochs.latest():
                    self._begin_epoch(header.leader_epoch, header.base_offset)
                if size and size + header.batch_length > self._segment_max_bytes:
                    if number > first:
                        active.append(headers[first:number], owned[first:number])
                    active, first, size = self._roll(), number, 0
                size += header.batch_length
            active.append(headers[first:], owned[first:])
            for header, batch in zip(headers, owned, strict=True):
                self._tail.append(header.base_offset, header.end_offset, batch)
            self.end = end

    def assign_epoch(self, epoch: int) -> None:
        """``epoch`` begins at the log end, durably. The leader does this before it appends. Raises ``OSError``."""
        with _Change(self):
            self._begin_epoch(epoch, self.end)
            self._epochs_file.sync()
            self._epochs_grown = False

    def _begin_epoch(self, epoch: int, start: int) -> None:
        if self.epochs.assign(epoch, start):
            self._epochs_file.pwritev([self.epochs.last_bytes()], self.epochs.position())
            self._epochs_grown = True

    def _roll(self) -> Segment:
        """Begin a new segment. The order of what reaches the disk does not matter: above the mark a gap or a missing
        file is a torn tail."""
        full = self._segments[-1]
        full.seal()
        segment = Segment(self._disk, self._directory, full.end_offset)
        segment.create()
        self._directory_grown = True
        self._segments.append(segment)
        self._bases.append(segment.base)
        return segment

    # --- flush -------------------------------------------------------------------------------------------

    def begin_flush(self) -> Flush | None:
        """What to sync now; None where nothing waits for it (always under ``os``). The caller runs it and then calls
        ``complete_flush``, or, where it failed, nothing any more."""
        assert self._flush is None, "one flush at a time"
        if self._lazy or self._synced == self.end or not self._usable:
            return None
        files = [segment.file for segment in self._segments[self._segment_of(self._synced) :]]
        if self._epochs_grown:
            files.append(self._epochs_file)
        directory = (self._disk, self._directory) if self._directory_grown else None
        self._epochs_grown = self._directory_grown = False
        self._flush = Flush(tuple(files), self.end, directory, self._generation)
        return self._flush

    def complete_flush(self, flush: Flush) -> None:
        """``flush`` has run: ``durable`` moves to its end, unless the log was truncated meanwhile. Raises
        ``OSError``."""
        assert flush is self._flush
        self._flush = None
        for file in self._retired:
            file.close()
        self._retired.clear()
        if flush.generation == self._generation and self._usable:
            with _Change(self):
                self._synced = flush.end
                self._mark.write(flush.end)

    def discard_unsynced(self) -> None:
        """A flush failed: cut what it covered out of the files. It may be nowhere but in the page cache, where it
        looks sound and counts as clean: the next life would sync it with success, and lose it with the next power
        loss. The log is unusable. Raises ``OSError``: then only a restart of the machine helps."""
        self._usable = False
        keep = self._segment_of(self._synced)
        for segment in reversed(self._segments[keep + 1 :]):
            remove(self._disk, segment.path)
            remove(self._disk, segment.index_path)
        remove(self._disk, self._segments[keep].index_path)
        self._segments[keep].cut(self._synced)

    # --- read --------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> list[Buffer]:
        """Whole batches, one a buffer, from the one that holds ``offset``, none that reaches past ``end`` (default:
        the log end). About ``max_bytes`` at most, but one batch if there is any; perhaps fewer than there are.
        Raises ``OSError``."""
        end = self.end if end is None else min(end, self.end)
        if not self.start <= offset < end:
            return []
        found = self._tail.read(offset, max_bytes, end)
        return self._segments[self._segment_of(offset)].read(offset, max_bytes, end) if found is None else found

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
        """The headers of all batches from the one that holds ``start`` (default: the log start). Not to be used
        across a truncation. Raises ``OSError``."""
        offset = self.start if start is None else start
        if offset < self.end:
            for segment in self._segments[self._segment_of(offset) :]:
                yield from segment.headers(offset)

    def _segment_of(self, offset: int) -> int:
        return bisect_right(self._bases, offset) - 1

    # --- truncate ----------------------------------------------------------------------------------------

    def truncate(self, end: int) -> None:
        """End at ``end``, durably; a batch that would be cut in two goes whole. Epochs that begin there or later are
        forgotten. Everything that is left is durable. Raises ``OSError``; the log is then unusable.

        Crash-safe at each step: first the mark comes down, durably, and whatever is then found above it may be cut.
        """
        assert self.start <= end <= self.end, f"cut at {end}, of {self.start} to {self.end}"
        with _Change(self):
            if end < self.end:
                self._generation += 1
                self._cut_segments(end)
            if self.epochs.truncate_to(self._segments[-1].end_offset):
                self._epochs_file.pwritev([self.epochs.last_bytes(0)], self.epochs.position(0))
                self._epochs_file.truncate(self.epochs.position(0) + ENTRY_BYTES)
                self._epochs_file.sync()

    def _cut_segments(self, end: int) -> None:
        keep = self._segment_of(end)
        self._mark.write(min(self._synced, self._segments[keep].base))
        self._mark.sync()
        for segment in reversed(self._segments[keep + 1 :]):
            self._retire(segment)
            remove(self._disk, segment.path)
            remove(self._disk, segment.index_path)
        del self._segments[keep + 1 :], self._bases[keep + 1 :]
        active = self._segments[-1]
        remove(self._disk, active.index_path)
        self._disk.sync_dir(self._directory)
        self._directory_grown = False
        active.cut(end)
        for segment in self._segments[min(self._segment_of(self._synced), keep) :]:
            segment.file.sync()
        self._epochs_file.sync()
        self._epochs_grown = False
        self.end = self._synced = active.end_offset
        self._tail.truncate_to(self.end)
        self._mark.write(self.end)

    def _retire(self, segment: Segment) -> None:
        file = segment.release()
        if file is not None:
            self._close(file)

    def _close(self, file: File) -> None:
        """A file that a flush is syncing is closed when that is over: its descriptor could become another file's."""
        if self._flush is None:
            file.close()
        else:
            self._retired.append(file)

    # --- the rest ----------------------------------------------------------------------------------------

    def read_high_watermark(self) -> int:
        """The HW as last written down, not above the log end; the log start where it is not known."""
        return max(self.start, min(self._high_watermark.value or 0, self.end))

    def write_high_watermark(self, high_watermark: int) -> None:
        """Write the HW down: cheap, not synced, never torn. Raises ``OSError``."""
        self._high_watermark.write(high_watermark)

    def close(self) -> None:
        """Close the files; not a flush. Those of a flush that still runs are closed when it is completed."""
        self._usable = False
        self._tail.shrink_to(0)
        for segment in self._segments:
            self._retire(segment)
        for file in (self._epochs_file, self._mark.file, self._high_watermark.file):
            self._close(file)


class _Change:
    """Around everything that writes: an ``OSError`` makes the log unusable."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __enter__(self) -> None:
        if not self._log._usable:
            raise OSError(errno.EIO, "the log failed earlier and must be opened again", self._log._directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            self._log._usable = False
