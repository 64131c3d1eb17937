"""Groups as they travel."""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.types import TopicPartition
from tidelog.wire.messages import GroupMember, GroupPosition, TopicShare

from tidelog_replica.coordinators.groups import records
from tidelog_replica.coordinators.groups.group import Group, Member, Topics
from tidelog_replica.coordinators.groups.records import OffsetRecord


def shares_of(partitions: Iterable[TopicPartition], topics: Topics) -> tuple[TopicShare, ...]:
    """Partitions by topic, with its name."""
    return tuple(
        TopicShare(topic_id, numbers, topics.by_id[topic_id].name if topic_id in topics.by_id else "")
        for topic_id, numbers in records.shares_of(partitions).items()
    )


def position_of(partition: TopicPartition, offset: OffsetRecord) -> GroupPosition:
    """A position as it was committed."""
    return GroupPosition(*partition, offset.offset, offset.leader_epoch, offset.metadata, offset.ms)


def positions_of(group: Group) -> tuple[GroupPosition, ...]:
    """All positions of a group."""
    return tuple(position_of(p, group.offsets[p]) for p in sorted(group.offsets))


def describe_member(member: Member, topics: Topics) -> GroupMember:
    """A member as ``describe_group`` shows it."""
    return GroupMember(
        member.name,
        member.generation,
        member.instance,
        member.node,
        member.topics,
        shares_of(member.assigned, topics),
        shares_of(member.leaving, topics),
        shares_of(member.target, topics),
        member.session_ms,
        member.away,
    )
