"""TCP in memory for a world: connections between named nodes, whose bytes take time, stall, get lost, and break.

It has the meaning of ``tidelog.testing.shells.streams`` and costs a third of it: bytes that arrive wake their reader
by an event of the clock instead of a deadline of each reader, and small messages are read and written without a
switch of tasks, as a kernel does (``tidelog.net.direct_socket``).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any

import trio

from tidelog.net import direct_socket as real_sockets
from tidelog.testing.shells.streams import CAPACITY, NODE
from tidelog.testing.world.clock import EventClock
from tidelog.types import Buffer


class Wire:
    """One direction of a connection: bytes in flight, and the tasks that wait for it."""

    __slots__ = ("broken", "chunks", "mute", "reader", "size", "source", "target", "writer")

    def __init__(self, source: str, target: str) -> None:
        self.source = source
        self.target = target
        self.chunks: deque[tuple[float, bytes]] = deque()
        """The arrival time and bytes of each piece in flight; an empty piece is the end."""
        self.size = 0
        self.broken = False
        self.mute = False
        """Whether everything that is sent is lost, without a notice to either side."""
        self.reader: trio.lowlevel.Task | None = None
        self.writer: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        """Wake the tasks that wait for bytes or for room."""
        reader, self.reader, writer, self.writer = self.reader, None, self.writer, None
        for task in (reader, writer):
            if task is not None:
                trio.lowlevel.reschedule(task)


class _Address:
    """The part of a socket that the transport uses."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getpeername(self) -> tuple[str, int]:
        return self._name

    def getsockname(self) -> tuple[str, int]:
        return self._name


