"""What the parts of a replica server have in common.

``node.py`` makes one ``NodeContext`` and hands it to every part. A part takes from it what it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog.runtime.disk import Disk
from tidelog.sansio.timers import TimerOwner, Timers
from tidelog.types import NodeId, TopicPartition

from tidelog_replica.config import ReplicaSettings
from tidelog_replica.effects import Effects
from tidelog_replica.replication.idle_followers import IdleFollowers


@dataclass(frozen=True, slots=True)
class NodeContext:
    """The objects that all parts of one replica server share. The node makes it once, and it never changes."""

    node: NodeId
    settings: ReplicaSettings
    disk: Disk
    directory: str
    """Path of the data directory."""
    effects: Effects
    timers: Timers[TimerOwner]
    idle_followers: IdleFollowers
    wall_ms: Callable[[], int]
    """Return the wall clock, by which records age, in ms since 1970."""
    touch: Callable[[TopicPartition], None]
    """Have the node settle a partition at the end of the present input (``ReplicaNode._settle``). Does nothing if the
    partition is not open then."""

    def log_directory(self, key: TopicPartition) -> str:
        """Return the path of the directory that holds the partition's log, whether the directory exists or not."""
        return f"{self.directory}/{key.topic_id}-{key.partition}"
