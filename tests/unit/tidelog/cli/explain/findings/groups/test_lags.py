"""A group that is far behind is told what would help it: nothing if it catches up, and more members only if one of
them has several partitions."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.finding import NOTE, WARNING, Finding
from tidelog.cli.explain.findings.groups.lags import examine_groups
from tidelog.cli.explain.group_looks import GroupLook, PartitionLook
from tidelog.wire.messages import GroupMember

NOW = 10_000_000
BACKLOG = PartitionLook("orders", 0, 40_000, NOW - 3000, 100_000, 0, 100_000, 20_000, NOW - 20_000, "m1", "r1")
"""Nothing was written in the last seconds, and 1,000 records a second are processed."""
FRESH = replace(BACKLOG, fresh=80_000)
"""Of 2,000 records a second that are written half are processed."""


def far_behind(*places: PartitionLook) -> Finding:
    names = sorted({place.member for place in places})
    look = GroupLook("billing", tuple(GroupMember(name, 1) for name in names), places, now_ms=NOW)
    (one,) = examine_groups({"billing": (len(names), look.lag)}, [look])
    assert one.cause == "group-behind"
    return one


def test_a_group_that_reads_what_was_written_before_catches_up() -> None:
    one = far_behind(BACKLOG)
    assert one.level == NOTE and "it processes 1000 records a second, and 0 are written" in one.what
    assert "At this pace it needs 60.0 s more." in one.next_step and "members" not in one.next_step
    several = far_behind(BACKLOG, replace(BACKLOG, partition=1))
    assert several.level == NOTE and "More members, or faster ones, need less." in several.next_step


def test_more_members_are_advised_only_to_a_member_with_several_partitions() -> None:
    alone = far_behind(FRESH)
    assert alone.level == WARNING and "More" not in alone.next_step and "Only faster members" in alone.next_step
    assert "More members" not in far_behind(FRESH, replace(FRESH, partition=1, member="m2")).next_step
    assert "More members" in far_behind(FRESH, replace(FRESH, partition=1)).next_step


def test_a_group_that_has_stopped_does_not_catch_up() -> None:
    assert far_behind(replace(BACKLOG, committed_ms=NOW - 40_000)).level == WARNING
    assert far_behind(replace(BACKLOG, fresh=-1)).level == WARNING, "it is not known what is written"
