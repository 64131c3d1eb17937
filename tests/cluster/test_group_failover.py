"""Consumer groups over a whole cluster: members as the protocol wants them, without a client library."""

from __future__ import annotations

from pathlib import Path

import trio
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError
from tidelog.types import GROUPS
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    Message,
    TopicShare,
)

from cluster.harness import Client, connected, running

GROUP = "billing"


class Member:
    """Owns what it is told, and gives up what it is told to give up."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self.generation = -1
        self.assignment: tuple[TopicShare, ...] = ()

    @property
    def owned(self) -> set[int]:
        return {number for share in self.assignment for number in share.partitions}

    async def join(self, *topics: str) -> None:
        self._take(await self._client.link.call(JoinGroup(GROUP, self.name, topics), 15))

    async def heartbeat(self) -> None:
        message = GroupHeartbeat(GROUP, self.name, self.generation, self.assignment)
        self._take(await self._client.link.call(message, 15))

    async def commit(self, topic_id: str, partition: int, offset: int) -> None:
        position = GroupPosition(topic_id, partition, offset, 0)
        await self._client.link.call(CommitOffsets(GROUP, (position,), self.name, self.generation), 15)

    def _take(self, answer: Message) -> None:
        assert isinstance(answer, JoinGroupAnswer | GroupHeartbeatAnswer)
        self.generation, self.assignment = answer.generation, answer.assignment


async def code_of(client: Client, message: Message) -> str:
    try:
        await client.link.call(message, 15)
    except TidelogError as error:
        return error.code
    return ""


async def offsets(client: Client) -> dict[int, int]:
    answer = await client.link.call(FetchOffsets(GROUP), 15)
    assert isinstance(answer, FetchOffsetsAnswer)
    return {position.partition: position.offset for position in answer.positions}


async def test_a_group_lives_through_the_end_of_its_coordinator(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client:
        assert await client.link.call(ListGroups(), 15) == ListGroupsAnswer(), "nothing needs the topic yet"
        topic_id = await client.create("orders", partitions=4)
        one, two = Member(client, "one"), Member(client, "two")
        await one.join("orders")
        assert one.owned == {0, 1, 2, 3}
        await one.commit(topic_id, 0, 10)
        await two.join("orders")
        assert two.owned == set(), "nobody has given anything up yet"
        await one.heartbeat()
        kept = one.owned
        assert len(kept) == 2
        await one.heartbeat()
        await two.heartbeat()
        assert two.owned == {0, 1, 2, 3} - kept

        infos = await client.partition(GROUPS, partition_of(GROUP.encode(), 16))
        with trio.fail_after(30):
            await cluster.stop(infos.leader)
        await one.heartbeat()
        await two.heartbeat()
        assert (one.owned, two.owned) == (kept, {0, 1, 2, 3} - kept), "a failover moves nothing"
        await one.commit(topic_id, min(kept), 20)
        lost = GroupPosition(topic_id, min(kept), 30)
        assert await code_of(client, CommitOffsets(GROUP, (lost,), "two", two.generation)) == "FENCED_GENERATION"
        assert await code_of(client, CommitOffsets(GROUP, (lost,), "two", 1)) == "FENCED_GENERATION"
        assert await code_of(client, CommitOffsets(GROUP, (lost,), "three", 1)) == "UNKNOWN_MEMBER"
        assert await code_of(client, CommitOffsets(GROUP, (lost,))) == "GROUP_NOT_EMPTY"

        described = await client.link.call(DescribeGroup(GROUP), 15)
        assert isinstance(described, DescribeGroupAnswer)
        assert described.coordinator not in ("", infos.leader)
        assert [member.member for member in described.members] == ["one", "two"]
        assert {**await offsets(client)} == {0: 10, min(kept): 20}

        for name in ("one", "two"):
            assert await code_of(client, LeaveGroup(GROUP, name)) == ""
        await client.link.call(CommitOffsets(GROUP, (lost,)), 15)
        assert (await offsets(client))[min(kept)] == 30
        listed = await client.link.call(ListGroups(), 15)
        assert isinstance(listed, ListGroupsAnswer)
        assert [(info.group, info.state) for info in listed.groups] == [(GROUP, "empty")]
        assert await code_of(client, DeleteGroup(GROUP)) == ""
        assert await code_of(client, DescribeGroup(GROUP)) == "UNKNOWN_GROUP"
        assert await offsets(client) == {}
