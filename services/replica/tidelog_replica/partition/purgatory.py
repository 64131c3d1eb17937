"""Requests that wait until a partition's log gets somewhere: produces for their ack, reads for records.

Kept in the order of the offset they wait for, so that one move of the HW wakes a prefix, however many wait behind.
Every waiter has a deadline. Only a lower bound of the earliest is kept: it is looked at again when it passes.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """A request that waits for an offset, until a deadline."""

    @property
    def awaited_end(self) -> int:
        """Woken when everything below this offset is there."""

    @property
    def deadline(self) -> float:
        """Given up then (seconds)."""

    @property
    def source(self) -> int:
        """The link that the request came over."""


W = TypeVar("W", bound=Waiter)
_END: Callable[[Waiter], int] = attrgetter("awaited_end")


class Purgatory(Generic[W]):
    """Requests of one kind that wait on one partition."""

    def __init__(self) -> None:
        self.waiting: list[W] = []
        """Those that wait, in the order of their ends. Only this class changes it."""
        self.deadline = inf
        """Not later than the earliest deadline of all (seconds); ``inf`` where none waits."""

    def add(self, waiter: W) -> None:
        """Begin to wait. Nearly always at the end: appends come in the order of their offsets."""
        if not self.waiting or waiter.awaited_end >= self.waiting[-1].awaited_end:
            self.waiting.append(waiter)
        else:
            insort(self.waiting, waiter, key=_END)
        if waiter.deadline < self.deadline:
            self.deadline = waiter.deadline

    def complete(self, reached: int) -> list[W]:
        """Return the requests whose end is reached, in the order of their ends. They wait no longer."""
        if not self.waiting or self.waiting[0].awaited_end > reached:
            return []
        count = 0
        for waiter in self.waiting:
            if waiter.awaited_end > reached:
                break
            count += 1
        completed = self.waiting[:count]
        self._keep(self.waiting[count:])
        return completed

    def expire(self, now: float) -> list[W]:
        """Return the requests whose deadline has passed. They wait no longer."""
        if now < self.deadline:
            return []
        over = [waiter for waiter in self.waiting if waiter.deadline <= now]
        self.waiting = [waiter for waiter in self.waiting if waiter.deadline > now]
        self.deadline = min((waiter.deadline for waiter in self.waiting), default=inf)
        return over

    def _keep(self, waiting: list[W]) -> None:
        self.waiting = waiting
        if not waiting:
            self.deadline = inf

    def drop(self, source: int) -> None:
        """Forget the requests that came over a link, which is closed."""
        if any(waiter.source == source for waiter in self.waiting):
            self._keep([waiter for waiter in self.waiting if waiter.source != source])

    def take_all(self) -> list[W]:
        """Return all requests. None waits any longer."""
        waiting = self.waiting
        self._keep([])
        return waiting
