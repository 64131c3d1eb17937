"""A log that makes room: its oldest segments go (retention), closed ones are thinned out (compaction).

Both are jobs. ``begin_advance`` and ``begin_compaction`` give one, the caller has it run in a thread, and
``complete_advance`` and ``complete_compaction`` take in what it did. At most one of each is under way; a truncation
may come in between, and what the job did to a segment that is gone is then dropped. A third job, ``begin_recall``,
only reads: what a truncation must know.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.runtime.disk import Disk, File
from tidelog.types import TopicConfig

from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import CLEANED, LogStartCheckpoint
from tidelog_replica.storage.compaction import (
    KEYS_AT_ONCE,
    Cleaned,
    Compaction,
    LatestOffsets,
    compactable_end,
    dirty_part,
    has_overdue,
    source_of,
)
from tidelog_replica.storage.copy_reader import ReadBatches
from tidelog_replica.storage.flush import Change
from tidelog_replica.storage.producer_snapshots import RebuildProducerState, Snapshots, TakeSnapshot
from tidelog_replica.storage.retention import DeleteSegments
from tidelog_replica.storage.segment import Segment, remove
from tidelog_replica.storage.segment_list import Beginning, Readable
from tidelog_replica.storage.segment_scrub import Target
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted, Deletions


class Cleanable(Readable):
    """A log that retention and compaction shorten; ``Log`` fills its attributes."""

    producers: ProducerState
    """What the log says of its producers. ``append`` keeps it; a leader tells it of a batch a moment earlier."""
    forgets: bool
    """Nothing was found that tells of producers which have written nothing since the log start."""
    _disk: Disk
    _directory: str
    _config: TopicConfig
    _snapshots: Snapshots
    _usable: bool
    _synced: int
    _generation: int
    _origin: LogStartCheckpoint
    _advance: DeleteSegments | None
    _deletions: Deletions

    def _close(self, file: File) -> None:
        raise AssertionError("the log's")

    def _retire(self, segment: Segment) -> None:
        """Close the segment's file."""
        file = segment.release()
        if file is not None:
            self._close(file)

    def can_advance(self, offset: int) -> bool:
        """Whether whole segments lie below ``offset``, and nothing moves the start already."""
        return self._advance is None and len(self._bases) > 1 and self._bases[1] <= offset and self._usable

    def begin_advance(self, offset: int) -> DeleteSegments | None:
        """Begin with the segment that holds ``offset``; not past the one that is written. None where that changes
        nothing. The caller has the job run, in a thread, and then calls ``complete_advance``, or, where it failed,
        nothing any more."""
        if not self.can_advance(offset):
            return None
        count = min(self._segment_of(offset), len(self._segments) - 1)
        gone, first = self._segments[:count], self._segments[count]
        for segment in gone:
            self._retire(segment)
        last_epoch = self.epochs.epoch_before(first.base)
        origin = LogStartCheckpoint(first.base, last_epoch, first.chain_before)
        del self._segments[:count], self._bases[:count]
        self._synced = max(self._synced, first.base)
        self.epochs.advance_to(first.base)
        self._tail.forget_below(first.base)
        self.producers.transactions.forget_below(first.base)
        self._advance = DeleteSegments(
            self._disk, self._directory, origin, tuple(gone), self.producers.copy(), self._generation
        )
        return self._advance

    def complete_advance(self, advance: DeleteSegments) -> None:
        """The job has run."""
        if advance is self._advance:
            self._advance, self._origin = None, advance.origin

    def advance_start(self, offset: int) -> bool:
        """``begin_advance`` to ``complete_advance``, in the caller's thread; whether the start moved. Raises
        ``OSError``; the log is then unusable."""
        advance = self.begin_advance(offset)
        if advance is None:
            return False
        with Change(self):
            advance.run()
            self.complete_advance(advance)
        return True

    @property
    def generation(self) -> int:
        """How often the log was cut or thrown away."""
        return self._generation

    # --- the past ----------------------------------------------------------------------------------------

    def _load_producers(self, names: Sequence[str] | None = None) -> None:
        """Forget what is behind the log end, or know what is before it. ``names``: of all files that are there."""
        found = self._snapshots.newest(self.start, self.end, self.chain_at, names)
        self.forgets = found is None and self.start > 0
        offset, state = found or (self.start, self.producers.before(self.start))
        self.producers.rebuild(self.headers(offset), state)
        self.producers.transactions.forget_below(self.start)

    def begin_recall(self, end: int) -> RebuildProducerState | None:
        """What ``truncate`` must read to know the producers at ``end``, as a job for a thread while no other job of
        the log runs; None where it knows them already. Its result is good until the log is cut or reset."""
        if end >= self.end or not self.producers.reaches(end):
            return None
        twins = tuple(segment.twin() for segment in self._segments[: self._segment_of(end) + 1])
        return RebuildProducerState(self._disk, self._directory, twins, end, self.producers.copy(), self._generation)

    def begin_reading(self, offset: int, end: int, length: int) -> ReadBatches | None:
        """Read about ``length`` bytes of what is synced from the disk, from the batch that holds ``offset`` on and up
        to ``end``, as a job for a thread; it only reads. None where nothing is synced there. Raises ``OSError``."""
        if not self.start <= offset < min(end, self._synced):
            return None
        segment = self.segment_at(offset)
        is_full = segment is not self._segments[-1]
        target = Target.of(segment, None if is_full else self._synced)
        entry = segment.index.for_offset(offset)
        epochs = LeaderEpochCache(self.epochs.entries)
        return ReadBatches(
            self._disk, target, offset, end, length, entry.position, entry.offset, epochs, self._generation
        )

    def is_still(self, target: Target, generation: int) -> bool:
        """Whether the log was not cut since that ``generation``, and the segment is still there and was not
        rewritten."""
        return generation == self._generation and target.is_still(self.segment_after(target.base - 1))

    def _starts(self) -> tuple[int, ...]:
        """Where the log begins, and where it begins on the disk: the start may be moving."""
        return self.start, self._origin.start

    def complete_snapshot(self, snapshot: TakeSnapshot) -> None:
        """The job has run. What was taken of a log that was cut meanwhile is removed. Raises ``OSError``."""
        if snapshot.generation != self._generation and snapshot.offset not in self._starts():
            with Change(self):
                self._snapshots.forget(snapshot.offset)

    def snapshot(self) -> Beginning:
        """What a copy must know that begins where this log does, as far as that is durable. Raises ``OSError``."""
        start, last_epoch, chain = self._origin
        state = self._snapshots.read(start, chain) if start else None
        if state is None:
            state = self.producers.before(start).to_bytes()
        return Beginning(start, last_epoch, chain, state)

    # --- compaction --------------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Below it the log was compacted at least once, as far as is remembered."""
        return max(self.start, min(self._deletions.compacted_to, self.end))

    @property
    def compacted(self) -> Compacted:
        """How far the log is compacted, for a copy of it."""
        return Compacted(self.compacted_to, min(self._deletions.tombstones_to, self.end))

    def compacted_behind(self, offset: int) -> Compacted:
        """How far the log is compacted, for a copy that has everything up to ``offset``: 0 for what is not behind
        that."""
        if not self._deletions.reach_behind(offset):
            return UNKNOWN
        return Compacted._make(to if to > offset else 0 for to in self.compacted)

    def lacks(self, source: Compacted) -> bool:
        """Whether the log, if it went on with batches of ``source``, may keep values for ever that are deleted: it
        never gets their tombstones. It has to start over."""
        return self._deletions.lacks(self.start, self.end, source)

    def begin_compaction(
        self, high_watermark: int, now_ms: int, min_dirty_ratio: float, keys_at_once: int = KEYS_AT_ONCE
    ) -> Compaction | None:
        """A pass over the closed segments below ``high_watermark``; None where none is due: the part that was not
        compacted yet is small, and no record of it has waited for ``max_compaction_lag_ms``. Run it, call
        ``complete_compaction``, and again while that says so; where a run failed, nothing any more."""
        extents, transactions = self.extents(), self.producers.transactions
        stable = transactions.stable_end(high_watermark)
        dirty, end = self.compacted_to, compactable_end(extents, stable, self._config, now_ms)
        if not self._usable or end <= dirty:
            return None
        overdue = has_overdue(extents, dirty, end, self._config, now_ms)
        if not overdue and dirty_part(extents, dirty, end) < min_dirty_ratio:
            return None
        return Compaction(
            self._disk,
            self._directory,
            [source_of(segment) for segment in self._segments if segment.end_offset <= end],
            dirty,
            end,
            now_ms,
            self._config.tombstone_retention_ms,
            LatestOffsets(keys_at_once),
            transactions.aborted_from(self.start),
            self._generation,
        )

    def complete_compaction(self, compaction: Compaction, cleaned: Cleaned | None) -> bool:
        """A run is over: put what it made in place. Whether the pass goes on. Raises ``OSError``; the log is then
        unusable."""
        with Change(self):
            if cleaned is not None:
                self._put_in_place(compaction, cleaned)
            if compaction.generation != self._generation:
                return False
            compaction.number += 1
            while (source := compaction.source) is not None and source.base < self.start:
                compaction.number += 1  # retention was faster
            if source is None:
                self._deletions.on_pass(compaction.end)
            return source is not None

    def _put_in_place(self, compaction: Compaction, cleaned: Cleaned) -> None:
        place = self._segment_of(cleaned.base)
        segment = self._segments[place] if place >= 0 else None
        if compaction.generation != self._generation or segment is None or segment.base != cleaned.base:
            remove(self._disk, f"{self._directory}/{cleaned.base:020d}.log{CLEANED}")
            return
        self._deletions.before_tombstones_go(cleaned.tombstones_to)
        self._retire(segment)
        self._disk.rename(segment.path + CLEANED, segment.path)
        self._disk.sync_dir(self._directory)
        segment.replace(cleaned.entries, cleaned.size)
        self._tail.forget_below(segment.end_offset)

    def compact(self, high_watermark: int, now_ms: int, keys_at_once: int = KEYS_AT_ONCE) -> None:
        """Whole passes, one after the other, in the caller's thread, whatever the dirty part. Raises ``OSError``."""
        while (compaction := self.begin_compaction(high_watermark, now_ms, 0.0, keys_at_once)) is not None:
            while self.complete_compaction(compaction, compaction.run()):
                continue
