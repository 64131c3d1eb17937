"""Which entries of a partition's history tell of losses at an offset, and for how long the last stable offset has
stood. Tests ``tidelog.explain.partition_state``."""

from __future__ import annotations

import pytest
from tidelog.explain.partition_state import led_for, losses_at, stood_for
from tidelog.wire.messages import HistoryEntry, PartitionInfo, StableOffset

CUT = HistoryEntry(1000, 3, 2, "records_lost", "unclean_election", evidence={"start": "5", "end": "9"})
UNCLEAN = HistoryEntry(900, 2, 2, "leader_elected", "unclean_election", "r1", ("r1",), {"loss": "possible"})
CLEAN = HistoryEntry(800, 1, 1, "leader_elected", "leader_reported", "r2", ("r2",))


@pytest.mark.parametrize(
    ("start", "end", "high_watermark", "found"),
    [
        (8, 9, 20, (CUT,)),
        (9, 10, 20, ()),
        (20, 21, 20, (UNCLEAN,)),
        (19, 20, 20, ()),
        (6, 7, 5, (UNCLEAN, CUT)),
        (6, 7, -1, (CUT,)),
    ],
)
def test_what_was_lost_at_an_offset(
    start: int, end: int, high_watermark: int, found: tuple[HistoryEntry, ...]
) -> None:
    """An unclean election counts at the end only, where records may be missing that no log has."""
    assert losses_at((CLEAN, UNCLEAN, CUT), start, end, high_watermark) == found


def test_a_leader_that_has_led_for_no_longer_knows_a_lower_bound_only() -> None:
    """It began to measure when it began to lead."""
    partition = PartitionInfo(0, ("r1", "r2"), ("r1",), "r1", 2, 3)
    stable = StableOffset(20, 5, 0, 24_000)
    now = UNCLEAN.time_ms + 25_000
    assert led_for((CLEAN, UNCLEAN, CUT), partition, now) == 25_000
    assert led_for((CLEAN,), partition, now) == -1
    assert stood_for(stable, "r1", 25_000) == "for at least 24.0 s, about as long as r1 has led"
    assert stood_for(stable, "r1", 3_600_000) == "for 24.0 s"
    assert stood_for(stable, "r1", -1) == "for at least 24.0 s"
