"""The limit of files and connections that a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_open_files() -> None:
    """Raise the soft limit of descriptors to the hard one. The soft limit is low for programs that use ``select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the present limit has to be enough
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
