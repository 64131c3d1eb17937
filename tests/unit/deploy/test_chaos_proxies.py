"""Links that are TCP proxies: what a fault does to them, seen at both ends of real connections. Tests
``chaos/cluster/proxies.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import pytest
import trio
from chaos.cluster.network_namespaces import CLIENTS
from chaos.cluster.proxies import INSIDE, ProxyLinks, Sending, owner
from tidelog.cli.local.local_cluster import HOST, Process, free_base_port

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="who owns a socket is read in /proc")
US, LEFT, RIGHT = "us", "left", "right"
PATIENCE_S = 30


class Net:
    """Two servers that echo what they receive, behind proxies, and clients in this process."""

    def __init__(self) -> None:
        base = free_base_port(3)
        self.arrived: list[tuple[str, bytes]] = []
        """At the servers, in order."""
        self.resets: list[str] = []
        """Servers whose connections were reset."""
        self._ports = {LEFT: base, RIGHT: base + 1}
        urls = {name: f"ws://{HOST}:{port}" for name, port in self._ports.items()}
        here = Process("gateway", US, os.getpid(), f"ws://127.0.0.3:{base + 2}", "")
        self.processes = [here, *(Process("replica", name, 0, url, "") for name, url in urls.items())]
        self.links = ProxyLinks(lambda: self.processes)

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Run both servers until cancelled. Reports that it has started when both listen."""
        async with trio.open_nursery() as nursery:
            for name, port in self._ports.items():
                listeners = await trio.open_tcp_listeners(port, host=INSIDE)
                nursery.start_soon(trio.serve_listeners, partial(self._echo, name), listeners)
            task_status.started()

    async def _echo(self, name: str, stream: trio.SocketStream) -> None:
        try:
            async for chunk in stream:
                self.arrived.append((name, chunk))
                await stream.send_all(chunk)
        except trio.BrokenResourceError:
            self.resets.append(name)

    async def connect(self, name: str) -> trio.SocketStream:
        return await trio.open_tcp_stream(HOST, self._ports[name])

    async def do(self, change: Callable[..., None], *arguments: object) -> None:
        await trio.to_thread.run_sync(change, *arguments)


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    async with running() as net:
        yield net


@asynccontextmanager
async def running() -> AsyncIterator[Net]:
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            net = Net()
            await nursery.start(net.serve)
            with net.links.serving():
                yield net
            nursery.cancel_scope.cancel()


async def test_data_sent_over_a_cut_link_arrives_when_it_is_mended(net: Net) -> None:
    async with await net.connect(LEFT) as left, await net.connect(RIGHT) as right:
        await left.send_all(b"before")
        assert await left.receive_some() == b"before"
        await net.do(net.links.cut, [US], [LEFT])
        await net.do(net.links.cut, [US], [LEFT])
        await left.send_all(b"cut")
        await right.send_all(b"beside")
        assert await right.receive_some() == b"beside", "others are reached"
        await net.do(net.links.mend, [US], [LEFT])
        await right.send_all(b"cut once more")
        assert await right.receive_some() == b"cut once more"
        await net.do(net.links.mend, [US], [LEFT])
        assert await left.receive_some() == b"cut", "the connection has lasted"
    assert net.arrived == [(LEFT, b"before"), (RIGHT, b"beside"), (RIGHT, b"cut once more"), (LEFT, b"cut")]


async def test_a_link_that_is_cut_one_way_carries_data_the_other_way(net: Net) -> None:
    async with await net.connect(LEFT) as left, await net.connect(RIGHT) as right:
        for stream in (left, right):
            await stream.send_all(b"before")
            assert await stream.receive_some() == b"before"
        await net.do(net.links.cut, [LEFT], [US])
        answers: list[bytes] = []

        async def take(stream: trio.SocketStream) -> None:
            answers.append(await stream.receive_some())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take, left)
            await left.send_all(b"left")
            while (LEFT, b"left") not in net.arrived:
                await trio.lowlevel.checkpoint()
            await right.send_all(b"right")
            await take(right)
            await net.do(net.links.mend, [LEFT], [US])
        assert answers == [b"right", b"left"]


