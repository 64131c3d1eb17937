"""The coordinator of consumer groups, one rule at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidelog.errors import TidelogError
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupInfo,
    GroupPosition,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    Message,
    TopicShare,
)
from tidelog_replica.core.groups.coordinator import Coordinator
from tidelog_replica.core.groups.group import Topic, Topics
from tidelog_replica.core.groups.records import Entry, Stored
from tidelog_replica.core.groups.settings import GroupSettings

ORDERS = Topic("id-orders", "orders", 4)
SETTINGS = GroupSettings(
    max_groups=2, max_members=3, max_topics=2, max_metadata_bytes=5, max_joins_per_s=10, offsets_retention_ms=1000
)


class Desk:
    """A coordinator, its log, and what each member was told last."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall_ms = 5000
        self.topics = Topics([ORDERS])
        self.log: list[Entry] = []
        self.told: dict[str, tuple[int, set[int]]] = {}
        """Generation and partitions of ``orders``, by member."""
        self.core = Coordinator("r1", SETTINGS, self.topics)
        self.core.begin(Stored(), self.now)

    def ask(self, message: Message) -> Any:
        answer = self.core.handle(message, self.now, self.wall_ms)
        self.log += self.core.take_entries()
        return answer

    def refused(self, message: Message) -> str:
        """The code; a refusal writes nothing."""
        before = len(self.log)
        answer = self.ask(message)
        assert isinstance(answer, TidelogError) and len(self.log) == before
        return answer.code

    def join(self, member: str, *topics: str, **fields: Any) -> set[int]:
        return self._take(member, self.ask(JoinGroup("g", member, topics or ("orders",), **fields)))

    def heartbeat(self, member: str, owned: set[int] | None = None, generation: int = -1, **fields: Any) -> set[int]:
        """By default it owns what it was told last."""
        told = self.told[member]
        share = TopicShare(ORDERS.topic_id, tuple(sorted(told[1] if owned is None else owned)))
        generation = told[0] if generation < 0 else generation
        return self._take(member, self.ask(GroupHeartbeat("g", member, generation, (share,), **fields)))

    def _take(self, member: str, answer: Any) -> set[int]:
        assert not isinstance(answer, TidelogError), answer
        self.told[member] = answer.generation, {n for share in answer.assignment for n in share.partitions}
        return self.told[member][1]

    def commit(self, member: str, partition: int, offset: int = 7, generation: int = -1, **fields: Any) -> Any:
        generation = self.told[member][0] if generation < 0 else generation
        position = GroupPosition(ORDERS.topic_id, partition, offset, 3)
        return self.ask(CommitOffsets("g", (position,), member, generation, **fields))

    def settle(self, *members: str) -> None:
        """Everybody gives up what they must, and hears what they get."""
        for _ in range(3):
            for member in members:
                self.heartbeat(member)

    def advance(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.core.deadline()) is not None and due <= until:
            self.now = due
            self.core.on_tick(self.now, self.wall_ms)
            self.log += self.core.take_entries()
        self.now = until

    def fail_over(self) -> None:
        stored = Stored()
        for key, value in self.log:
            stored.take(key, value)
        self.core = Coordinator("r2", SETTINGS, self.topics)
        self.core.begin(stored, self.now)
        self.log += self.core.take_entries()

    def describe(self) -> DescribeGroupAnswer:
        answer = self.ask(DescribeGroup("g"))
        assert isinstance(answer, DescribeGroupAnswer)
        return answer

    def offsets(self) -> dict[int, int]:
        answer = self.ask(FetchOffsets("g"))
        assert isinstance(answer, FetchOffsetsAnswer)
        return {position.partition: position.offset for position in answer.positions}


def code(answer: Any) -> str:
    return answer.code if isinstance(answer, TidelogError) else ""


# --- assignment ----------------------------------------------------------------------------------------------


def test_the_first_member_gets_everything_at_once() -> None:
    desk = Desk()
    assert desk.join("a") == {0, 1, 2, 3}
    assert desk.describe().state == "stable"


