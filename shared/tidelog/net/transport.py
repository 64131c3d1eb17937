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
    """An answer to a plain HTTP request."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers."""


Pages = Mapping[str, Callable[[str], Page]]
"""By path; each is called with the request's ``Accept`` header for every request, and must not block."""
NO_PAGES: Pages = MappingProxyType({})


class Accepting(TypedDict, total=False):
    """Options of ``Transport.serve``."""

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
        """Send several messages, in order, as ``send`` does; first what ``send_now`` left."""

    @property
    def can_send_now(self) -> bool:
        """Whether ``send_now`` may be called."""

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Send as much as goes without waiting. False: something is left for ``send_many``."""

    async def receive(self) -> bytes:
        """Return the next message. Raises ``Unreachable`` when the connection ends, ``ProtocolError`` on a text frame
        or an oversized message (the connection is then closed with the right code)."""

    def ping(self) -> None:
        """Ask the other side for an answer, without waiting."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close it with a WebSocket close code (RFC 6455 §7.4); bounded in time."""


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
        """False: every send may have to wait."""
        return False

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Not to be called, since ``can_send_now`` is False."""
        raise RuntimeError("this connection cannot send without waiting")

    def ping(self) -> None:
        """Count the ping as answered."""
        self.heard_at = self.answered_at = trio.current_time()


class Transport(Protocol):
    """Opens and accepts connections."""

    secret: bytes
    """With it services prove to each other that they are of one cluster (``wire.proof``); b"" where there is none."""

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
