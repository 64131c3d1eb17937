"""Many timers, one deadline: a lazy heap.

A timer is an owner's key and the time when the owner wants to be asked again. Setting it later than it stands is
free and does nothing: the owner is asked too early, looks, and sets it again. So an input costs no heap operation
as long as its owner's earliest deadline stands, and an idle owner, which sets none, costs nothing.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush


class Timers:
    """Keys and times (seconds of the caller's clock)."""

    def __init__(self) -> None:
        self._due: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []
        self._count = 0

    def set(self, key: Hashable, when: float | None) -> None:
        """Ask the owner of ``key`` at ``when`` or earlier; None: nothing is wanted (it may be asked all the same)."""
        if when is None:
            return
        due = self._due.get(key)
        if due is not None and due <= when:
            return
        self._due[key] = when
        self._count += 1
        heappush(self._heap, (when, self._count, key))

    def forget(self, key: Hashable) -> None:
        """The owner is gone."""
        self._due.pop(key, None)

    def deadline(self) -> float | None:
        """When ``take`` has something."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._due.get(key) == when:
                return when
            heappop(self._heap)
        return None

    def take(self, now: float) -> Iterator[Hashable]:
        """Take the keys that are due, in the order of their times, each when it is asked for, and each once: an owner
        that sets its timer to ``now`` again waits for the next call. Until then a key is set, so another owner's turn
        cannot set it to the time at which it is due already."""
        taken: set[Hashable] = set()
        while (when := self.deadline()) is not None and when <= now and self._heap[0][2] not in taken:
            key = heappop(self._heap)[2]
            del self._due[key]
            taken.add(key)
            yield key
