"""Many streams: how fast they are created, and what they cost the servers in memory, descriptors and idle CPU.

    .venv/bin/python deploy/bench/streams.py [--streams 100000] [--appends 1] [--burst 300]

A cluster of real processes on real disks: one controller, three replica servers, one gateway. First a burst of
streams is created at once, each over a connection of its own, then the others over ``--connections``. Each stream
gets a few appends of 100 bytes. Then one server is killed and started again. Memory is the resident set from /proc,
idle CPU that of ten seconds in which nobody asks for anything.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import trio
from rich.console import Console
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.processes import cpu_s, end_with_sigterm, require_linux, resident_bytes

CONSOLE = Console(highlight=False, soft_wrap=True)
IDLE_S = 10.0
RECEIVE_BYTES = 1 << 16


class Connection:
    """A kept-alive HTTP connection to the gateway."""

    def __init__(self, stream: trio.abc.Stream, host: str) -> None:
        self._stream = stream
        self._host = host

    async def ask(self, method: str, path: str, body: bytes = b"") -> int:
        """Send a request about a stream, wait for its answer, and return the status."""
        head = f"{method} /v1/streams/{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: text/plain\r\n"
        await self._stream.send_all(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self._stream.receive_some(RECEIVE_BYTES)
        return int(data.split(b" ", 2)[1])


class Bench:
    """One run of the benchmark on one cluster."""

    def __init__(self, folder: Path, streams: int, appends: int, burst: int, connections: int) -> None:
        self.cluster = LocalCluster.create(folder, controllers=1, replicas=3, gateways=1, base_port=free_base_port(5))
        self._streams, self._appends, self._burst, self._connections = streams, appends, burst, connections
        self._at = ("", 0)

    async def run(self) -> None:
        """Start the cluster, do every step, and print the figures as they come."""
        self.cluster.start()
        await self.cluster.wait_ready()
        host, _, port = self.cluster.gateways()[0].partition("://")[2].partition(":")
        self._at = host, int(port)
        await self._create_at_once("warm", 1)
        self._print_costs("before")
        await self._create_at_once("burst", self._burst)
        await self._each("create", "PUT", 1)
        self._print_costs("created")
        if self._appends:
            await self._each("append", "POST", self._appends)
            self._print_costs("appended to")
        await self._print_idle()
        self.cluster.kill("r1")
        connection, waits = await self._connected(), []
        for number in range(min(200, self._streams)):
            began = time.monotonic()
            status = await connection.ask("HEAD", f"many/{number}")
            assert status == 200, status
            waits.append(time.monotonic() - began)
        CONSOLE.print(f"r1 killed: the longest answer about a stream took {max(waits):.2f} s")
        self.cluster.restart("r1")
        await self.cluster.wait_ready()
        self._print_costs("restarted")

    async def _connected(self) -> Connection:
        host, port = self._at
        return Connection(await trio.open_tcp_stream(host, port), host)

    async def _create_at_once(self, name: str, count: int) -> None:
        """Create streams at the same time, each over a connection that is open already."""
        connections = [await self._connected() for _ in range(count)]
        took: list[float] = []

        async def create(number: int) -> None:
            began = time.monotonic()
            status = await connections[number].ask("PUT", f"{name}/{number}")
            assert status == 201, status
            took.append(time.monotonic() - began)

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(create, number)
        took.sort()
        p95 = took[min(count - 1, round(0.95 * count))]
        CONSOLE.print(f"{count} created at once: p50 {took[count // 2] * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms")

    async def _each(self, what: str, method: str, rounds: int) -> None:
        """Send ``rounds`` requests about each stream, each connection one after the other."""
        began = time.monotonic()

        async def work(first: int) -> None:
            connection = await self._connected()
            for number in range(first, self._streams, self._connections):
                for _ in range(rounds):
                    status = await connection.ask(method, f"many/{number}", bytes(100))
                    assert status in (201, 204), status

        async with trio.open_nursery() as nursery:
            for first in range(self._connections):
                nursery.start_soon(work, first)
        seconds, count = time.monotonic() - began, self._streams * rounds
        CONSOLE.print(f"{what}: {count} requests in {seconds:.1f} s, {count / seconds:.0f}/s")

    async def _print_idle(self) -> None:
        pids = [process.pid for process in self.cluster.processes]
        before = sum(map(cpu_s, pids))
        await trio.sleep(IDLE_S)
        CONSOLE.print(
            f"idle: {(sum(map(cpu_s, pids)) - before) / IDLE_S * 100:.1f} % of a core, all processes together"
        )

    def _print_costs(self, when: str) -> None:
        """Print memory and descriptors of each process."""
        rows = []
        for process in self.cluster.processes:
            files = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            rows.append(f"{process.id} {resident_bytes(process.pid) / 1e6:.0f} MB {files} files")
        CONSOLE.print(f"{when}: {', '.join(rows)}")


@click.command()
@click.option("--streams", default=100_000, show_default=True, help="Streams.")
@click.option(
    "--appends", default=1, show_default=True, help="Appends of 100 bytes to each, besides its first bytes."
)
@click.option("--burst", default=300, show_default=True, help="Streams that are created at once before.")
@click.option("--connections", default=64, show_default=True, help="Connections that work at the same time.")
def main(streams: int, appends: int, burst: int, connections: int) -> None:
    """Create many streams on a cluster of real processes, and print what they cost."""
    require_linux()
    end_with_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-streams-"))
    bench = Bench(folder, streams, appends, burst, connections)
    try:
        trio.run(bench.run)
    finally:
        bench.cluster.stop()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
