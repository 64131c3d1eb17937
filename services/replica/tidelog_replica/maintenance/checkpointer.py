"""High watermarks on their way to the disk: every ``checkpoint_interval_s`` all that have moved are written, a few at
a time, since each costs a file: ten thousand in one go would cost a server its session."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.types import TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition

AT_ONCE = 8
"""Opening a file may wait for the disk, where it has much to write."""
PAUSE_S = 0.002
"""Between two shares."""


class HighWatermarkCheckpointer:
    """``partitions``: all that are open, a live view."""

    def __init__(self, context: NodeContext, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._partitions = partitions
        self._interval_s = context.settings.checkpoint_interval_s
        self._timers = context.timers
        self._touch = context.touch
        self.queued: dict[TopicPartition, Partition] = {}
        """Partitions whose high watermark is to be written, the oldest first; only this class changes it."""
        self._round: list[TopicPartition] = []
        """Those that are written in the round that is under way, the next one last."""

    def add(self, partition: Partition, now: float) -> None:
        """Queue a partition that is not ``queued``: its high watermark has moved."""
        self.queued[partition.key] = partition
        if not self._round:
            self._timers.set(self, now + self._interval_s)

    def on_tick(self, now: float) -> None:
        """Write the next share of the round, or begin the next round."""
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
