"""What the doctor says of the members of a group, with evidence; nothing of twins and healthy groups."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.consequences import with_causes
from tidelog.cli.explain.findings.finding import WARNING, Finding
from tidelog.cli.explain.findings.groups.members import LAST_MS, WINDOW_MS, examine_members
from tidelog.cli.explain.group_looks import LATE_S, GroupLook, PartitionLook
from tidelog.cli.explain.sentences import clock_time
from tidelog.wire.messages import GroupEvent, GroupMember

NOW = 10_000_000
LATE_MS = round(LATE_S * 1000)
ALICE = GroupMember("m1", 7, node="billing", joined_ms=NOW - 300_000, advanced_ms=NOW - 1000)
KEEPS_UP = PartitionLook(
    *("orders", 0, 1000, NOW - 1000, 1010, 0, 910),
    *(800, NOW - 20_000, "m1", "r1"),
)
"""Ten records a second are written and processed, and one second of them is not committed yet."""
SLOW = replace(KEEPS_UP, position=850, earlier=800, end=1010)
"""Of ten records a second 2.5 are processed."""


def group(*places: PartitionLook, events: tuple[GroupEvent, ...] = (), member: GroupMember = ALICE) -> GroupLook:
    return GroupLook("accounts", (member,), places or (KEEPS_UP,), events, now_ms=NOW, coordinator="r2")


def found(look: GroupLook) -> list[Finding]:
    return list(examine_members([look]))


def causes(look: GroupLook) -> list[str]:
    return [one.cause for one in found(look)]


def event(kind: str, ago_s: float, member: str = "m1", **more: object) -> GroupEvent:
    return GroupEvent(kind, NOW - round(ago_s * 1000), member, "billing", **more)  # type: ignore[arg-type]


# --- records that wait -----------------------------------------------------------------------------------


def test_a_group_that_keeps_up_is_no_finding() -> None:
    assert found(group()) == []


def test_a_group_that_is_behind_and_catches_up_is_no_finding() -> None:
    catching_up = replace(SLOW, position=850, earlier=400)
    assert catching_up.is_late and found(group(catching_up)) == []


def test_a_group_that_is_slower_than_its_producers_is_too_slow() -> None:
    (one,) = found(group(SLOW, KEEPS_UP))
    assert one.cause == "consumers-too-slow" and "processes 2.5 records a second of 10.0" in one.what
    assert (
        "orders/0 at offset 850 of 1010" in one.evidence
        and "1 member for 2 partitions: start more members" in one.next_step
    )
    assert {"accounts", "orders/0", "r1", "r2"} == set(one.about)


def test_members_with_a_partition_each_are_told_to_grow_the_topic() -> None:
    assert "topics grow" in found(group(SLOW))[0].next_step


def test_a_member_without_progress_since_it_joined_commits_nothing() -> None:
    member = replace(ALICE, joined_ms=NOW - 40_000, advanced_ms=-1)
    (one,) = found(group(replace(SLOW, position=0), member=member))
    assert one.cause == "member-commits-nothing" and "since it joined 40 s ago" in one.what
    assert "m1 (billing)" in one.what and "at offset 0" in one.evidence and "commit()" in one.next_step


def test_a_member_that_has_just_joined_may_be_at_its_first_records() -> None:
    member = replace(ALICE, joined_ms=NOW - LATE_MS + 1000, advanced_ms=-1)
    assert found(group(replace(SLOW, position=0), member=member)) == []


def test_a_member_without_late_records_may_commit_nothing() -> None:
    member = replace(ALICE, advanced_ms=-1)
    assert found(group(replace(KEEPS_UP, position=920), member=member)) == []


def test_a_member_that_worked_and_stands_still_is_named() -> None:
    member = replace(ALICE, advanced_ms=NOW - 3 * LATE_MS)
    (one,) = found(group(SLOW, member=member))
    assert one.cause == "member-stands-still" and f"for {3 * LATE_S:.0f} s" in one.what and one.evidence


def test_what_a_transaction_holds_back_is_not_there_to_read() -> None:
    held = replace(KEEPS_UP, position=700, end=700)
    assert found(group(held, member=replace(ALICE, advanced_ms=-1))) == []


def test_nothing_is_said_of_a_group_whose_coordinator_is_of_an_earlier_release() -> None:
    assert found(replace(group(SLOW), now_ms=-1)) == []


def test_records_that_wait_because_a_leader_is_missing_are_its_consequence() -> None:
    leaderless = Finding("problem", "no leader", "Start it.", "partition-without-leader", ("orders/0",))
    assert with_causes([*found(group(SLOW)), leaderless])[0].because_of == "partition-without-leader"


# --- members that are silent -----------------------------------------------------------------------------


def heard(ago_s: float, **more: object) -> GroupMember:
    """ALICE with a session of 45 s, whose last heartbeat came so many seconds ago, after a while without progress."""
    member = replace(ALICE, session_timeout_ms=45_000, heard_ms=round(ago_s * 1000), advanced_ms=NOW - 28_000)
    return replace(member, **more)  # type: ignore[arg-type]


def test_a_member_without_heartbeats_is_silent_and_nothing_else() -> None:
    (one,) = found(group(SLOW, member=heard(25)))
    assert (one.cause, one.level) == ("member-silent", WARNING)
    assert "m1 (billing) has sent no heartbeat for 25 s, and 160 records wait in orders/0" in one.what
    assert clock_time(NOW - 25_000) in one.evidence and "at offset 850 of 1010" in one.evidence
    assert "45 s after its last heartbeat" in one.next_step and "runs" not in one.next_step
    assert {"accounts", "orders/0", "r2"} == set(one.about)


def test_a_silent_member_that_never_committed_is_not_told_to_commit() -> None:
    (one,) = found(group(replace(SLOW, position=0), member=heard(25, joined_ms=NOW - 40_000, advanced_ms=-1)))
    assert one.cause == "member-silent" and "commit()" not in one.next_step


def test_a_static_member_whose_process_has_ended_is_to_be_started() -> None:
    (one,) = found(group(SLOW, member=heard(2, instance="st-1", away=True)))
    assert one.cause == "member-silent" and "st-1 (billing) is a static member whose process has ended" in one.what
    assert one.next_step.startswith("Start it again.")


def test_a_silent_member_without_late_records_is_no_finding() -> None:
    assert found(group(KEEPS_UP, member=heard(25))) == []


def test_a_session_that_is_short_makes_nobody_silent_within_a_moment() -> None:
    assert found(group(SLOW, member=heard(0.9, session_timeout_ms=1500))) == []


def test_a_member_that_was_not_heard_of_for_a_while_is_not_called_slow_and_not_said_to_run() -> None:
    """Its process may have been stopped since its last heartbeat."""
    assert causes(group(SLOW, member=heard(3, advanced_ms=NOW - 12_000))) == ["consumers-too-slow"]
    assert causes(group(SLOW, member=heard(12, advanced_ms=NOW - 3_000))) == ["consumers-too-slow"], "it works"
    assert found(group(SLOW, member=heard(12, advanced_ms=NOW - 14_000))) == []
    (still,) = found(group(SLOW, member=heard(12)))
    assert "last heard of 12 s ago: see whether its program runs" in still.next_step
    (runs,) = found(group(SLOW, member=heard(2)))
    assert runs.cause == "member-stands-still" and "heard of 2 s ago, so its program runs" in runs.next_step
    (unknown,) = found(group(replace(SLOW, position=0), member=heard(0, heard_ms=-1, advanced_ms=-1)))
    assert unknown.next_step.startswith("See whether its program runs.") and "commit()" in unknown.next_step


# --- members that change ---------------------------------------------------------------------------------


def expelled(*ago_s: float, kind: str = "expelled_silent") -> tuple[GroupEvent, ...]:
    events = [event("joined", 300)]
    for ago in ago_s:
        events += [event(kind, ago, timeout_ms=6000), event("joined", ago - 1)]
    return tuple(events)


def test_a_member_that_is_expelled_again_and_again_makes_the_group_rebalance() -> None:
    (one,) = found(group(events=expelled(20, 12, 4)))
    assert one.cause == "member-expelled-repeatedly" and "expelled 3 times" in one.what
    assert "session timeout of 6000 ms" in one.what and "4 s ago" in one.evidence and one.next_step


def test_a_member_that_does_not_give_up_partitions_is_told_of_that() -> None:
    (one,) = found(group(events=expelled(20, 12, kind="expelled_slow")))
    assert "rebalance timeout of 6000 ms" in one.what and "on_revoked" in one.next_step


def test_a_member_that_was_expelled_once_and_came_back_has_its_work_done_again() -> None:
    refused = event("commit_refused", 3, code="UNKNOWN_MEMBER", times=2)
    (one,) = found(group(events=(*expelled(5), refused)))
    assert one.cause == "member-expelled-while-alive" and "processes records again" in one.what
    assert "2 of its commits were refused" in one.evidence


def test_a_member_that_was_expelled_and_is_gone_has_crashed_and_is_no_finding() -> None:
    assert found(group(events=(event("joined", 300), event("expelled_silent", 5, timeout_ms=6000)))) == []


def test_what_was_long_ago_is_not_said() -> None:
    last_s, window_s = LAST_MS / 1000, WINDOW_MS / 1000
    assert found(group(events=expelled(last_s + 9, last_s + 3))) == []
    assert causes(group(events=expelled(window_s + 5, 5))) == ["member-expelled-while-alive"]


def test_members_that_join_and_end_again_come_and_go() -> None:
    lives = [(30, 28), (22, 20), (14, 12), (6, 4)]
    events = [e for n, (a, b) in enumerate(lives) for e in (event("joined", a, f"p{n}"), event("left", b, f"p{n}"))]
    (one,) = found(group(events=tuple(events)))
    assert one.cause == "members-come-and-go" and "4 members" in one.what and "after 2.0 s" in one.what
    assert "p3 (billing)" in one.evidence and one.next_step


def test_members_that_join_do_some_work_and_leave_are_no_finding() -> None:
    events = [
        e
        for n, ago in enumerate((30, 22, 14, 6))
        for e in (event("joined", ago, f"p{n}"), event("left", ago - 2, f"p{n}", advanced=True))
    ]
    assert found(group(events=tuple(events))) == []


def test_a_rolling_restart_is_no_finding() -> None:
    olds = [event("left", ago, f"old{ago}") for ago in (20, 15, 10, 5)]
    news = [event("joined", ago - 1, f"new{ago}") for ago in (20, 15, 10, 5)]
    assert found(group(events=tuple(sorted((*olds, *news), key=lambda e: e.time_ms)))) == []


def static(*ago_s: float, **more: object) -> GroupLook:
    """A group whose static member st-1 was started so many seconds ago each time, and killed before the next."""
    events = tuple(event("joined", ago, f"p{n}") for n, ago in enumerate(ago_s))
    now = GroupMember(f"p{len(ago_s) - 1}", 7, "st-1", "pay", joined_ms=events[-1].time_ms, session_timeout_ms=45_000)
    place = replace(KEEPS_UP, member=now.member, committed_ms=NOW - 90_000)
    return group(replace(place, **more), events=events, member=now)  # type: ignore[arg-type]


def test_a_static_member_that_is_started_again_and_again_is_named() -> None:
    (one,) = found(static(14, 10.5, 7, 3.5, 0.5))
    assert one.cause == "members-come-and-go" and "static member st-1 (pay) is started again and again" in one.what
    assert "5 processes joined within 60 s" in one.what and "the last joined 0 s ago" in one.evidence
    began = static(14, 10.5, 7, 3.5, 0.5, position=0, earlier=0, committed_ms=NOW - 13_000)
    assert causes(began) == ["members-come-and-go"], "the first of them has committed where the group begins"


def test_static_members_that_are_replaced_in_a_rolling_restart_or_work_are_no_finding() -> None:
    assert found(static(300, 0.5)) == [], "a restart"
    assert found(static(14, 10.5, 7, 3.5, 0.5, committed_ms=NOW - 5000)) == [], "it works in between"
    rolling = tuple(event("joined", ago, f"new{ago}") for ago in (20, 15, 10, 5))
    members = tuple(GroupMember(f"new{ago}", 7, f"st-{ago}", joined_ms=NOW - ago * 1000) for ago in (20, 15, 10, 5))
    assert found(replace(group(events=rolling), members=members)) == []
