"""Which offsets are read, and how they are cut into tasks."""

from __future__ import annotations

import itertools

import pytest
from tidelog.spark.errors import SourceError
from tidelog.spark.offsets import Extent, Range, cut, extents_of, plan

EXTENTS = [Extent("a", "ia", 0, 10, 30), Extent("a", "ia", 1, 0, 5)]


def starts_and_ends(ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [(each.partition, each.start, each.end) for each in ranges]


def test_everything_by_default() -> None:
    assert starts_and_ends(plan(EXTENTS, "earliest", "latest", True)) == [(0, 10, 30), (1, 0, 5)]


def test_offsets_by_number_and_by_the_numbers_for_words() -> None:
    ranges = plan(EXTENTS, {"a": {0: 12, 1: -2}}, {"a": {0: 20, 1: -1}}, True)
    assert starts_and_ends(ranges) == [(0, 12, 20), (1, 0, 5)]


def test_a_range_without_records_is_left_out() -> None:
    assert starts_and_ends(plan(EXTENTS, {"a": {0: 30, 1: 0}}, "latest", True)) == [(1, 0, 5)]


def test_offsets_that_are_gone_are_named_exactly() -> None:
    with pytest.raises(
        SourceError, match=r"^\[TIDELOG_DATA_LOSS\] a/0: offsets 3 to 9 cannot be read: the log begins at 10"
    ):
        plan(EXTENTS, {"a": {0: 3, 1: 0}}, "latest", True)


def test_offsets_that_never_were_are_named_exactly() -> None:
    with pytest.raises(SourceError, match="a/1: offsets 5 to 7 cannot be read: the log ends at 5"):
        plan(EXTENTS, "earliest", {"a": {0: -1, 1: 8}}, True)


def test_with_data_loss_allowed_what_is_there_is_read() -> None:
    ranges = plan(EXTENTS, {"a": {0: 3, 1: 0}}, {"a": {0: 99, 1: 8}}, False)
    assert starts_and_ends(ranges) == [(0, 10, 30), (1, 0, 5)]
    assert plan(EXTENTS, {"a": {0: 50, 1: 5}}, {"a": {0: 60, 1: 5}}, False) == []


def test_a_start_above_its_end_is_refused_even_then() -> None:
    with pytest.raises(SourceError, match="a/1: startingOffsets is 4, above endingOffsets, 2"):
        plan(EXTENTS, {"a": {0: 10, 1: 4}}, {"a": {0: 10, 1: 2}}, False)


def test_json_must_name_exactly_what_is_read() -> None:
    with pytest.raises(SourceError, match="startingOffsets does not name a/1"):
        plan(EXTENTS, {"a": {0: 10}}, "latest", True)
    with pytest.raises(SourceError, match="endingOffsets names, but nobody reads, a/2"):
        plan(EXTENTS, "earliest", {"a": {0: 10, 1: 0, 2: 3}}, True)


def test_cutting_covers_every_offset_once_and_large_ranges_more_often() -> None:
    ranges = [Range("a", "ia", 0, 100, 1000), Range("a", "ia", 1, 0, 100)]
    pieces = cut(ranges, 10)
    assert [each.partition for each in pieces] == [0] * 9 + [1]
    for partition, start, end in ((0, 100, 1000), (1, 0, 100)):
        mine = [each for each in pieces if each.partition == partition]
        assert (mine[0].start, mine[-1].end) == (start, end)
        assert all(a.end == b.start for a, b in itertools.pairwise(mine))
        assert all(each.size > 0 for each in mine)


def test_a_range_is_never_cut_below_one_record() -> None:
    assert len(cut([Range("a", "ia", 0, 0, 3)], 100)) == 3


def test_nothing_is_cut_when_there_are_enough() -> None:
    ranges = [Range("a", "ia", 0, 0, 9), Range("a", "ia", 1, 0, 9)]
    assert cut(ranges, 0) == ranges
    assert cut(ranges, 2) == ranges
    assert cut([], 5) == []


def test_an_end_that_was_asked_before_retention_moved_is_never_below_the_start() -> None:
    assert extents_of("a", "ia", {0: 7}, {0: 5}) == [Extent("a", "ia", 0, 7, 7)]
