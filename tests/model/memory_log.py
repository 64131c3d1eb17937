"""A log in memory with the interface of ``storage/log.py`` that roles use: one batch of one record at every offset.

``Disk`` is what outlives the process; ``crash`` what a power loss does to it. The epoch cache is the real one, and so
are the batches; only segments, indexes and recovery are left out, which have tests of their own.
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
    """The batches' leader epochs."""
    synced: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    high_watermark: int = 0
    damaged: bool = False
    """Who reads the records notices that they are not what was written."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What ``lives.py`` writes; the small files are always durable."""

    def keep(self, end: int) -> None:
        """A power loss: only what is below ``end`` is left of the records."""
        del self.batches[end:], self.row[end:]
        cache = LeaderEpochCache(self.epochs)
        cache.truncate_to(end + 1)
        self.epochs = tuple(cache.entries)
        self.synced = min(self.synced, end)

    def start_over(self) -> None:
        """The records are set aside, and all that is known of them."""
        self.batches, self.row, self.epochs = [], [], ()
        self.synced = self.high_watermark = 0
        self.damaged = False

    # --- the part of ``tidelog.runtime.disk.Disk`` that ``lives.py`` needs ------------------------------------------

    def mkdir(self, path: str) -> None:
        """Directories need not be made here."""

    def sync_dir(self, path: str) -> None:
        """Names are durable at once."""

    def read(self, path: str) -> bytes:
        """Return a file's bytes. Raises ``FileNotFoundError``."""
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def write_atomic(self, path: str, data: bytes) -> None:
        """Durable at once."""
        self.files[path] = data

    def unlink(self, path: str) -> None:
        """Gone at once."""
        del self.files[path]


@dataclass(frozen=True, slots=True)
class Flush:
    """A flush under way, as ``storage.flush.Flush``."""

    end: int
    generation: int


class NoPendingLosses:
    """As ``log.pending_losses.PendingLosses``. What is not reported before a crash is not part of this model."""

    ranges: tuple[LostRange, ...] = ()

    def add(self, ranges: Sequence[LostRange]) -> None:
        """Forget the losses at once."""


class MemoryLog:
    """``on_append(offset, batch, epoch)`` sees every batch as it is appended."""

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
        """As the topic's flush policy has it."""
        return self.end if self._lazy else self.disk.synced

    def epoch_at(self, offset: int) -> int:
        """Of the record before ``offset``; -1 for none."""
        return self.disk.row[offset - 1] if offset else -1

    def headers(self) -> list[BatchHeader]:
        """Of all batches."""
        return [read_header(batch) for batch in self.disk.batches]

    def lacks(self, source: Compacted) -> bool:
        """Never: no log is compacted."""
        return False

    def compacted_behind(self, offset: int) -> Compacted:
        """Nothing: no log is compacted."""
        return UNKNOWN

    def append(
        self,
        batches: Sequence[bytes | bytearray | memoryview],
        source: Compacted = UNKNOWN,
        headers: Sequence[BatchHeader] | None = None,
    ) -> None:
        """As ``Log.append``; the headers are read again."""
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
        """As ``Log.assign_epoch``: durable at once."""
        self.epochs.assign(epoch, self.end)
        self.disk.epochs = tuple(self.epochs.entries)

    def read(self, offset: int, max_bytes: int, limit: int | None = None) -> list[bytes]:
        """Batches from ``offset``: two at most, so that catching up takes steps."""
        return self.disk.batches[offset : min(offset + 2, self.end if limit is None else limit)]

    def chain_at(self, offset: int) -> tuple[int, bytes]:
        """As ``Log.chain_at``: every record is a batch; nobody asks for the chain."""
        return min(offset, self.end), b""

    def begin_rebuild(self, end: int) -> None:
        """As ``Log.begin_rebuild``: there are no producers to remember."""

    def truncate(self, end: int, rebuilt: None = None) -> None:
        """As ``Log.truncate``: durable at once."""
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
        """The checkpoint, also above the log end."""
        return self.disk.high_watermark

    def write_high_watermark(self, high_watermark: int, *, sync: bool = False) -> None:
        """The checkpoint; durable at once, which is the harder case."""
        self.disk.high_watermark = high_watermark

    lower_high_watermark = write_high_watermark

    def sync_all(self) -> None:
        """Sync the whole log, as ``Log.sync_all`` does."""
        self.disk.synced = self.end

    def close(self) -> None:
        """Nothing is open."""
