"""The coordinator of consumer groups, one rule at a time: who gets what, and who may commit it."""

from __future__ import annotations

from support.group_coordinator import ORDERS, Desk, code
from tidelog.wire.messages import (
    CommitOffsets,
    Done,
    FetchOffsets,
    GroupHeartbeat,
    GroupPosition,
    LeaveGroup,
    MemberWork,
    TopicShare,
)

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


def test_a_late_heartbeat_from_before_the_assignment_gives_nothing_up() -> None:
    desk = Desk()
    desk.join("a")
    old = desk.told["a"][0]
    desk.join("b")
    desk.heartbeat("a", owned=set(), generation=old)  # on its way since a was owner of nothing
    assert desk.heartbeat("b") == set()


def test_a_member_that_does_not_give_up_partitions_in_time_is_removed() -> None:
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


# --- what is described of members ----------------------------------------------------------------------------


def test_a_member_is_described_with_its_last_heartbeat_and_what_its_application_did() -> None:
    desk = Desk()
    desk.join("a")
    (before,) = desk.describe().members
    assert (before.heard_ms, before.leaving_ms, before.work) == (-1, -1, None)
    work = MemberWork(1500, ORDERS.topic_id, 0, 7)
    owned = (TopicShare(ORDERS.topic_id, (0, 1, 2, 3)),)
    desk.ask(GroupHeartbeat("g", "a", desk.told["a"][0], owned, work=work))
    desk.now += 2.0
    desk.join("b")
    desk.now += 1.0
    first, _ = desk.describe().members
    assert (first.heard_ms, first.leaving_ms, first.work) == (3000, 1000, work)


def test_of_the_partitions_that_a_member_says_are_paused_those_that_it_has_are_kept() -> None:
    desk = Desk()
    desk.join("a")
    said = (TopicShare(ORDERS.topic_id, tuple(range(2, 5000)), "x"), TopicShare("other", (0,)))
    desk.ask(GroupHeartbeat("g", "a", desk.told["a"][0], work=MemberWork(0, paused=said)))
    (member,) = desk.describe().members
    assert member.work == MemberWork(0, paused=(TopicShare(ORDERS.topic_id, (2, 3), "orders"),))
