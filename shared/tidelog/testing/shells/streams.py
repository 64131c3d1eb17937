"""TCP in memory: connections between named nodes, whose bytes take time, come in pieces, stall, and break.

A context variable holds the node of each task, so a connection that a service opens is known as its own. Bytes
between two nodes that a partition separates wait until it heals, as TCP repeats them. A *cut* breaks connections at
once, with all bytes in flight. A direction of a connection that is *mute* never carries anything again, not even its
end, as when a firewall has forgotten the connection: the listening side must notice by itself.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

import trio

NODE: ContextVar[str] = ContextVar("NODE")
"""The node that the running task belongs to."""
CAPACITY = 64 << 10
"""The bytes that may be in flight in one direction; then the sender waits."""


@dataclass(slots=True)
class Pipe:
    """One direction of a connection."""

    source: str
    target: str
    chunks: deque[tuple[float, bytes]] = field(default_factory=deque)
    """The arrival time and bytes of each piece in flight; an empty piece is the end."""
    size: int = 0
    broken: bool = False
    mute: bool = False
    changed: trio.Event = field(default_factory=trio.Event)

    def change(self) -> None:
        """Wake the tasks that wait for a change of the pipe."""
        changed, self.changed = self.changed, trio.Event()
        changed.set()


@dataclass(slots=True)
class _Socket:
    """The part of a socket that the transport uses."""

    host: str
    port: int

    def getpeername(self) -> tuple[str, int]:
        return (self.host, self.port)

    def getsockname(self) -> tuple[str, int]:
        return (self.host, self.port)


class Stream(trio.abc.HalfCloseableStream):
    """One end of a connection, as trio's streams."""

    def __init__(self, net: Net, inward: Pipe, outward: Pipe) -> None:
        self.socket = _Socket(outward.target, 40_000)
        self._net = net
        self._in = inward
        self._out = outward
        self._closed = False
        self._eof = False

    def setsockopt(self, *_: object) -> None:
        """Do nothing: options of a real socket have no meaning here."""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self._out
        while pipe.size >= CAPACITY and not (pipe.broken or self._closed):
            await pipe.changed.wait()
        if self._closed:
            raise trio.ClosedResourceError
        if pipe.broken or self._eof:
            raise trio.BrokenResourceError
        self._net.carry(pipe, bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._end()

    def _end(self) -> None:
        if not (self._eof or self._out.broken):
            self._eof = True
            self._net.carry(self._out, b"")

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        pipe = self._in
        while True:
            if self._closed:
                raise trio.ClosedResourceError
            if pipe.broken:
                raise trio.BrokenResourceError
            due = self._net.due(pipe)
            if due <= trio.current_time():
                return self._take(pipe, max_bytes or CAPACITY)
            with trio.move_on_at(due):
                await pipe.changed.wait()

    def _take(self, pipe: Pipe, most: int) -> bytes:
        """Return the next bytes, at most ``most``, and trace them; b"" at the end of the stream."""
        arrived, data = pipe.chunks[0]
        if len(data) > most:
            pipe.chunks[0] = (arrived, data[most:])
            data = data[:most]
        elif data:
            pipe.chunks.popleft()
        pipe.size -= len(data)
        pipe.change()
        self._net.trace(f"{trio.current_time():.6f} {pipe.source}>{pipe.target} {data.hex()}")
        return data

    async def aclose(self) -> None:
        if not self._closed:
            self._end()
            self._closed = True
            self._in.broken |= not self._out.mute  # else the other side cannot know, and goes on sending
            self._in.change()
            self._out.change()
        await trio.lowlevel.checkpoint()


class Listener(trio.abc.Listener[Stream]):
    """Accepts connections for one host and port."""

    def __init__(self, net: Net, host: str, port: int) -> None:
        self.socket = _Socket(host, port)
        self._net = net
        self._send, self._receive = trio.open_memory_channel[Stream](512)

    def offer(self, stream: Stream) -> None:
        """Queue a new connection for ``accept``."""
        self._send.send_nowait(stream)

    async def accept(self) -> Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._net.listeners.pop((self.socket.host, self.socket.port), None)
        await trio.lowlevel.checkpoint()


class Net:
    """All connections of a run. ``trace`` gets a line for every piece that is received."""

    def __init__(self, rng: random.Random, trace: Callable[[str], None]) -> None:
        self.latency = 0.0005
        self.trace = trace
        self.listeners: dict[tuple[str, int], Listener] = {}
        self._rng = rng
        self._pipes: list[Pipe] = []
        self._blocked: dict[tuple[str, str], float] = {}

    # --- what stands in for trio's -----------------------------------------------------------------------

    async def open_tcp_stream(self, host: str, port: int, **_: object) -> Stream:
        """Connect to a simulated listener; see ``trio.open_tcp_stream``."""
        here = NODE.get()
        await trio.sleep(self._delay())
        await trio.sleep_until(max(self._blocked.get(pair, 0.0) for pair in ((here, host), (host, here))))
        listener = self.listeners.get((host, port))
        if listener is None:
            raise OSError(f"connection to {host}:{port} refused")
        there, back = Pipe(here, host), Pipe(host, here)
        self._pipes = [pipe for pipe in self._pipes if not pipe.broken]
        self._pipes += [there, back]
        listener.offer(Stream(self, there, back))
        return Stream(self, back, there)

    async def open_tcp_listeners(self, port: int, *, host: str, **_: object) -> list[Listener]:
        """Listen on a simulated port; see ``trio.open_tcp_listeners``."""
        await trio.lowlevel.checkpoint()
        listener = self.listeners[host, port] = Listener(self, host, port)
        return [listener]

    # --- bytes -------------------------------------------------------------------------------------------

    def _delay(self) -> float:
        return self.latency * self._rng.uniform(0.5, 2.0)

    def carry(self, pipe: Pipe, data: bytes) -> None:
        """Put bytes in flight, in one piece or two; b"" is the end of the stream."""
        arrival = max(pipe.chunks[-1][0] if pipe.chunks else 0.0, trio.current_time() + self._delay())
        pieces = [data]
        if len(data) > 1 and self._rng.random() < 0.1:
            cut = self._rng.randrange(1, len(data))
            pieces = [data[:cut], data[cut:]]
        for piece in pieces:
            pipe.chunks.append((arrival, piece))
            arrival += self.latency * self._rng.random()
        pipe.size += len(data)
        pipe.change()

    def due(self, pipe: Pipe) -> float:
        """Return when the next piece can be received; infinity if there is none or the pipe is mute."""
        if not pipe.chunks or pipe.mute:
            return float("inf")
        return max(pipe.chunks[0][0], self._blocked.get((pipe.source, pipe.target), 0.0))

    # --- faults ------------------------------------------------------------------------------------------

    def block(self, source: str, target: str, seconds: float) -> None:
        """Delay everything from ``source`` to ``target`` for some seconds."""
        self._blocked[source, target] = trio.current_time() + seconds

    @property
    def connected(self) -> list[tuple[str, str]]:
        """Each pair of nodes with a connection, once, in the order in which they connected."""
        return list(dict.fromkeys((pipe.source, pipe.target) for pipe in self._pipes if not pipe.broken))

    def mute(self, source: str, target: str) -> int:
        """Lose everything that is sent from ``source`` to ``target`` over the existing connections from now on, and
        return their number."""
        pipes = [pipe for pipe in self._pipes if (pipe.source, pipe.target) == (source, target) and not pipe.broken]
        for pipe in pipes:
            pipe.mute = True
        return len(pipes)

    def cut(self, *nodes: str) -> None:
        """Break every connection of a node, or between two nodes, at once. Mute connections break silently."""
        for pipe in self._pipes:
            if set(nodes) <= {pipe.source, pipe.target} and not pipe.mute:
                self._break(pipe)

    def _break(self, pipe: Pipe) -> None:
        """Break one direction of a connection, with the bytes in flight."""
        pipe.broken = True
        pipe.chunks.clear()
        pipe.change()

    def detach(self, node: str) -> None:
        """Remove a machine: its listeners disappear and its connections break."""
        for place in [place for place in self.listeners if place[0] == node]:
            del self.listeners[place]
        self.cut(node)
        for pipe in self._pipes:
            if pipe.target == node:
                self._break(pipe)

    def heal(self) -> None:
        """End all partitions and delays. Mute connections stay mute."""
        self._blocked.clear()
        self.latency = 0.0005
        for pipe in self._pipes:
            pipe.change()
