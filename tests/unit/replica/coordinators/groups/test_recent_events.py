"""What a coordinator remembers of a group for operators: events of members, their pace, and positions that were moved
from outside. Tests ``groups/recent_events.py`` and what ``groups/coordinator.py`` tells it."""

from __future__ import annotations

from support.group_coordinator import ORDERS, Desk, code
from tidelog.types import TopicPartition
from tidelog.wire.messages import CommitOffsets, GroupPosition, LeaveGroup, MovedPosition
from tidelog_replica.coordinators.groups.recent_events import MERGED_MS, MOST_EVENTS, PACE_MS, PASSED_MS, RecentEvents
from tidelog_replica.coordinators.groups.records import OffsetRecord

HERE = TopicPartition(ORDERS.topic_id, 0)


def kinds(desk: Desk) -> list[tuple[str, str]]:
    return [(event.event, event.member) for event in desk.describe().events]


def set_from_outside(desk: Desk, offset: int) -> None:
    desk.wall_ms += 1
    assert code(desk.ask(CommitOffsets("g", (GroupPosition(ORDERS.topic_id, 0, offset),)))) == ""


def test_members_that_come_and_go_are_remembered_in_order() -> None:
    desk = Desk()
    desk.join("a", node="billing", session_timeout_ms=10_000)
    desk.commit("a", 0)
    desk.join("b", session_timeout_ms=30_000)
    desk.ask(LeaveGroup("g", "b"))
    desk.wall_ms = 7000
    desk.advance(11)
    assert kinds(desk) == [("joined", "a"), ("joined", "b"), ("left", "b"), ("expelled_silent", "a")]
    last = desk.describe().events[-1]
    assert (last.time_ms, last.node, last.timeout_ms) == (7000, "billing", 10_000)


def test_a_member_that_keeps_partitions_too_long_is_remembered_as_slow() -> None:
    desk = Desk()
    desk.join("a", rebalance_timeout_ms=7000, session_timeout_ms=60_000)
    desk.join("b")
    desk.advance(8)
    assert [event.timeout_ms for event in desk.describe().events if event.event == "expelled_slow"] == [7000]


def test_a_member_that_goes_is_remembered_with_whether_it_had_got_on() -> None:
    desk = Desk()
    for member, offset in (("a", 7), ("b", 7), ("c", 8)):
        desk.join(member)
        desk.commit(member, 0, offset)
        desk.ask(LeaveGroup("g", member))
    gone = [(event.member, event.advanced) for event in desk.describe().events if event.event == "left"]
    assert gone == [("a", False), ("b", False), ("c", True)]


def test_a_refused_commit_is_remembered_with_its_code() -> None:
    desk = Desk()
    desk.join("a", session_timeout_ms=10_000)
    desk.join("b", session_timeout_ms=60_000)
    desk.advance(11)
    assert code(desk.commit("a", 0)) == code(desk.commit("a", 0)) == "UNKNOWN_MEMBER"
    last = desk.describe().events[-1]
    assert (last.event, last.member, last.code, last.times) == ("commit_refused", "a", "UNKNOWN_MEMBER", 2)


def test_many_refused_commits_do_not_push_out_other_events() -> None:
    events = RecentEvents()
    events.add_joined(0, "a", "")
    for ms in range(10 * MOST_EVENTS):
        events.add_refused(ms, "b", "", "UNKNOWN_MEMBER")
    assert [event.event for event in events.events] == ["joined", "commit_refused"]
    events.add_refused(2 * MERGED_MS, "b", "", "UNKNOWN_MEMBER")
    assert [event.times for event in events.events] == [1, 10 * MOST_EVENTS, 1]


def test_a_member_advances_when_its_position_moves_forward_and_not_with_its_first_one() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0, 7)
    desk.commit("a", 0, 7)
    assert (desk.describe().members[0].joined_ms, desk.describe().members[0].advanced_ms) == (5000, -1)
    desk.wall_ms = 6000
    desk.commit("a", 0, 8)
    assert (desk.describe().members[0].joined_ms, desk.describe().members[0].advanced_ms) == (5000, 6000)


