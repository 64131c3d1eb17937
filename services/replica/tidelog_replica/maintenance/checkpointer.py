"""Writes high watermarks to the disk: every ``checkpoint_interval_s`` all that have moved, a few at a time. Each
costs a file, and ten thousand of them in one turn would delay the server's heartbeats until its session ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.types import TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition

AT_ONCE = 8
"""Checkpoints written in one tick. Opening a file may have to wait for a busy disk."""
PAUSE_S = 0.002
"""Pause between two ticks of a round, in seconds."""


class HighWatermarkCheckpointer:
    """The part of a node that writes the high watermarks of all open partitions to their checkpoint files, in rounds:
    a round begins ``checkpoint_interval_s`` after the first HW has moved. ``partitions`` are the open partitions, a
    live view. It lives as long as the node."""

    def __init__(self, context: NodeContext, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._partitions = partitions
        self._interval_s = context.settings.checkpoint_interval_s
        self._timers = context.timers
        self._touch = context.touch
        self.queued: dict[TopicPartition, Partition] = {}
        """Partitions whose HW has moved and is not written yet, the oldest first. Only this class changes the
        dict."""
        self._round: list[TopicPartition] = []
        """Partitions that are still to be written in the present round, the next one last."""

    def add(self, partition: Partition, now: float) -> None:
        """Queue a partition whose HW has moved, so that a later round writes it. If no round is under way, set the
        timer for the next one, at most ``checkpoint_interval_s`` from now. The partition must not be in ``queued``
        yet."""
        self.queued[partition.key] = partition
        if not self._round:
            self._timers.set(self, now + self._interval_s)

    def on_tick(self, now: float) -> None:
        """Write the HW checkpoints of the next ``AT_ONCE`` partitions of the round; if no round is under way, begin
        one with all queued partitions. Skips partitions that were closed meanwhile. Sets the timer if more partitions
        are queued."""
        if not self._round:
            self._round = list(self.queued)[::-1]
        for _ in range(min(AT_ONCE, len(self._round))):
            key = self._round.pop()
            partition = self.queued.pop(key)
            if self._partitions.get(key) is partition:
                partition.checkpoint()
                self._touch(key)
        if self._round:
            self._timers.set(self, now + PAUSE_S)
        elif self.queued:
            self._timers.set(self, now + self._interval_s)
