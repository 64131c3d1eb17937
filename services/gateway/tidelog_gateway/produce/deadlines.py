"""Deadlines of many short-lived keys, at a small cost for each.

Keys are kept in buckets of ``RESOLUTION_S``, so that adding and discarding are dictionary operations and a key that
is discarded early leaves nothing behind (a heap would keep every produced batch until its deadline). A key expires at
the end of its bucket: at most ``RESOLUTION_S`` late, never early.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

RESOLUTION_S = 0.05

Key = TypeVar("Key", bound=Hashable)


class TimerWheel(Generic[Key]):
    """A set of keys, each with a deadline in seconds of the caller's clock."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Key, None]] = {}
        self._order: list[int] = []

    @staticmethod
    def bucket_of(deadline: float) -> int:
        """Return the number of the bucket for a deadline, as ``discard`` needs it."""
        return int(deadline / RESOLUTION_S)

    def add(self, key: Key, deadline: float) -> int:
        """Add ``key``; return its bucket."""
        bucket = self.bucket_of(deadline)
        keys = self._buckets.get(bucket)
        if keys is None:
            keys = self._buckets[bucket] = {}
            heapq.heappush(self._order, bucket)
        keys[key] = None
        return bucket

    def discard(self, key: Key, bucket: int) -> None:
        """Remove ``key`` from ``bucket``. A key that is not there is ignored."""
        keys = self._buckets.get(bucket)
        if keys is not None:
            keys.pop(key, None)

    def expired(self, now: float) -> list[Key]:
        """Remove and return every key whose bucket has ended, the oldest bucket first, in the order of adding."""
        found: list[Key] = []
        while self._order and self._end(self._order[0]) <= now:
            found.extend(self._buckets.pop(heapq.heappop(self._order)))
        return found

    def deadline(self) -> float | None:
        """When the first bucket that holds a key ends; None without keys."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._end(self._order[0]) if self._order else None

    @staticmethod
    def _end(bucket: int) -> float:
        return (bucket + 1) * RESOLUTION_S
