"""The controller's shell: many changes of one turn become one transaction that leaves the same disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog_controller.raft.effects import Persist, apply_persist
from tidelog_controller.raft.log import Base, Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import members_of
from tidelog_controller.shell import merge


def test_nothing_is_nothing() -> None:
    assert merge([]) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=8))
def test_merged_changes_leave_the_disk_as_the_single_ones_do(steps: list[tuple[int, int, int]]) -> None:
    """Each step cuts the end, appends, and compacts the beginning; one in four replaces the log by a snapshot."""
    disk = before = PersistentState(1, "c1", [Entry(i, 1, b"old") for i in range(1, 4)])
    persists = []
    for term, (cut, count, gone) in enumerate(steps, 2):
        first, last = disk.base.index + 1, disk.base.index + len(disk.entries)
        keep = max(last - cut, disk.base.index)
        base = snapshot = None
        if cut == count == 3:
            keep = last + 5
            base = Base(keep, term, members_of(f"c{term}"))
        elif gone and keep >= first:
            base = Base(min(first + gone - 1, keep), 1, members_of(f"c{term}"))
        if base is not None:
            snapshot = Snapshot(base.index, term, base.members, b"%d" % term)
        entries = tuple(Entry(keep + i, term, b"new") for i in range(1, count + 1))
        truncate = first if keep > last else keep + 1 if cut else None
        persists.append(Persist(term, f"c{term % 3}", truncate, entries, base, snapshot))
        disk = apply_persist(disk, persists[-1])
    merged = merge(persists)
    assert disk == (apply_persist(before, merged) if merged else before)
