"""Deadlines of many short-lived things at a small cost each.

Things are kept in buckets of ``RESOLUTION_S``, so that adding and discarding is a dictionary operation and a thing
that is done early leaves nothing behind (a heap would keep every produced batch until its deadline). A thing
expires at the end of its bucket: at most ``RESOLUTION_S`` late, never early.
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
        """The bucket in which a key with this deadline is kept; ``discard`` wants it back."""
        return int(deadline / RESOLUTION_S)

    def add(self, key: Key, deadline: float) -> int:
        """Watch ``key``; returns its bucket."""
        bucket = self.bucket_of(deadline)
        keys = self._buckets.get(bucket)
        if keys is None:
            keys = self._buckets[bucket] = {}
            heapq.heappush(self._order, bucket)
        keys[key] = None
        return bucket

    def discard(self, key: Key, bucket: int) -> None:
        """Watch ``key`` no longer; nothing when it is not watched."""
        keys = self._buckets.get(bucket)
        if keys is not None:
            keys.pop(key, None)

    def expired(self, now: float) -> list[Key]:
        """Take out every key whose bucket has ended, oldest bucket first, in the order of adding."""
        found: list[Key] = []
        while self._order and self._end(self._order[0]) <= now:
            found.extend(self._buckets.pop(heapq.heappop(self._order)))
        return found

    def deadline(self) -> float | None:
        """When the first bucket that holds a key ends."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._end(self._order[0]) if self._order else None

    @staticmethod
    def _end(bucket: int) -> float:
        return (bucket + 1) * RESOLUTION_S
