"""What a client takes from its surroundings: the event loop, the wall clock for the timestamps of records, random
names, and the name of the process. The loop is implemented on trio (``trio_loop``) and on asyncio (``tidelog.aio``).

Log, producers and consumers are written once, against this interface. Their functions are ``async`` and wait only for
an event, a time, or each other. Each object reaches its loop by ``connection.loop``.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from math import inf
from secrets import token_hex
from typing import Protocol

from tidelog.errors import TidelogError, Unreachable
from tidelog.net.addresses import DEFAULT_PORT
from tidelog.wire.messages import Hello, Message, Welcome

Work = Callable[[], Awaitable[None]]
Handler = Callable[["GatewayLink", int | None, Message], None]
"""A callback of a link: called inline with the link, the id of a request (None for a one-way message) and the
message. It must not block."""


WallClock = Callable[[], int]
"""A function such as ``wall_ms``."""


def wall_ms() -> int:
    """Return the machine's wall-clock time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def random_name() -> str:
    """Return a random name of 32 hexadecimal digits, which no other client has."""
    return token_hex(16)


def process_name() -> str:
    """Return ``HOST:PID`` of this process, by which people can find it."""
    return f"{platform.node()}:{os.getpid()}"


def refuse_other_roles(welcome: Welcome) -> TidelogError | None:
    """Return the error with which a client refuses a service that let it in and is no gateway; None for a
    gateway."""
    return None if welcome.role == "gateway" else no_gateway(welcome.role)


def no_gateway(role: str) -> Unreachable:
    """Return the error for an address at which a service of this role listens that is no gateway. Its detail ``role``
    is the role."""
    what = {"controller": "a controller", "replica": "a replica server"}.get(role, f"a service of role {role}")
    text = f"{what} listens there, no gateway: gateways listen on port {DEFAULT_PORT} unless they are told otherwise"
    return Unreachable(text, role=role)


class LoopEvent(Protocol):
    """An event of the loop that is set once. Tasks that wait for it are woken when it is set; later waits return at
    once."""

    def set(self) -> None:
        """Set the event, and wake all tasks that wait for it."""

    def is_set(self) -> bool:
        """Return whether the event was set."""

    async def wait(self) -> object:
        """Wait until the event is set; return at once if it is set already."""


class GatewayLink(Protocol):
    """An open connection to one gateway. Implemented by ``tidelog.net.link.Link`` and by ``tidelog.aio``."""

    error: TidelogError | None
    """The reason why the link ended; None while it is open."""

    @property
    def peer(self) -> Hello | Welcome:
        """The welcome of the gateway."""

    @property
    def closed(self) -> bool:
        """Whether the link is closed for sending."""

    async def call(self, request: Message, timeout_s: float) -> Message:
        """Send a request, wait for its answer and return it. Raises ``BrokerError`` if the gateway refuses it,
        ``TimedOut`` after ``timeout_s``, ``Unreachable`` if the link ends first."""

    def start_call(self, request: Message, timeout_s: float, done: Callable[[Message | TidelogError], None]) -> None:
        """Send a request and return without waiting. ``done`` is called exactly once, without a change of task, with
        the answer or with the error that ``call`` would raise; that may be before this returns."""

    @property
    def has_space(self) -> bool:
        """Whether the queue of outgoing messages has space for another one, so that ``send`` would not wait."""

    def send_now(self, message: Message) -> None:
        """Send a one-way message without waiting or a change of task. Called only while ``has_space``. The message
        is lost if the link has ended."""

    def post(self, message: Message) -> None:
        """Queue a one-way message without waiting for space. The message is dropped if the link has ended. A full
        queue may end the link, whereas ``send`` waits for space."""

    async def send(self, message: Message) -> None:
        """Queue a one-way message, after waiting for space in the queue. Raises ``Unreachable`` if the link has
        ended."""

    async def wait_closed(self) -> None:
        """Wait until the link has ended, for whatever reason; return at once if it has ended already."""


class Loop(Protocol):
    """The event loop that the client runs on: trio or asyncio. Times are seconds on the loop's own clock."""

    def now(self) -> float:
        """Return the present time of the loop's clock, in seconds."""

    def event(self) -> LoopEvent:
        """Return a new event that is not set."""

    async def sleep(self, seconds: float) -> None:
        """Wait for this many seconds, while other tasks run."""

    async def checkpoint(self) -> None:
        """Let other tasks run, then go on."""

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Wait until the event is set or ``deadline`` (loop time) has passed, whichever is first. The caller finds
        out which by ``event.is_set``."""

    async def gather(self, calls: Iterable[Work]) -> None:
        """Run all calls concurrently, and return when all have returned. The first ``TidelogError`` cancels the
        others and is raised, not in an exception group."""

    def tasks(self) -> AbstractAsyncContextManager[Callable[[Work], None]]:
        """Return a context manager that runs tasks beside a block: ``async with loop.tasks() as start``. Each call
        ``start(work)`` starts a task. All tasks are cancelled at the end of the block. If the block is cancelled they
        go on until it has ended, since it may have to send a last message. An exception of the block is raised as it
        is, not in an exception group."""

    def shielded(self) -> AbstractContextManager[object]:
        """Return a context manager in which a cancellation from outside does not interrupt waits: ``with
        loop.shielded()``."""

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[GatewayLink]:
        """Return a context manager that opens a link to a gateway and closes it at the end of the block. ``handler``
        is called with the messages that arrive. The block is not cancelled when the link ends. Entering raises
        ``Unreachable``, or the error with which the gateway refused ``hello``."""
