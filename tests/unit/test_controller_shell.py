"""The controller's shell: many changes of one turn become one transaction that leaves the same disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog_controller.core.raft_log import Entry, Persist, Stored, apply_persist
from tidelog_controller.shell import merge


def test_nothing_is_nothing() -> None:
    assert merge([]) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_merged_changes_leave_the_disk_as_the_single_ones_do(steps: list[tuple[int, int]]) -> None:
    disk = before = Stored(1, "c1", [Entry(i, 1, b"old") for i in range(1, 4)])
    persists = []
    for term, (cut, count) in enumerate(steps, 2):
        keep = max(len(disk.entries) - cut, 0)
        entries = tuple(Entry(keep + i, term, b"new") for i in range(1, count + 1))
        persists.append(Persist(term, f"c{term % 3}", keep + 1 if cut else None, entries))
        disk = apply_persist(disk, persists[-1])
    merged = merge(persists)
    assert disk == (apply_persist(before, merged) if merged else before)
