"""A network of real sockets whose connections can be paused and cut. The services of one process run over it when
faults are to be injected into them: clusters for tests, and the playground of ``tidelog dev``.

Each service has a ``FaultyTransport`` of its own. A *paused* service neither receives nor sends, and its connections
stay open, as those of a process that hangs. A service that is *cut* off loses its connections, and no new ones reach
it. ``cut_from`` cuts it from one other service alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, Unpack

import trio

from tidelog.errors import Unreachable
from tidelog.net.transport import Accepting, Connection, Outgoing
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import HELLO_BYTES, Stream, WebSocketTransport
from tidelog.types import Buffer


class Tap(Protocol):
    """What looks at the messages of one connection."""

    def record_received(self, data: bytes) -> None:
        """Look at a message that was received."""

    def remember_requests(self, messages: Sequence[Outgoing]) -> None:
        """Look at messages that are about to be sent."""


class NoTap:
    """A ``Tap`` that looks at nothing."""

    def record_received(self, data: bytes) -> None:
        """Ignore a message that was received."""

    def remember_requests(self, messages: Sequence[Outgoing]) -> None:
        """Ignore messages that are about to be sent."""


class FaultyStream(FrameStream):
    """A connection of a service. It carries nothing while the service's gate is closed, and shows its messages to a
    ``Tap``."""

    gate: Gate
    tap: Tap
    is_broken = False

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
        self._check_unbroken()
        data = await super()._receive_some(within)
        await self.gate.passed()
        self._check_unbroken()
        return data

    def _check_unbroken(self) -> None:
        if self.is_broken:
            raise Unreachable(f"connection to {self.remote} broke")

    async def _send_all(self, data: Buffer) -> None:
        await self.gate.passed()
        await super()._send_all(data)

    @property
    def can_send_now(self) -> bool:
        """Whether ``send_now`` may be called: not while the node is paused, and otherwise as in ``FrameStream``."""
        return self.gate.is_open and not self.is_broken and super().can_send_now

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return self._closed

    def break_off(self) -> None:
        """Close the connection at once, without a closing handshake, as if the network had failed."""
        assert isinstance(self._stream, trio.SocketStream), "services of one process speak no TLS"
        self.is_broken = True
        self._stream.socket.close()


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


class FaultyTransport(WebSocketTransport):
    """The network of one service. The service can be paused (``gate``), cut off (``cut``), cut from single others
    (``cut_from``), and healed."""

    def __init__(self, secret: bytes = b"", tap: Callable[[], Tap] = NoTap) -> None:
        """``secret``: the secret of the cluster, empty for none. ``tap`` makes the tap of each connection."""
        super().__init__(secret=secret, masks=False)
        self._make_tap = tap
        self.gate = Gate()
        self.is_cut = False
        self._cut_urls: set[str] = set()
        self._streams: dict[FaultyStream, None] = {}

    async def connect(self, url: str) -> Connection:
        """Wait until the gate is open, connect to a URL, and return the connection. Raises ``Unreachable`` if this
        service is cut off, or cut from the one at the URL; see ``Transport.connect``."""
        await self.gate.passed()
        self._check_reachable(url)
        connection = await super().connect(url)
        try:
            self._check_reachable(url)  # it may have been cut meanwhile
        except Unreachable:
            assert isinstance(connection, FaultyStream)
            connection.break_off()
            raise
        return connection

    def _check_reachable(self, url: str) -> None:
        if self.is_cut or url in self._cut_urls:
            raise Unreachable(f"{url}: the link is cut")

    async def serve(
        self,
        host: str,
        port: int,
        handler: Callable[[Connection], Awaitable[None]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **accepting: Unpack[Accepting],
    ) -> None:
        """Accept connections until cancelled. While the service is cut off, each new connection is closed at once,
        without calling ``handler``. See ``Transport.serve``."""

        async def reached(connection: Connection) -> None:
            assert isinstance(connection, FaultyStream)
            try:
                if self.is_cut:
                    connection.break_off()
                else:
                    await handler(connection)
            finally:
                self._streams.pop(connection, None)

        await super().serve(host, port, reached, task_status=task_status, **accepting)

    def _open(self, stream: Stream, remote: str, early: bytes, *, server: bool) -> FrameStream:
        """Wrap an accepted or opened stream in a ``FaultyStream`` with this service's gate and a tap, and remember it
        for ``cut``."""
        for gone in [one for one in self._streams if one.is_closed]:
            del self._streams[gone]
        most, first = self.max_message_bytes, HELLO_BYTES if server else None
        made = FaultyStream(
            stream, remote, server=server, masks=self.masks, max_bytes=most, first_bytes=first, early=early
        )
        made.gate = self.gate
        made.tap = self._make_tap()
        self._streams[made] = None
        return made

    def cut(self) -> None:
        """Close all connections of the service abruptly, and refuse new ones until ``heal``. Does not wait: no task
        runs between the end of the first and that of the last connection."""
        self.is_cut = True
        for stream in list(self._streams):
            stream.break_off()

    def cut_from(self, url: str) -> None:
        """Close the connections that the service has opened to this URL, and refuse to open new ones until ``heal``.
        To cut two services from each other, cut each from the URL of the other."""
        self._cut_urls.add(url)
        for stream in [one for one in self._streams if one.remote == url]:
            stream.break_off()

    def heal(self) -> None:
        """Open the gate, and allow new connections. Connections that were closed stay closed."""
        self.is_cut = False
        self._cut_urls.clear()
        self.gate.open()
