"""The nodes of ``tidelog dev``, and the faults that can be injected into them through a network that this process
owns.

A paused node neither receives nor sends, while its connections stay open, like a process that hangs; messages under
way arrive when it is healed. A node that is cut off loses its connections, and no new ones reach it. A killed node is
cut off first, so that it hands nothing over, and then ended; what it had on disk is found again when it is healed."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack

import trio

from tidelog.cli.local.message_tap import ConnectionTap, MessageTap
from tidelog.errors import Unreachable, refuse
from tidelog.net.transport import Accepting, Connection, Outgoing
from tidelog.net.websocket.frame_stream import FrameStream
from tidelog.net.websocket.transport import HELLO_BYTES, Stream, WebSocketTransport
from tidelog.types import Buffer
from tidelog.wire.messages import PlayAnswer, PlayedMessage, PlayedNode
from tidelog.wire.proof import MIN_SECRET_BYTES

Serve = Callable[[WebSocketTransport, int, "trio.TaskStatus[str]"], Awaitable[None]]
"""Function that runs a service on a port (0: a free one) over a transport until it is cancelled, and reports its URL
as the task's status."""


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


class _Node:
    """One service of the playground: how it is run, its network and port, and its state: running, paused, cut or
    killed."""

    def __init__(self, serve: Serve, transport: PlayedTransport) -> None:
        self.serve = serve
        self.transport = transport
        self.state = "running"
        self.port = 0
        self.scope = trio.CancelScope()
        self.ended = trio.Event()


class LocalPlayground:
    """The services of ``tidelog dev``, which run in one nursery, each behind a network of its own, and the faults
    that the console injects into them. The services share a secret, which is only in memory."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._nodes: dict[str, _Node] = {}
        self._playing = trio.Lock()
        self._recorder = MessageTap()
        self._secret = secrets.token_bytes(MIN_SECRET_BYTES)

    def transport(self, name: str) -> PlayedTransport:
        """Return a new network for the node ``name``, with the secret and the recorder of this playground."""
        return PlayedTransport(name, self._recorder, self._secret)

    async def start(self, name: str, serve: Serve) -> str:
        """Add a service to the playground: run it as a task in the nursery, wait until it listens, and return its
        URL. Raises the error with which its start fails. If the service is killed and healed later (``play``), it
        listens at the same URL again. Called once for each name."""
        node = self._nodes[name] = _Node(serve, self.transport(name))
        url = await self._run(node)
        node.port = int(url.rpartition(":")[2])
        return url

    async def _run(self, node: _Node) -> str:
        """Run a service as a task in the nursery, wait until it listens, and return its URL. The task ends when
        ``node.scope`` is cancelled, and then sets ``node.ended``."""
        node.scope, node.ended = trio.CancelScope(), trio.Event()

        async def run(task_status: trio.TaskStatus[str]) -> None:
            try:
                with node.scope:
                    await node.serve(node.transport, node.port, task_status)
            finally:
                node.ended.set()

        url: str = await self._nursery.start(run)
        return url

    async def play(self, name: str, act: str) -> PlayAnswer:
        """Carry out one action that the console requests with the message ``Play``: ``kill``, ``pause``, ``cut`` or
        ``heal`` the named node, ``record`` messages, ``stop`` recording, or "" for none. Return the state of all
        nodes, with the recorded messages after ``stop``. Raises ``UNKNOWN_SERVER`` for an unknown node, ``MALFORMED``
        for an action that is unknown or not possible now."""
        messages: tuple[PlayedMessage, ...] = ()
        if act == "record":
            self._recorder.start_recording()
        elif act == "stop":
            messages = self._recorder.stop_recording()
        elif act:
            if name not in self._nodes:
                raise refuse("UNKNOWN_SERVER", f"no node {name!r}: there are {', '.join(self._nodes)}")
            async with self._playing:
                await self._do(name, self._nodes[name], act)
        nodes = tuple(PlayedNode(known, node.state) for known, node in self._nodes.items())
        return PlayAnswer(nodes, messages)

    async def _do(self, name: str, node: _Node, act: str) -> None:
        """Carry out an action on one node, and change its state. Raises ``MALFORMED`` if the action is unknown, or if
        the node is killed and the action is not ``heal``."""
        match act, node.state:
            case (("kill" | "pause" | "cut"), "killed"):
                raise refuse("MALFORMED", "it is killed: heal it first")
            case "kill", _:
                node.state = "killed"
                await node.transport.cut()
                node.transport.gate.open()
                node.scope.cancel()
            case "pause", _:
                node.state = "paused"
                node.transport.heal()
                node.transport.gate.close()
            case "cut", _:
                node.state = "cut"
                node.transport.gate.open()
                await node.transport.cut()
            case "heal", "killed":
                await node.ended.wait()
                node.transport = self.transport(name)
                await self._run(node)
                node.state = "running"
            case "heal", _:
                node.transport.heal()
                node.state = "running"
            case _:
                raise refuse("MALFORMED", f"{act!r} is not kill, pause, cut, heal, record or stop")