def test_a_partition_goes_over_only_when_its_owner_has_given_it_up() -> None:
    desk = Desk()
    desk.join("a")
    assert desk.join("b") == set()
    kept = desk.heartbeat("a")
    assert len(kept) == 2
    assert desk.heartbeat("b") == set(), "a has not said yet that it gave up the others"
    assert desk.describe().state == "moving"
    desk.heartbeat("a", owned=kept)
    assert desk.heartbeat("b") == {0, 1, 2, 3} - kept
    assert desk.describe().state == "stable"


def test_members_that_keep_their_partitions_notice_nothing() -> None:
    desk = Desk()
    for member in ("a", "b", "c"):
        desk.join(member)
    desk.settle("a", "b", "c")
    before = dict(desk.told)
    keeper = next(member for member in "abc" if len(before[member][1]) == 2)
    goes, stays = (member for member in "abc" if member != keeper)
    desk.ask(LeaveGroup("g", goes))
    desk.settle(keeper, stays)
    assert desk.told[keeper] == before[keeper], "neither another generation nor another share"
    assert desk.told[stays][1] > before[stays][1]


def test_a_late_heartbeat_from_before_it_was_told_gives_nothing_up() -> None:
    desk = Desk()
    desk.join("a")
    old = desk.told["a"][0]
    desk.join("b")
    desk.heartbeat("a", owned=set(), generation=old)  # on its way since a was owner of nothing
    assert desk.heartbeat("b") == set()


def test_who_gives_nothing_up_in_time_is_out() -> None:
    desk = Desk()
    desk.join("a", rebalance_timeout_ms=20_000)
    desk.join("b")
    for _ in range(5):
        desk.advance(5)
        desk.heartbeat("b")
        if "a" in desk.core.groups["g"].members:
            desk.heartbeat("a", owned={0, 1, 2, 3})
    assert desk.heartbeat("b") == {0, 1, 2, 3}
    assert desk.refused(GroupHeartbeat("g", "a", desk.told["a"][0])) == "UNKNOWN_MEMBER"


def test_a_silent_member_is_out_after_its_session_timeout_and_not_before() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=10_000)
    desk.join("b", session_timeout_ms=60_000)
    desk.settle("a", "b")
    desk.advance(9.9)
    assert len(desk.heartbeat("b")) == 2
    desk.advance(0.2)
    assert desk.heartbeat("b") == {0, 1, 2, 3}


def test_a_member_that_leaves_frees_its_partitions_at_once() -> None:
    desk = Desk()
    desk.join("a")
    desk.join("b")
    desk.settle("a", "b")
    assert desk.ask(LeaveGroup("g", "a")) == Done()
    assert desk.ask(LeaveGroup("g", "a")) == Done(), "it may be told twice"
    assert desk.heartbeat("b") == {0, 1, 2, 3}


def test_a_join_that_is_repeated_changes_nothing() -> None:
    desk = Desk()
    desk.join("a")
    told, written = desk.told["a"], len(desk.log)
    desk.join("a")
    assert desk.told["a"] == told and len(desk.log) == written


def test_other_topics_change_the_share_and_other_assignors_too() -> None:
    desk = Desk()
    desk.join("a")
    desk.join("b", "orders", "more", assignor="range")
    assert desk.describe().assignor == "range"
    desk.settle("a", "b")
    assert (desk.told["a"][1], desk.told["b"][1]) == ({0, 1}, {2, 3})
    desk.join("b", "more")
    desk.settle("b", "a")
    assert (desk.told["a"][1], desk.told["b"][1]) == ({0, 1, 2, 3}, set())


# --- static members ------------------------------------------------------------------------------------------


