"""The client's wall clock, for the timestamps of records, and its chance. All else runs on trio's clock."""

from __future__ import annotations

import os
import platform
import time
from secrets import token_hex


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def random_name() -> str:
    """A name that nobody else has."""
    return token_hex(16)


def process_name() -> str:
    """What people may find this process by."""
    return f"{platform.node()}:{os.getpid()}"
