"""The network seam: connections that carry messages. ``net/websocket/transport.py`` is the real implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypedDict, Unpack

import trio

from tidelog.net.tls import NodeIdentity
from tidelog.wire.codec import payload_size
from tidelog.wire.link_session import MAX_MESSAGE_BYTES, SUBPROTOCOL
from tidelog.wire.messages import Payload

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NO_PAGES",
    "SUBPROTOCOL",
    "Accepting",
    "Connection",
    "Page",
    "Pages",
    "PlainConnection",
    "Transport",
]


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a plain HTTP request on a service's port."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers."""


Pages = Mapping[str, Callable[[str], Page]]
"""By path; each is called with the request's ``Accept`` header for every request, and must not block."""
NO_PAGES: Pages = MappingProxyType({})


class Accepting(TypedDict, total=False):
    """The optional arguments of ``Transport.serve``: which requests and web pages a port accepts."""

    pages: Pages
    """Pages for requests that do not ask for WebSocket."""
    origins: Collection[str]
    """Web pages of these origins connect, too, besides those of the port itself (``net/origins.py``)."""
    hosts: Collection[str]
    """Names of the port itself."""
    browsers: bool
    """Whether web pages may connect at all; the default is True."""
    until: trio.Event
    """When it is set no more connections are accepted; open connections stay."""


Outgoing = tuple[bytes, Payload, int]
"""A message to be sent: its head, its payload, and the length of both together in bytes."""


def outgoing(head: bytes, payload: Payload = b"") -> Outgoing:
    """Return a message to be sent."""
    return head, payload, len(head) + (payload_size(payload) if payload else 0)


class Connection(Protocol):
    """One open connection that carries whole binary messages, in order, both ways. Times are of trio's clock."""

    remote: str
    """Address of the other side, for people."""
    local_url: str
    """Address at which this end accepted it; "" where this end connected."""
    identities: tuple[NodeIdentity, ...] | None
    """The identities in the peer's certificate; None if none was asked for."""
    on_wait: Callable[[], None]
    """``receive`` calls it when everything that has arrived was handed out, before it waits for more."""
    on_urgent: Callable[[], None]
    """Called when the connection has frames of its own to send with the next ``send_many``."""
    heard_at: float
    """When something was received last."""
    answered_at: float | None
    """When something was received first after the last ping; None: nothing has."""

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        """Send one message: ``head`` followed by ``payload``. Waits while the peer does not read.
        Raises ``Unreachable`` when the connection is closed or breaks. One task sends at a time."""

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Send several messages, in order, as ``send`` does. Whatever ``send_now`` has left is sent first."""

    @property
    def can_send_now(self) -> bool:
        """Return whether ``send_now`` may be called: nothing else is being sent."""

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Send as much of the messages as the kernel takes without waiting. Return False if something is left, which
        the next ``send_many`` sends."""

    async def receive(self) -> bytes:
        """Wait for the next message and return it. Raises ``Unreachable`` if the connection ends, ``ProtocolError``
        on a text frame or an oversized message (the connection is then closed with the right code)."""

    def ping(self) -> None:
        """Queue a ping to the peer, and set ``answered_at`` to None until something is received. Does not wait."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection with a WebSocket close code (RFC 6455 §7.4). Bounded in time."""


class PlainConnection(Connection):
    """A connection that sends one message at a time and counts every ping as answered. A subclass adds ``send``,
    ``receive`` and ``aclose``."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.local_url = ""
        self.identities: tuple[NodeIdentity, ...] | None = None
        self.on_wait: Callable[[], None] = lambda: None
        self.on_urgent: Callable[[], None] = lambda: None
        self.heard_at = trio.current_time()
        self.answered_at: float | None = None

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Send the messages one after the other."""
        for head, payload, _ in messages:
            await self.send(head, payload)

    @property
    def can_send_now(self) -> bool:
        """Return False, since every send may have to wait."""
        return False

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Raise ``RuntimeError``: this method must not be called, since ``can_send_now`` is False."""
        raise RuntimeError("this connection cannot send without waiting")

    def ping(self) -> None:
        """Count the ping as sent and answered at once."""
        self.heard_at = self.answered_at = trio.current_time()


class Transport(Protocol):
    """A way to open and accept connections: real sockets, or a simulated network."""

    secret: bytes
    """With it services prove to each other that they are of one cluster (``wire.proof``); b"" where there is none."""

    async def connect(self, url: str) -> Connection:
        """Connect to ``ws://host:port`` and return the open connection, which the caller closes. Raises
        ``Unreachable`` if that fails."""

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str],
        **accepting: Unpack[Accepting],
    ) -> None:
        """Accept connections until cancelled, and run ``handler`` for each. Reports the URL (with the real port)
        through ``task_status`` when the port is open. An exception in a handler ends that connection only (close code
        1011). Raises ``ConfigError`` if the port is in use."""
