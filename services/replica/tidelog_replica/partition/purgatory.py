"""Requests that wait until a partition's log reaches an offset: produce requests for their ack, reads for records.

They are kept in the order of the offsets that they wait for, so that a move of the HW completes the first ones and
costs nothing for the others. Every request has a deadline. Only a lower bound of the earliest deadline is kept; it is
computed anew when it has passed.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from math import inf
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Waiter(Protocol):
    """A request that waits until the log reaches an offset, or until its deadline."""

    @property
    def awaited_end(self) -> int:
        """Return the offset that the log must reach (HW or durable offset, as the queue's owner decides) to complete
        the request."""

    @property
    def deadline(self) -> float:
        """Return the time, in seconds, at which the request is given up."""

    @property
    def source(self) -> int:
        """Return the number of the link that the request came over."""


W = TypeVar("W", bound=Waiter)
_END: Callable[[Waiter], int] = attrgetter("awaited_end")


class Purgatory(Generic[W]):
    """The queue of the requests of one kind that wait on one partition, in the order of the offsets that they wait
    for. It lives as long as the partition's role."""

    def __init__(self) -> None:
        self.waiting: list[W] = []
        """The waiting requests, in the order of ``awaited_end``. Only this class changes the list."""
        self.deadline = inf
        """A time at or before the earliest deadline (seconds); ``inf`` while no request waits."""

    def add(self, waiter: W) -> None:
        """Add a request to the queue, in the order of the offset that it waits for. That is nearly always at the end,
        since appends come in the order of their offsets."""
        if not self.waiting or waiter.awaited_end >= self.waiting[-1].awaited_end:
            self.waiting.append(waiter)
        else:
            insort(self.waiting, waiter, key=_END)
        if waiter.deadline < self.deadline:
            self.deadline = waiter.deadline

    def complete(self, reached: int) -> list[W]:
        """Remove and return the requests that wait for offset ``reached`` or a lower one, in order. An empty list if
        there are none."""
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
        """Remove and return the requests whose deadline has come by ``now`` (seconds). An empty list if there are
        none."""
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
        """Remove the requests that came over link ``source``, which is closed. They are not answered."""
        if any(waiter.source == source for waiter in self.waiting):
            self._keep([waiter for waiter in self.waiting if waiter.source != source])

    def take_all(self) -> list[W]:
        """Remove and return all waiting requests, in the order of the offsets that they wait for. An empty list if
        none wait."""
        waiting = self.waiting
        self._keep([])
        return waiting
