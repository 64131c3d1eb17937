"""Which entries of a partition's history tell of losses at an offset. Tests ``tidelog.explain.partition_state``."""

from __future__ import annotations

import pytest
from tidelog.explain.partition_state import losses_at
from tidelog.wire.messages import HistoryEntry

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
