"""What sums over the last seconds contain, and when they forget it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidelog.sansio.recent_sums import PARTS, WINDOW_S, RecentSums


def test_what_was_added_lately_is_in_the_sum_and_what_is_old_is_not() -> None:
    sums = RecentSums()
    assert sums.total(0.0) == (0, 0.0)
    sums.add(2.0, 100.0)
    sums.add(0.5, 101.0, 4)
    assert sums.total(101.0) == (5, 4.0)
    sums.add(1.0, 100.0 + WINDOW_S)
    assert sums.total(100.0 + WINDOW_S) == (1, 1.0)
    assert sums.total(100.0 + 3 * WINDOW_S) == (0, 0.0), "nothing was added since"


@given(st.lists(st.floats(0.0, 200.0), max_size=40))
def test_the_window_is_at_most_one_part_shorter_than_it_says(times: list[float]) -> None:
    sums, now = RecentSums(), 200.0
    for at in sorted(times):
        sums.add(1.0, at)
    number, total = sums.total(now)
    part = WINDOW_S / PARTS
    assert number == total
    assert sum(at > now - WINDOW_S + part for at in times) <= number <= sum(at >= now - WINDOW_S for at in times)
