"""The coordinator of consumer groups: what it keeps, what it forgets, and its bounds. Tests
``groups/coordinator.py`` and ``groups/group.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.group_coordinator import ORDERS, Desk, code
from tidelog.errors import TidelogError
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    GroupHeartbeat,
    GroupInfo,
    GroupPosition,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    Message,
)
from tidelog_replica.coordinators.groups.group import Topic, Topics
from tidelog_replica.coordinators.groups.records import StoredGroups, partitions_of

# --- topics --------------------------------------------------------------------------------------------------


def change_topics(desk: Desk, *topics: Topic) -> None:
    desk.topics = Topics(topics)
    desk.core.on_topics(desk.topics, desk.now)
    desk.log += desk.core.take_entries()


def test_new_partitions_and_new_topics_reach_the_members() -> None:
    desk = Desk()
    desk.join("a", "orders", "later")
    change_topics(desk, ORDERS._replace(partitions=6))
    assert desk.heartbeat("a") == {0, 1, 2, 3, 4, 5}
    change_topics(desk, ORDERS._replace(partitions=6), Topic("id-later", "later", 1))
    desk.heartbeat("a")
    assert [share.topic for share in desk.describe().members[0].assignment] == ["later", "orders"]


def test_a_topic_that_is_deleted_takes_its_positions_along() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 1)
    change_topics(desk, ORDERS._replace(topic_id="another"))
    assert desk.heartbeat("a", owned=set()) == {0, 1, 2, 3}, "of the new one"
    assert desk.offsets() == {}
    desk.fail_over()
    assert desk.offsets() == {}


# --- what is left behind -------------------------------------------------------------------------------------


def _stored(described: DescribeGroupAnswer) -> DescribeGroupAnswer:
    """Return the description without what is kept in memory only."""
    members = tuple(
        replace(member, heard_ms=-1, leaving_ms=-1, work=None, joined_ms=-1, advanced_ms=-1)
        for member in described.members
    )
    positions = tuple(replace(at, earlier_offset=-1, earlier_ms=-1) for at in described.positions)
    return replace(described, members=members, positions=positions, events=(), moved=())


def test_the_next_coordinator_goes_on_where_the_last_one_was() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=10_000)
    desk.join("b1", instance="b")
    desk.heartbeat("a")
    desk.commit("a", 0)
    before = desk.describe()
    desk.advance(9)
    desk.fail_over()
    assert replace(_stored(desk.describe()), coordinator="r1") == _stored(before)
    desk.advance(9)
    assert code(desk.commit("a", 0)) == "", "a new coordinator gives everybody a whole session timeout"
    desk.advance(2)
    assert code(desk.commit("a", 0)) == "UNKNOWN_MEMBER"


def test_a_group_without_members_and_positions_is_gone_and_leaves_only_tombstones() -> None:
    desk = Desk()
    desk.join("a")
    desk.ask(LeaveGroup("g", "a"))
    assert desk.refused(DescribeGroup("g")) == "UNKNOWN_GROUP"
    assert not {key: value for key, value in desk.log if value is not None}.keys() - {
        key for key, value in desk.log if value is None
    }
    desk.fail_over()
    assert desk.ask(ListGroups()) == ListGroupsAnswer()


def test_positions_of_a_group_that_nobody_uses_expire() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0)
    desk.wall_ms += 10_000
    desk.advance(10)
    desk.ask(LeaveGroup("g", "a"))
    desk.advance(100)
    assert desk.offsets() == {0: 7}, "by the wall clock no time has passed"
    desk.wall_ms += 999
    desk.advance(100)
    assert desk.offsets() == {0: 7}
    desk.wall_ms += 1
    desk.advance(100)
    assert desk.refused(DescribeGroup("g")) == "UNKNOWN_GROUP"


def test_a_group_is_deleted_only_without_members() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0)
    assert desk.ask(ListGroups()) == ListGroupsAnswer((GroupInfo("g", "stable", 1, "r1"),))
    assert desk.refused(DeleteGroup("g")) == "GROUP_NOT_EMPTY"
    desk.ask(LeaveGroup("g", "a"))
    assert desk.ask(DeleteGroup("g")) == Done()
    assert desk.refused(DeleteGroup("g")) == "UNKNOWN_GROUP"
    desk.fail_over()
    assert desk.ask(ListGroups()) == ListGroupsAnswer()


def test_nobody_is_put_out_while_nothing_can_be_written() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=10_000)
    desk.now += 20
    desk.core.postpone(desk.now)
    due = desk.core.deadline()
    assert due is not None and due > desk.now
    desk.advance(6.9)
    assert code(desk.commit("a", 0)) == "", "it has time to be heard again"
    desk.advance(0.2)
    assert code(desk.commit("a", 0)) == "UNKNOWN_MEMBER"


def test_records_of_a_newer_version_are_not_guessed_at() -> None:
    stored = StoredGroups()
    for key, value in ((b"\x01", None), (None, None), (b"\x82egroupag", b"\xa1fformat\x02")):
        with pytest.raises(ValueError, match="cannot be read"):
            stored.add_record(key, value)


# --- bounds --------------------------------------------------------------------------------------------------

JOIN = JoinGroup("g", "a", ("orders",))


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (replace(JOIN, group=""), "INVALID_GROUP"),
        (replace(JOIN, group="a b"), "INVALID_GROUP"),
        (replace(JOIN, group="g" * 250), "INVALID_GROUP"),
        (replace(JOIN, member=""), "INVALID_GROUP"),
        (replace(JOIN, member="a\n"), "INVALID_GROUP"),
        (replace(JOIN, instance="ä" * 125), "INVALID_GROUP"),
        (replace(JOIN, node="n" * 250), "INVALID_GROUP"),
        (replace(JOIN, topics=()), "INVALID_GROUP"),
        (replace(JOIN, topics=("t", "t")), "INVALID_GROUP"),
        (replace(JOIN, topics=("t", "u", "v")), "INVALID_GROUP"),
        (replace(JOIN, topics=("../t",)), "INVALID_TOPIC"),
        (replace(JOIN, assignor="lottery"), "INVALID_GROUP"),
        (replace(JOIN, session_timeout_ms=5999), "INVALID_GROUP"),
        (replace(JOIN, rebalance_timeout_ms=1 << 40), "INVALID_GROUP"),
        (CommitOffsets("g", ()), "INVALID_GROUP"),
        (CommitOffsets("g", (GroupPosition("id-orders", 0, 1, metadata="äöü"),)), "INVALID_GROUP"),
        (CommitOffsets("g", (GroupPosition("id-orders", 4, 1),)), "UNKNOWN_TOPIC"),
        (CommitOffsets("g", (GroupPosition("id-gone", 0, 1),)), "UNKNOWN_TOPIC"),
        (CommitOffsets("g", (GroupPosition("id-orders", 0, 1),), "a", 1), "UNKNOWN_MEMBER"),
        (GroupHeartbeat("g", "a", 1), "UNKNOWN_MEMBER"),
        (GroupHeartbeat("", "a", 1), "INVALID_GROUP"),
        (DescribeGroup("g"), "UNKNOWN_GROUP"),
        (DescribeGroup("/"), "INVALID_GROUP"),
    ],
)
def test_requests_out_of_bounds_are_refused(message: Message, code: str) -> None:
    assert Desk().refused(message) == code


def test_a_generation_that_nobody_is_in_yet_is_fenced() -> None:
    desk = Desk()
    desk.join("a")
    assert desk.refused(GroupHeartbeat("g", "a", desk.told["a"][0] + 1)) == "FENCED_GENERATION"


def test_groups_members_and_joins_have_bounds() -> None:
    desk = Desk()
    for member in ("a", "b", "c"):
        desk.join(member)
    assert desk.refused(replace(JOIN, member="d")) == "GROUP_FULL"
    assert not isinstance(desk.ask(replace(JOIN, group="h")), TidelogError)
    assert desk.refused(replace(JOIN, group="i")) == "GROUP_FULL"
    assert desk.refused(CommitOffsets("i", (GroupPosition("id-orders", 0, 1),))) == "GROUP_FULL"
    for _ in range(6):
        desk.ask(LeaveGroup("h", "a"))
        desk.ask(replace(JOIN, group="h"))
    desk.ask(LeaveGroup("h", "a"))
    assert desk.refused(replace(JOIN, group="h")) == "OVERLOADED"
    desk.now += 1.0
    assert not isinstance(desk.ask(replace(JOIN, group="h")), TidelogError)


def test_a_static_member_comes_back_into_a_full_group() -> None:
    desk = Desk()
    for member in ("a", "b", "c"):
        desk.join(member, instance=member)
    desk.join("new", instance="b")
    assert [member.member for member in desk.describe().members] == ["a", "c", "new"]


def test_nobody_changes_into_another_static_member() -> None:
    desk = Desk()
    desk.join("a", instance="x")
    assert desk.refused(replace(JOIN, instance="y")) == "INVALID_GROUP"


def test_every_partition_has_an_owner_when_members_had_partitions_of_different_topics() -> None:
    desk = Desk()
    change_topics(desk, ORDERS, Topic("id-more", "more", 2))
    desk.join("a", "orders", "more")
    desk.join("b", "more")
    desk.settle("a", "b")
    owners = desk.core.groups["g"].owners
    assert {p for p, name in owners.items() if name == "b"} == {TopicPartition("id-more", n) for n in (0, 1)}
    assert len(owners) == 6


def test_no_prefix_of_the_group_log_gives_a_partition_to_two_members() -> None:
    """Also when several members are out at the same moment, and what they had goes from hand to hand."""
    desk = Desk()
    for member, session_ms in (("a", 60_000), ("b", 10_000), ("c", 10_000)):
        desk.join(member, session_timeout_ms=session_ms)
    desk.settle("a", "b", "c")
    before = len(desk.log)
    desk.now += 20
    desk.core.on_tick(desk.now, desk.wall_ms)
    desk.log += desk.core.take_entries()
    assert desk.heartbeat("a") == {0, 1, 2, 3}
    for end in range(before, len(desk.log) + 1):
        stored = StoredGroups()
        for key, value in desk.log[:end]:
            stored.add_record(key, value)
        held = [
            p
            for member in stored.members.values()
            for p in partitions_of(member.assigned) | partitions_of(member.leaving)
        ]
        assert len(held) == len(set(held))
