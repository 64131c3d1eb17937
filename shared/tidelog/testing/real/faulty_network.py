"""A network whose connections can be paused and cut: what the services of one process are run over when faults are
to be injected into them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack

import trio

from tidelog.cli.local.message_tap import ConnectionTap, MessageTap
from tidelog.errors import Unreachable
from tidelog.net.transport import Accepting, Connection, Outgoing
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import HELLO_BYTES, Stream, WebSocketTransport
from tidelog.types import Buffer


class PlayedStream(FrameStream):
    """A connection of a node of the playground. It carries nothing while the node's gate is closed, and passes its
    messages to a ``ConnectionTap``."""

    gate: Gate
    tap: ConnectionTap

    async def receive(self) -> bytes:
        """Wait for a message, pass it to the tap, and return it; see ``FrameStream``."""
        data = await super().receive()
        self.tap.record_received(data)
        return data

    def send_now(self, messages: Sequence[Outgoing]) -> bool:
        """Pass messages to the tap, and send them without waiting; see ``FrameStream``."""
        self.tap.remember_requests(messages)
        return super().send_now(messages)

    async def send_many(self, messages: Sequence[Outgoing]) -> None:
        """Pass messages to the tap, and send them; see ``FrameStream``."""
        self.tap.remember_requests(messages)
        await super().send_many(messages)

    async def _receive_some(self, within: bool) -> bytes:
        data = await super()._receive_some(within)
        await self.gate.passed()
        return data

    async def _send_all(self, data: Buffer) -> None:
        await self.gate.passed()
        await super()._send_all(data)

    @property
    def can_send_now(self) -> bool:
        """Whether ``send_now`` may be called: not while the node is paused, and otherwise as in ``FrameStream``."""
        return self.gate.is_open and super().can_send_now

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return self._closed

    async def break_off(self) -> None:
        """Close the connection at once, without a closing handshake, as if the network had failed."""
        await trio.aclose_forcefully(self._stream)


class Gate:
    """The switch that pauses a node. While it is closed, everything that the node sends or receives waits."""

    def __init__(self) -> None:
        self._opened = trio.Event()
        self._opened.set()

    @property
    def is_open(self) -> bool:
        """Whether the gate is open."""
        return self._opened.is_set()

    async def passed(self) -> None:
        """Wait until the gate is open; returns at once if it is."""
        if not self.is_open:
            await self._opened.wait()

    def open(self) -> None:
        """Let messages through again, and wake all tasks that wait for that."""
        self._opened.set()

    def close(self) -> None:
        """Make messages wait until ``open``. Does nothing if the gate is closed."""
        if self.is_open:
            self._opened = trio.Event()


class PlayedTransport(WebSocketTransport):
    """The network of one node of the playground. The node can be paused (``gate``) or cut off (``cut``), and
    healed."""

    def __init__(self, node: str, recorder: MessageTap, secret: bytes) -> None:
        super().__init__(secret=secret)
        self._node = node
        self._recorder = recorder
        self.gate = Gate()
        self.is_cut = False
        self._streams: dict[PlayedStream, None] = {}

    async def connect(self, url: str) -> Connection:
        """Wait until the gate is open, connect to a URL, and return the connection. Raises ``Unreachable`` if this
        node is cut off; see ``Transport.connect``."""
        await self.gate.passed()
        if self.is_cut:
            raise Unreachable(f"{url}: this node is cut off")
        return await super().connect(url)

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **accepting: Unpack[Accepting],
    ) -> None:
        """Accept connections until cancelled. While the node is cut off, each new connection is closed at once,
        without calling ``handler``. See ``Transport.serve``."""

        async def reached(connection: Connection) -> None:
            assert isinstance(connection, PlayedStream)
            try:
                if self.is_cut:
                    await connection.break_off()
                else:
                    await handler(connection)
            finally:
                self._streams.pop(connection, None)

        await super().serve(host, port, reached, task_status=task_status, **accepting)

    def _open(self, stream: Stream, remote: str, early: bytes, *, server: bool) -> FrameStream:
        """Wrap an accepted or opened stream in a ``PlayedStream`` with this node's gate and a tap, and remember it
        for ``cut``."""
        for gone in [one for one in self._streams if one.is_closed]:
            del self._streams[gone]
        most, first = self.max_message_bytes, HELLO_BYTES if server else None
        made = PlayedStream(stream, remote, server=server, max_bytes=most, first_bytes=first, early=early)
        made.gate = self.gate
        made.tap = ConnectionTap(self._recorder, self._node)
        self._streams[made] = None
        return made

    async def cut(self) -> None:
        """Close all connections of the node abruptly, and refuse new ones until ``heal``."""
        self.is_cut = True
        for stream in list(self._streams):
            await stream.break_off()

    def heal(self) -> None:
        """Open the gate, and allow new connections. Connections that were closed stay closed."""
        self.is_cut = False
        self.gate.open()
