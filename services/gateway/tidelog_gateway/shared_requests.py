"""How requests that ask for much share what they cost: one answer for all who ask the same; seats for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.wire.messages import Message

PAGE = 200
"""Topics, partitions or the like with which an answer goes on before others run."""


@dataclass(slots=True, eq=False)
class _SharedAnswer:
    """One answer, and how many wait for it."""

    work: Callable[[], Awaitable[Message]]
    waiting: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: Message | None = None
    error: TidelogError | None = None
    fault: Exception | None = None


class SingleFlight:
    """Of each question one answer is worked out at a time. Whoever asks before that begins shares it, whoever asks
    later shares the next one: an answer is never older than its question. Work that nobody waits for ends."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._next: dict[Hashable, _SharedAnswer] = {}
        self._working: dict[Hashable, None] = {}

    async def get(self, question: Hashable, work: Callable[[], Awaitable[Message]]) -> Message:
        """The answer of ``work``, or of the same work for somebody else. Raises its ``TidelogError``, or
        ``RuntimeError`` where it failed otherwise."""
        if (shared := self._next.get(question)) is None:
            shared = self._next[question] = _SharedAnswer(work)
            if question not in self._working:
                self._working[question] = None
                self._nursery.start_soon(self._run, question)
        shared.waiting += 1
        try:
            await shared.done.wait()
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                if self._next.get(question) is shared:  # it has not begun: whoever asks now must not join it
                    del self._next[question]
                shared.scope.cancel()
        if shared.fault is not None:
            raise RuntimeError("the work that is shared has failed") from shared.fault
        if shared.error is not None:
            raise from_info(shared.error.to_info())  # to each its own: frames are added to one that is raised
        assert shared.answer is not None
        return shared.answer

    async def _run(self, question: Hashable) -> None:
        while (shared := self._next.pop(question, None)) is not None:
            with shared.scope:
                try:
                    shared.answer = await shared.work()
                except TidelogError as error:
                    shared.error = error
                except Exception as fault:
                    shared.fault = fault
            shared.done.set()
        del self._working[question]


class Seats:
    """``most`` at a time, of one tenant (a principal, say) at most ``each``. Tenants that wait come in turn, and what
    one tenant waits for comes in the order of its arrival."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._total = 0
        self._taken: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[Seat]] = {}

    def queue(self, tenant: Hashable) -> Seat:
        """Join the queue. If a seat is free it is given at once."""
        seat = Seat(self, tenant)
        self._waiting.setdefault(tenant, deque()).append(seat)
        self._assign()
        return seat

    @asynccontextmanager
    async def seat(self, tenant: Hashable) -> AsyncIterator[None]:
        """Wait for a seat, and have it in this block."""
        with self.queue(tenant) as seat:
            await seat.wait()
            yield

    def leave(self, seat: Seat) -> None:
        """It is free, or not waited for any more; others may have it. ``Seat.leave`` calls this once."""
        tenant = seat.tenant
        if seat.is_given:
            self._total -= 1
            self._taken[tenant] -= 1
            if not self._taken[tenant]:
                del self._taken[tenant]
        else:
            self._waiting[tenant].remove(seat)
            if not self._waiting[tenant]:
                del self._waiting[tenant]
        self._assign()

    def _assign(self) -> None:
        """Give free seats away."""
        if not self._waiting:
            return
        for tenant in list(self._waiting):
            if self._total >= self._most:
                return
            if self._taken.get(tenant, 0) >= self._each:
                continue
            queue = self._waiting.pop(tenant)
            queue.popleft().give()
            self._total += 1
            self._taken[tenant] = self._taken.get(tenant, 0) + 1
            if queue:
                self._waiting[tenant] = queue  # behind the others


class Seat:
    """A place in the queue of ``seats``, and then a seat. It is free when its block ends, or by ``leave``."""

    def __init__(self, seats: Seats, tenant: Hashable) -> None:
        self.seats = seats
        self.tenant = tenant
        self._given = trio.Event()
        self._is_left = False

    @property
    def is_given(self) -> bool:
        """It is no place in a queue any more."""
        return self._given.is_set()

    def give(self) -> None:
        """Its turn has come."""
        self._given.set()

    async def wait(self) -> None:
        """Until it is given."""
        await self._given.wait()

    def leave(self) -> None:
        """Give it back, or leave the queue. Nothing happens the second time."""
        if not self._is_left:
            self._is_left = True
            self.seats.leave(self)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class PendingRequest:
    """A request's way to the servers that answer it: at each it needs a seat, which it waits for in its time.

    ``tenant``: whose it is; ``until``: the end of its time."""

    def __init__(self, tenant: Hashable, until: float, *, only_reads: bool = False) -> None:
        self.tenant = tenant
        self.until = until
        self.scope = trio.CancelScope()
        """What is done for it."""
        self._only_reads = only_reads
        self._seat: Seat | None = None
        self._has_begun = False

    @property
    def ends_with_link(self) -> bool:
        """It need not go on where its client is gone: it only reads, or it waits for its first seat."""
        waits = self._seat is not None and not self._seat.is_given
        return self._only_reads or (waits and not self._has_begun)

    def queue(self, seats: Seats) -> None:
        """Join this queue now, so that requests keep the order in which they came."""
        self._seat = seats.queue(self.tenant)

    async def wait(self, seats: Seats) -> Seat:
        """A seat there; the caller gives it back. Raises ``OVERLOADED``: the time was too short."""
        if self._seat is None or self._seat.seats is not seats:
            self.leave()
            self.queue(seats)
        assert self._seat is not None
        try:
            with trio.move_on_at(self.until):
                await self._seat.wait()
        except trio.Cancelled:
            self.leave()
            raise
        if not self._seat.is_given:
            self.leave()
            raise refuse("OVERLOADED", "its time was too short to wait for the requests before it")
        seat, self._seat, self._has_begun = self._seat, None, True
        return seat

    def leave(self) -> None:
        """It waits no more."""
        if self._seat is not None:
            self._seat.leave()
            self._seat = None


class Steps:
    """Of one answer: after each ``PAGE`` of them others run."""

    def __init__(self) -> None:
        self._taken = 0

    async def advance(self) -> None:
        """Count one more step, and let other tasks run now and then."""
        self._taken += 1
        if self._taken % PAGE == 0:
            await trio.lowlevel.checkpoint()
