"""Many timers behind one deadline: ``Timers``, a lazy heap, and ``TimerWheel``, buckets of deadlines.

    Timers       a few owners, each with one timer that is set again and again; exact
    TimerWheel   many keys, each with one deadline that is nearly always discarded before it comes; coarse

A timer of ``Timers`` is an owner and the time when the owner wants to be called. Setting it later than it stands is
free and does nothing: the owner is called too early, looks, and sets it again. So an input costs no heap operation as
long as its owner's earliest deadline stands, and an idle owner, which sets none, costs nothing.

A key of ``TimerWheel`` is kept in a bucket of ``RESOLUTION_S``, so that adding and discarding are dictionary
operations and a key that is discarded early leaves nothing behind (a heap would keep every produced batch until its
deadline). A key expires at the end of its bucket: at most ``RESOLUTION_S`` late, never early.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

RESOLUTION_S = 0.05
"""Length of a bucket of ``TimerWheel``, in seconds."""

Owner = TypeVar("Owner")
Key = TypeVar("Key", bound=Hashable)
KeyIn = TypeVar("KeyIn", contravariant=True)


class TimerOwner(Protocol):
    """A part of a core that has a timer in ``Timers``: its method is called when the timer is due, or earlier."""

    def on_tick(self, now: float) -> None:
        """Do the work that is due at ``now`` (seconds), and set the timer again if more work will be due. It may be
        called before anything is due."""


class _KeyedOwner(Protocol[KeyIn]):
    """A part of a core that has a timer for each of its keys, through ``KeyTimer``."""

    def on_tick(self, key: KeyIn, now: float) -> None:
        """Do the work of ``key`` that is due at ``now`` (seconds). It may be called before anything is due."""


@dataclass(frozen=True, slots=True)
class KeyTimer(Generic[Key]):
    """The owner of one timer in ``Timers``, for a part that has a timer for each of its keys. Two with the same part
    and key are equal, so they share one timer."""

    part: _KeyedOwner[Key]
    key: Key

    def on_tick(self, now: float) -> None:
        """Call ``part.on_tick(key, now)``."""
        self.part.on_tick(self.key, now)


class Timers(Generic[Owner]):
    """The timers of a set of owners, each with at most one time at which it is to be called (seconds of the caller's
    clock)."""

    def __init__(self) -> None:
        self._due: dict[Owner, float] = {}
        self._heap: list[tuple[float, int, Owner]] = []
        self._count = 0

    def set(self, owner: Owner, at: float | None) -> None:
        """Set the owner's timer to the time ``at``, unless it is set to an earlier time already. Does nothing if
        ``at`` is None: a timer that is set stays."""
        if at is None:
            return
        due = self._due.get(owner)
        if due is not None and due <= at:
            return
        self._due[owner] = at
        self._count += 1
        heappush(self._heap, (at, self._count, owner))

    def deadline(self) -> float | None:
        """Return the earliest time of all timers; None if none is set."""
        while self._heap:
            at, _, owner = self._heap[0]
            if self._due.get(owner) == at:
                return at
            heappop(self._heap)
        return None

    def pop_due(self, now: float) -> Iterator[Owner]:
        """Iterate over the owners whose time is not after ``now``, in the order of their times, those with equal
        times in the order of setting. The timer of an owner is removed when the owner is yielded, so the owner may
        set it again at once. No owner is yielded twice: if it sets its timer to ``now`` again, that waits for the
        next call."""
        taken: set[Owner] = set()
        while (at := self.deadline()) is not None and at <= now and self._heap[0][2] not in taken:
            owner = heappop(self._heap)[2]
            del self._due[owner]
            taken.add(owner)
            yield owner


class TimerWheel(Generic[Key]):
    """A set of keys, each with a deadline (seconds of the caller's clock), for many keys that are nearly always
    discarded before their deadline. Deadlines are rounded up to ``RESOLUTION_S``: a key expires at most that much
    late, never early."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Key, None]] = {}
        self._order: list[int] = []

    @staticmethod
    def bucket_of(deadline: float) -> int:
        """Return the number of the bucket that holds the keys with this deadline (seconds). All keys of a bucket
        expire together."""
        return int(deadline / RESOLUTION_S)

    def add(self, key: Key, deadline: float) -> int:
        """Add ``key`` with its deadline. Return the number of its bucket, which the caller must pass to
        ``discard``."""
        bucket = self.bucket_of(deadline)
        keys = self._buckets.get(bucket)
        if keys is None:
            keys = self._buckets[bucket] = {}
            heappush(self._order, bucket)
        keys[key] = None
        return bucket

    def discard(self, key: Key, bucket: int) -> None:
        """Remove ``key`` from the bucket that ``add`` returned. A key that is not in the bucket is ignored."""
        keys = self._buckets.get(bucket)
        if keys is not None:
            keys.pop(key, None)

    def expired(self, now: float) -> list[Key]:
        """Remove and return the keys whose bucket has ended at ``now`` (seconds), the oldest bucket first, and in
        each in the order of adding. An empty list if no bucket has ended."""
        found: list[Key] = []
        while self._order and self._end(self._order[0]) <= now:
            found.extend(self._buckets.pop(heappop(self._order)))
        return found

    def deadline(self) -> float | None:
        """Return the time at which the next keys expire, in seconds: when the first bucket with a key ends. None if
        there are no keys."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heappop(self._order)]
        return self._end(self._order[0]) if self._order else None

    @staticmethod
    def _end(bucket: int) -> float:
        return (bucket + 1) * RESOLUTION_S
