"""Cursors of live reads: numbers that let a cache between server and readers answer many of them at once, and never
the same reader twice with the same answer. Sans-I/O.

A cursor is the number of an interval of time. A reader sends the last one that it got. If that is not behind the
present one, it gets the next.
"""

from __future__ import annotations

import re

INTERVAL_MS = 20_000
EPOCH_MS = 1_728_432_000_000
"""9 October 2024, where the intervals begin."""
_CURSOR = re.compile(r"[0-9]{1,15}", re.ASCII)


def next_cursor(given: str, wall_ms: int) -> int:
    """Return the cursor for the answer to a reader that has sent ``given``; "" if it sent none."""
    now = max(wall_ms - EPOCH_MS, 0) // INTERVAL_MS
    if _CURSOR.fullmatch(given) is None or int(given) < now:
        return now
    return int(given) + 1
