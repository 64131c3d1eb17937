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
    """The shared objects of one replica server."""

    node: NodeId
    settings: ReplicaSettings
    disk: Disk
    directory: str
    """The data directory."""
    effects: Effects
    timers: Timers[TimerOwner]
    idle_followers: IdleFollowers
    wall_ms: Callable[[], int]
    """The wall clock, by which records age: ms since 1970."""
    touch: Callable[[TopicPartition], None]
    """Have a partition settled at the end of the present input, if it is open then."""
