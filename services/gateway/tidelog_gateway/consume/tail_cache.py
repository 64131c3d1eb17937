"""The newest batches of each partition, kept for the next subscriber whose position is where they begin.

Theory. A *run* is what one read brought: consecutive whole batches. The runs of a partition that follow each other
without a gap are its *tail*. A position (last epoch, offset) *continues* at a batch of the tail if the batch begins
at the offset and the record before it has that epoch, as the leader would check it (KIP-320); without an epoch the
offset is enough, as for the leader. Any other position is read from the partition.

- Every batch of a tail was below the HW when it was read, under the leader epoch that the metadata still names: the
  owner drops a partition's tail when that changes, and when a server reports that a position is gone. Nothing below
  the highest reported log start is found.
- A run is found for ``max_age_s`` after it was read, and then dropped. A replica server does not notify its readers
  when compaction rewrites a part of the log. So a deleted value is served from here for at most that long after the
  servers have stopped serving it.
- A tail only grows at its end. A run that ends within it is not kept, so readers who catch up do not evict the
  batches that the others need next. A run that begins behind the tail, or does not continue it, replaces it.
- All runs together take at most ``max_bytes``. The oldest of all are evicted first, even if a subscriber has yet to
  read them. Batches are passed on by reference, so a batch on its way to clients outlives its place here; such bytes
  are bounded by credit and outboxes, and counted there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from tidelog.batch.format import read_header
from tidelog.types import Buffer, TopicPartition

BATCH_OVERHEAD_BYTES = 360
"""Memory that the bookkeeping of one batch takes beside its bytes."""


class RunSlice(NamedTuple):
    """Some consecutive whole batches of a run, by reference: their bytes, the position behind their last record
    (offset and leader epoch), the number of offsets that they span, and the first timestamp of each batch
    (milliseconds since 1970)."""

    payload: memoryview
    offset: int
    last_epoch: int
    records: int
    timestamps: list[int]


class BatchRun:
    """The consecutive whole batches that one read brought, with an index of their offsets and places. Creating a run
    raises ``CorruptBatch`` if the payload is no sequence of batches."""

    __slots__ = ("_epochs", "_offsets", "_payload", "_positions", "_timestamps", "_whole")

    def __init__(self, payload: Buffer) -> None:
        self._payload = memoryview(payload)
        self._offsets: list[int] = []
        self._positions: list[int] = []
        self._epochs: list[int] = []
        self._timestamps: list[int] = []
        position = end = 0
        while position < len(self._payload):
            header = read_header(self._payload, position)
            self._offsets.append(header.base_offset)
            self._positions.append(position)
            self._epochs.append(header.leader_epoch)
            self._timestamps.append(header.first_timestamp)
            position += header.batch_length
            end = header.end_offset
        self._offsets.append(end)
        self._positions.append(position)
        self._whole = self._slice(0, len(self._epochs))

    @property
    def start(self) -> int:
        """Return the offset of the first record."""
        return self._offsets[0]

    @property
    def end_offset(self) -> int:
        """Return the offset after the last record."""
        return self._offsets[-1]

    @property
    def size(self) -> int:
        """Return the bytes of memory that the run takes, with its index."""
        return len(self._payload) + BATCH_OVERHEAD_BYTES * len(self._epochs)

    def batches(self) -> list[tuple[int, int]]:
        """Return the base offset and leader epoch of each batch, in order."""
        return list(zip(self._offsets, self._epochs, strict=False))

    def slice(self, first: int, max_bytes: int) -> RunSlice:
        """Return the batches from number ``first`` on that fit in ``max_bytes``; at least one, even if it is larger.
        The bytes are not copied. All callers that get the whole run get the same object."""
        begin = self._positions[first]
        if not first and max_bytes >= self._positions[-1]:
            return self._whole
        return self._slice(first, max(first + 1, bisect_right(self._positions, begin + max_bytes) - 1))

    def _slice(self, first: int, last: int) -> RunSlice:
        """Return the batches from number ``first`` to the one before number ``last``."""
        records = self._offsets[last] - self._offsets[first]
        payload = self._payload[self._positions[first] : self._positions[last]]
        timestamps = self._timestamps[first:last]
        return RunSlice(payload, self._offsets[last], self._epochs[last - 1], records, timestamps)


@dataclass(slots=True)
class _PartitionTail:
    """The cached batches of one partition, which follow each other without a gap. ``batches``: by base offset, the
    epoch of the record before the batch, its run, and its number in the run."""

    batches: dict[int, tuple[int, BatchRun, int]] = field(default_factory=dict)
    end: int = -1
    last_epoch: int = -1
    high_watermark: int = -1
    log_start: int = 0


class SubscriberTailCache:
    """The newest batches of all partitions of a gateway, kept so that subscribers that come to the same position need
    no read. ``max_bytes`` and ``max_age_s`` bound all runs. ``now`` is in seconds of a monotonic clock."""

    def __init__(self, max_bytes: int, max_age_s: float) -> None:
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._tails: dict[TopicPartition, _PartitionTail] = {}
        self._ages: OrderedDict[BatchRun, tuple[TopicPartition, float]] = OrderedDict()
        """The partition of each run, and when the run was read; the oldest first."""
        self.bytes = 0
        """Bytes of memory that all runs take."""

    def add(self, key: TopicPartition, before: int, run: BatchRun, now: float) -> None:
        """Append a run to the tail of its partition; if it does not continue the tail, it replaces the tail. A run
        that ends within the tail, or is larger than the whole cache, is not kept. The oldest runs of all partitions
        are evicted while there are too many bytes. ``before``: leader epoch of the record before the run; -1: not
        known."""
        self._forget_old(now)
        if run.size > self._max_bytes:
            return
        tail = self._tails.get(key)
        if tail is not None and run.end_offset <= tail.end:
            return
        new = _links(before, run)
        if tail is not None and (tail.last_epoch, tail.end) in [(epoch, offset) for offset, epoch, _ in new]:
            new = [link for link in new if link[0] >= tail.end]
        elif tail is not None:
            self.drop(key)
            tail = None
        if tail is None:
            tail = self._tails[key] = _PartitionTail()
        for offset, epoch, number in new:
            tail.batches[offset] = epoch, run, number
        tail.end = run.end_offset
        tail.last_epoch = run.batches()[-1][1]
        self._ages[run] = key, now
        self.bytes += run.size
        while self.bytes > self._max_bytes:
            self._forget_oldest()

    def update_bounds(self, key: TopicPartition, high_watermark: int, log_start: int) -> None:
        """Raise the HW and the log start of a partition's tail to those that a server reported; lower ones are
        ignored. Does nothing if the partition has no tail."""
        tail = self._tails.get(key)
        if tail is not None:
            tail.high_watermark = max(tail.high_watermark, high_watermark)
            tail.log_start = max(tail.log_start, log_start)

    def find(self, key: TopicPartition, offset: int, last_epoch: int, now: float) -> tuple[BatchRun, int, int] | None:
        """Find the cached batch that begins at a reader's position: at ``offset``, after a record of leader epoch
        ``last_epoch`` (-1: any). Return its run, its number in the run, and the highest HW reported for the
        partition. None if no cached batch begins there, or if the offset is below the log start."""
        self._forget_old(now)
        tail = self._tails.get(key)
        found = None if tail is None or offset < tail.log_start else tail.batches.get(offset)
        if tail is None or found is None:
            return None
        before, run, number = found
        return (run, number, tail.high_watermark) if last_epoch in (-1, before) else None

    def drop(self, key: TopicPartition) -> None:
        """Remove all cached batches of a partition. Does nothing if there are none."""
        tail = self._tails.pop(key, None)
        if tail is not None:
            for run in dict.fromkeys(run for _, run, _ in tail.batches.values()):
                del self._ages[run]
                self.bytes -= run.size

    def _forget_old(self, now: float) -> None:
        """Remove the runs that were read ``max_age_s`` ago or earlier."""
        while self._ages and next(iter(self._ages.values()))[1] + self._max_age_s <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remove the run that was read first of all, in whichever partition."""
        run, (key, _) = self._ages.popitem(last=False)
        self.bytes -= run.size
        batches = self._tails[key].batches
        for offset, _ in run.batches():
            if (known := batches.get(offset)) is not None and known[1] is run:
                del batches[offset]
        if not batches:
            del self._tails[key]


def _links(before: int, run: BatchRun) -> list[tuple[int, int, int]]:
    """Return, for each batch of a run, its base offset, the leader epoch of the record before it, and its number in
    the run."""
    links = []
    for number, (offset, epoch) in enumerate(run.batches()):
        links.append((offset, before, number))
        before = epoch
    return links
