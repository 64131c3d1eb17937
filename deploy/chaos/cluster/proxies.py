"""Links between processes of one host.

A connection to a process reaches a proxy. The proxy finds out by the owner of the socket which process has opened it,
and passes on what the two send each other, as the link between them is at that moment.

A link that is cut holds what is sent, as TCP does on a broken cable: connections stay open, and go on when it is
mended. A proxy cannot lose, double or reorder packets, or keep a connection from being opened. A connection over a
cut link is opened and gets no answer; a connection to a process that does not run is opened, and reset at once.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import Queue
from random import Random
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import trio
from chaos.cluster.network_namespaces import CLIENTS, pairs
from tidelog.cli.local.local_cluster import HOST, Process

INSIDE = "127.0.0.2"
"""Address at which the processes listen, each on its port; the proxies listen on the same ports of ``HOST``."""
CHUNK = 8192
"""Most bytes that a proxy reads at a time."""
WAITING = 64
"""Chunks that a proxy holds in one direction of a connection."""
NARROW = 400_000 / 8
"""Bytes per second of a narrowed host."""
DELAY_S, JITTER_S = 0.1, 0.05
"""Mean delay of a delayed host, and the most by which a delay differs from it, in seconds."""

Way = tuple[str, str]
"""One direction of a link: (sender, receiver)."""


@dataclass(slots=True)
class Gate:
    """The state of one direction of a link: how often it is cut, and how often it refuses connections."""

    cuts: int = 0
    refusals: int = 0
    mended: trio.Event = field(default_factory=trio.Event)

    async def wait_open(self) -> None:
        """Wait until the link is not cut; return at once if it is not."""
        while self.cuts:
            await self.mended.wait()


@dataclass(slots=True)
class Sending:
    """The delay and the rate of what one host sends."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    rate: float = float("inf")
    _free_at: float = 0.0

    def due(self, size: int, random: Random) -> float:
        """Return the time (of trio's clock) at which ``size`` bytes arrive that are sent now, after all that was sent
        before."""
        self._free_at = max(self._free_at, trio.current_time()) + size / self.rate
        return self._free_at + self.delay_s + random.uniform(-self.jitter_s, self.jitter_s)