class WireStream(trio.abc.HalfCloseableStream):
    """One end of a connection: a stream of trio, and also a socket that is read and written without waiting
    (``tidelog.net.direct_socket.DirectSocket``)."""

    has_unsent = False

    def __init__(self, wires: Wires, inward: Wire, outward: Wire) -> None:
        self.socket: Any = _Address(outward.target, 40_000)
        self._wires = wires
        self._in = inward
        self._out = outward
        self._closed = False
        self._eof = False

    def setsockopt(self, *_: object) -> None:
        """Do nothing: options of a real socket have no meaning here."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        while self._out.size >= CAPACITY and not (self._out.broken or self._closed):
            self._out.writer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._forget_writer)
        if self._closed:
            raise trio.ClosedResourceError
        if self._out.broken or self._eof:
            raise trio.BrokenResourceError
        if data:
            self._wires.carry(self._out, bytes(data))

    def write_now(self, buffers: Sequence[Buffer]) -> int:
        """Send the buffers at once and return their size. Raises ``OSError`` if there is no room or the connection
        is broken; the sender will meet the fault in ``send_all``."""
        wire = self._out
        if self._closed or wire.broken or self._eof or wire.size >= CAPACITY:
            raise BlockingIOError
        data = b"".join(buffers)
        if data:
            self._wires.carry(wire, data)
        return len(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._end()

    def _end(self) -> None:
        if not (self._eof or self._out.broken):
            self._eof = True
            self._wires.carry(self._out, b"")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data = self._read(max_bytes or CAPACITY)
        if data is not None:
            await trio.lowlevel.checkpoint()
            return data
        while data is None:
            self._in.reader = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._forget_reader)
            data = self._read(max_bytes or CAPACITY)
        return data

    def read_now(self, most: int) -> bytes | None:
        """Return at most ``most`` bytes of what has arrived; None if nothing has, b"" at the end of the connection.
        Raises ``OSError`` if the connection is broken."""
        try:
            return self._read(most)
        except (trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise OSError("the connection is broken") from error

    def _read(self, most: int) -> bytes | None:
        wire = self._in
        if self._closed:
            raise trio.ClosedResourceError
        if wire.broken:
            raise trio.BrokenResourceError
        if self._wires.due(wire) > self._wires.clock.now:
            return None
        arrived, data = wire.chunks[0]
        if len(data) > most:
            wire.chunks[0] = (arrived, data[most:])
            data = data[:most]
        elif data:
            wire.chunks.popleft()
        wire.size -= len(data)
        if wire.writer is not None:
            wire.wake()
        return data

    def _forget_reader(self, _: object) -> trio.lowlevel.Abort:
        self._in.reader = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _forget_writer(self, _: object) -> trio.lowlevel.Abort:
        self._out.writer = None
        return trio.lowlevel.Abort.SUCCEEDED

    async def aclose(self) -> None:
        if not self._closed:
            self._end()
            self._closed = True
            self._in.broken |= not self._out.mute  # else the other side cannot know, and goes on sending
            self._in.wake()
            self._out.wake()
        await trio.lowlevel.checkpoint()


class WireListener(trio.abc.Listener[WireStream]):
    """Accepts connections for one host and port."""

    def __init__(self, wires: Wires, host: str, port: int) -> None:
        self.socket = _Address(host, port)
        self._wires = wires
        self._send, self._receive = trio.open_memory_channel[WireStream](512)

    def offer(self, stream: WireStream) -> None:
        """Queue a new connection for ``accept``."""
        self._send.send_nowait(stream)

    async def accept(self) -> WireStream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        host, port = self.socket.getsockname()
        self._wires.listeners.pop((host, port), None)
        await trio.lowlevel.checkpoint()


class Wires:
    """All connections of a run. ``latency_s``: how long bytes take from one node to another; half of this to twice as
    long."""

    def __init__(self, rng: random.Random, clock: EventClock, latency_s: float) -> None:
        self.latency_s = latency_s
        """The seconds that bytes take while no fault makes the network slow."""
        self.latency = latency_s
        self.clock = clock
        self.listeners: dict[tuple[str, int], WireListener] = {}
        self.dead: set[str] = set()
        """Nodes of programs that were killed: they open no connection any more."""
        self._rng = rng
        self._wires: list[Wire] = []
        self._blocked: dict[tuple[str, str], float] = {}

    # --- what stands in for trio's and the product's -----------------------------------------------------

    async def open_tcp_stream(self, host: str, port: int, **_: object) -> WireStream:
        """Connect to a simulated listener; see ``trio.open_tcp_stream``. Raises ``RuntimeError`` in a thread that is
        not the world's."""
        here = NODE.get("")
        if not here:
            raise RuntimeError("programs of a world are on trio: those with tidelog.sync need tidelog_cluster")
        await trio.sleep(self._delay())
        await trio.sleep_until(max(self._blocked.get(pair, 0.0) for pair in ((here, host), (host, here))))
        listener = self.listeners.get((host, port))
        if listener is None or here in self.dead:
            raise OSError(f"connection to {host}:{port} refused")
        there, back = Wire(here, host), Wire(host, here)
        self._wires = [wire for wire in self._wires if not wire.broken]
        self._wires += [there, back]
        listener.offer(WireStream(self, there, back))
        return WireStream(self, back, there)

    async def open_tcp_listeners(self, port: int, *, host: str, **_: object) -> list[WireListener]:
        """Listen on a simulated port; see ``trio.open_tcp_listeners``."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners[host, port] = WireListener(self, host, port)
        return [listener]

    @staticmethod
    def direct_socket(stream: trio.abc.Stream) -> real_sockets.DirectSocket | None:
        """Return the stream itself if it is one of these wires; see ``tidelog.net.direct_socket``."""
        return stream if isinstance(stream, WireStream) else real_sockets.direct_socket(stream)

    @staticmethod
    def read_when_ready(direct: real_sockets.DirectSocket, most: int) -> Awaitable[bytes]:
        """Wait until bytes arrive and return at most ``most``; see ``tidelog.net.direct_socket``."""
        return (
            direct.receive_some(most)
            if isinstance(direct, WireStream)
            else real_sockets.read_when_ready(direct, most)
        )

    # --- bytes -------------------------------------------------------------------------------------------

    def _delay(self) -> float:
        return self.latency * self._rng.uniform(0.5, 2.0)

    def carry(self, wire: Wire, data: bytes) -> None:
        """Put bytes in flight; b"" is the end of the stream."""
        arrival = self.clock.now + self._delay()
        if wire.chunks and wire.chunks[-1][0] > arrival:
            arrival = wire.chunks[-1][0]
        wire.chunks.append((arrival, data))
        wire.size += len(data)
        self.clock.call_at(arrival, partial(self._arrive, wire))

    def _arrive(self, wire: Wire) -> None:
        """Wake the reader of a wire if bytes have arrived; look again later if they are held up."""
        if wire.reader is None and wire.writer is None:
            return
        due = self.due(wire)
        if due <= self.clock.now:
            wire.wake()
        elif due < math.inf:
            self.clock.call_at(due, partial(self._arrive, wire))

    def due(self, wire: Wire) -> float:
        """Return when the next piece can be received; infinity if there is none or the wire is mute."""
        if not wire.chunks or wire.mute:
            return math.inf
        if not self._blocked:
            return wire.chunks[0][0]
        return max(wire.chunks[0][0], self._blocked.get((wire.source, wire.target), 0.0))

    # --- faults ------------------------------------------------------------------------------------------

    def block(self, source: str, target: str, seconds: float) -> None:
        """Delay everything from ``source`` to ``target`` for some seconds."""
        self._blocked[source, target] = max(self._blocked.get((source, target), 0.0), self.clock.now + seconds)

    def mute(self, source: str, target: str) -> None:
        """Lose everything that is sent from ``source`` to ``target`` over the existing connections from now on."""
        for wire in self._wires:
            if (wire.source, wire.target) == (source, target) and not wire.broken:
                wire.mute = True

    def cut(self, *nodes: str, silent: bool = False) -> None:
        """Break every connection of a node, or between two nodes, at once, with the bytes in flight. Mute directions
        do not break, unless ``silent``."""
        for wire in self._wires:
            if set(nodes) <= {wire.source, wire.target} and (silent or not wire.mute):
                self._break(wire)

    def _break(self, wire: Wire) -> None:
        wire.broken = True
        wire.chunks.clear()
        wire.wake()

    def detach(self, node: str) -> None:
        """Remove a machine: its listeners disappear and its connections break."""
        for place in [place for place in self.listeners if place[0] == node]:
            del self.listeners[place]
        self.cut(node)
        for wire in self._wires:
            if wire.target == node:
                self._break(wire)

    def peers(self, node: str) -> list[str]:
        """Return the nodes that a node is connected to, each once."""
        found = [wire.target for wire in self._wires if wire.source == node and not wire.broken]
        return list(dict.fromkeys(found))

    def heal(self) -> None:
        """End all partitions and delays. Mute connections stay mute."""
        self._blocked.clear()
        self.latency = self.latency_s
        for wire in self._wires:
            self._arrive(wire)
