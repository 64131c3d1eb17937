"""The scrubber: reads every full segment of every log again, slowly, so that damage is found while others still hold
what was lost.

A round begins every ``scrub_interval_s``, the first one a twenty-fourth of that after the start, and goes through all
partitions, segment by segment, in jobs of ``PIECE_BYTES``, one at a time for the whole server; pauses between them
keep it at ``scrub_bytes_per_s``. A segment that is removed, cut or compacted in the middle of its check is passed
over. What is found goes the way of all damage: the partition goes offline, resigns and is repaired (``repair.py``).
Nothing is remembered across a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tidelog.disk import Disk
from tidelog.types import TopicPartition

from tidelog_replica.core.epochs import EpochCache
from tidelog_replica.log.scrub import Place, Scrub, Target
from tidelog_replica.log.segment import CorruptLog
from tidelog_replica.outbox import Outbox
from tidelog_replica.partition import Partition
from tidelog_replica.settings import ReplicaSettings

PIECE_BYTES = 1 << 20
"""Read by one job; a batch may go beyond that."""
KEY = TopicPartition("", -1)
"""Of the scrubber's jobs: they only read, so they need not wait for those that work on the log."""


class Scrubbing:
    """``partitions`` is a live view; ``touch`` tells the owner that a partition's input has to be settled."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        disk: Disk,
        settings: ReplicaSettings,
        outbox: Outbox,
        touch: Callable[[Partition], None],
    ) -> None:
        self._partitions = partitions
        self._disk = disk
        self._interval_s = settings.scrub_interval_s
        self._rate = settings.scrub_bytes_per_s
        self._outbox = outbox
        self._touch = touch
        self._round: list[TopicPartition] = []
        """Partitions whose turn is still to come, the next one last."""
        self._partition: Partition | None = None
        """The one whose turn it is."""
        self._target: Target | None = None
        """Its segment that is being checked, or was last."""
        self._place: Place | None = None
        """How far; None: it is over."""
        self._segments = self._bytes = 0
        """Checked in this round."""
        self._busy = False
        self._round_due = 0.0
        self._due: float | None = None

    def start(self, now: float) -> None:
        """The server begins to live."""
        if self._rate:
            self._due = self._round_due = now + self._interval_s / 24

    def deadline(self) -> float | None:
        """When ``on_tick`` is wanted; None while a job runs, or for ever."""
        return None if self._busy else self._due

    def on_tick(self, now: float) -> None:
        """The next piece, or the next round, if it is time."""
        if self._busy or self._due is None or now < self._due:
            return
        if self._partition is None and not self._round:
            self._round_due = now + self._interval_s
            self._round = list(self._partitions)[::-1]
            self._segments = self._bytes = 0
        if self._place is None or not self._is_there():
            self._find_segment()
        if self._partition is None or self._target is None or self._place is None:
            self._end_round()
            return
        epochs = EpochCache(self._partition.log.epochs.entries)
        job = Scrub(self._disk, self._target, self._place, PIECE_BYTES, epochs)
        self._busy = True
        self._outbox.jobs.start(KEY, job, partial(self._on_checked, now))

    # --- segment by segment ------------------------------------------------------------------------------

    def _find_segment(self) -> None:
        """The next full segment there is, of this partition or of the next ones."""
        self._place = None
        while self._partition is not None or self._round:
            if self._partition is None:
                self._partition, self._target = self._partitions.get(self._round.pop()), None
                continue
            target = self._full_segment_after(-1 if self._target is None else self._target.base)
            if target is not None:
                self._target, self._place = target, target.beginning
                return
            self._partition = None

    def _full_segment_after(self, base: int) -> Target | None:
        partition = self._partition
        if partition is None or partition.offline is not None:
            return None
        if self._partitions.get(partition.key) is not partition:
            return None  # deleted, or damaged
        segment = partition.log.full_segment_after(base)
        return None if segment is None else Target.of(segment)

    def _is_there(self) -> bool:
        """The segment is the one whose check began, and nothing has replaced it."""
        return self._target is not None and self._full_segment_after(self._target.base - 1) == self._target

    def _end_round(self) -> None:
        self._due = self._round_due
        if self._segments:
            self._outbox.event("scrubbed", segments=self._segments, bytes=self._bytes)

    def _on_checked(self, begun: float, result: object, now: float) -> None:
        self._busy = False
        partition, target, place = self._partition, self._target, self._place
        assert partition is not None and target is not None and place is not None
        self._due = now
        if not self._is_there():
            return
        if isinstance(result, CorruptLog):
            self._place = None
            partition.guard(partial(_meet, result))
            self._touch(partition)
            return
        if isinstance(result, OSError):  # it says nothing of the segment, which is looked at in the next round
            self._place = None
            self._outbox.event("scrub_failed", reason=f"{target.path}: {result}")
            return
        assert isinstance(result, tuple)
        reached, index_removed = result
        self._due = max(now, begun + (reached.position - place.position) / self._rate)
        self._place = reached if reached.position < target.size else None
        if self._place is None:
            self._segments += 1
            self._bytes += target.size
        if index_removed:
            key = partition.key
            self._outbox.event("index_removed", topic_id=key.topic_id, partition=key.partition, segment=target.base)


def _meet(damage: OSError) -> None:
    raise damage