class ProxyLinks:
    """The links of a cluster on one host. Its methods are called from a worker thread, as with other links."""

    def __init__(self, processes: Callable[[], list[Process]]) -> None:
        self._processes = processes
        self._gates: defaultdict[Way, Gate] = defaultdict(Gate)
        self._sending: defaultdict[str, Sending] = defaultdict(Sending)
        self._open: dict[trio.CancelScope, Way] = {}
        """The open connections: the scope that ends each, and its direction."""
        self._random = Random("links")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Run the proxies during the block, in a thread and a trio loop of their own."""
        ports = {process.id: urlsplit(process.url).port or 0 for process in self._processes()}
        doors = {node: (port, socket.create_server((HOST, port), backlog=128)) for node, port in ports.items()}
        started: Queue[None] = Queue()
        thread = Thread(target=trio.run, args=(self._serve, doors, started))
        thread.start()
        started.get()
        try:
            yield
        finally:
            self._token.run_sync_soon(self._scope.cancel)
            thread.join()

    async def _serve(self, doors: dict[str, tuple[int, socket.socket]], started: Queue[None]) -> None:
        async with trio.open_nursery() as nursery:
            self._scope, self._token = nursery.cancel_scope, trio.lowlevel.current_trio_token()
            for node, (port, door) in doors.items():
                listener = trio.SocketListener(trio.socket.from_stdlib_socket(door))
                nursery.start_soon(trio.serve_listeners, partial(self._relay, node, port), [listener])
            started.put(None)

    def _do(self, change: Callable[..., None], *arguments: Any) -> None:
        trio.from_thread.run_sync(change, *arguments, trio_token=self._token)

    # --- what faults do ------------------------------------------------------------------------------------

    def cut(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Hold what the senders send to the receivers, until ``mend``."""
        self._do(self._cut, pairs(senders, receivers), 1)

    def mend(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Undo one ``cut``. A link that was cut twice stays cut until it is mended twice."""
        self._do(self._cut, pairs(senders, receivers), -1)

    def refuse(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Reset all connections from the senders to the receivers, and every new one, until ``admit``."""
        self._do(self._refuse, pairs(senders, receivers), 1)

    def admit(self, senders: Iterable[str], receivers: Iterable[str]) -> None:
        """Undo one ``refuse``."""
        self._do(self._refuse, pairs(senders, receivers), -1)

    def reset(self, node: str) -> None:
        """Reset every connection of a host, at both ends. Each may be opened again at once."""
        self._do(self._reset, lambda way: node in way)

    def narrow(self, node: str) -> None:
        """Limit what a host sends to 400 kbit/s, until ``smooth``."""
        self._sending[node].rate = NARROW

    def delay(self, node: str) -> None:
        """Delay what a host sends by 0.05 to 0.15 s, until ``smooth``."""
        self._sending[node].delay_s, self._sending[node].jitter_s = DELAY_S, JITTER_S

    def smooth(self, node: str) -> None:
        """End ``narrow`` and ``delay`` of a host."""
        self._sending[node] = Sending()

    def _cut(self, ways: list[Way], more: int) -> None:
        for way in ways:
            gate = self._gates[way]
            gate.cuts += more
            if not gate.cuts:
                gate.mended.set()
                gate.mended = trio.Event()

    def _refuse(self, ways: list[Way], more: int) -> None:
        for way in ways:
            self._gates[way].refusals += more
        self._reset(lambda way: self._gates[way].refusals > 0)

    def _reset(self, meant: Callable[[Way], bool]) -> None:
        for scope, way in list(self._open.items()):
            if meant(way):
                scope.cancel()

    # --- connections ---------------------------------------------------------------------------------------

    async def _relay(self, receiver: str, port: int, near: trio.SocketStream) -> None:
        """Serve one connection that was opened to the proxy of ``receiver``: connect to the process, and pass on
        bytes in both directions until both ends are closed. If the link refuses connections, or the process does not
        listen, the connection is reset."""
        try:
            way = owner(near.socket.getpeername(), self._processes()), receiver
        except OSError:
            return  # it is gone already
        ends, scope = [near], trio.CancelScope()
        self._open[scope] = way
        try:
            with scope:
                if self._gates[way].refusals:
                    scope.cancel()
                await self._gates[way].wait_open()
                await self._gates[way[::-1]].wait_open()
                try:
                    ends.append(far := await trio.open_tcp_stream(INSIDE, port))
                except OSError:  # nobody listens there
                    scope.cancel()
                    return
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, way, near, far, scope)
                    nursery.start_soon(self._pump, way[::-1], far, near, scope)
        finally:
            del self._open[scope]
            for end in ends:
                close(end, reset=scope.cancel_called)

    async def _pump(
        self, way: Way, source: trio.SocketStream, sink: trio.SocketStream, connection: trio.CancelScope
    ) -> None:
        """Pass on the bytes of one direction of a connection until its end. The end, or a reset, is passed on when
        the link is not cut."""
        gate = self._gates[way]
        send, receive = trio.open_memory_channel[tuple[float, bytes]](WAITING)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, gate, receive, sink)
            reset = await self._read(way[0], source, send)
        await gate.wait_open()
        if reset:
            connection.cancel()
            return
        with suppress(trio.BrokenResourceError):  # the other end is gone, and the other direction hears that
            await sink.send_eof()

    async def _read(
        self, sender: str, source: trio.SocketStream, send: trio.MemorySendChannel[tuple[float, bytes]]
    ) -> bool:
        """Read one direction of a connection and queue each chunk with the time at which it is to arrive. Returns
        whether the connection was reset."""
        async with send:
            while True:
                try:
                    chunk = await source.receive_some(CHUNK)
                except trio.BrokenResourceError:
                    return True
                if not chunk:
                    return False
                due = self._sending[sender].due(len(chunk), self._random)
                with suppress(trio.BrokenResourceError):  # nobody takes it any more; the end is still waited for
                    await send.send((due, chunk))

    async def _write(
        self, gate: Gate, receive: trio.MemoryReceiveChannel[tuple[float, bytes]], sink: trio.SocketStream
    ) -> None:
        """Write the queued chunks of one direction of a connection, each when it is due and the link is not cut."""
        async with receive:
            async for due, chunk in receive:
                await trio.sleep_until(due)
                await gate.wait_open()
                try:
                    await sink.send_all(chunk)
                except trio.BrokenResourceError:
                    return  # read on the other way, too, and reported there


def close(stream: trio.SocketStream, *, reset: bool) -> None:
    """Close a connection, with a TCP reset if ``reset`` is set."""
    if reset:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def owner(address: tuple[str, int], processes: Iterable[Process]) -> str:
    """Return the id of the process that has a socket with this local address; ``CLIENTS`` if none has."""
    wanted = f"{int.from_bytes(socket.inet_aton(address[0]), sys.byteorder):08X}:{address[1]:04X}"
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines())
    inodes = {int(words[9]) for words in lines if words[1] == wanted}
    return next((process.id for process in processes if inodes & _files(process.pid)), CLIENTS)


def _files(pid: int) -> set[int]:
    """Return the inodes of the files that a process has open; files that it closes meanwhile are left out."""
    found = set()
    with suppress(FileNotFoundError), os.scandir(f"/proc/{pid}/fd") as descriptors:  # unless it has just ended
        for each in descriptors:
            with suppress(FileNotFoundError):
                found.add(each.stat().st_ino)
    return found
