"""The client's wall clock, for the timestamps of records, and its random names. Everything else runs on the loop's
clock."""

from __future__ import annotations

import os
import platform
import time
from secrets import token_hex


def wall_ms() -> int:
    """Return the milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def random_name() -> str:
    """Return a name that nobody else has."""
    return token_hex(16)


def process_name() -> str:
    """Return a name by which people can find this process."""
    return f"{platform.node()}:{os.getpid()}"
