"""What the active controller proposes for the sake of the timeline: it creates the timeline's topic, keeps it
replicated, and keeps the metadata up to date with it.

- The topic, when as many servers are live as it is to have replicas, or ``settle_s`` after the first is;
  more replicas, when there are more servers later.
- Who the controllers are and which is active (``NoteControllers``), whenever the replicated state has it otherwise.
- That events are in the topic for good (``ForgetEvents``), at most once in ``FORGET_S``.

Each is in flight until it is applied; what is proposed twice changes nothing the second time."""

from __future__ import annotations

import math
from typing import NamedTuple

from tidelog.errors import TidelogError
from tidelog.types import TIMELINE, NodeId
from tidelog.wire.messages import ControllerMember, CreateTopic

from tidelog_controller.config import TimelineSettings
from tidelog_controller.metadata.commands import ChangeTopic, Command, ForgetEvents, NoteControllers, SetReplicas
from tidelog_controller.metadata.rules.placement import Placement, Random, candidates, racks_of
from tidelog_controller.metadata.rules.topics import plan_topic
from tidelog_controller.metadata.state import MetadataState

FORGET_S = 1.0
"""Shortest time in seconds between two commands that drop written events from the metadata."""
RETRY_S = 1.0
"""Seconds until the creation of the topic is tried again."""
SAFE_REPLICAS, SAFE_IN_SYNC = 3, 2
"""From ``SAFE_REPLICAS`` replicas on the topic needs ``SAFE_IN_SYNC`` replicas in sync."""


class ControllerGroup(NamedTuple):
    """The active controller, its term and all controllers, as the active controller sees them. An event is recorded
    in the timeline only if the group differs from the recorded one."""

    active: NodeId
    term: int
    members: tuple[ControllerMember, ...]


class TimelineTopic:
    """The decisions of the active controller when to create the topic ``__timeline``, to add replicas to it, and to
    record in the metadata what the timeline needs. In memory only."""

    def __init__(self, settings: TimelineSettings, rng: Random) -> None:
        self._settings = settings
        self._rng = rng
        self.clear()

    def clear(self) -> None:
        """Forget all plans and which proposals are in flight, since this controller is no longer active."""
        self._create_at = math.inf
        self._grow_at = math.inf
        self._secure = False
        self._noted: ControllerGroup | None = None
        self._forgotten = 0
        self._forget_at = -math.inf

    def become_active(self, state: MetadataState, now: float) -> None:
        """Forget all plans, and plan anew what the topic needs according to the metadata ``state``."""
        self.clear()
        self.on_applied(state, state, now)

    @property
    def _factor(self) -> int:
        return self._settings.replication_factor

    def on_applied(self, before: MetadataState, state: MetadataState, now: float) -> None:
        """Plan what the topic needs after the state changed from ``before`` to ``state``: its creation once enough
        servers are live, more replicas once there are more servers, and a higher ``min_insync_replicas`` once it has
        enough replicas. Does nothing if the settings want no timeline."""
        if not self._factor:
            return
        topic = state.topics.get(state.names.get(TIMELINE, ""))
        if topic is None:
            live = sum(map(state.is_live, state.servers))
            wait = math.inf if not live else 0.0 if live >= self._factor else self._settings.settle_s
            self._create_at = min(self._create_at, now + wait) if live else math.inf
            return
        self._create_at = math.inf
        partition, was = topic.partitions[0], before.partition(topic.topic_id, 0)
        if was is not None and len(was.replicas) < SAFE_REPLICAS <= len(partition.replicas):
            self._secure = topic.config.min_insync_replicas < SAFE_IN_SYNC
        steady = partition.leader is not None and not partition.target and partition.successor is None
        wanted = min(self._factor, len(candidates(state, self._factor)))
        if steady and len(partition.replicas) < wanted:
            self._grow_at = min(self._grow_at, now + self._settings.settle_s)
        else:
            self._grow_at = math.inf

    def deadline(self, confirmed: int, group: ControllerGroup) -> float:
        """Return the time in seconds at which ``due`` has something to propose: minus infinity for at once, infinity
        for never. ``confirmed`` is the number of the last event that is committed in the topic, ``group`` the present
        group of controllers."""
        if not self._factor:
            return math.inf
        if group != self._noted or self._secure:
            return -math.inf
        forget_at = self._forget_at if confirmed > self._forgotten else math.inf
        return min(self._create_at, self._grow_at, forget_at)

    def due(
        self, state: MetadataState, confirmed: int, group: ControllerGroup, now: float, wall_ms: int
    ) -> list[Command]:
        """Return the commands to propose now, an empty list if there are none. They create the topic, give it more
        replicas or a higher ``min_insync_replicas``, record the group of controllers, or drop from the metadata the
        events up to ``confirmed``, which are committed in the topic. Afterwards ``deadline`` is later than
        ``now``."""
        if not self._factor:
            return []
        commands: list[Command] = []
        if group != self._noted:
            self._noted = group
            if not _is_known(state, group):
                commands.append(NoteControllers(wall_ms, group.active, group.term, group.members))
        if now >= self._create_at:
            self._create_at = now + RETRY_S
            commands += self._creation(state, wall_ms)
        topic_id = state.names.get(TIMELINE, "")
        if self._secure and topic_id:
            commands.append(ChangeTopic(wall_ms, topic_id, {"min_insync_replicas": SAFE_IN_SYNC}))
        self._secure = False
        if now >= self._grow_at:
            self._grow_at = math.inf
            commands += self._growth(state, topic_id, wall_ms)
        if confirmed > self._forgotten and now >= self._forget_at:
            self._forgotten, self._forget_at = confirmed, now + FORGET_S
            if confirmed > state.timeline.written:
                commands.append(ForgetEvents(wall_ms, confirmed))
        return commands

    def _creation(self, state: MetadataState, wall_ms: int) -> list[Command]:
        """Return, in a list, the command that creates the topic on as many servers as can get replicas; an empty list
        if it cannot be created now."""
        factor = min(self._factor, len(candidates(state, self._factor)))
        config = {"retention_ms": str(self._settings.retention_ms), "segment_max_bytes": str(16 << 20)}
        planned = plan_topic(state, CreateTopic(TIMELINE, 1, factor, config), self._rng, wall_ms)
        return [] if isinstance(planned, TidelogError) else [planned]

    def _growth(self, state: MetadataState, topic_id: str, wall_ms: int) -> list[Command]:
        """Return, in a list, the command that adds replicas of the topic on other servers; an empty list if no other
        server is live."""
        partition = state.partition(topic_id, 0)
        servers = [node for node in candidates(state, self._factor) if partition and node not in partition.replicas]
        if partition is None or not servers:
            return []
        missing = min(self._factor - len(partition.replicas), len(servers))
        placement = Placement(state.topics.values(), self._rng, racks_of(state))
        (more,) = placement.place(servers, 1, missing)
        replicas = (*partition.replicas, *more)
        evidence = {"wanted": str(self._factor), "replicas_before": " ".join(partition.replicas)}
        return [SetReplicas(wall_ms, topic_id, 0, partition.epoch, replicas, "too_few_replicas", evidence)]


def _is_known(state: MetadataState, group: ControllerGroup) -> bool:
    """Return whether the metadata have recorded this group of controllers, active controller and term already."""
    known, named = state.timeline, [(member.node, member.url, member.voter) for member in group.members]
    same = named == [(member.node, member.url, member.voter) for member in known.controllers]
    return same and (known.active, known.term) == (group.active, group.term)
