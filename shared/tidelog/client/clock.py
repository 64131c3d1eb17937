"""The three values that the client takes from the machine: the wall clock for the timestamps of records, random
names, and the name of the process. Everything else runs on the loop's clock."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from secrets import token_hex

WallClock = Callable[[], int]
"""A function such as ``wall_ms``."""


def wall_ms() -> int:
    """Return the machine's wall-clock time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def random_name() -> str:
    """Return a random name of 32 hexadecimal digits, which no other client has."""
    return token_hex(16)


def process_name() -> str:
    """Return ``HOST:PID`` of this process, by which people can find it."""
    return f"{platform.node()}:{os.getpid()}"
