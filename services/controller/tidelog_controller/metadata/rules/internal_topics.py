"""The topics of the consumer groups, ``__groups``, and of the transactions, ``__transactions``: what they are like,
and that each is created when it is first needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tidelog.config import setting
from tidelog.errors import TidelogError, refuse
from tidelog.types import NodeId
from tidelog.wire.messages import CreateTopic, TopicCreated

from tidelog_controller.metadata.commands import AddTopic
from tidelog_controller.metadata.rules.placement import Dice
from tidelog_controller.metadata.rules.topics import plan_topic
from tidelog_controller.metadata.state import MetadataState


@dataclass(frozen=True, slots=True)
class GroupsTopicSettings:
    """What such a topic is like when it is created; the same on all controllers."""

    partitions: int = setting(16, "partitions: their leaders share out what there is to coordinate", 1, 1000)
    replication_factor: int = setting(3, "replicas, as far as there are servers", 1, 100)


def plan_coordinated(
    name: str,
    state: MetadataState,
    settings: GroupsTopicSettings,
    dice: Dice,
    wall_ms: int,
    slow: Collection[NodeId],
) -> AddTopic | TopicCreated | TidelogError:
    """The command that creates the topic; the answer where it is there. Not on fewer servers than have registered,
    only because some are not up yet: ``NOT_ENOUGH_REPLICAS``, which passes."""
    topic_id = state.names.get(name)
    if topic_id is not None:
        return TopicCreated(topic_id)
    factor = min(settings.replication_factor, len(state.servers))
    live = sum(map(state.is_live, state.servers))
    if live < max(1, factor):
        return refuse("NOT_ENOUGH_REPLICAS", f"{name} needs {max(1, factor)} replica servers, {live} are live")
    config = {"cleanup": "compact", "segment_max_bytes": str(16 << 20)}
    return plan_topic(state, CreateTopic(name, settings.partitions, factor, config), dice, wall_ms, slow)
