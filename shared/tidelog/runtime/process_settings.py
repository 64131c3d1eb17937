"""What a service sets in its own process at the start: garbage collector, memory allocator, open descriptors.

Garbage collector. A full collection visits every object. With ten thousand partitions that takes half a second,
several times a minute under load, and a server that is busy for so long is considered dead. Nearly all of those
objects live as long as the process. So objects that have survived a long collection are *frozen*, and the next
collections visit only newer ones. Garbage among the frozen objects (a cycle that was in use then) waits for the next
thaw.
"""

from __future__ import annotations

import ctypes
import gc
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any

LONG_S = 0.05
"""After a full collection that takes longer, objects are frozen."""
THAW_S = 600.0
"""Frozen objects are thawed after this time, so that a collection visits all objects."""
OLDEST = 2
"""The generation of a full collection."""
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEPT_BYTES = 256 << 20


class Pauses:
    """A callback for ``gc.callbacks`` that keeps the pauses of garbage collection short: it freezes all objects after
    a long full collection, and thaws them after ``THAW_S``. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = 0.0
        self._thaw_at = inf

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Measure each full collection, from ``phase`` "start" to "stop". After one that took longer than ``LONG_S``
        freeze all objects, so that later collections do not visit them. Thaw them before the first full collection
        ``THAW_S`` later. Other collections are ignored."""
        if info["generation"] < OLDEST:
            return
        now = self._clock()
        if phase == "start":
            self._began = now
            if now >= self._thaw_at:
                self._thaw_at = inf
                gc.unfreeze()
        elif now - self._began > LONG_S:
            self._thaw_at = min(self._thaw_at, now + THAW_S)
            gc.freeze()


def shorten_pauses() -> None:
    """Install a ``Pauses`` callback in this process, so that full garbage collections stay short."""
    gc.callbacks.append(Pauses())


def keep_freed_memory() -> None:
    """Have glibc keep large freed buffers for this process instead of giving them back to the kernel: taking them
    again costs a third of the throughput with large batches. Does nothing with a C library without ``mallopt``."""
    mallopt: Any = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TOP_PAD, 16 << 20)


def give_back_freed_memory() -> None:
    """Have glibc give the memory that is free now back to the kernel: the start of a service frees some MB. Does
    nothing with another C library."""
    malloc_trim: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def raise_open_files() -> None:
    """Raise this process's soft limit of open file descriptors to the hard limit, or to 2**20 if there is no hard
    limit. Where the kernel refuses so many (macOS names no hard limit, and has one), a half, a quarter and so on are
    tried. If nothing above the present limit is permitted, that stays."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2
