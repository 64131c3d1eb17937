"""The event loop as the client needs it: implemented on trio (``trio_loop``) and on asyncio (``tidelog.aio``).

Log, producers and consumers are written once, against this interface. Their functions are ``async`` and wait only for
an event, a time, or each other. Each object reaches its loop by ``connection.loop``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from math import inf
from typing import Protocol

from tidelog.errors import TidelogError
from tidelog.wire.messages import Hello, Message

Work = Callable[[], Awaitable[None]]
Handler = Callable[["GatewayLink", int | None, Message], None]
"""Called inline with a message from the peer; must not block."""


class LoopEvent(Protocol):
    """An event that is set once."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    async def wait(self) -> object: ...


class GatewayLink(Protocol):
    """An open connection to a gateway; see ``tidelog.net.link.Link``."""

    error: TidelogError | None
    """Why the link ended."""

    @property
    def closed(self) -> bool:
        """Whether the link is closed for sending."""

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request and wait for its answer. Raises ``BrokerError``, ``TimedOut`` or ``Unreachable``."""

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        """Make a ``call`` whose answer is passed to a callback, exactly once, inline, maybe before this returns."""

    @property
    def has_space(self) -> bool:
        """Whether the queue has space for another message, so that ``send`` would not wait for it."""

    def send_now(self, message: Message) -> None:
        """Send a one-way message without waiting or a change of task. Called only while ``has_space``. The message
        is lost if the link has ended."""

    def post(self, message: Message) -> None:
        """Queue a one-way message without waiting for space. The message is lost if the link has ended. A full queue
        may end the link; ``send`` waits for space."""

    async def send(self, message: Message) -> None:
        """Queue a one-way message, after waiting for space in the queue. Raises ``Unreachable`` if the link has
        ended."""

    async def wait_closed(self) -> None:
        """Wait until the link has ended."""


class Loop(Protocol):
    """The event loop. Times are seconds on the loop's own clock."""

    def now(self) -> float:
        """Return the loop's time in seconds."""

    def event(self) -> LoopEvent:
        """Return a new event."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""

    async def checkpoint(self) -> None:
        """Let other tasks run."""

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Wait until the event is set or the deadline has passed."""

    async def gather(self, calls: Iterable[Work]) -> None:
        """Run all calls concurrently. The first ``TidelogError`` ends the others and is raised, bare."""

    def tasks(self) -> AbstractAsyncContextManager[Callable[[Work], None]]:
        """Run tasks beside a block: ``async with loop.tasks() as start``. Tasks that ``start`` starts are cancelled
        at the end of the block. If the block is cancelled they go on until it has ended, since it may have to send a
        last message. Exceptions of the block are raised bare."""

    def shielded(self) -> AbstractContextManager[object]:
        """Shield a block: ``with loop.shielded()``. A cancellation from outside does not interrupt its waits."""

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[GatewayLink]:
        """Open a link to a gateway, closed at the end of the block. The block is not cancelled when the link ends.
        Raises ``Unreachable``, or the error that refused the hello."""
