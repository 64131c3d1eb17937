"""How costly requests share the gateway: one answer for all that ask the same (``SingleFlight``), and a bounded
number at a time of the others (``Seats``)."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.wire.messages import Message

PAGE = 200
"""Topics, partitions or the like that are added to an answer before other tasks run."""


@dataclass(slots=True, eq=False)
class _SharedAnswer:
    """One answer that is being worked out, and the number of requests that wait for it. It ends with the answer, or
    with an error or another exception (``fault``)."""

    work: Callable[[], Awaitable[Message]]
    waiting: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: Message | None = None
    error: TidelogError | None = None
    fault: Exception | None = None


class SingleFlight:
    """A table of the answers that equal requests share. At most one answer to each question is worked out at a time.
    Requests that come before the work begins share its answer; later ones share the next answer, so an answer is
    never older than its question. Work that no request waits for is cancelled."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._next: dict[Hashable, _SharedAnswer] = {}
        self._working: dict[Hashable, None] = {}

    async def get(self, question: Hashable, work: Callable[[], Awaitable[Message]]) -> Message:
        """Wait for the answer to ``question`` and return it. ``work``, or the work of an earlier request with an
        equal question, finds it in a task of its own. Raises the ``TidelogError`` that the work raised, or
        ``RuntimeError`` if the work failed in another way. If the last request that waits is cancelled, so is the
        work."""
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
                if self._next.get(question) is shared:  # it ends before it begins: new requests must not join
                    del self._next[question]
                shared.scope.cancel()
        if shared.fault is not None:
            raise RuntimeError("the work that is shared has failed") from shared.fault
        if shared.error is not None:
            raise from_info(shared.error.to_info())  # a copy for each request: raising an error adds frames to it
        assert shared.answer is not None
        return shared.answer

    async def _run(self, question: Hashable) -> None:
        """Work out the answer to ``question`` and wake the requests that wait for it; repeat while others have asked
        meanwhile. An exception of the work is kept for those requests and not raised here."""
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
    """A semaphore with ``most`` seats, of which one tenant (a principal, say) has at most ``each``. Waiting tenants
    are served in turn, and the requests of one tenant in the order of arrival."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._total = 0
        self._taken: dict[Hashable, int] = {}
        self._waiting: dict[Hashable, deque[Seat]] = {}

    def queue(self, tenant: Hashable) -> Seat:
        """Add a request of the tenant to the queue and return its ``Seat`` without waiting. The seat is given at once
        if one is free and the tenant has fewer than ``each``."""
        seat = Seat(self, tenant)
        self._waiting.setdefault(tenant, deque()).append(seat)
        self._assign()
        return seat

    @asynccontextmanager
    async def seat(self, tenant: Hashable) -> AsyncIterator[None]:
        """Wait for a seat of the tenant, hold it during the ``with`` block, and give it back at the end of the block.
        A wait that is cancelled leaves the queue."""
        with self.queue(tenant) as seat:
            await seat.wait()
            yield

    def leave(self, seat: Seat) -> None:
        """Take a seat back, or remove it from the queue if it was not given, and give free seats to waiting requests.
        Only ``Seat.leave`` calls this, once for each seat."""
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
        """Give free seats to waiting tenants in turn, as far as each tenant's bound allows."""
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
    """One request's place in the queue of ``seats``, and its seat once it is given. The end of its ``with`` block, or
    ``leave``, gives the seat back or leaves the queue."""

    def __init__(self, seats: Seats, tenant: Hashable) -> None:
        self.seats = seats
        self.tenant = tenant
        self._given = trio.Event()
        self._is_left = False

    @property
    def is_given(self) -> bool:
        """Return whether the seat was given, so that the request need not wait any more. True also after the seat was
        given back."""
        return self._given.is_set()

    def give(self) -> None:
        """Mark the seat as given and wake the request that waits for it."""
        self._given.set()

    async def wait(self) -> None:
        """Wait until the seat is given. Returns at once if it was."""
        await self._given.wait()

    def leave(self) -> None:
        """Give the seat back, or leave the queue. A second call does nothing."""
        if not self._is_left:
            self._is_left = True
            self.seats.leave(self)

    def __enter__(self) -> Seat:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


class PendingRequest:
    """A client's request on its way to the servers that answer it. At each server it waits for a seat, at most until
    ``until`` (trio's clock). ``tenant``: the tenant for which the request counts. ``only_reads``: the request changes
    nothing."""

    def __init__(self, tenant: Hashable, until: float, *, only_reads: bool = False) -> None:
        self.tenant = tenant
        self.until = until
        self.scope = trio.CancelScope()
        """Cancelling this scope cancels the work for the request."""
        self._only_reads = only_reads
        self._seat: Seat | None = None
        self._has_begun = False

    @property
    def ends_with_link(self) -> bool:
        """Return whether the request may be cancelled when its client disconnects: it only reads, or still waits for
        its first seat."""
        waits = self._seat is not None and not self._seat.is_given
        return self._only_reads or (waits and not self._has_begun)

    def queue(self, seats: Seats) -> None:
        """Join the queue of ``seats`` without waiting, so that requests get seats in the order in which they came. A
        later ``wait`` waits for the seat."""
        self._seat = seats.queue(self.tenant)

    async def wait(self, seats: Seats) -> Seat:
        """Wait for a seat of ``seats`` and return it; the caller gives it back. The request joins the queue if it is
        not in it yet, and leaves any other queue. Raises ``OVERLOADED`` if no seat was given by ``until``."""
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
        """Leave the queue in which the request waits for a seat. Does nothing if it is in none."""
        if self._seat is not None:
            self._seat.leave()
            self._seat = None


class Steps:
    """A counter of the steps of one long answer, which lets other tasks run after every ``PAGE`` steps."""

    def __init__(self) -> None:
        self._taken = 0

    async def advance(self) -> None:
        """Count a step. After every ``PAGE`` steps let other tasks run before returning."""
        self._taken += 1
        if self._taken % PAGE == 0:
            await trio.lowlevel.checkpoint()
