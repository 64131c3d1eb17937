"""Administration of consumer groups by clients that are not members: ``Log.groups``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.client.admin.old_names import keep_old_call
from tidelog.client.admin.topics import TopicAdmin
from tidelog.client.connection import GatewayConnection
from tidelog.client.lookups import check_partitions, describe_topic
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupInfo,
    GroupPosition,
    ListGroups,
    ListGroupsAnswer,
    PartitionInfo,
    TopicInfo,
)


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The committed position and the lag of a group in one partition. A number is -1 if it is not known; ``offset``
    is -1 if the group has no position there."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    high_watermark: int
    member: str = ""
    """The member that owns the partition (its instance name if it is static); "" if no member does."""
    committed_ms: int = -1
    """Time of the commit, in milliseconds since 1970; -1 without a position."""
    metadata: str = ""
    """Text that the committer has left with the position."""

    @property
    def lag(self) -> int:
        """Number of offsets between the group's position and the high watermark; -1 if one of them is not known."""
        return -1 if -1 in (self.offset, self.high_watermark) else max(0, self.high_watermark - self.offset)


@keep_old_call("groups")
class GroupAdmin:
    """The methods that describe, reset and delete consumer groups, for clients that are not members; each ``Log`` has
    them as ``log.groups``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def list(self) -> tuple[GroupInfo, ...]:
        """Return every consumer group, ordered by name."""
        return (await self._connection.ask(ListGroups(), ListGroupsAnswer)).groups

    async def describe(self, group: str) -> DescribeGroupAnswer:
        """Return a group's members, their partitions, and its committed positions. Raises ``UNKNOWN_GROUP``."""
        return await self._connection.ask(DescribeGroup(group), DescribeGroupAnswer)

    async def progress(self, group: str) -> tuple[GroupProgress, ...]:
        """Return the position and lag of a group in every partition that has a position or an owner, ordered by topic
        and partition. The ends of the partitions are those that their leaders know, up to the last stable offset.
        Raises ``UNKNOWN_GROUP``."""
        described = await self.describe(group)
        shares = [share for member in described.members for share in (*member.assignment, *member.leaving)]
        ids = {at.topic_id for at in described.positions} | {share.topic_id for share in shares}
        # a proof for each partition that its leader still leads would take most of the time
        topics = await TopicAdmin(self._connection).find(sorted(ids - {""}), offsets=True, consistency="eventual")
        names = {topic.topic_id: topic.name for topic in topics}
        ends = {
            TopicPartition(topic.topic_id, info.partition): _end_of(info)
            for topic in topics
            for info in topic.partitions
        }
        found = {TopicPartition(at.topic_id, at.partition): at for at in described.positions}
        holders: dict[TopicPartition, str] = {}
        for member in described.members:
            for share in (*member.assignment, *member.leaving):
                names.setdefault(share.topic_id, share.topic)
                holders.update(
                    {TopicPartition(share.topic_id, p): member.instance or member.member for p in share.partitions}
                )
        keys = sorted({*found, *holders}, key=lambda key: (names.get(key.topic_id, ""), key))
        return tuple(
            GroupProgress(
                names.get(key.topic_id, ""),
                *key,
                at.offset if at is not None else -1,
                at.leader_epoch if at is not None else -1,
                ends.get(key, -1),
                holders.get(key, ""),
                at.committed_ms if at is not None else -1,
                at.metadata if at is not None else "",
            )
            for key in keys
            for at in [found.get(key)]
        )

    async def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """Return the group's committed positions in a topic, by partition; partitions without a position are left
        out. Raises ``UNKNOWN_TOPIC``."""
        found = await describe_topic(self._connection, topic)
        answer = await self._connection.ask(FetchOffsets(group), FetchOffsetsAnswer)
        return {
            at.partition: Position(at.leader_epoch, at.offset)
            for at in answer.positions
            if at.topic_id == found.topic_id
        }

    async def positions(self, topic: TopicInfo, partition: int) -> dict[str, GroupPosition | None]:
        """Return the committed positions of all groups in a partition, by group, with the times of their commits;
        groups without a position there are left out. None: the position is not known, since the client may not
        describe the group, or the gateway or the group's coordinator is of an earlier release."""
        asked = ListGroups(topic_id=topic.topic_id, topic_partition=partition)
        found: dict[str, GroupPosition | None] = {}
        for info in (await self._connection.ask(asked, ListGroupsAnswer)).groups:
            if info.positions is None:
                found[info.group] = None
            elif info.positions:
                found[info.group] = info.positions[0]
        return found

    async def reset(
        self, group: str, topic: str, positions: Mapping[int, Position | int], *, metadata: str = ""
    ) -> None:
        """Set the committed positions of a group in these partitions of a topic, each with the text ``metadata``; its
        other positions stay. Raises ``GROUP_NOT_EMPTY`` while the group has members, ``UNKNOWN_TOPIC``,
        ``INVALID_GROUP``."""
        found = await describe_topic(self._connection, topic)
        check_partitions(found, positions)
        parts = tuple(
            GroupPosition(found.topic_id, p, at, -1, metadata)
            if isinstance(at, int)
            else GroupPosition(found.topic_id, p, at.offset, at.leader_epoch, metadata)
            for p, at in sorted(positions.items())
        )
        await self._connection.ask(CommitOffsets(group, parts), Done)

    async def delete(self, group: str) -> None:
        """Delete a group and its positions. Raises ``UNKNOWN_GROUP``, and ``GROUP_NOT_EMPTY`` while it has
        members."""
        await self._connection.ask(DeleteGroup(group), Done, again=False)


def _end_of(info: PartitionInfo) -> int:
    """Return the offset up to which readers of committed records read a partition; -1: not known."""
    return info.high_watermark if info.stable is None else info.stable.offset
