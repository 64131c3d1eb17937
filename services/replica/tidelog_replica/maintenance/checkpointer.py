"""High watermarks on their way to the disk: every ``checkpoint_interval_s`` all that have moved are written, a few at
a time, since each costs a file: ten thousand in one go would cost a server its session."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.types import TopicPartition

from tidelog_replica.context import NodeContext
from tidelog_replica.partition.partition import Partition

TIMER = ("checkpoint", "")
AT_ONCE = 8
"""Opening a file may wait for the disk, where it has much to write."""
PAUSE_S = 0.002
"""Between two shares."""


class HighWatermarkCheckpointer:
    """``partitions``: all that are open, a live view. The owner calls ``on_tick`` when ``TIMER`` is due."""

    def __init__(self, context: NodeContext, partitions: Mapping[TopicPartition, Partition]) -> None:
        self._partitions = partitions
        self._interval_s = context.settings.checkpoint_interval_s
        self._timers = context.timers
        self._touch = context.touch
        self._moved: dict[TopicPartition, Partition] = {}
        self._due: dict[TopicPartition, Partition] = {}
        """Of the round that is under way."""

    def add(self, partition: Partition, now: float) -> None:
        """Its high watermark has moved."""
        if partition.key not in self._moved and partition.key not in self._due:
            self._moved[partition.key] = partition
            if not self._due:
                self._timers.set(TIMER, now + self._interval_s)

    def on_tick(self, now: float) -> None:
        """Write the next share."""
        if not self._due:
            self._due, self._moved = self._moved, {}
        for key in list(self._due)[:AT_ONCE]:
            partition = self._due.pop(key)
            if self._partitions.get(key) is partition:
                partition.checkpoint()
                self._touch(partition.key)
        if self._due:
            self._timers.set(TIMER, now + PAUSE_S)
        elif self._moved:
            self._timers.set(TIMER, now + self._interval_s)
