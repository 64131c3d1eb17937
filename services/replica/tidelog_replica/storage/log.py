"""The log of one partition: append, read, flush, truncate.

Theory. The log is a row of segments (``segment_list.py``); the last one is written. Three offsets: ``start`` <=
``durable`` <= ``end``. Appends go to the page cache in the caller's thread and move ``end``; a flush moves
``durable`` (``flush.py``).

The log start moves up with retention (``retention.py``), by whole segments; compaction (``compaction.py``) gives a
closed segment another file with the same batches, thinned out. Both are jobs in two halves: ``begin_…`` returns a
job, the caller has it run in a thread, and ``complete_…`` takes in what it did. At most one of each is under way. A
truncation may come in between; what a job did to a segment that is gone is then dropped. Both leave offsets, batch
boundaries, epochs, the hash chain and the producers' state as they were.

Invariants: every segment is whole batches with consecutive offsets; the leader-epoch file names each batch's
epoch before the batch is written; the recovery point is never above what is synced (see ``recovery``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.batch.format import NO_CHAIN, BatchHeader, read_header, with_sent_crc
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer, TopicConfig

from tidelog_replica.replication.leader_epochs import ENTRY_BYTES, LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import CopyStart, LogStartCheckpoint
from tidelog_replica.storage.compaction import KEYS_AT_ONCE, Cleaned, Compaction, Compactor, roll_age_ms
from tidelog_replica.storage.copy_reader import ReadBatches
from tidelog_replica.storage.flush import Flush, WriteGuard
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.producer_snapshots import RebuildProducerState, Snapshots, WriteProducerSnapshot
from tidelog_replica.storage.recovery import reset
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog, tail_start
from tidelog_replica.storage.recovery.pending_losses import PendingLosses
from tidelog_replica.storage.recovery.recovery import Recovered, recover
from tidelog_replica.storage.retention import DeleteSegments, Retention
from tidelog_replica.storage.segment import CorruptLog, Segment, remove
from tidelog_replica.storage.segment_list import SegmentList
from tidelog_replica.storage.segment_scrub import ScrubTarget
from tidelog_replica.storage.tail_cache import LogTailCache
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted, Deletions

__all__ = ["CopyStart", "CorruptLog", "DoubtfulLog", "Log"]

RECOVERY_POINT_BYTES = 4 << 20
"""When so many bytes were appended since the recovery point was last synced, the next flush syncs it too."""
SNAPSHOT_BATCHES = 2048
"""After so many batches, and four for each producer, what the producers had written is written down in a snapshot. A
log that is cut, as a follower's in a failover, first reads the headers behind the newest one (12 us each)."""


