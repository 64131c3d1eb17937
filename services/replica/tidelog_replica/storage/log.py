"""The log of one partition: append, read, flush, truncate.

Theory. The log is a sequence of segments (``segment_list.py``); the last one is written. Three offsets: ``start`` <=
``durable`` <= ``end``. Appends go to the page cache in the caller's thread and move ``end``; a flush moves
``durable`` (``flush.py``).

The log start moves up with retention (``retention.py``), by whole segments; compaction (``compaction.py``) gives a
closed segment another file with the same batches and fewer records. Both are jobs in two halves: ``begin_…`` returns
a job, the caller has it run in a thread, and ``complete_…`` applies its result. At most one of each is under way. The
log may be truncated in between; the result for a segment that is gone is then discarded. Both leave offsets, batch
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
"""When this many bytes were appended since the recovery point was last synced, the next flush syncs it too."""
SNAPSHOT_BATCHES = 2048
"""A producer snapshot falls due after this many appended batches, or four for each producer if that is more. When a
log is cut, as a follower's in a failover, the headers behind the newest snapshot are read (12 us each)."""


class Log:
    """The open log of one partition: its segments, leader epochs, producer state and checkpoints. ``open`` makes it,
    and it lives until ``close``. After a write has failed, the methods that change segments raise ``OSError`` or do
    nothing. It has one owner; only the jobs that it hands out, such as ``Flush``, may run in other threads."""

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
        """The state of the producers at the log end. ``append`` records each batch in it; a leader records a batch a
        moment earlier."""
        self.forgets = False
        """Whether no snapshot was found, so that producers that have written nothing since the log start are
        unknown."""
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
        """Files that a running flush may sync; they are closed after it."""
        self._adopt(found)
        self._load_producers(found.names)

    def _adopt(self, found: Recovered) -> None:
        """Replace the state of this log by what recovery found on the disk: segments, leader epochs and checkpoints.
        Everything found counts as synced. Called when the log is opened, and after a reset."""
        self.epochs: LeaderEpochCache = found.epochs
        """The leader epoch of each offset; only the log changes it."""
        self.segments = SegmentList(
            self._disk, self._directory, found.segments, found.epochs, self._tails, self._indexes
        )
        """The segments of the log, for reading; only the log changes them."""
        self.end = self.segments.end_offset
        """Log end offset (LEO): the offset that the next record gets."""
        self.pending_losses = PendingLosses(self._disk, self._directory, found.names)
        self._deletions = Deletions(self._disk, self._directory, found.names)
        self._deletions.on_cut(tail_start(found.names))  # how far the batches of a tail file are compacted is unknown
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
        self._directory_unsynced = True
        self._rolled = False
        self._batches = 0
        """How many batches were appended since the last snapshot."""
        self.snapshot_due: WriteProducerSnapshot | None = None
        """A producer snapshot that is to be written; only the log changes it."""
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
        """Open the log in ``directory``, or make a new one, and return it. Recovery runs first; everything in the log
        is then synced. ``tails`` and ``indexes`` are caches shared with other logs. ``intact`` says that nothing that
        was ever written can be missing, synced or not: a log that ends below its written HW then counts as damaged,
        also under flush policy ``os``. ``has_peers`` says that other replicas can be asked about a bad end, which
        then makes the log doubtful even if it looks like a torn write. Raises ``CorruptLog`` if durable bytes are
        damaged, ``DoubtfulLog`` if it is unknown where the log ends, and other ``OSError``s."""
        found = recover(disk, directory, intact=intact or config.flush != "os", has_peers=has_peers)
        try:
            return cls(disk, directory, config, found, tails, indexes)
        except OSError:
            found.close()
            raise

    @property
    def start(self) -> int:
        """Return the log start: the offset of the first record that is kept."""
        return self.segments.start

    @property
    def durable(self) -> int:
        """Return the offset below which everything is durable under the topic's flush policy; under policy ``os``
        that is the log end."""
        return self.end if self._lazy else self._synced

    @property
    def synced(self) -> int:
        """Return the offset below which everything was synced to the disk, whatever the flush policy is."""
        return self._synced

    @property
    def generation(self) -> int:
        """Return how many times the log was cut or reset since it was opened; the result of an older job is void."""
        return self._generation

    def configure(self, config: TopicConfig) -> None:
        """Use changed settings of the topic from now on. Its flush policy must be the same as before."""
        assert config.flush == self._config.flush
        self._config = config

    # --- reading -----------------------------------------------------------------------------------------

    @property
    def comparable_from(self) -> int:
        """Return the offset from which on the hash chain can be compared with another replica's: the log start.
        Compaction does not change the chain."""
        return self.segments.start

    def read(self, offset: int, max_bytes: int, end: int | None = None) -> list[Buffer]:
        """Return whole batches, one per buffer, from the one that holds ``offset`` on, none of which reaches past
        ``end`` (default: the log end): about ``max_bytes``, at least one batch if there is one, and perhaps fewer
        than would fit. Return an empty list if ``offset`` is below the start or not below the end. Raises
        ``CorruptLog`` if stored bytes are damaged, and other ``OSError``s."""
        return self.segments.read(offset, max_bytes, self.end if end is None else min(end, self.end))

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record before ``offset``, that is, at ``offset - 1``; -1 if no epoch is
        known there."""
        return self.epochs.epoch_before(offset)

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """Return the offset of the last batch boundary at or below ``offset``, and the hash chain of the log up to
        that boundary. If ``offset`` is below the log start, the boundary is the log start. Raises ``OSError``."""
        return self.segments.chain_at(offset)

    def offset_for_timestamp(self, timestamp_ms: int, end: int) -> tuple[int, int] | None:
        """Return the first offset of the first batch below ``end`` that has a record at or after ``timestamp_ms`` (ms
        since 1970), and the timestamp of the batch's first record, which may be earlier. Return None if there is no
        such batch. Raises ``OSError``."""
        return self.segments.offset_for_timestamp(timestamp_ms, end)

    def sent_header_at(self, offset: int) -> BatchHeader:
        """Return the header of the batch that holds ``offset``, with the CRC-32C that its producer sent. The offset
        must be in the log. Raises ``OSError``."""
        return next(self.segments.headers(offset))

    def begin_reading(self, offset: int, end: int, length: int) -> ReadBatches | None:
        """Return a job that reads about ``length`` bytes of synced batches from the disk and computes their
        fingerprints, to compare them with another copy. It begins with the batch that holds ``offset``, ends at
        offset ``end``, and reads one segment only. Return None if nothing is synced from ``offset`` on, or if that is
        below the log start. Raises ``OSError``."""
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
        """Return whether the result of a job that read the segment ``target`` still holds: the log was not cut or
        reset since ``generation``, and the segment still exists and was not rewritten by compaction."""
        return generation == self._generation and target.is_still(self.segments.segment_after(target.base - 1))

    # --- append ------------------------------------------------------------------------------------------

    def append(
        self,
        batches: Sequence[Buffer],
        source: Compacted = UNKNOWN,
        headers: Sequence[BatchHeader] | None = None,
    ) -> None:
        """Append whole, checked batches, which their leader has stamped and which continue the log from ``end``; they
        are copied. Begins new segments and leader epochs where necessary, adds the batches to the producer state, and
        raises ``end``. Nothing is synced. ``source`` says how far the log that they come from is compacted; this log
        must not lack tombstones that the source has dropped. ``headers`` are those of the batches, if they have been
        read already. Raises ``OSError``: it is then unknown which bytes were written, and the log takes no further
        change."""
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
        """Record in memory and in the leader-epoch file that leader epoch ``epoch`` begins at the log end; a leader
        does this before it appends. Does nothing if it is the latest epoch already. The entry is not synced: it
        becomes durable with the epoch's first batch, so that a server that begins to lead a thousand partitions need
        not wait for as many syncs. Raises ``OSError``."""
        with self._writing:
            self._begin_epoch(epoch, self.end)

    def _begin_epoch(self, epoch: int, start: int) -> None:
        """Record in memory and in the leader-epoch file, unsynced, that ``epoch`` begins at offset ``start``. After a
        restart, entries at or above the recovery point may be in the page cache only and are written again; durable
        ones are not."""
        if self.epochs.assign(epoch, start) or self._epochs_unsure:
            count = self.epochs.count_from(self._recovery_point.value or 0) if self._epochs_unsure else 1
            self._epochs_file.pwritev([self.epochs.last_bytes(count)], self.epochs.position(count))
            self._epochs_unsure, self._epochs_grown = False, True

    def _roll(self) -> Segment:
        """Close the active segment, begin a new one, and return the new one. Nothing is synced: above the recovery
        point, recovery treats a gap or a missing file as a torn tail."""
        full = self.segments.active
        full.since_ms = self._looked_ms if self._active_since_ms is None else self._active_since_ms
        segment = self.segments.roll()
        self._directory_unsynced = self._rolled = True
        self._active_since_ms, self._reopened = None, False
        return segment

    def roll_if_old(self, wall_ms: int) -> bool:
        """Close the active segment and begin a new one if its first record is at least ``roll_age_ms`` old; return
        whether that happened. It is called regularly with the wall clock in ms since 1970, and counts the age of a
        segment from the first call that finds a record in it. If an earlier process wrote to the segment, its age
        counts from its first record's timestamp, and one in the future counts as old. If the clock went back, no
        segment counts as begun later than this call. Raises ``OSError``."""
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
        """Close the active segment and begin a new, empty one; return True. Return False, and do nothing, if the
        active segment is empty or the log takes no more changes. Raises ``OSError``."""
        if not self.segments.active.size or not self._writing.is_possible:
            return False
        with self._writing:
            self._roll()
            self._prepare_snapshot()
        return True

    # --- producers ---------------------------------------------------------------------------------------

    def _load_producers(self, names: Sequence[str] | None = None) -> None:
        """Set the producer state to that at the log end, from the newest sound snapshot and the headers of the
        batches behind it. Without a snapshot, memory and the headers from the log start on give the state, and
        ``forgets`` becomes True unless the log begins at 0. ``names`` are the names of all files in the directory, if
        known. Raises ``OSError``."""
        found = self._snapshots.newest(self.segments.start, self.end, self.segments.chain_at, names)
        self.forgets = found is None and self.segments.start > 0
        offset, state = found or (self.segments.start, self.producers.before(self.segments.start))
        self.producers.rebuild(self.segments.headers(offset), state)
        self.producers.transactions.forget_below(self.segments.start)

    def begin_rebuild(self, end: int) -> RebuildProducerState | None:
        """Return a job that computes the producer state at offset ``end``, which a ``truncate`` to that offset needs.
        Return None if ``end`` is not below the log end, or if memory holds that state already. No other job of the
        log may run beside this one. The result is valid until the log is cut or reset."""
        if end >= self.end or not self.producers.reaches(end):
            return None
        views = tuple(segment.read_only_view() for segment in self.segments.up_to(end))
        return RebuildProducerState(self._disk, self._directory, views, end, self.producers.copy(), self._generation)

    def _prepare_snapshot(self) -> None:
        """Make a producer snapshot due, with a copy of the present state, if a segment was closed or enough batches
        were appended since the last one."""
        if self._rolled or self._batches >= max(SNAPSHOT_BATCHES, 4 * len(self.producers)):
            self._rolled, self._batches, self.snapshot_due = False, 0, self._snapshot_of(self.producers.copy())

    def _snapshot_of(self, producers: ProducerState) -> WriteProducerSnapshot:
        """Return a job that writes a snapshot of ``producers`` at the log end."""
        chain = self.segments.active.chain
        return WriteProducerSnapshot(
            self._disk, self._directory, self.end, chain, producers, self._starts(), self._generation
        )

    def begin_snapshot(self) -> WriteProducerSnapshot | None:
        """Return a job that writes the producer snapshot that is due, after a segment was closed or many batches were
        appended; None if none is due or the log takes no more changes. The caller runs the job in a thread and then
        calls ``complete_snapshot``, but nothing more if the job failed. A snapshot that is never written does no
        harm."""
        if self.snapshot_due is None:
            return None
        due, self.snapshot_due = self.snapshot_due, None
        if not self._writing.is_possible:
            return None
        return replace(due, needed=self._starts())  # the start may have moved since the roll

    def _starts(self) -> tuple[int, ...]:
        """Return the log start in memory and the log start on the disk; they differ while a retention job runs."""
        return self.start, self._retention.log_start.start

    def complete_snapshot(self, snapshot: WriteProducerSnapshot) -> None:
        """Delete the snapshot that a job has written if the log was cut or reset since the job was made, unless the
        snapshot is at the log start. Otherwise does nothing. Raises ``OSError``."""
        if snapshot.generation != self._generation and snapshot.offset not in self._starts():
            with self._writing:
                self._snapshots.forget(snapshot.offset)

    # --- flush -------------------------------------------------------------------------------------------

    def begin_flush(self, *, whole: bool = False) -> Flush | None:
        """Return a job that syncs files so that everything up to the present log end is durable; None if there is
        nothing to sync or the log takes no more changes. Under flush policy ``os`` only closed segments are synced,
        unless ``whole`` is set. The job also syncs the recovery point if it has passed another closed segment, or
        after ``RECOVERY_POINT_BYTES``. The caller runs the job and then calls ``complete_flush``, but nothing more if
        the job failed. At most one is under way."""
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
        directory = (self._disk, self._directory) if self._directory_unsynced else None
        self._epochs_grown = self._directory_unsynced = False
        to_sync = (point, point.value or 0) if passed else None
        self._flush = Flush(tuple(files), self.end, directory, self._generation, to_sync)
        return self._flush

    def complete_flush(self, flush: Flush) -> None:
        """Record that ``flush`` has run: raise the durable offset and the recovery point to its end, unless the log
        was cut or reset meanwhile. Also closes files that the flush kept open. Raises ``OSError``."""
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
        """Cut everything above the synced offset from the files after a flush has failed: these batches may be in the
        page cache only, where they look sound. Under flush policy ``os`` nothing is cut, because the batches counted
        as durable when they were written, and the next opening writes them again. The log takes no change afterwards.
        Raises ``OSError``."""
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
        """Cut the log so that it ends at ``end``, durably; a batch that reaches across ``end`` is removed as a whole.
        Leader epochs that begin there or later are removed, too. ``rebuilt`` is the result of the ``begin_rebuild``
        job for this end; without it, the producer state is read in the caller's thread if memory lacks it. Raises
        ``OSError``; the log then takes no further change.

        Safe against a crash at each step: HW and recovery point are lowered first, durably, to where the log is to
        end. A recovery may then cut what it finds above, and nothing below. Damaged headers raise an error before
        that step."""
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
        """Lower the written HW and the recovery point durably, remove the segments and producer snapshots above
        ``end``, cut the segment that holds ``end``, and sync the rest of the log."""
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
        self._directory_unsynced = False
        kept.cut(end)
        for file in self.segments.files_from(min(self._synced, kept.base)):
            file.sync()
        self._epochs_file.sync()
        self._epochs_grown = False
        self.end = self._synced = kept.end_offset
        self.segments.cut_tail()
        self._recovery_point.write(self.end)

    def _retire(self, segment: Segment) -> None:
        """Close the file of a segment that leaves the log, if it is open: after the flush if one is under way."""
        file = segment.release()
        if file is not None:
            self._close(file)

    def _close(self, file: File) -> None:
        """Close a file: at once, or after the flush if one is under way, which may be syncing the file."""
        if self._flush is None:
            file.close()
        else:
            self._retired.append(file)

    # --- reset -------------------------------------------------------------------------------------------

    def reset(self, start: CopyStart, producers: ProducerState) -> None:
        """Delete the whole log, durably, and become an empty one that begins at ``start``. ``producers`` is the
        producer state that ``start`` holds as bytes; it belongs to the log afterwards. No job of the log may be under
        way. It is safe against a crash at each step (``reset.py``). Raises ``OSError``; the log then takes no further
        change."""
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
        """Move the log start in memory to the segment that holds ``offset``, at most the active one, and return the
        job that deletes the segments below it. Return None, and do nothing, if there are no such segments, if such a
        job is under way, or if the log takes no more changes. The caller runs the job in a thread and then calls
        ``complete_advance``, but nothing more if the job failed."""
        gone = self._retention.segments_below(offset) if self._writing.is_possible else []
        if not gone:
            return None
        for segment in gone:
            self._retire(segment)
        job = self._retention.begin_deletion(gone, self.epochs, self.producers, self._generation)
        self._synced = max(self._synced, self.segments.start)
        return job

    def complete_advance(self, job: DeleteSegments) -> None:
        """Record that the job of ``begin_advance`` has run: the log begins at the new start on the disk, too."""
        self._retention.complete_deletion(job)

    def advance_start(self, offset: int) -> bool:
        """Move the log start to the segment that holds ``offset``, at most the active one, and delete the segments
        below, in the caller's thread. Return whether the start moved: not if no segment lies below, if a deletion job
        is under way, or if the log takes no more changes. Raises ``OSError``; the log then takes no further
        change."""
        job = self.begin_advance(offset)
        if job is None:
            return False
        with self._writing:
            job.run()
            self.complete_advance(job)
        return True

    def copy_start(self) -> CopyStart:
        """Return what another replica needs to begin a copy where this log durably begins: offset, leader epoch of
        the record before it, hash chain, and producer state as bytes. Reads the snapshot at the log start; if there
        is none, the producer state is what memory holds of that time. Raises ``OSError``."""
        start, last_epoch, chain = self._retention.log_start
        state = self._snapshots.read(start, chain) if start else None
        if state is None:
            state = self.producers.before(start).to_bytes()
        return CopyStart(start, last_epoch, chain, state)

    # --- compaction --------------------------------------------------------------------------------------

    @property
    def compacted_to(self) -> int:
        """Return the offset below which the log was compacted at least once, as far as this is recorded; the log
        start if it never was. It is never above the log end."""
        return max(self.segments.start, min(self._deletions.compacted_to, self.end))

    @property
    def compacted(self) -> Compacted:
        """Return the offsets up to which the log is compacted and may have lost tombstones. Another replica that
        copies the log needs both."""
        return Compacted(self.compacted_to, min(self._deletions.tombstones_to, self.end))

    def compacted_behind(self, offset: int) -> Compacted:
        """Return the offsets up to which the log is compacted and may have lost tombstones, for a replica that
        already has everything up to ``offset``. Each of the two is 0 if it is not above ``offset``."""
        if not self._deletions.reach_behind(offset):
            return UNKNOWN
        return Compacted._make(to if to > offset else 0 for to in self.compacted)

    def lacks(self, source: Compacted) -> bool:
        """Return whether this log must start over before it takes more batches of the log that ``source`` describes.
        That is so if this log may hold values whose tombstones the source has dropped: it would keep these deleted
        values for ever."""
        return self._deletions.lacks(self.segments.start, self.end, source)

    def begin_compaction(
        self, high_watermark: int, now_ms: int, min_dirty_ratio: float, keys_at_once: int = KEYS_AT_ONCE
    ) -> Compaction | None:
        """Return a job for one compaction pass over the closed segments below ``high_watermark``; None if no pass is
        due or the log takes no more changes. A pass is due if the uncompacted part of the bytes is at least
        ``min_dirty_ratio``, or if a record has waited too long. ``now_ms`` is the wall clock in ms since 1970. The
        caller runs the job, calls ``complete_compaction``, and repeats both while that returns True, but calls
        nothing more if a run failed."""
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
        """Put the compacted file that a run has written (``cleaned``, None if it wrote none) in the place of the
        segment's file. Delete the compacted file instead if the log was cut or reset meanwhile, or if the segment is
        gone. Return whether the pass goes on with another run. Raises ``OSError``; the log then takes no further
        change."""
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
        """Compact the closed segments below ``high_watermark`` in the caller's thread, pass after pass, until nothing
        is left to compact. ``now_ms`` is the wall clock in ms since 1970. Raises ``OSError``."""
        while (compaction := self.begin_compaction(high_watermark, now_ms, 0.0, keys_at_once)) is not None:
            while self.complete_compaction(compaction, compaction.run()):
                continue

    # --- the high watermark ------------------------------------------------------------------------------

    def read_high_watermark(self) -> int:
        """Return the HW that was last written to its file, limited to the range from the log start to the log end."""
        return max(self.segments.start, min(self.written_high_watermark, self.end))

    def remember_high_watermark(self, high_watermark: int) -> None:
        """Raise the highest committed offset to ``high_watermark`` in its file, unsynced, because the log is damaged
        and may end below it. Does nothing if the offset is as high already. Raises ``OSError``."""
        self._committed.remember(high_watermark)

    @property
    def written_high_watermark(self) -> int:
        """Return the highest committed offset that was written to its file. If it is above the log end, the log has
        lost the committed records between."""
        return self._committed.highest_committed

    def write_high_watermark(self, high_watermark: int, *, sync: bool = False) -> None:
        """Write the HW to its file, but at most the durable offset: a log that is later found to end below the
        written HW has lost records. The write is cheap and never torn, and durable only with ``sync``. Raises
        ``OSError``."""
        self._committed.write(min(high_watermark, self.durable), sync=sync)

    def lower_high_watermark(self, high_watermark: int) -> None:
        """Lower the written HW and the highest committed offset to ``high_watermark``, durably, because the records
        above are not committed any more. The HW is written as the durable offset if that is lower. Raises
        ``OSError``."""
        self._committed.lower(min(high_watermark, self.durable))

    # --- the end -----------------------------------------------------------------------------------------

    def sync_all(self) -> None:
        """Sync the whole log and the recovery point in the caller's thread, under every flush policy; a server does
        this when it stops in order. No flush may be under way. Raises ``OSError``; the log then takes no further
        change."""
        assert self._flush is None, "one flush at a time"
        with self._writing:
            files = self.segments.files_from(self._synced)
            Flush((*files, self._epochs_file), self.end, (self._disk, self._directory)).run()
            self._epochs_grown = self._directory_unsynced = False
            self._synced = self.end
            self._recovery_point.write(self.end, sync=True)

    def close(self, *, for_good: bool = False) -> None:
        """Close all files; the log takes no change afterwards. Nothing is synced. Files that a running flush may sync
        are closed after it. If everything is synced, an index file and a producer snapshot are written first so that
        the next opening is cheap, unless ``for_good`` is set because the log is not opened again. Raises ``OSError``;
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
