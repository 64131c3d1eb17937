"""The owners of topics: how many topics and partitions a principal may have (``tidelog.principal_bounds``).

The owner of a topic is the principal that created it, also after others have changed it. The cluster's own topics,
and those of an earlier release, have none. The bounds are in the command, so that every controller judges in the same
way: when it is applied, topics that were planned at the same time are counted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tidelog.errors import TidelogError
from tidelog.feature_levels import OWNERS
from tidelog.principal_bounds import refuse_excess
from tidelog.types import TopicOwner

from tidelog_controller.config import OwnerSettings
from tidelog_controller.metadata.commands import AddPartitions, AddTopic
from tidelog_controller.metadata.state import MetadataState

TOPICS, PARTITIONS = "settings.owners.principal_max_topics", "settings.owners.principal_max_partitions"


def bounded_topic(
    state: MetadataState, command: AddTopic, principal: str, settings: OwnerSettings
) -> AddTopic | TidelogError:
    """Return a copy of the command that creates a topic, with ``principal`` as the owner and the owner's limits; or
    the error ``LIMIT_EXCEEDED`` if the owner may not have one more topic or so many partitions. Return the command
    unchanged without a principal and below feature level ``OWNERS``."""
    if not principal or state.level < OWNERS:
        return command
    most = settings.principal_max_topics, settings.principal_max_partitions
    owned = replace(command, owner=principal, max_topics=most[0], max_partitions=most[1])
    return refuse_new_topic(state, owned) or owned


def bounded_partitions(
    state: MetadataState, command: AddPartitions, settings: OwnerSettings
) -> AddPartitions | TidelogError:
    """Return a copy of the command that adds partitions, with the limit of the topic's owner; or the error
    ``LIMIT_EXCEEDED`` if the owner may not have so many. Return the command unchanged if the topic has no owner."""
    if not owner_of(state, command.topic_id):
        return command
    owned = replace(command, max_partitions=settings.principal_max_partitions)
    return refuse_more_partitions(state, owned) or owned


def refuse_new_topic(state: MetadataState, command: AddTopic) -> TidelogError | None:
    """Return the error ``LIMIT_EXCEEDED`` if the owner of a new topic would have too many topics or partitions; None
    if not, or if the topic has no owner."""
    if not command.owner:
        return None
    mine = _topics_of(state.owners, command.owner)
    over = refuse_excess(command.owner, "topics", len(mine), TOPICS, command.max_topics)
    return over or _refuse_excess_partitions(state, command.owner, len(command.replicas), command.max_partitions)


def refuse_more_partitions(state: MetadataState, command: AddPartitions) -> TidelogError | None:
    """Return the error ``LIMIT_EXCEEDED`` if the owner of a topic would have too many partitions after the command;
    None if not, or if there is no owner or no limit."""
    owner = owner_of(state, command.topic_id)
    if not owner or not command.max_partitions:
        return None
    return _refuse_excess_partitions(state, owner, len(command.replicas), command.max_partitions)


def owner_of(state: MetadataState, topic_id: str) -> str:
    """Return the principal that created the topic; "" if none is recorded."""
    return next((known.principal for known in state.owners if known.topic_id == topic_id), "")


def without_owner(owners: Iterable[TopicOwner], topic_id: str) -> tuple[TopicOwner, ...]:
    """Return the records of owners without that of the topic ``topic_id``; all of them if it has none."""
    return tuple(known for known in owners if known.topic_id != topic_id)


def _topics_of(owners: Iterable[TopicOwner], principal: str) -> list[str]:
    return [known.topic_id for known in owners if known.principal == principal]


def _refuse_excess_partitions(state: MetadataState, owner: str, more: int, most: int) -> TidelogError | None:
    held = sum(len(state.topics[topic_id].partitions) for topic_id in _topics_of(state.owners, owner))
    return refuse_excess(owner, "partitions", held, PARTITIONS, most, more=more)
