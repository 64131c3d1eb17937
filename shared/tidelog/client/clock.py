"""The wall clock of the client: the timestamps of records. Everything else runs on trio's clock."""

from __future__ import annotations

from time import time_ns


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time_ns() // 1_000_000
