"""A ``NodeContext`` for tests of one part of a replica server."""

from __future__ import annotations

from tidelog.runtime.disk import Disk
from tidelog.sansio.timers import Timers
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.context import NodeContext
from tidelog_replica.effects import Effects
from tidelog_replica.replication.idle_followers import IdleFollowers


def node_context(
    node: str = "a",
    *,
    settings: ReplicaSettings | None = None,
    disk: Disk | None = None,
    effects: Effects | None = None,
) -> NodeContext:
    """Return the context of a server, with new effects and timers, a simulated disk, and a wall clock that stands at
    0. ``touch`` does nothing, so nothing is completed at the end of an input."""
    return NodeContext(
        node=node,
        settings=settings or ReplicaSettings(),
        disk=disk or SimDisk(),
        directory="/data",
        effects=effects or Effects(),
        timers=Timers(),
        idle_followers=IdleFollowers(),
        wall_ms=lambda: 0,
        touch=lambda key: None,
    )
