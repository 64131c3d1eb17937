"""The network seam: messages over connections, as the services need them. ``net/websocket/transport.py`` is the real
one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypedDict, Unpack, runtime_checkable

import trio

from tidelog.wire.messages import Payload
from tidelog.wire.session import MAX_MESSAGE_BYTES, SUBPROTOCOL

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NO_PAGES",
    "SUBPROTOCOL",
    "Accepting",
    "Connection",
    "Page",
    "Pages",
    "Pinging",
    "Transport",
]


@dataclass(frozen=True, slots=True)
class Page:
    """What a port shows to plain HTTP."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """More of them."""


Pages = Mapping[str, Callable[[str], Page]]
"""By path; each is called with the request's ``Accept`` header for every request, and must not block."""
NO_PAGES: Pages = MappingProxyType({})


class Accepting(TypedDict, total=False):
    """Options of ``Transport.serve``."""

    pages: Pages
    """For whoever asks for a page instead."""
    origins: Collection[str]
    """Web pages of these origins connect, too, besides those of the port itself (``net/origins.py``)."""
    hosts: Collection[str]
    """Names of the port itself."""
    browsers: bool
    """Whether web pages connect at all; True if it is not said."""
    until: trio.Event
    """When it is set nobody else is accepted; who is connected stays."""


class Connection(Protocol):
    """One open connection that carries whole binary messages, in order, both ways."""

    remote: str
    """Address of the other side, for people."""

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        """Send one message: ``head`` followed by ``payload``. Waits while the peer does not read.
        Raises ``Unreachable`` when the connection is closed or breaks. One task sends at a time."""

    async def receive(self) -> bytes:
        """The next message. Raises ``Unreachable`` when the connection ends, ``ProtocolError`` on a text frame or
        an oversized message (the connection is then closed with the right code)."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close it with a WebSocket close code (RFC 6455 §7.4); bounded in time."""


@runtime_checkable
class Pinging(Protocol):
    """A connection that can ask the other side for a sign of life. Times are those of trio's clock."""

    heard_at: float
    """When something came last."""
    answered_at: float | None
    """When something came first after the last ping; None: nothing has."""

    def ping(self) -> None:
        """Ask, without waiting."""


class Transport(Protocol):
    """Opens and accepts connections."""

    async def connect(self, url: str) -> Connection:
        """Connect to ``ws://host:port``. Raises ``Unreachable`` when that fails. The caller closes it."""

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
        **accepting: Unpack[Accepting],
    ) -> None:
        """Accept until cancelled; reports its URL (with the real port) when it listens. An exception in a handler
        ends that connection only (close code 1011). Raises ``ConfigError`` when the port is in use."""
