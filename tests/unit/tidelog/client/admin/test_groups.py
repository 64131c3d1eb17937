"""Positions of all groups in a partition, by one request. Tests ``client/admin/groups.py``."""

from __future__ import annotations

import tidelog
from support.fake_gateway import FakeCluster
from tidelog.net.link import Link
from tidelog.wire.messages import GroupInfo, GroupPosition, ListGroups, ListGroupsAnswer, Message

BILLING = GroupPosition("id", 2, 7, committed_ms=5000)


class WithGroups(FakeCluster):
    """A cluster with these groups."""

    def __init__(self, *groups: GroupInfo) -> None:
        super().__init__()
        self.groups = groups
        self.asked: list[Message] = []

    def answer(self, link: Link, message: Message) -> Message:
        if isinstance(message, ListGroups):
            self.asked.append(message)
            return ListGroupsAnswer(self.groups)
        return super().answer(link, message)


async def test_groups_without_a_position_there_are_left_out() -> None:
    cluster = WithGroups(
        GroupInfo("billing", "stable", positions=(BILLING,)), GroupInfo("other", "empty", positions=())
    )
    orders = cluster.add_topic("orders", 3)
    async with cluster.gateways() as (url,), tidelog.connect(url) as log:
        assert await log.groups.positions(await log.topics.describe("orders"), 2) == {"billing": BILLING}
    assert cluster.asked == [ListGroups(topic_id=orders.topic_id, topic_partition=2)]


async def test_a_position_that_is_not_told_is_not_known() -> None:
    cluster = WithGroups(GroupInfo("billing", "stable", positions=(BILLING,)), GroupInfo("hidden", "empty"))
    cluster.add_topic("orders", 3)
    async with cluster.gateways() as (url,), tidelog.connect(url) as log:
        topic = await log.topics.describe("orders")
        assert await log.groups.positions(topic, 2) == {"billing": BILLING, "hidden": None}
