"""What the metadata and the history of a partition say, which several answers and commands need: whether its leader
refuses writes, and which events report lost records."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.wire.messages import PartitionInfo, TopicInfo

LOSSES = {"records_lost": "lost", "records_possibly_lost": "possibly lost"}
"""Events of a partition's history that report records as cut off, each in words."""


def refuses_all(topic: TopicInfo, partition: PartitionInfo) -> bool:
    """Return whether too few replicas are in sync for writes with acks ``all``, so that a leader refuses such writes.
    This does not check that the partition has a leader."""
    return len(partition.isr) < needed_in_sync(topic, partition)


def needed_in_sync(topic: TopicInfo, partition: PartitionInfo) -> int:
    """Return the number of replicas that must be in sync for writes with acks ``all``: ``min_insync_replicas``, and
    with commit rule ``quorum`` at least a majority."""
    least = int(topic.config["min_insync_replicas"])
    majority = len(partition.replicas) // 2 + 1
    return max(least, majority) if topic.config["commit_rule"] == "quorum" else least
