"""Tests ``tidelog.tables.compaction``: which files are rewritten as one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog.tables.compaction import TableFile, plan


def names(files: list[TableFile], target: int) -> list[list[str]]:
    return [[file.name for file in group] for group in plan(files, target)]


def test_small_files_of_a_partition_are_joined_up_to_the_target() -> None:
    files = [
        TableFile("a", 40, "x"),
        TableFile("b", 10, "y"),
        TableFile("c", 50, "x"),
        TableFile("large", 90, "x"),
        TableFile("d", 20, "x"),
        TableFile("e", 20, "x"),
    ]
    assert names(files, 100) == [["a", "c"], ["d", "e"]]


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 2)), max_size=30))
def test_every_group_is_worth_it(sizes: list[tuple[int, int]]) -> None:
    files = [TableFile(str(n), size, partition) for n, (size, partition) in enumerate(sizes)]
    groups = plan(files, 100)
    for group in groups:
        assert len(group) > 1
        assert len({file.partition for file in group}) == 1
        assert sum(file.size for file in group) <= 100
    joined = [file.name for group in groups for file in group]
    assert len(joined) == len(set(joined))
