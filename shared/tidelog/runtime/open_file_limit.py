"""How many files and connections a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_open_files() -> None:
    """Take as many descriptors as the operating system lets the process have: the soft limit is for ``select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # then what there is has to do
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