async def test_a_connection_that_is_made_over_a_cut_link_comes_through_when_it_is_mended(net: Net) -> None:
    await net.do(net.links.cut, [LEFT], [US])
    async with await net.connect(LEFT) as left, await net.connect(RIGHT) as right:
        await left.send_all(b"late")
        await right.send_all(b"early")
        assert await right.receive_some() == b"early"
        await net.do(net.links.mend, [LEFT], [US])
        assert await left.receive_some() == b"late"
    assert net.arrived == [(RIGHT, b"early"), (LEFT, b"late")]


async def test_a_refused_host_is_reset_and_can_connect_again_only_when_admitted(net: Net) -> None:
    async with await net.connect(LEFT) as left, await net.connect(RIGHT) as right:
        for stream in (left, right):
            await stream.send_all(b"before")
            assert await stream.receive_some() == b"before"
        await net.do(net.links.refuse, [US], [LEFT])
        with pytest.raises(trio.BrokenResourceError):
            await left.receive_some()
        with pytest.raises((OSError, trio.BrokenResourceError)):  # the reset may come before connect() returns
            async with await net.connect(LEFT) as again:
                await again.receive_some()
        await right.send_all(b"beside")
        assert await right.receive_some() == b"beside"
    await net.do(net.links.admit, [US], [LEFT])
    async with await net.connect(LEFT) as left:
        await left.send_all(b"after")
        assert await left.receive_some() == b"after"


async def test_a_reset_strikes_every_connection_of_a_host_and_no_other(net: Net) -> None:
    async with await net.connect(LEFT) as left, await net.connect(RIGHT) as right:
        for stream in (left, right):
            await stream.send_all(b"before")
            assert await stream.receive_some() == b"before"
        await net.do(net.links.reset, LEFT)
        with pytest.raises(trio.BrokenResourceError):
            await left.receive_some()
        while not net.resets:
            await trio.lowlevel.checkpoint()
        await right.send_all(b"beside")
        assert await right.receive_some() == b"beside"
    assert net.resets == [LEFT]


async def test_delayed_data_arrives_whole_and_in_order(net: Net) -> None:
    await net.do(net.links.delay, US)
    sent = os.urandom(100_000)
    async with await net.connect(LEFT) as left, trio.open_nursery() as nursery:
        nursery.start_soon(left.send_all, sent)
        received = b""
        while len(received) < len(sent):
            received += await left.receive_some()
    assert received == sent
    await net.do(net.links.smooth, US)


async def test_the_end_of_a_stream_is_passed_on(net: Net) -> None:
    async with await net.connect(LEFT) as left:
        await left.send_all(b"all")
        await left.send_eof()
        assert [chunk async for chunk in left] == [b"all"]


def test_when_something_arrives(autojump_clock: trio.testing.MockClock) -> None:
    async def main() -> None:
        random, now = Random(1), trio.current_time()
        plain = Sending()
        assert [plain.due(1 << 20, random) for _ in range(2)] == [now, now]
        late = Sending(delay_s=0.1, jitter_s=0.05)
        times = [late.due(100, random) - now for _ in range(100)]
        assert 0.05 <= min(times) < 0.06 and 0.14 < max(times) <= 0.15
        narrow = Sending(rate=1000)
        assert [narrow.due(500, random) - now for _ in range(3)] == pytest.approx([0.5, 1.0, 1.5])

    trio.run(main, clock=autojump_clock)


def test_the_process_behind_a_connection_is_found_by_its_socket() -> None:
    program = f"import socket, sys; s = socket.create_connection(('{HOST}', int(sys.argv[1]))); sys.stdin.read()"
    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
        with subprocess.Popen([sys.executable, "-c", program, str(port)], stdin=subprocess.PIPE) as other:
            theirs, address = server.accept()
            known = [Process("replica", "gone", 0, "", ""), Process("replica", "r1", other.pid, "", "")]
            assert owner(address, known) == "r1"
            assert owner(address, known[:1]) == CLIENTS
            other.communicate()
            theirs.close()
