"""The log of one partition: append, read, flush, truncate.

Theory. The log is a row of segments; the last one is written. Three offsets: ``start`` <= ``durable`` <= ``end``.
Appends go to the page cache in the caller's thread and move ``end``. A flush is in two halves, so that the sync
between them can run in a thread while appends go on: ``begin_flush`` names the files that hold what is not durable
yet (full segments among them, the leader-epoch file where it has grown, the directory where it has), and
``complete_flush`` moves ``durable``. Whatever is appended meanwhile is the next flush's: group commit.

The beginning moves up with retention (``begin_advance``), by whole segments; a closed segment may get another file
with the same batches, thinned out (``maintenance/log_cleaner.py``). Both leave offsets, batch boundaries, epochs, the
hash chain and the producers' state as they were.

Invariants: every segment is whole batches with consecutive offsets; the leader-epoch file tells each batch's epoch
before the batch is written; the recovery mark is never above what is synced (see ``recovery``).

After an ``OSError`` in a call that writes nobody can say what is on the disk: half a batch, or a whole one that was
reported as failed. Its offsets must not be used again in the same leader epoch, so the log refuses every further
change until it is opened again. A flush that failed is not completed, and no other is begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidelog.batch.format import NO_CHAIN, BatchHeader, read_header, with_sent_crc
from tidelog.runtime.disk import Disk, File
from tidelog.types import Buffer, TopicConfig

from tidelog_replica.replication.leader_epochs import ENTRY_BYTES, LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import LogStartCheckpoint
from tidelog_replica.storage.cleanable_log import Cleanable
from tidelog_replica.storage.compaction import roll_age_ms
from tidelog_replica.storage.flush import Change, Flush
from tidelog_replica.storage.index import INDEX_BYTES, IndexCache
from tidelog_replica.storage.producer_snapshots import Snapshots, TakeSnapshot
from tidelog_replica.storage.recovery import reset
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog, tail_start
from tidelog_replica.storage.recovery.pending_losses import PendingLosses
from tidelog_replica.storage.recovery.recovery import Recovered, recover
from tidelog_replica.storage.retention import DeleteSegments
from tidelog_replica.storage.segment import CorruptLog, Segment, remove
from tidelog_replica.storage.segment_list import Beginning
from tidelog_replica.storage.tail_cache import PartitionTail, TailCache
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted, Deletions

__all__ = ["Beginning", "CorruptLog", "DoubtfulLog", "Flush", "Log"]

MARK_BYTES = 4 << 20
"""When so many bytes were appended since the recovery mark was last synced, the next flush syncs it too."""
SNAPSHOT_BATCHES = 2048
"""After so many batches, and four for each producer, what the producers had written is written down in a snapshot. A
log that is cut, as a follower's in a failover, first reads the headers behind the newest one (12 us each)."""


