"""The garbage collector of a service that holds much: it must not stop it for long.

A full collection looks at every object that there is: with ten thousand partitions that takes half a second, several
times a minute under load, and a server that is busy for so long is taken for dead. Nearly all of those objects live
as long as the process. So what has survived a long collection is *frozen*, and the next ones look at what came since.
Garbage among the frozen (a cycle whose parts were in use then) waits for the next thaw.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from math import inf

LONG_S = 0.05
"""A full collection that takes longer than this is too long to be had often."""
THAW_S = 600.0
"""So often one looks at everything all the same."""
OLDEST = 2


class Pauses:
    """What ``gc.callbacks`` calls. ``clock``: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = 0.0
        self._thaw_at = inf

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """A collection begins, or has ended."""
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
    """From now on, in this process."""
    gc.callbacks.append(Pauses())