class Log:
    """Made by ``open``. One owner; only ``Flush.run`` may run beside the other methods."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        found: Recovered,
        tails: LogTailCache | None = None,
        indexes: IndexCache | None = None,
    ) -> None:
        self.producers = ProducerState()
        """What the producers have written to this log. ``append`` keeps it; a leader records a batch a moment
        earlier."""
        self.forgets = False
        """Nothing was found about producers that have written nothing since the log start."""
        self._disk = disk
        self._directory = directory
        self._snapshots = Snapshots(disk, directory)
        self._config = config
        self._lazy = config.flush == "os"
        self._tails = tails
        self._indexes = indexes
        self._generation = 0
        self._writing = WriteGuard(directory)
        self._flush: Flush | None = None
        self._retired: list[File] = []
        """Closed by the log, and perhaps being synced by the flush that is under way."""
        self._adopt(found)
        self._load_producers(found.names)

    def _adopt(self, found: Recovered) -> None:
        """Become the log that was found."""
        self.epochs: LeaderEpochCache = found.epochs
        """Which leader epoch each offset belongs to; only the log changes it."""
        self.segments = SegmentList(
            self._disk, self._directory, found.segments, found.epochs, self._tails, self._indexes
        )
        """What the log holds, for reading; only the log changes it."""
        self.end = self.segments.end_offset
        """Log end offset: the offset that the next record gets."""
        self.pending_losses = PendingLosses(self._disk, self._directory, found.names)
        self._deletions = Deletions(self._disk, self._directory, found.names)
        self._deletions.on_cut(tail_start(found.names))  # how far what follows was compacted is not known
        self._retention = Retention(self._disk, self._directory, self.segments, found.log_start)
        self._compactor = Compactor(self._disk, self._directory, self.segments, self._deletions)
        self._epochs_file = found.epochs_file
        self._recovery_point = found.recovery_point
        self._committed = found.committed
        self._synced = self.end
        self._appended = self._appended_when_synced = 0
        """Bytes that this process appended: all, and until the recovery point was last synced."""
        self._epochs_grown = False
        self._epochs_unsure = found.epochs_unsure
        self._directory_grown = found.directory_grown
        self._rolled = False
        self._batches = 0
        """Appended since the last snapshot."""
        self.snapshot_due: WriteProducerSnapshot | None = None
        """A snapshot of the producers that is to be written; only the log changes it."""
        self._active_since_ms: int | None = None
        self._looked_ms: int | None = None
        self._reopened = self.segments.active.size > 0

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        tails: LogTailCache | None = None,
        indexes: IndexCache | None = None,
        *,
        intact: bool = False,
        has_peers: bool = False,
    ) -> Log:
        """Recover the log in ``directory``, or make a new one; everything in it is then synced. ``tails`` and
        ``indexes``: shared with other logs. ``intact``: nothing that was written can be missing, synced or not.
        ``has_peers``: other replicas can be asked what a torn end was. Raises ``CorruptLog`` where durable bytes are
        damaged, ``DoubtfulLog``, and other ``OSError``s."""
        found = recover(disk, directory, intact=intact or config.flush != "os", has_peers=has_peers)
        try:
            return cls(disk, directory, config, found, tails, indexes)
        except OSError:
            found.close()
            raise

    @property
    def start(self) -> int:
        """Offset of the first record kept."""
        return self.segments.start

    @property
    def durable(self) -> int:
        """Everything below it is durable under the topic's flush policy; under ``os`` that is the log end."""
        return self.end if self._lazy else self._synced

    @property
    def synced(self) -> int:
        """Everything below it is on the disk, whatever the flush policy."""
        return self._synced

    @property
    def generation(self) -> int:
        """How often the log was cut or thrown away."""
        return self._generation

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings of the topic; the flush policy never changes."""
        assert config.flush == self._config.flush
        self._config = config

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def comparable_from(self) -> int:
        """From here on the hash chain can be compared with that of another replica. Compaction does not change it."""
        return self.segments.start

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> list[Buffer]:
        """Whole batches, one a buffer, from the one that holds ``offset``, none that reaches past ``end`` (default:
        the log end). About ``max_bytes`` at most, but one batch if there is any; perhaps fewer than there are.
        Raises ``OSError``."""
        return self.segments.read(offset, max_bytes, self.end if end is None else min(end, self.end))

    def epoch_at(self, offset: int) -> int:
        """Leader epoch of the record before ``offset``; -1 where there is none."""
        return self.epochs.epoch_before(offset)

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """The last end of a batch at or below ``offset``, and the hash chain up to there; the log start, where
        ``offset`` is below it. Raises ``OSError``."""
        return self.segments.chain_at(offset)

    def offset_for_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """First batch below ``end`` with a record at or after ``timestamp_ms``: its first offset, and that record's
        timestamp, which may be earlier. None where there is no such batch. Raises ``OSError``."""
        return self.segments.offset_for_timestamp(timestamp_ms, end)

    def sent_header_at(self, offset: int) -> BatchHeader:
        """The header of the batch that holds ``offset``, which is in the log, with the CRC-32C that its producer
        sent. Raises ``OSError``."""
        return next(self.segments.headers(offset))

    def begin_reading(self, offset: int, end: int, length: int) -> ReadBatches | None:
        """Read about ``length`` bytes of what is synced from the disk, from the batch that holds ``offset`` on and up
        to ``end``, as a job for a thread; it only reads. None where nothing is synced there. Raises ``OSError``."""
        if not self.start <= offset < min(end, self._synced):
            return None
        segment = self.segments.segment_at(offset)
        is_full = segment is not self.segments.active
        target = ScrubTarget.of(segment, None if is_full else self._synced)
        entry = segment.index.for_offset(offset)
        epochs = LeaderEpochCache(self.epochs.entries)
        return ReadBatches(
            self._disk, target, offset, end, length, entry.position, entry.offset, epochs, self._generation
        )

    def is_still(self, target: ScrubTarget, generation: int) -> bool:
        """Whether the log was not cut since that ``generation``, and the segment is still there and was not
        rewritten."""
        return generation == self._generation and target.is_still(self.segments.segment_after(target.base - 1))

    # --- append ------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Buffer],
        source: Compacted = UNKNOWN,
        headers: Sequence[BatchHeader] | None = None,
    ) -> None:
        """Append whole, checked batches as their leader stamped them, consecutive from ``end``. They are copied.
        ``source``: how far the log is compacted that they come from; this one does not lack its tombstones.
        ``headers``: of the batches, if they have been read already. Raises ``OSError``: their outcome is then
        unknown, and the log is unusable."""
        owned = [bytes(batch) for batch in batches]
        headers = [read_header(batch) for batch in owned] if headers is None else headers
        with self._writing:
            self._deletions.before_append(self.segments.start, self.end, source)
            active, first, size = self.segments.active, 0, self.segments.active.size
            end = self.end
            for number, header in enumerate(headers):
                assert header.base_offset == end, f"batch at offset {header.base_offset} appended at {end}"
                end = header.base_offset + header.record_count
                if header.leader_epoch != self.epochs.latest() or self._epochs_unsure:
                    self._begin_epoch(header.leader_epoch, header.base_offset)
                if size and size + header.batch_length > self._config.segment_max_bytes:
                    if number > first:
                        active.append(headers[first:number], owned[first:number])
                    active, first, size = self._roll(), number, 0
                size += header.batch_length
                self._appended += header.batch_length
            active.append(headers[first:], owned[first:])
            for header, batch in zip(headers, owned, strict=True):
                self.segments.remember(header, batch)
                if header.producer_id:
                    self.producers.record(with_sent_crc(header, batch), header.base_offset)
            self.end = end
            self._batches += len(headers)
            self._prepare_snapshot()

    def assign_epoch(self, epoch: int) -> None:
        """Let ``epoch`` begin at the log end. The leader does this before it appends. The entry is durable with the
        epoch's first batch: a server that comes to lead a thousand partitions at once must not wait for as many
        syncs. Before that batch is durable nothing relies on the epoch, which is never resumed. Raises
        ``OSError``."""
        with self._writing:
            self._begin_epoch(epoch, self.end)

    def _begin_epoch(self, epoch: int, start: int) -> None:
        """Write to the leader-epoch file that ``epoch`` begins at ``start``, before anything relies on it. Entries at
        or above the recovery point may be in the page cache only: they are written again. Those below it are durable
        and are not written, so as not to be at risk."""
        if self.epochs.assign(epoch, start) or self._epochs_unsure:
            count = self.epochs.count_from(self._recovery_point.value or 0) if self._epochs_unsure else 1
            self._epochs_file.pwritev([self.epochs.last_bytes(count)], self.epochs.position(count))
            self._epochs_unsure, self._epochs_grown = False, True

    def _roll(self) -> Segment:
        """Begin a new segment. The order of what reaches the disk does not matter: above the recovery point a gap or
        a missing file is a torn tail."""
        full = self.segments.active
        full.since_ms = self._looked_ms if self._active_since_ms is None else self._active_since_ms
        segment = self.segments.roll()
        self._directory_grown = self._rolled = True
        self._active_since_ms, self._reopened = None, False
        return segment

    def roll_if_old(self, wall_ms: int) -> bool:
        """Close the active segment if a call saw its first record ``roll_age_ms`` ago or earlier. To be called now
        and then. The age of a segment that an earlier process wrote counts from the timestamp of its first record. If
        that lies in the future, the segment counts as old. Where the clock went back, no segment is younger than this
        call. Raises ``OSError``."""
        active, self._looked_ms = self.segments.active, wall_ms
        for segment in self.segments.closed():
            if segment.since_ms is not None:
                segment.since_ms = min(segment.since_ms, wall_ms)
        if not active.size or not self._writing.is_possible:
            self._active_since_ms = None
            return False
        if self._reopened:
            first = active.first_timestamp()
            self._active_since_ms = first if first <= wall_ms else 0
            self._reopened = False
        self._active_since_ms = wall_ms if self._active_since_ms is None else min(self._active_since_ms, wall_ms)
        if wall_ms - self._active_since_ms < roll_age_ms(self._config):
            return False
        return self.roll()

    def roll(self) -> bool:
        """Close the written segment, if it holds anything. Raises ``OSError``."""
        if not self.segments.active.size or not self._writing.is_possible:
            return False
        with self._writing:
            self._roll()
            self._prepare_snapshot()
        return True

    # --- producers ---------------------------------------------------------------------------------------

    def _load_producers(self, names: Sequence[str] | None = None) -> None:
        """Read the producers' state at the log end: from the newest snapshot, and from the headers behind it.
        ``names``: of all files that are there."""
        found = self._snapshots.newest(self.segments.start, self.end, self.segments.chain_at, names)
        self.forgets = found is None and self.segments.start > 0
        offset, state = found or (self.segments.start, self.producers.before(self.segments.start))
        self.producers.rebuild(self.segments.headers(offset), state)
        self.producers.transactions.forget_below(self.segments.start)

    def begin_rebuild(self, end: int) -> RebuildProducerState | None:
        """What ``truncate`` must read to know the producers at ``end``, as a job for a thread while no other job of
        the log runs; None where it knows them already. Its result is good until the log is cut or reset."""
        if end >= self.end or not self.producers.reaches(end):
            return None
        views = tuple(segment.read_only_view() for segment in self.segments.up_to(end))
        return RebuildProducerState(self._disk, self._directory, views, end, self.producers.copy(), self._generation)

    def _prepare_snapshot(self) -> None:
        if self._rolled or self._batches >= max(SNAPSHOT_BATCHES, 4 * len(self.producers)):
            self._rolled, self._batches, self.snapshot_due = False, 0, self._snapshot_of(self.producers.copy())

    def _snapshot_of(self, producers: ProducerState) -> WriteProducerSnapshot:
        chain = self.segments.active.chain
        return WriteProducerSnapshot(
            self._disk, self._directory, self.end, chain, producers, self._starts(), self._generation
        )

    def begin_snapshot(self) -> WriteProducerSnapshot | None:
        """After a roll, and after many batches: for the producers, what was appended up to here need not be read at
        the next opening, nor for a cut. The caller has the job run, in a thread, and then calls
        ``complete_snapshot``, or, where it failed, nothing any more. It is a cache: one that is not begun is not
        missed."""
        if self.snapshot_due is None:
            return None
        due, self.snapshot_due = self.snapshot_due, None
        if not self._writing.is_possible:
            return None
        return replace(due, needed=self._starts())  # the start may have moved since the roll

    def _starts(self) -> tuple[int, ...]:
        """Where the log begins, and where it begins on the disk: the start may be moving."""
        return self.start, self._retention.log_start.start

    def complete_snapshot(self, snapshot: WriteProducerSnapshot) -> None:
        """Take in that the job has run. A snapshot of a log that was cut meanwhile is removed. Raises ``OSError``."""
        if snapshot.generation != self._generation and snapshot.offset not in self._starts():
            with self._writing:
                self._snapshots.forget(snapshot.offset)

    # --- flush -------------------------------------------------------------------------------------------

    def begin_flush(self, *, whole: bool = False) -> Flush | None:
        """What to sync now; None where nothing waits for it (under ``os``, unless it is to be ``whole``: until a
        segment is full). The recovery point is synced, too, as it is when the flush begins: when it has passed
        another full segment, or ``RECOVERY_POINT_BYTES`` were appended. The caller runs the flush and then calls
        ``complete_flush``, or, where it failed, nothing any more."""
        assert self._flush is None, "one flush at a time"
        active, point, lazy = self.segments.active.base, self._recovery_point, self._lazy and not whole
        passed = point.synced < active <= (point.value or 0) and not lazy
        if not self._writing.is_possible or not (passed or self._synced < (active if lazy else self.end)):
            return None
        if self._appended - self._appended_when_synced >= RECOVERY_POINT_BYTES and point.synced < (point.value or 0):
            passed, self._appended_when_synced = True, self._appended
        files = self.segments.files_from(self._synced)
        if self._epochs_grown:
            files.append(self._epochs_file)
        directory = (self._disk, self._directory) if self._directory_grown else None
        self._epochs_grown = self._directory_grown = False
        to_sync = (point, point.value or 0) if passed else None
        self._flush = Flush(tuple(files), self.end, directory, self._generation, to_sync)
        return self._flush

    def complete_flush(self, flush: Flush) -> None:
        """Take in that ``flush`` has run: ``durable`` moves to its end, unless the log was truncated meanwhile.
        Raises ``OSError``."""
        assert flush is self._flush
        self._flush = None
        while self._retired:
            self._retired.pop().close()
        if flush.generation == self._generation and self._writing.is_possible:
            with self._writing:
                self._synced = max(self._synced, flush.end)  # the start may have moved past it
                self._recovery_point.write(flush.end)
                if flush.recovery_point is not None:
                    self._recovery_point.synced = flush.recovery_point[1]

    def discard_unsynced(self) -> None:
        """A flush failed: cut what it covered out of the files. It may be nowhere but in the page cache, where it
        looks sound and counts as clean. Under ``os`` it stays: it counted as durable when it was written, and the
        next opening writes it again. The log is unusable. Raises ``OSError``."""
        self._writing.stop()
        if self._lazy:
            return
        kept, *behind = self.segments.from_offset(self._synced)
        for segment in reversed(behind):
            remove(self._disk, segment.path)
            remove(self._disk, segment.index_path)
        remove(self._disk, kept.index_path)
        kept.cut(self._synced)

    # --- truncate ----------------------------------------------------------------------------------------

    def truncate(self, end: int, rebuilt: ProducerState | None = None) -> None:
        """End at ``end``, durably; a batch that would be cut in two goes whole. Epochs that begin there or later are
        forgotten. Everything that is left is durable. ``rebuilt``: what ``begin_rebuild`` gave for this end; without
        it the caller's thread does that. Raises ``OSError``; the log is then unusable.

        Crash-safe at each step: first HW and recovery point come down, durably, to where the log is to end; what is
        then found above may be cut, and nothing below. Damage that is met is met before that.
        """
        assert self.start <= end <= self.end, f"cut at {end}, of {self.start} to {self.end}"
        with self._writing:
            if end < self.end:
                self._generation += 1
                known = not self.producers.reaches(end)
                self._cut_segments(end)
                if rebuilt is not None:
                    self.producers.rebuild((), rebuilt)
                elif not known:
                    self._load_producers()
            if self.epochs.truncate_to(self.segments.end_offset):
                self._epochs_file.pwritev([self.epochs.last_bytes(0)], self.epochs.position(0))
                self._epochs_file.truncate(self.epochs.position(0) + ENTRY_BYTES)
                self._epochs_grown = True

    def _cut_segments(self, end: int) -> None:
        kept = self.segments.segment_at(end)
        edge, _ = kept.chain_at(end)
        self._deletions.on_cut(end)
        self._committed.lack(min(self._synced, edge))
        self._recovery_point.write(min(self._synced, edge), sync=True)
        for segment in reversed(self.segments.behind(kept)):
            self._retire(segment)
            segment.unlink()
        self._snapshots.remove(above=end)
        self.snapshot_due = None
        self.segments.make_active(kept)
        self._disk.sync_dir(self._directory)
        self._directory_grown = False
        kept.cut(end)
        for file in self.segments.files_from(min(self._synced, kept.base)):
            file.sync()
        self._epochs_file.sync()
        self._epochs_grown = False
        self.end = self._synced = kept.end_offset
        self.segments.cut_tail()
        self._recovery_point.write(self.end)

    def _retire(self, segment: Segment) -> None:
        """Close the segment's file."""
        file = segment.release()
        if file is not None:
            self._close(file)

    def _close(self, file: File) -> None:
        """Close a file, but only after the flush that may be syncing it: its descriptor could become another
        file's."""
        if self._flush is None:
            file.close()
        else:
            self._retired.append(file)

    # --- reset -------------------------------------------------------------------------------------------

    def reset(self, start: CopyStart, producers: ProducerState) -> None:
        """Throw the whole log away, durably, and become an empty one that begins at ``start``; ``producers`` is the
        state in ``start``, the log's own from now on. No job of the log is under way. Safe against a crash at each
        step (``reset.py``). Raises ``OSError``."""
        assert not self._retention.is_running, "the log start is moving"
        with self._writing:
            self._generation += 1
            for segment in self.segments:
                self._retire(segment)
            self._close(self._epochs_file)
            log_start = LogStartCheckpoint(start.start, start.last_epoch, start.chain or NO_CHAIN)
            reset.begin(self._disk, self._directory, log_start, start.producers)
            self.segments.forget_tail()
            self._adopt(recover(self._disk, self._directory))
            self.producers.rebuild((), producers)

    # --- retention ---------------------------------------------------------------------------------------

    def begin_advance(self, offset: int) -> DeleteSegments | None:
        """Let the log begin with the segment that holds ``offset``, or with the active one if that is earlier. None
        where that changes nothing. The caller has the job run, in a thread, and then calls ``complete_advance``, or,
        where it failed, nothing any more."""
        gone = self._retention.segments_below(offset) if self._writing.is_possible else []
        if not gone:
            return None
        for segment in gone:
            self._retire(segment)
        job = self._retention.begin_deletion(gone, self.epochs, self.producers, self._generation)
        self._synced = max(self._synced, self.segments.start)
        return job

    def complete_advance(self, job: DeleteSegments) -> None:
        """Take in that the job has run: the log begins there on the disk, too."""
        self._retention.complete_deletion(job)

    def advance_start(self, offset: int) -> bool:
        """``begin_advance`` to ``complete_advance``, in the caller's thread; whether the start moved. Raises
        ``OSError``; the log is then unusable."""
        job = self.begin_advance(offset)
        if job is None:
            return False
        with self._writing:
            job.run()
            self.complete_advance(job)
        return True

    def copy_start(self) -> CopyStart:
        """What a copy must know that begins where this log does, as far as that is durable. Raises ``OSError``."""
        start, last_epoch, chain = self._retention.log_start
        state = self._snapshots.read(start, chain) if start else None
        if state is None:
            state = self.producers.before(start).to_bytes()
        return CopyStart(start, last_epoch, chain, state)

    # --- compaction --------------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Below it the log was compacted at least once, as far as is remembered."""
        return max(self.segments.start, min(self._deletions.compacted_to, self.end))

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
        return self._deletions.lacks(self.segments.start, self.end, source)

    def begin_compaction(
        self, high_watermark: int, now_ms: int, min_dirty_ratio: float, keys_at_once: int = KEYS_AT_ONCE
    ) -> Compaction | None:
        """A pass over the closed segments below ``high_watermark``; None where none is due. Run it, call
        ``complete_compaction``, and again while that says so; where a run failed, nothing any more."""
        if not self._writing.is_possible:
            return None
        return self._compactor.begin_pass(
            self.producers.transactions,
            self._config,
            high_watermark,
            now_ms,
            min_dirty_ratio,
            keys_at_once,
            self._generation,
        )

    def complete_compaction(self, compaction: Compaction, cleaned: Cleaned | None) -> bool:
        """Put in place what a run has made; it is over. Whether the pass goes on. Raises ``OSError``; the log is then
        unusable."""
        with self._writing:
            is_current = compaction.generation == self._generation
            if cleaned is not None:
                segment = self._compactor.replaced_by(cleaned) if is_current else None
                if segment is None:
                    self._compactor.discard(cleaned)
                else:
                    self._retire(segment)
                    self._compactor.put_in_place(segment, cleaned)
            return is_current and self._compactor.complete_run(compaction)

    def compact(self, high_watermark: int, now_ms: int, keys_at_once: int = KEYS_AT_ONCE) -> None:
        """Whole passes, one after the other, in the caller's thread, whatever the dirty part. Raises ``OSError``."""
        while (compaction := self.begin_compaction(high_watermark, now_ms, 0.0, keys_at_once)) is not None:
            while self.complete_compaction(compaction, compaction.run()):
                continue

    # --- the high watermark ------------------------------------------------------------------------------

    def read_high_watermark(self) -> int:
        """The HW as last written down, not above the log end; the log start where it is not known."""
        return max(self.segments.start, min(self.written_high_watermark, self.end))

    def remember_high_watermark(self, high_watermark: int) -> None:
        """Remember that so far was committed, whatever is left of the log, which is damaged. Raises ``OSError``."""
        self._committed.remember(high_watermark)

    @property
    def written_high_watermark(self) -> int:
        """The high watermark as last written, also where it is above the log end: what lies between is lost here."""
        return self._committed.highest_committed

    def write_high_watermark(self, high_watermark: int, *, sync: bool = False) -> None:
        """Write the HW down, as far as the log is durable: a log that is found shorter has lost records. The write is
        cheap and never torn; it is durable only with ``sync``. Raises ``OSError``."""
        self._committed.write(min(high_watermark, self.durable), sync=sync)

    def lower_high_watermark(self, high_watermark: int) -> None:
        """Lower the HW, durably: what lay between is not committed any more. Raises ``OSError``."""
        self._committed.lower(min(high_watermark, self.durable))

    # --- the end -----------------------------------------------------------------------------------------

    def sync_all(self) -> None:
        """Make everything durable, in the caller's thread and whatever the flush policy: an end in order. No flush is
        under way. Raises ``OSError``: the log is then unusable."""
        assert self._flush is None, "one flush at a time"
        with self._writing:
            files = self.segments.files_from(self._synced)
            Flush((*files, self._epochs_file), self.end, (self._disk, self._directory)).run()
            self._epochs_grown = self._directory_grown = False
            self._synced = self.end
            self._recovery_point.write(self.end, sync=True)

    def close(self, *, for_good: bool = False) -> None:
        """Close the files; not a flush. Those of a flush that still runs are closed when it is completed. Where
        everything is synced the next opening need not read it; ``for_good``: there will be none. Raises ``OSError``;
        the files are closed then, too."""
        active = self.segments.active
        try:
            if self._writing.is_possible and self._synced == self.end and active.size and not for_good:
                active.write_index_file()
                if self.end not in self._snapshots.offsets():
                    self._snapshot_of(self.producers).run()
        finally:
            self._writing.stop()
            self.segments.forget_tail()
            for segment in self.segments:
                segment.keep_in_memory()
                self._retire(segment)
            self._close(self._epochs_file)
