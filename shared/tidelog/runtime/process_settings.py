"""Keeps the pauses of the garbage collector short in a service with many objects.

A full collection visits every object. With ten thousand partitions that takes half a second, several times a minute
under load, and a server that is busy for so long is considered dead. Nearly all of those objects live as long as the
process. So objects that have survived a long collection are *frozen*, and the next collections visit only newer ones.
Garbage among the frozen objects (a cycle that was in use then) waits for the next thaw.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from math import inf

LONG_S = 0.05
"""After a full collection that takes longer, objects are frozen."""
THAW_S = 600.0
"""Frozen objects are thawed after this time, so that a collection visits all objects."""
OLDEST = 2
"""The generation of a full collection."""


class Pauses:
    """A callback for ``gc.callbacks`` that freezes objects after a long full collection, and thaws them again after
    ``THAW_S``. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = 0.0
        self._thaw_at = inf

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """Measure a full collection from its phase "start" to "stop". Freeze all objects after one that took longer
        than ``LONG_S``; thaw them before the first one after ``THAW_S``. Other collections are ignored."""
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
    """Install a ``Pauses`` callback for the garbage collector of this process."""
    gc.callbacks.append(Pauses())
