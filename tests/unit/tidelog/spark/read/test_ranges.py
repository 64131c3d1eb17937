"""Which offsets are read, and how they are cut into tasks."""

from __future__ import annotations

import itertools

import pytest
from tidelog.spark.errors import SourceError
from tidelog.spark.read.data_loss import PartitionExtent, find_loss
from tidelog.spark.read.ranges import Range, cut, plan

EXTENTS = [PartitionExtent("a", "ia", 0, 10, 30), PartitionExtent("a", "ia", 1, 0, 5)]


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
    with pytest.raises(SourceError) as caught:
        plan(EXTENTS, {"a": {0: 3, 1: 0}}, {"a": {0: 40, 1: 5}}, True)
    assert str(caught.value).startswith(
        "[TIDELOG_DATA_LOSS] a/0: offsets 3 to 39 cannot all be read. "
        "offsets 3 to 9: deleted by retention, the log begins at 10; "
        "offsets 10 to 29: retained; "
        "offsets 30 to 39: never existed, the log ends at 30. "
    )


def fates(start: int, end: int, *, compacted: bool = False, seen: bool = True, cut_at: int | None = None) -> str:
    error = find_loss(
        PartitionExtent("a", "ia", 0, 10, 30, compacted=compacted), start, end, seen=seen, cut_at=cut_at
    )
    return "" if error is None else str(error).partition("cannot all be read. ")[2].partition(". Read from")[0]


def test_retained_and_compacted_records_are_no_loss() -> None:
    assert fates(10, 30) == ""
    assert fates(10, 30, compacted=True) == ""
    assert fates(9, 20, compacted=True) == (
        "offset 9: deleted by retention, the log begins at 10; "
        "offsets 10 to 19: retained, compacted (only the last record of a key is kept)"
    )


def test_offsets_that_were_in_the_log_before_are_reported_as_truncated() -> None:
    assert fates(20, 40) == "offsets 20 to 29: retained; offsets 30 to 39: truncated, the log ends at 30 now"
    assert fates(40, 50) == "offsets 40 to 49: truncated, the log ends at 30 now"
    assert fates(20, 28, cut_at=25) == (
        "offsets 20 to 24: retained; offsets 25 to 27: truncated, what was read before parts from the log at 25"
    )
    assert fates(35, 40, seen=False) == "offsets 35 to 39: never existed, the log ends at 30"


def test_with_data_loss_allowed_what_is_there_is_read() -> None:
    ranges = plan(EXTENTS, {"a": {0: 3, 1: 0}}, {"a": {0: 99, 1: 8}}, False)
    assert starts_and_ends(ranges) == [(0, 10, 30), (1, 0, 5)]
    assert plan(EXTENTS, {"a": {0: 50, 1: 5}}, {"a": {0: 60, 1: 5}}, False) == []


def test_a_start_above_its_end_is_refused_even_then() -> None:
    with pytest.raises(SourceError, match="a/1: startingOffsets is 4, above endingOffsets, 2"):
        plan(EXTENTS, {"a": {0: 10, 1: 4}}, {"a": {0: 10, 1: 2}}, False)


def test_json_offsets_must_name_exactly_the_partitions_that_are_read() -> None:
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


def test_no_piece_has_more_records_than_allowed_however_few_are_wanted() -> None:
    ranges = [Range("a", "ia", 0, 10, 35, start_epoch=3), Range("a", "ia", 1, 0, 10)]
    pieces = cut(ranges, 0, 10)
    assert [(each.partition, each.start, each.end) for each in pieces] == [
        (0, 10, 18), (0, 18, 26), (0, 26, 35), (1, 0, 10),
    ]  # fmt: skip
    assert [each.start_epoch for each in pieces] == [3, -1, -1, -1]
    assert len(cut(ranges, 8, 10)) >= 8


def test_nothing_is_cut_when_there_are_enough() -> None:
    ranges = [Range("a", "ia", 0, 0, 9), Range("a", "ia", 1, 0, 9)]
    assert cut(ranges, 0) == ranges
    assert cut(ranges, 2) == ranges
    assert cut([], 5) == []


def test_only_the_first_piece_knows_what_comes_before_it() -> None:
    pieces = cut([Range("a", "ia", 0, 10, 20, start_epoch=3, end_epoch=5)], 2)
    assert [(each.start_epoch, each.end_epoch) for each in pieces] == [(3, 5), (-1, 5)]