def test_a_static_member_comes_back_to_what_it_had_and_nobody_notices() -> None:
    desk = Desk()
    desk.join("a")
    desk.join("b1", instance="b")
    desk.settle("a", "b1")
    before = dict(desk.told)
    assert desk.ask(LeaveGroup("g", "b1", keep=True)) == Done()
    assert [member.away for member in desk.describe().members] == [False, True]
    desk.advance(5)
    assert desk.join("b2", instance="b") == before["b1"][1]
    desk.heartbeat("a")
    assert desk.told["a"] == before["a"]


def test_the_process_that_had_it_before_is_fenced() -> None:
    desk = Desk()
    desk.join("b1", instance="b")
    generation = desk.told["b1"][0]
    desk.join("b2", instance="b")
    assert desk.refused(GroupHeartbeat("g", "b1", generation, instance="b")) == "FENCED_INSTANCE"
    assert code(desk.commit("b1", 0, instance="b")) == "FENCED_INSTANCE"
    assert code(desk.commit("b2", 0, instance="b")) == ""


def test_a_static_member_that_stays_away_is_out_after_its_session_timeout() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=60_000)
    desk.join("b1", instance="b", session_timeout_ms=10_000)
    desk.settle("a", "b1")
    desk.ask(LeaveGroup("g", "b1", keep=True))
    desk.advance(10.1)
    assert desk.heartbeat("a") == {0, 1, 2, 3}


# --- commits -------------------------------------------------------------------------------------------------


def test_only_the_owner_commits_and_only_in_its_present_generation() -> None:
    desk = Desk()
    desk.join("a")
    first = desk.told["a"][0]
    desk.join("b")
    kept = desk.heartbeat("a")
    given = min({0, 1, 2, 3} - kept)
    assert code(desk.commit("a", given, 5)) == "", "what it is giving up is still its own to commit"
    assert code(desk.commit("a", given, 6, generation=first)) == "FENCED_GENERATION"
    assert code(desk.commit("b", given, 6)) == "FENCED_GENERATION"
    desk.heartbeat("a")
    desk.heartbeat("b")
    assert code(desk.commit("a", given, 6)) == "FENCED_GENERATION"
    assert desk.offsets() == {given: 5}
    assert code(desk.commit("b", given, 6)) == ""
    assert desk.offsets() == {given: 6}


def test_a_commit_is_taken_whole_or_not_at_all() -> None:
    desk = Desk()
    desk.join("a")
    desk.join("b")
    desk.settle("a", "b")
    positions = tuple(GroupPosition(ORDERS.topic_id, number, 9) for number in range(4))
    assert desk.refused(CommitOffsets("g", positions, "a", desk.told["a"][0])) == "FENCED_GENERATION"
    assert desk.offsets() == {}


def test_positions_are_set_by_hand_only_while_there_are_no_members() -> None:
    desk = Desk()
    by_hand = CommitOffsets("g", (GroupPosition(ORDERS.topic_id, 1, 9, 3, "m"),))
    assert desk.ask(by_hand) == Done()
    desk.join("a")
    assert desk.refused(by_hand) == "GROUP_NOT_EMPTY"
    desk.ask(LeaveGroup("g", "a"))
    assert desk.ask(by_hand) == Done()
    assert desk.ask(FetchOffsets("g")).positions == (GroupPosition(ORDERS.topic_id, 1, 9, 3, "m", 5000),)
    asked = FetchOffsets("g", (TopicShare(ORDERS.topic_id, (0, 1)),))
    assert [position.partition for position in desk.ask(asked).positions] == [1]


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


def test_the_next_coordinator_goes_on_where_the_last_one_was() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=10_000)
    desk.join("b1", instance="b")
    desk.heartbeat("a")
    desk.commit("a", 0)
    before = desk.describe()
    desk.advance(9)
    desk.fail_over()
    assert replace(desk.describe(), coordinator="r1") == before
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
    stored = Stored()
    for key, value in ((b"\x01", None), (None, None), (b"\x82egroupag", b"\xa1fformat\x02")):
        with pytest.raises(ValueError, match="cannot be read"):
            stored.take(key, value)


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
def test_what_is_out_of_bounds_is_refused(message: Message, code: str) -> None:
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
