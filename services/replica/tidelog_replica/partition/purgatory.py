"""Requests that wait until a partition's log gets somewhere: produces for their ack, reads for news.

Kept in the order of the offset they wait for, so that one move of the HW wakes a prefix, however many wait behind.
Every waiter has a deadline. Only a lower bound of the earliest is kept: it is looked at again when it passes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """A request that waits for an offset, until a deadline."""

    @property
    def end(self) -> int:
        """Woken when everything below this offset is there."""

    @property
    def deadline(self) -> float:
        """Given up then (seconds)."""

    @property
    def source(self) -> int:
        """The link that the request came over."""


W = TypeVar("W", bound=Waiter)
_END: Callable[[Waiter], int] = attrgetter("end")


def earlier(one: float | None, other: float | None) -> float | None:
    """The earlier of two deadlines, each None where there is none."""
    if one is None or other is None:
        return other if one is None else one
    return one if one <= other else other


class Purgatory(Generic[W]):
    """Waiters of one kind on one partition."""

    def __init__(self) -> None:
        self._queue: list[W] = []
        self._earliest: float | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def deadline(self) -> float | None:
        """Not later than the earliest deadline of all; None when nobody waits."""
        return self._earliest if self._queue else None

    def add(self, waiter: W) -> None:
        """Begin to wait. Nearly always at the end: appends come in the order of their offsets."""
        if not self._queue or waiter.end >= self._queue[-1].end:
            self._queue.append(waiter)
        else:
            insort(self._queue, waiter, key=_END)
        if self._earliest is None or waiter.deadline < self._earliest or len(self._queue) == 1:
            self._earliest = waiter.deadline

    def wake(self, reached: int) -> list[W]:
        """Those whose end is reached, in the order of their ends; they wait no longer."""
        if not self._queue or self._queue[0].end > reached:
            return []
        count = 0
        for waiter in self._queue:
            if waiter.end > reached:
                break
            count += 1
        woken = self._queue[:count]
        del self._queue[:count]
        return woken

    def expire(self, now: float) -> list[W]:
        """Those whose deadline has passed; they wait no longer."""
        if self._earliest is None or now < self._earliest:
            return []
        over = [waiter for waiter in self._queue if waiter.deadline <= now]
        if over:
            self._queue = [waiter for waiter in self._queue if waiter.deadline > now]
        self._earliest = min((waiter.deadline for waiter in self._queue), default=None)
        return over

    def drop(self, source: int) -> None:
        """The link is gone: nobody is there to be answered."""
        if any(waiter.source == source for waiter in self._queue):
            self._queue = [waiter for waiter in self._queue if waiter.source != source]

    def take_all(self) -> list[W]:
        """Everybody; nobody waits any longer."""
        everybody, self._queue = self._queue, []
        self._earliest = None
        return everybody
