"""The limit of files and connections that a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_open_files() -> None:
    """Raise this process's soft limit of open descriptors to the hard limit, since the soft one is low for programs
    that use ``select``. If that is not permitted, the limit stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the present limit has to be enough
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