class Log(Cleanable):
    """Made by ``open``. One owner; only ``Flush.run`` may run beside the other methods."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        found: Recovered,
        tails: TailCache | None = None,
        indexes: IndexCache | None = None,
    ) -> None:
        self.producers = ProducerState()
        self._disk = disk
        self._directory = directory
        self._snapshots = Snapshots(disk, directory)
        self._config = config
        self._tails = tails
        self._indexes = IndexCache(INDEX_BYTES) if indexes is None else indexes
        self._generation = 0
        self._flush: Flush | None = None
        self._retired: list[File] = []
        self._advance: DeleteSegments | None = None
        self._take(found)
        self._load_producers(found.names)

    def _take(self, found: Recovered) -> None:
        """Become the log that was found."""
        self.epochs: LeaderEpochCache = found.epochs
        """Which leader epoch each offset belongs to; only the log changes it."""
        self.end = found.segments[-1].end_offset
        """Log end offset: the offset that the next record gets."""
        self._origin = found.origin
        self._segments = found.segments
        for segment in self._segments[:-1]:
            segment.rest(self._indexes)
        self._bases = [segment.base for segment in found.segments]
        self._tail = PartitionTail(self.end, cache=self._tails)
        self._epochs_file = found.epochs_file
        self._mark = found.mark
        self._committed = found.committed
        self.pending_losses = PendingLosses(self._disk, self._directory, found.names)
        self._deletions = Deletions(self._disk, self._directory, found.names)
        self._deletions.on_cut(tail_start(found.names))  # nobody told how far what follows was compacted
        self._synced = self.end
        self._appended = self._marked = 0
        """Bytes that this process appended: all, and as many as the mark told of when it was last synced."""
        self._epochs_grown = False
        self._epochs_unsure = found.epochs_unsure
        self._directory_grown = found.directory_grown
        self._rolled = False
        self._batches = 0
        """Appended since the last snapshot."""
        self._due: TakeSnapshot | None = None
        self._active_since_ms: int | None = None
        self._looked_ms: int | None = None
        self._reopened = self._segments[-1].size > 0
        self._usable = True

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        config: TopicConfig,
        tails: TailCache | None = None,
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
    def durable(self) -> int:
        """Everything below it is durable under the topic's flush policy; under ``os`` that is the log end."""
        return self.end if self._lazy else self._synced

    @property
    def synced(self) -> int:
        """Everything below it is on the disk, whatever the flush policy."""
        return self._synced

    @property
    def _lazy(self) -> bool:
        return self._config.flush == "os"

    def configure(self, config: TopicConfig) -> None:
        """The topic's settings changed; not the flush policy, which never does."""
        assert config.flush == self._config.flush
        self._config = config

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
        with Change(self):
            self._deletions.before_append(self.start, self.end, source)
            active, first, size = self._segments[-1], 0, self._segments[-1].size
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
                self._tail.append(header.base_offset, header.end_offset, batch)
                if header.producer_id:
                    self.producers.record(with_sent_crc(header, batch), header.base_offset)
            self.end = end
            self._batches += len(headers)
            self._prepare_snapshot()

    def assign_epoch(self, epoch: int) -> None:
        """``epoch`` begins at the log end. The leader does this before it appends. It is durable with the epoch's
        first batch: a server that comes to lead a thousand partitions at once must not wait for as many syncs. Before
        that batch is durable nobody relies on the epoch, which is never resumed. Raises ``OSError``."""
        with Change(self):
            self._begin_epoch(epoch, self.end)

    def _begin_epoch(self, epoch: int, start: int) -> None:
        """Before anything relies on it. What begins at or above the mark may be in the page cache only: it is written
        again, and nothing below it, which is stable and must not be at risk."""
        if self.epochs.assign(epoch, start) or self._epochs_unsure:
            count = self.epochs.count_from(self._mark.value or 0) if self._epochs_unsure else 1
            self._epochs_file.pwritev([self.epochs.last_bytes(count)], self.epochs.position(count))
            self._epochs_unsure, self._epochs_grown = False, True

    def _roll(self) -> Segment:
        """Begin a new segment. The order of what reaches the disk does not matter: above the mark a gap or a missing
        file is a torn tail."""
        full = self._segments[-1]
        full.since_ms = self._looked_ms if self._active_since_ms is None else self._active_since_ms
        full.seal()
        full.rest(self._indexes)
        segment = Segment(self._disk, self._directory, full.end_offset, full.chain)
        segment.create()
        self._directory_grown = self._rolled = True
        self._active_since_ms, self._reopened = None, False
        self._segments.append(segment)
        self._bases.append(segment.base)
        return segment

    def roll_if_old(self, wall_ms: int) -> bool:
        """Close the active segment if a call saw its first record ``roll_age_ms`` ago or earlier. To be called now
        and then. The age of a segment that an earlier process wrote counts from the timestamp of its first record. If
        that lies in the future, the segment counts as old. Where the clock went back, no segment is younger than this
        call. Raises ``OSError``."""
        active, self._looked_ms = self._segments[-1], wall_ms
        for segment in self._segments[:-1]:
            if segment.since_ms is not None:
                segment.since_ms = min(segment.since_ms, wall_ms)
        if not active.size or not self._usable:
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
        if not self._segments[-1].size or not self._usable:
            return False
        with Change(self):
            self._roll()
            self._prepare_snapshot()
        return True

    # --- producers ---------------------------------------------------------------------------------------

    def _prepare_snapshot(self) -> None:
        if self._rolled or self._batches >= max(SNAPSHOT_BATCHES, 4 * len(self.producers)):
            self._rolled, self._batches, self._due = False, 0, self._snapshot_of(self.producers.copy())

    def _snapshot_of(self, producers: ProducerState) -> TakeSnapshot:
        chain = self._segments[-1].chain
        return TakeSnapshot(self._disk, self._directory, self.end, chain, producers, self._starts(), self._generation)

    def begin_snapshot(self) -> TakeSnapshot | None:
        """After a roll, and after many batches: for the producers, what was appended up to here need not be read at
        the next opening, nor for a cut. The caller has the job run, in a thread, and then calls
        ``complete_snapshot``, or, where it failed, nothing any more. It is a cache: nobody misses one that is not
        begun."""
        if self._due is None:
            return None
        due, self._due = self._due, None
        if not self._usable:
            return None
        return replace(due, needed=self._starts())  # the start may have moved since the roll

    # --- flush -------------------------------------------------------------------------------------------

    def begin_flush(self, *, whole: bool = False) -> Flush | None:
        """What to sync now; None where nothing waits for it (under ``os``, unless it is to be ``whole``: until a
        segment is full). The mark is synced, too, as it is when the flush begins: when it has passed another full
        segment, or ``MARK_BYTES`` were appended. The caller runs the flush and then calls ``complete_flush``, or,
        where it failed, nothing any more."""
        assert self._flush is None, "one flush at a time"
        active, mark, lazy = self._bases[-1], self._mark, self._lazy and not whole
        passed = mark.synced < active <= (mark.value or 0) and not lazy
        if not self._usable or not (passed or self._synced < (active if lazy else self.end)):
            return None
        if self._appended - self._marked >= MARK_BYTES and mark.synced < (mark.value or 0):
            passed, self._marked = True, self._appended
        files = [segment.file for segment in self._segments[self._segment_of(self._synced) :]]
        if self._epochs_grown:
            files.append(self._epochs_file)
        directory = (self._disk, self._directory) if self._directory_grown else None
        self._epochs_grown = self._directory_grown = False
        marked = (mark, mark.value or 0) if passed else None
        self._flush = Flush(tuple(files), self.end, directory, self._generation, marked)
        return self._flush

    def complete_flush(self, flush: Flush) -> None:
        """``flush`` has run: ``durable`` moves to its end, unless the log was truncated meanwhile. Raises
        ``OSError``."""
        assert flush is self._flush
        self._flush = None
        while self._retired:
            self._retired.pop().close()
        if flush.generation == self._generation and self._usable:
            with Change(self):
                self._synced = max(self._synced, flush.end)  # the start may have moved past it
                self._mark.write(flush.end)
                if flush.mark is not None:
                    self._mark.synced = flush.mark[1]

    def discard_unsynced(self) -> None:
        """A flush failed: cut what it covered out of the files. It may be nowhere but in the page cache, where it
        looks sound and counts as clean. Under ``os`` it stays: it was told to be as safe as it gets, and the next
        opening writes it again. The log is unusable. Raises ``OSError``."""
        self._usable = False
        if self._lazy:
            return
        keep = self._segment_of(self._synced)
        for segment in reversed(self._segments[keep + 1 :]):
            remove(self._disk, segment.path)
            remove(self._disk, segment.index_path)
        remove(self._disk, self._segments[keep].index_path)
        self._segments[keep].cut(self._synced)

    # --- truncate ----------------------------------------------------------------------------------------

    def truncate(self, end: int, recalled: ProducerState | None = None) -> None:
        """End at ``end``, durably; a batch that would be cut in two goes whole. Epochs that begin there or later are
        forgotten. Everything that is left is durable. ``recalled``: what ``begin_recall`` gave for this end; without
        it the caller's thread does that. Raises ``OSError``; the log is then unusable.

        Crash-safe at each step: first HW and mark come down, durably, to where the log is to end; what is then found
        above may be cut, and nothing below. Damage that is met is met before that.
        """
        assert self.start <= end <= self.end, f"cut at {end}, of {self.start} to {self.end}"
        with Change(self):
            if end < self.end:
                self._generation += 1
                known = not self.producers.reaches(end)
                self._cut_segments(end)
                if recalled is not None:
                    self.producers.rebuild((), recalled)
                elif not known:
                    self._load_producers()
            if self.epochs.truncate_to(self._segments[-1].end_offset):
                self._epochs_file.pwritev([self.epochs.last_bytes(0)], self.epochs.position(0))
                self._epochs_file.truncate(self.epochs.position(0) + ENTRY_BYTES)
                self._epochs_grown = True

    def _cut_segments(self, end: int) -> None:
        keep = self._segment_of(end)
        edge, _ = self._segments[keep].chain_at(end)
        self._deletions.on_cut(end)
        self._committed.lack(min(self._synced, edge))
        self._mark.write(min(self._synced, edge), sync=True)
        for segment in reversed(self._segments[keep + 1 :]):
            self._retire(segment)
            segment.unlink()
        self._snapshots.remove(above=end)
        self._due = None
        del self._segments[keep + 1 :], self._bases[keep + 1 :]
        active = self._segments[-1]
        active.wake()
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

    def _close(self, file: File) -> None:
        """A file that a flush is syncing is closed when that is over: its descriptor could become another file's."""
        if self._flush is None:
            file.close()
        else:
            self._retired.append(file)

    # --- beginning anew ----------------------------------------------------------------------------------

    def reset(self, beginning: Beginning, producers: ProducerState) -> None:
        """Throw the whole log away, durably, and be an empty one that begins so; ``producers`` is the state that
        ``beginning`` tells, the log's own from now on. No job of the log is under way. Safe against a crash at each
        step (``reset.py``). Raises ``OSError``."""
        assert self._advance is None, "the log start is moving"
        with Change(self):
            self._generation += 1
            for segment in self._segments:
                self._retire(segment)
            self._close(self._epochs_file)
            origin = LogStartCheckpoint(beginning.start, beginning.last_epoch, beginning.chain or NO_CHAIN)
            reset.begin(self._disk, self._directory, origin, beginning.producers)
            self._tail.shrink_to(0)
            self._take(recover(self._disk, self._directory))
            self.producers.rebuild((), producers)

    # --- the rest ----------------------------------------------------------------------------------------

    def write_high_watermark(self, high_watermark: int, *, sync: bool = False) -> None:
        """Write the HW down, as far as the log is durable: a log that is found shorter has lost records. Cheap, and
        never torn; durable only with ``sync``. Raises ``OSError``."""
        self._committed.write(min(high_watermark, self.durable), sync=sync)

    def lower_high_watermark(self, high_watermark: int) -> None:
        """The HW goes back, durably: what lay between is not committed any more. Raises ``OSError``."""
        self._committed.lower(min(high_watermark, self.durable))

    def sync_all(self) -> None:
        """Make everything durable, in the caller's thread and whatever the flush policy: an end in order. No flush is
        under way. Raises ``OSError``: the log is then unusable."""
        assert self._flush is None, "one flush at a time"
        with Change(self):
            files = [segment.file for segment in self._segments[self._segment_of(self._synced) :]]
            Flush((*files, self._epochs_file), self.end, (self._disk, self._directory)).run()
            self._epochs_grown = self._directory_grown = False
            self._synced = self.end
            self._mark.write(self.end, sync=True)

    def close(self, *, for_good: bool = False) -> None:
        """Close the files; not a flush. Those of a flush that still runs are closed when it is completed. Where
        everything is synced the next opening need not read it; ``for_good``: there will be none. Raises ``OSError``;
        the files are closed then, too."""
        active = self._segments[-1]
        try:
            if self._usable and self._synced == self.end and active.size and not for_good:
                active.seal()
                if self.end not in self._snapshots.offsets():
                    self._snapshot_of(self.producers).run()
        finally:
            self._usable = False
            self._tail.shrink_to(0)
            for segment in self._segments:
                segment.wake()
                self._retire(segment)
            self._close(self._epochs_file)
