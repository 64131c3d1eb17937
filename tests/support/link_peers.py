"""A transport within the process and a small server, for the tests of links."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

import trio
from tidelog.errors import TidelogError, Unreachable, refuse
from tidelog.net.link import Link, connect_link, serve_links
from tidelog.net.transport import Accepting, Connection, PlainConnection, Transport
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import (
    Heartbeat,
    Hello,
    Message,
    Payload,
    Read,
    ReadAnswer,
    Unsubscribe,
    Welcome,
)

HELLO = Hello(1, "client", "me")
WELCOME = Welcome(1, "c", "g1", "gateway", 1 << 24, 1000)
ALLOWED = {"client": frozenset({"read", "credit", "watch", "unsubscribe", "heartbeat"})}


async def rest(seconds: float) -> None:
    """Wait for so many seconds of trio's clock."""
    with trio.move_on_after(seconds):
        await trio.sleep_forever()


class MemoryConnection(PlainConnection):
    """One end of a pair of memory channels that hold ``room`` messages each."""

    def __init__(
        self, send: trio.MemorySendChannel[bytes], receive: trio.MemoryReceiveChannel[bytes], remote: str
    ) -> None:
        super().__init__(remote)
        self.closed_with: tuple[int, str] | None = None
        self._send, self._receive = send, receive

    async def send(self, head: bytes, payload: Payload = b"") -> None:
        """Send a message. Raises ``Unreachable`` if the connection is closed."""
        try:
            await self._send.send(head + payload_view(payload))
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise Unreachable("the memory connection is closed") from error

    async def receive(self) -> bytes:
        """Return the next message. Raises ``Unreachable`` if the connection is closed."""
        try:
            self.on_wait()
            return await self._receive.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise Unreachable("the memory connection is closed") from error

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection and keep the code and reason."""
        self.closed_with = self.closed_with or (code, reason)
        self._send.close()
        self._receive.close()


class MemoryTransport:
    """A transport whose only server is within the process."""

    def __init__(self, room: float = math.inf) -> None:
        self.tls = None
        self.secret = b""
        self.accepted: list[MemoryConnection] = []
        self._room = room
        self._arrivals, self._to_accept = trio.open_memory_channel[MemoryConnection](math.inf)

    async def connect(self, url: str) -> Connection:
        """Open a connection to the server."""
        there, back = trio.open_memory_channel[bytes](self._room), trio.open_memory_channel[bytes](self._room)
        await self._arrivals.send(MemoryConnection(back[0], there[1], "client"))
        return MemoryConnection(there[0], back[1], url)

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **accepting: Unpack[Accepting],
    ) -> None:
        """Handle connections until cancelled."""
        async with trio.open_nursery() as nursery:
            task_status.started("memory")
            async for connection in self._to_accept:
                self.accepted.append(connection)
                nursery.start_soon(handler, connection)


class Server:
    """A server of links. It answers reads with as many bytes as asked for, refuses heartbeats, and never answers
    ``Watch``."""

    def __init__(self, transport: Transport, *, flow_control: bool = False) -> None:
        self.transport = transport
        self.flow_control = flow_control
        self.links: list[Link] = []
        self.closed: list[Link] = []
        self.seen: list[Message] = []
        self.refusal: TidelogError | None = None
        self.url = ""

    def welcome(self, hello: Hello) -> Welcome | TidelogError:
        """Return the answer to a hello: the refusal of the test, or a welcome."""
        return self.refusal or WELCOME

    def handle(self, link: Link, id: int | None, message: Message) -> None:
        """Record a message and answer it."""
        self.seen.append(message)
        match message:
            case Read():
                assert id is not None
                link.answer(id, ReadAnswer(1, 2, 3, payload=bytes(message.max_bytes)))
            case Heartbeat():
                raise refuse("FENCED_BROKER_EPOCH", "another life")
            case Unsubscribe():
                raise RuntimeError("a bug of ours")

    @asynccontextmanager
    async def running(self) -> Any:
        """Serve until the block ends."""
        async with trio.open_nursery() as nursery:

            async def serve(task_status: trio.TaskStatus[str]) -> None:
                await serve_links(
                    self.transport,
                    "127.0.0.1",
                    0,
                    self.welcome,
                    self.handle,
                    allowed=ALLOWED,
                    on_open=self.links.append,
                    on_close=self.closed.append,
                    flow_control=self.flow_control,
                    task_status=task_status,
                )

            self.url = await nursery.start(serve)
            yield self
            nursery.cancel_scope.cancel()

    def connect(self, handler: Any = None, hello: Hello = HELLO) -> AbstractAsyncContextManager[Link]:
        """Open a link to the server."""
        return connect_link(self.transport, self.url, hello, handler)
