"""What the doctor says of positions below the log start, and of those that were moved from outside."""

from __future__ import annotations

from dataclasses import replace

from tidelog.cli.explain.findings.finding import Finding
from tidelog.cli.explain.findings.groups.positions import KNOWN_MS, SETTLED_MS, examine_positions
from tidelog.cli.explain.group_looks import GroupLook, PartitionLook
from tidelog.wire.messages import MovedPosition

NOW = 10_000_000
PLACE = PartitionLook("orders", 1, 500, NOW - 60_000, 900, 400, retention="retention_ms=3600000")


def group(place: PartitionLook = PLACE, *moved: MovedPosition) -> GroupLook:
    return GroupLook("accounts", (), (place,), moved=tuple(("orders/1", one) for one in moved), now_ms=NOW)


def found(look: GroupLook, *awaited: tuple[str, str]) -> list[Finding]:
    return list(examine_positions([look], frozenset(awaited)))


def moved(before: int, after: int, ago_ms: int = 4000) -> MovedPosition:
    return MovedPosition("t", 1, before, after, NOW - ago_ms)


def test_a_position_in_the_log_is_no_finding() -> None:
    assert found(group()) == [] == found(group(replace(PLACE, position=400)))


def test_a_position_below_the_log_start_was_overtaken_by_retention() -> None:
    (one,) = found(group(replace(PLACE, log_start=650)))
    assert one.cause == "retention-overtook-reader" and "retention_ms=3600000" in one.what
    assert "deleted 150 offsets in orders/1" in one.what and "OFFSET_OUT_OF_RANGE" in one.what
    assert one.evidence == "orders/1: position 500, log start 650."
    assert "groups reset accounts -t orders --to earliest" in one.next_step


def test_a_group_that_has_just_committed_may_have_read_on() -> None:
    assert found(group(replace(PLACE, log_start=650, committed_ms=NOW - SETTLED_MS + 1))) == []


def test_what_retention_waited_for_is_said_with_the_wait() -> None:
    assert found(group(replace(PLACE, log_start=650)), ("accounts", "orders")) == []


def test_a_position_that_was_set_back_makes_the_group_process_again() -> None:
    (one,) = found(group(PLACE, moved(500, 120)))
    assert one.cause == "position-set-back" and "set back by 380 offsets" in one.what
    assert one.evidence == "4 s ago: orders/1 from 500 to 120."
    assert "groups reset accounts -t orders -p 1 --to 500" in one.next_step and "__audit" in one.next_step


def test_a_position_that_was_set_forward_makes_the_group_pass_records_over() -> None:
    (one,) = found(group(PLACE, moved(500, 800)))
    assert one.cause == "position-set-forward" and "is not processed" in one.what


def test_a_position_that_was_set_to_where_the_log_begins_passes_over_nothing() -> None:
    assert found(group(PLACE, moved(100, 400))) == []


def test_both_are_named_where_both_happened() -> None:
    assert [one.cause for one in found(group(PLACE, moved(900, 500), moved(500, 900)))] == [
        *("position-set-back", "position-set-forward"),
    ]


def test_a_move_of_long_ago_is_not_said() -> None:
    assert found(group(PLACE, moved(500, 120, KNOWN_MS + 1))) == []


def test_nothing_is_said_of_a_group_whose_coordinator_is_of_an_earlier_release() -> None:
    assert found(replace(group(replace(PLACE, log_start=650), moved(500, 120)), now_ms=-1)) == []
