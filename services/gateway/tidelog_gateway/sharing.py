"""How requests that ask for much share what they cost: one answer for all who ask the same; seats for the others."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio
from tidelog.errors import TidelogError, from_info
from tidelog.wire.messages import Message

PAGE = 200
"""Topics, partitions or the like with which an answer goes on before others run."""


@dataclass(slots=True, eq=False)
class _Round:
    """One answer, and how many wait for it."""

    work: Callable[[], Awaitable[Message]]
    waiting: int = 0
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    answer: Message | None = None
    error: TidelogError | None = None
    fault: Exception | None = None


class Sharing:
    """Of each question one answer is worked out at a time. Whoever asks before that begins shares it, whoever asks
    later shares the next one: an answer is never older than its question. Work that nobody waits for ends."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._next: dict[Hashable, _Round] = {}
        self._working: dict[Hashable, None] = {}

    async def get(self, question: Hashable, work: Callable[[], Awaitable[Message]]) -> Message:
        """The answer of ``work``, or of the same work for somebody else. Raises its ``TidelogError``, or
        ``RuntimeError`` where it failed otherwise."""
        if (shared := self._next.get(question)) is None:
            shared = self._next[question] = _Round(work)
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
    """``most`` at a time, of one principal at most ``each``; who waits comes in turn, principal after principal."""

    def __init__(self, most: int, each: int) -> None:
        self._most = most
        self._each = each
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[trio.Event]] = {}

    @asynccontextmanager
    async def seat(self, principal: str) -> AsyncIterator[None]:
        """Wait for a seat, and have it in this block."""
        gate = trio.Event()
        self._waiting.setdefault(principal, deque()).append(gate)
        self._call()
        try:
            await gate.wait()
            yield
        finally:
            if gate.is_set():
                self._taken[principal] -= 1
                if not self._taken[principal]:
                    del self._taken[principal]
            else:
                self._waiting[principal].remove(gate)
                if not self._waiting[principal]:
                    del self._waiting[principal]
            self._call()

    def _call(self) -> None:
        """Give free seats away."""
        for principal in list(self._waiting):
            if sum(self._taken.values()) >= self._most:
                return
            if self._taken.get(principal, 0) >= self._each:
                continue
            queue = self._waiting.pop(principal)
            queue.popleft().set()
            self._taken[principal] = self._taken.get(principal, 0) + 1
            if queue:
                self._waiting[principal] = queue  # behind the others


class Steps:
    """Of one answer: after each ``PAGE`` of them others run."""

    def __init__(self) -> None:
        self._taken = 0

    async def take(self) -> None:
        """Count one more step, and let other tasks run now and then."""
        self._taken += 1
        if self._taken % PAGE == 0:
            await trio.lowlevel.checkpoint()
