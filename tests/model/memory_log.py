"""A log in memory with the interface of ``storage/log.py`` that roles use: one batch of one record at every offset.

``Disk`` is what survives the process; its ``keep`` is a power loss. The epoch cache and the batches are the real
ones; only segments, indexes and recovery are left out, which have tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidelog.batch.format import BatchHeader, read_header
from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.recovery.pending_losses import LostRange
from tidelog_replica.storage.tombstones import UNKNOWN, Compacted


@dataclass(slots=True)
class Disk:
    """One server's data directory, with one partition."""

    batches: list[bytes] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    """The leader epochs of the batches."""
    synced: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    high_watermark: int = 0
    damaged: bool = False
    """Whether a reader of the records notices that they are damaged."""
    files: dict[str, bytes] = field(default_factory=dict)
    """The files of ``incarnations.py``; they are always durable."""

    def keep(self, end: int) -> None:
        """Lose power: only the records below ``end`` are left."""
        del self.batches[end:], self.row[end:]
        cache = LeaderEpochCache(self.epochs)
        cache.truncate_to(end + 1)
        self.epochs = tuple(cache.entries)
        self.synced = min(self.synced, end)

    def start_over(self) -> None:
        """Remove the records and everything known about them."""
        self.batches, self.row, self.epochs = [], [], ()
        self.synced = self.high_watermark = 0
        self.damaged = False

    # --- the part of ``tidelog.runtime.disk.Disk`` that ``lives.py`` needs ------------------------------------------

    def mkdir(self, path: str) -> None:
        """Do nothing: directories need not be made here."""

    def sync_dir(self, path: str) -> None:
        """Do nothing: names are durable at once."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises ``FileNotFoundError``."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def write_atomic(self, path: str, data: bytes) -> None:
        """Write a file, durable at once."""
        self.files[path] = data

    def unlink(self, path: str) -> None:
        """Remove a file, durably at once."""
        del self.files[path]


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush in progress, as ``storage.flush.Flush``."""

    end: int
    generation: int


class NoPendingLosses:
    """As ``log.pending_losses.PendingLosses``. Losses that are not reported before a crash are not modelled."""

    ranges: tuple[LostRange, ...] = ()

    def add(self, ranges: Sequence[LostRange]) -> None:
        """Forget the losses at once."""


class MemoryLog:
    """The log of one server. ``on_append(offset, batch, epoch)`` is called with every batch as it is appended."""

    start = 0
    pending_losses = NoPendingLosses()
    compacted = UNKNOWN

    def __init__(self, disk: Disk, lazy: bool, on_append: Callable[[int, bytes, int, int], None]) -> None:
        self.disk = disk
        self.end = len(disk.batches)
        self.epochs = LeaderEpochCache(disk.epochs)
        self.producers = ProducerState()
        self._lazy = lazy
        self._generation = 0
        self._flushing = False
        self._on_append = on_append
        if not lazy:
            disk.synced = self.end  # recovery syncs what it found

    @property
    def durable(self) -> int:
        """The durable offset under the topic's flush policy."""
        return self.end if self._lazy else self.disk.synced

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record before ``offset``; -1 for none."""
        return self.disk.row[offset - 1] if offset else -1

    def headers(self) -> list[BatchHeader]:
        """Return the headers of all batches."""
        return [read_header(batch) for batch in self.disk.batches]

    def lacks(self, source: Compacted) -> bool:
        """Return False: no log is compacted here."""
        return False

    def compacted_behind(self, offset: int) -> Compacted:
        """Return that nothing is known: no log is compacted here."""
        return UNKNOWN

    def append(
        self,
        batches: Sequence[bytes | bytearray | memoryview],
        source: Compacted = UNKNOWN,
        headers: Sequence[BatchHeader] | None = None,
    ) -> None:
        """Append batches, as ``Log.append``; the headers are read again."""
        disk = self.disk
        for batch in batches:
            header = read_header(batch)
            assert header.base_offset == self.end and header.record_count == 1
            before = self.epoch_at(self.end)
            if header.leader_epoch != self.epochs.latest() and self.epochs.assign(header.leader_epoch, self.end):
                disk.epochs = tuple(self.epochs.entries)
            owned = bytes(batch)
            self._on_append(self.end, owned, header.leader_epoch, before)
            disk.batches.append(owned)
            disk.row.append(header.leader_epoch)
            self.end += 1

    def assign_epoch(self, epoch: int) -> None:
        """Add a leader epoch, as ``Log.assign_epoch``: durable at once."""
        self.epochs.assign(epoch, self.end)
        self.disk.epochs = tuple(self.epochs.entries)

    def read(self, offset: int, max_bytes: int, limit: int | None = None) -> list[bytes]:
        """Return the batches from ``offset`` on: two at most, so that catching up takes steps."""
        return self.disk.batches[offset : min(offset + 2, self.end if limit is None else limit)]

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """Return the offset and no hash, as ``Log.chain_at``: every record is a batch, and the chain is not used."""
        return min(offset, self.end), b""

    def begin_rebuild(self, end: int) -> None:
        """Return None, as ``Log.begin_rebuild``: there is no producer state."""

    def truncate(self, end: int, rebuilt: None = None) -> None:
        """Cut the log, as ``Log.truncate``: durable at once."""
        assert 0 <= end <= self.end
        if end < self.end:
            self._generation += 1
            del self.disk.batches[end:], self.disk.row[end:]
            self.end = end
            self.disk.synced = end
        if self.epochs.truncate_to(end):
            self.disk.epochs = tuple(self.epochs.entries)

    def begin_flush(self) -> Flush | None:
        """Begin a flush, as ``Log.begin_flush`` does."""
        if self._lazy or self._flushing or self.disk.synced == self.end:
            return None
        self._flushing = True
        return Flush(self.end, self._generation)

    def complete_flush(self, flush: Flush) -> None:
        """Complete a flush, as ``Log.complete_flush`` does."""
        self._flushing = False
        if flush.generation == self._generation:
            self.disk.synced = flush.end

    def read_high_watermark(self) -> int:
        """Return the checkpoint of the high watermark."""
        return self.disk.high_watermark

    @property
    def written_high_watermark(self) -> int:
        """The stored high watermark, also above the log end."""
        return self.disk.high_watermark

    def write_high_watermark(self, high_watermark: int, *, sync: bool = False) -> None:
        """Store the high watermark; it is durable at once, which is the harder case."""
        self.disk.high_watermark = high_watermark

    lower_high_watermark = write_high_watermark

    def sync_all(self) -> None:
        """Sync the whole log, as ``Log.sync_all`` does."""
        self.disk.synced = self.end

    def close(self) -> None:
        """Do nothing: no file is open."""
