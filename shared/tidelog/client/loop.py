"""The loop under the client: what it needs of trio (``trio_loop``) or asyncio (``tidelog.aio``), and no more.

Log, producers and consumers are written once, against this seam: their functions are ``async``, and all that they
ever wait for is an event, a time, or each other. An object of theirs reaches its loop by ``connection.loop``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from math import inf
from typing import Protocol

from tidelog.errors import TidelogError
from tidelog.wire.messages import Hello, Message

Work = Callable[[], Awaitable[None]]
Handler = Callable[["Link", int | None, Message], None]
"""Called inline with what the peer sent: must not block."""


class LoopEvent(Protocol):
    """Becomes set, once."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self) -> object: ...


class Link(Protocol):
    """An open connection to a gateway; see ``tidelog.net.link.Link``."""

    error: TidelogError | None
    """Why it ended."""

    @property
    def closed(self) -> bool:
        """Nothing more is sent."""

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request and wait for its answer. Raises ``BrokerError``, ``TimedOut`` or ``Unreachable``."""

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        """``call`` with a callback, called exactly once, inline, maybe before this returns."""

    def post(self, message: Message) -> None:
        """Queue a one-way message; lost when the link has ended."""

    async def send(self, message: Message) -> None:
        """Queue a one-way message, waiting for room before. Raises ``Unreachable`` when the link has ended."""

    async def wait_closed(self) -> None:
        """Until it has ended."""


class Loop(Protocol):
    """The event loop as the client needs it. Times in seconds, on the loop's own clock."""

    def now(self) -> float:
        """Return the loop's time, in seconds."""

    def event(self) -> LoopEvent:
        """A new one."""

    async def sleep(self, seconds: float) -> None:
        """Wait so long."""

    async def checkpoint(self) -> None:
        """Let others run."""

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Until it is set, or it is so late."""

    async def gather(self, calls: Iterable[Work]) -> None:
        """All at once. The first ``TidelogError`` ends the others and is raised, bare."""

    def tasks(self) -> AbstractAsyncContextManager[Callable[[Work], None]]:
        """``async with loop.tasks() as start``: what is started runs beside the block, and is cancelled at its end.
        If the block is cancelled, they go on until the block has ended, since the block may have to send a last
        message. What the block raises comes out bare."""

    def shielded(self) -> AbstractContextManager[object]:
        """``with loop.shielded()``: a cancellation from outside does not interrupt what is awaited in the block."""

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[Link]:
        """A link to a gateway, closed at the end of the block. The block is not cancelled when the link ends. Raises
        ``Unreachable``, or what hello was refused with."""
