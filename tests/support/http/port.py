"""The HTTP of a gateway that has no cluster, on a stream in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import trio
import trio.testing
from tidelog.net.origins import Origins
from tidelog.net.transport import HttpPeer
from tidelog.net.websocket.backlog import Backlog
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import Access, Token
from tidelog.wire.messages import Hello
from tidelog_gateway.audit.writer import Audit
from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.http.http_port import GatewayHttp
from tidelog_gateway.requests.requests import ClientRequests
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings
from tidelog_gateway.settings import ConnectionSettings, RouterSettings, SubscriptionSettings
from tidelog_gateway.shell import GatewayShell

from support.http.client import HttpClient

Pair = tuple[trio.abc.Stream, trio.abc.Stream]


class Port:
    """A gateway's HTTP with all that decides about clients, and no servers behind it."""

    def __init__(self, nursery: trio.Nursery, settings: AuthorizerSettings, **connections: int) -> None:
        self.nursery = nursery
        self.shell = GatewayShell(
            WebSocketTransport(),
            Hello(1, "gateway", "g1"),
            [],
            RouterSettings(),
            SubscriptionSettings(),
            trio.current_time,
            nursery,
        )
        self.drain = Drain(self.shell)
        self.clients = ClientConnections(
            self.shell,
            ClientRequests(self.shell, "test"),
            Authorizer(settings),
            Audit(self.shell, None, lambda: 0),
            lambda: 0,
            self.drain,
            ConnectionSettings(**connections),
        )
        self.http = GatewayHttp(self.shell, self.clients)
        self.origins = Origins(("https://app.example",), hosts=("log.example",))
        self.backlog = Backlog(64 << 20)
        self.left: list[bytes | None] = []
        """What ``serve`` returned, by connection."""

    def know(self, *tokens: Token) -> None:
        """Let the metadata have these tokens."""
        image = self.shell.cluster.image
        self.shell.cluster.update(replace(image, index=image.index + 1, access=Access(tokens)))
        self.shell._changed()

    def connect(self, pair: Callable[[], Pair] = trio.testing.memory_stream_pair) -> HttpClient:
        """Return a client on a new connection. ``pair`` makes its two ends."""
        ours, theirs = pair()

        async def serve() -> None:
            async with ours:
                peer = HttpPeer(ours, "10.0.0.9:40000", None, self.origins, self.backlog)
                self.left.append(await self.http.serve(peer, b""))

        self.nursery.start_soon(serve)
        return HttpClient(theirs)


@asynccontextmanager
async def http_port(settings: AuthorizerSettings | None = None, **connections: int) -> AsyncIterator[Port]:
    """Run the HTTP of a gateway without a cluster."""
    async with trio.open_nursery() as nursery:
        port = Port(nursery, settings or AuthorizerSettings(), **connections)
        nursery.start_soon(port.clients.run)
        yield port
        nursery.cancel_scope.cancel()
