"""A WebSocket made by hand, for messages that no client of ours would send."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
from tidelog.net.transport import SUBPROTOCOL
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Event, Request, TextMessage


class Bare:
    """An open WebSocket."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    async def open(self) -> None:
        """The opening handshake."""
        request = Request(host="127.0.0.1", target="/", subprotocols=[SUBPROTOCOL])  # type: ignore[arg-type]
        await self._stream.send_all(self._protocol.send(request))
        assert isinstance(await self._next(), AcceptConnection)

    async def send(self, message: bytes | str) -> None:
        """One message. Whether it was taken to its end is not known: the other side may hang up before."""
        event: Any = BytesMessage(message) if isinstance(message, bytes) else TextMessage(message)
        try:
            await self._stream.send_all(self._protocol.send(event))
        except trio.BrokenResourceError:
            return

    async def send_raw(self, data: bytes) -> None:
        """Bytes that are no frames of a correct client. Whether they were taken to their end is not known."""
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(data)

    async def receive(self) -> bytes:
        """The next message."""
        data, finished = b"", False
        while not finished:
            event = await self._next()
            assert isinstance(event, BytesMessage), event
            data, finished = data + bytes(event.data), event.message_finished
        return data

    async def closed_with(self) -> tuple[int, str]:
        """The code and the reason with which the other side closes; what comes before is skipped."""
        while not isinstance(event := await self._next(), CloseConnection):
            pass
        return event.code, event.reason or ""

    async def _next(self) -> Event:
        while not self._events:
            data = await self._stream.receive_some(1 << 16)
            assert data, "hung up without a close frame"
            self._protocol.receive_data(data)
            self._events += self._protocol.events()
        return self._events.pop(0)


@asynccontextmanager
async def bare(url: str) -> AsyncIterator[Bare]:
    """A WebSocket to the server."""
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream:
        socket = Bare(stream)
        await socket.open()
        yield socket
