"""The network seam: connections that carry messages. ``net/websocket/transport.py`` is the real implementation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol, TypedDict, Unpack

import trio

from tidelog.net.origins import Origins
from tidelog.net.tls import NodeIdentity, TlsFiles
from tidelog.net.websocket.backlog import Backlog
from tidelog.wire.codec import payload_size
from tidelog.wire.link_session import MAX_MESSAGE_BYTES, SUBPROTOCOL
from tidelog.wire.messages import Payload

__all__ = [
    "MAX_MESSAGE_BYTES",
    "NO_PAGES",
    "SUBPROTOCOL",
    "Accepting",
    "Connection",
    "HttpPeer",
    "HttpPort",
    "Page",
    "Pages",
    "PlainConnection",
    "Transport",
]


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a plain HTTP request on a service's port: status, headers and body."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    """Further headers."""
    gzipped: bytes = b""
    """The body, compressed with gzip, for clients that accept it; empty: the body is sent as it is to all."""
    shared: bool = False
    """Whether web pages of other origins that may connect may load it, too, such as a script (CORS)."""
    private: bool = False
    """Whether it is shown only if the request names this port by a known name (``Origins.knows``)."""


Pages = Mapping[str, Callable[[str], Page]]
"""The pages of a port, by path. Each function is called for every request, with its ``Accept`` header; it returns the
page and must not block."""
NO_PAGES: Pages = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HttpPeer:
    """An accepted connection whose other end speaks plain HTTP, and what the port knows of it."""

    stream: trio.abc.Stream
    """The bytes of the connection, decrypted. The port closes it."""
    remote: str
    """Address of the other end, for log lines and error texts."""
    identities: tuple[NodeIdentity, ...] | None
    """The identities in the peer's certificate; None if none was asked for."""
    origins: Origins
    """The web origins and host names that the port accepts."""
    backlog: Backlog
    """Counts the bytes of incomplete messages of all connections of the process."""


class HttpPort(Protocol):
    """The part of a port that serves plain HTTP requests whose path begins with ``prefix``."""

    @property
    def prefix(self) -> str:
        """Return the beginning of the paths, such as ``/v1/``."""

    async def serve(self, peer: HttpPeer, data: bytes) -> bytes | None:
        """Serve requests until the connection is over, and return None. ``data``: the bytes that have arrived, from
        the beginning of a request on. If a request is for another path or asks for WebSocket, return the bytes from
        its beginning on."""


class Accepting(TypedDict, total=False):
    """The optional arguments of ``Transport.serve``: pages for plain HTTP requests, the web origins and host names
    that the port accepts, and an event that ends the accepting of connections."""

    pages: Pages
    """Pages for requests that do not ask for WebSocket."""
    origins: Collection[str]
    """Origins (``https://app.example``) whose web pages may connect, too, besides those of the port itself
    (``net/origins.py``)."""
    hosts: Collection[str]
    """Host names by which requests may name the port itself."""
    browsers: bool
    """Whether web pages may connect at all; the default is True."""
    http: HttpPort
    """Serves plain HTTP requests, besides the pages."""
    until: trio.Event
    """When this event is set, no more connections are accepted; open connections stay."""


Outgoing = tuple[bytes, Payload, int]
"""A message to be sent: its head, its payload, and the length of both together in bytes."""


def outgoing(head: bytes, payload: Payload = b"") -> Outgoing:
    """Return head and payload as an ``Outgoing``: a message to be sent, together with its length in bytes."""
    return head, payload, len(head) + (payload_size(payload) if payload else 0)


class Connection(Protocol):
    """One open connection that carries whole binary messages, in order, in both directions. Times are seconds of
    trio's clock."""

    remote: str
    """Address of the other side, for log lines and error texts."""
    local_url: str
    """URL at which this end accepted the connection; "" if this end connected."""
    identities: tuple[NodeIdentity, ...] | None
    """The identities in the peer's certificate; None if none was asked for."""
    on_wait: Callable[[], None]
    """Called by ``receive`` when all messages that have arrived were returned, before it waits for more."""
    on_urgent: Callable[[], None]
    """Called when the connection has a ping or pong that it could not send: the next ``send_many`` sends it."""
    heard_at: float
    """When bytes were last received."""
    answered_at: float | None
    """When bytes were first received after the last ping; None if none were."""

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        """Send one message, ``head`` followed by ``payload``, and wait while the peer does not read. Only one task
        sends at a time. Raises ``Unreachable`` if the connection is closed or breaks."""

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Send several messages in order, after anything that ``send_now`` has left, and wait while the peer does not
        read. Only one task sends at a time. Raises ``Unreachable`` if the connection is closed or breaks."""

    @property
    def can_send_now(self) -> bool:
        """Return whether ``send_now`` may be called now: the connection can send without waiting, and nothing else is
        being sent."""

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Hand as much of the messages to the kernel as it takes without waiting. Return whether all was taken; if
        not, the next ``send_many`` sends the rest. Raises nothing if the connection is broken."""

    async def receive(self) -> bytes:
        """Wait for the next message and return it. Raises ``Unreachable`` if the connection ends, and
        ``ProtocolError`` for a text frame, a message that is too long, or any other fault of the peer; its detail
        ``close_code`` is the WebSocket close code for the peer."""

    def ping(self) -> None:
        """Send a ping to the peer, without waiting, and set ``answered_at`` to None until bytes are received."""

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Send a WebSocket close frame with this code (RFC 6455 §7.4) and close the connection. Waits a bounded time
        for the peer."""


class PlainConnection(Connection):
    """A base for connections that send one message at a time and count every ping as answered: simulated and
    in-memory ones. A subclass adds ``send``, ``receive`` and ``aclose``."""

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.local_url = ""
        self.identities: tuple[NodeIdentity, ...] | None = None
        self.on_wait: Callable[[], None] = lambda: None
        self.on_urgent: Callable[[], None] = lambda: None
        self.heard_at = trio.current_time()
        self.answered_at: float | None = None

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Send the messages one after the other with ``send``, and wait for each."""
        for head, payload, _ in messages:
            await self.send(head, payload)

    @property
    def can_send_now(self) -> bool:
        """Return False: this connection cannot send without waiting."""
        return False

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Raise ``RuntimeError``: no caller may use this method, since ``can_send_now`` is False."""
        raise RuntimeError("this connection cannot send without waiting")

    def ping(self) -> None:
        """Send nothing: set ``heard_at`` and ``answered_at`` to the present time, as if the peer had answered at
        once."""
        self.heard_at = self.answered_at = trio.current_time()


class Transport(Protocol):
    """A way to open and accept connections: over real sockets, or in a simulated network."""

    tls: TlsFiles | None
    """The TLS files of this process; None: it uses no TLS."""
    secret: bytes
    """The secret of the cluster, which services prove to each other to have (``wire.proof``); b"" if there is
    none."""

    async def connect(self, url: str) -> Connection:
        """Connect to ``ws://host:port`` (or ``wss:``) and return the open connection, which the caller closes. Raises
        ``Unreachable`` if there is no connection in time."""

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