def test_a_new_coordinator_counts_from_when_it_first_hears_of_a_member() -> None:
    desk = Desk()
    desk.join("a")
    desk.fail_over()
    assert desk.describe().members[0].joined_ms == -1
    desk.wall_ms = 9000
    desk.heartbeat("a")
    assert desk.describe().members[0].joined_ms == 9000


def test_the_earlier_position_is_one_to_two_intervals_old() -> None:
    events = RecentEvents()
    assert events.earlier(HERE) == (-1, -1)
    before: dict[TopicPartition, OffsetRecord] = {}
    for ms in range(0, 6 * PACE_MS + 1, PACE_MS // 5):
        now = {HERE: OffsetRecord(ms // 10, ms=ms, member="a")}
        events.on_commit(before, now)
        before = now
        offset, since = events.earlier(HERE)
        assert offset == since // 10 and (since == 0 or PACE_MS <= ms - since <= 2 * PACE_MS)
    assert events.earlier(HERE)[1] > 0
    events.forget([HERE])
    assert events.earlier(HERE) == (-1, -1)


def test_a_client_that_is_no_member_and_goes_on_from_where_it_set_a_position_changes_nothing_more() -> None:
    events = RecentEvents()
    offsets = ((10, "a"), (15, ""), (20, ""), (30, ""), (5, ""), (8, ""), (12, ""))
    times = []
    before: dict[TopicPartition, OffsetRecord] = {}
    for ms, (offset, member) in enumerate(offsets):
        now = {HERE: OffsetRecord(offset, ms=ms, member=member)}
        events.on_commit(before, now)
        before = now
        times += [(one.before, one.after, one.time_ms) for one in events.moved(ms)]
    assert times == [(10, 15, 1), (10, 20, 1), (10, 30, 1), (10, 5, 4), (10, 8, 4), (10, 12, 6)]


def test_a_position_set_back_is_remembered_until_members_have_passed_where_it_was() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0, 100)
    desk.ask(LeaveGroup("g", "a"))
    set_from_outside(desk, 40)
    set_from_outside(desk, 20)
    assert desk.describe().moved == (MovedPosition(ORDERS.topic_id, 0, 100, 20, desk.wall_ms),)
    desk.join("b")
    desk.commit("b", 0, 99)
    assert len(desk.describe().moved) == 1
    desk.commit("b", 0, 100)
    passed = desk.wall_ms
    assert desk.describe().moved[0].passed_ms == passed
    desk.wall_ms += PASSED_MS
    desk.commit("b", 0, 200)
    assert desk.describe().moved[0].passed_ms == passed
    desk.wall_ms += 1
    assert desk.describe().moved == ()


def test_a_position_that_is_put_back_is_not_remembered() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0, 100)
    desk.ask(LeaveGroup("g", "a"))
    set_from_outside(desk, 150)
    assert desk.describe().moved[0].after == 150
    set_from_outside(desk, 100)
    assert desk.describe().moved == ()


def test_a_position_that_was_skipped_stays_remembered_while_members_go_on() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0, 100)
    desk.ask(LeaveGroup("g", "a"))
    set_from_outside(desk, 150)
    desk.join("b")
    desk.commit("b", 0, 160)
    assert [(one.before, one.after) for one in desk.describe().moved] == [(100, 150)]


def test_skipped_records_may_be_processed_after_all_though_members_went_on() -> None:
    desk = Desk()
    desk.join("a")
    desk.commit("a", 0, 100)
    desk.ask(LeaveGroup("g", "a"))
    set_from_outside(desk, 150)
    desk.join("b")
    desk.commit("b", 0, 160)
    desk.ask(LeaveGroup("g", "b"))
    set_from_outside(desk, 100)
    assert desk.describe().moved == ()


def test_positions_of_a_program_that_is_never_a_member_are_its_own() -> None:
    desk = Desk()
    for offset in (10, 20, 5):
        set_from_outside(desk, offset)
    assert desk.describe().moved == ()
