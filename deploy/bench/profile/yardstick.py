"""How far is the product from the least that it has to do? The same bytes over bare TCP, beside the same cases.

    .venv/bin/python deploy/bench/profile/yardstick.py [--seconds 3] [--rounds 3] [--case 128k] [--json FILE]

The yardstick is the path without everything that makes it a log: four processes on trio, client to gateway to leader
to two followers, a message being eight bytes of length and the batch. Who has received something passes it on from
the buffer that it was received into. Each of three replicas writes it to a growing file (one ``writev`` for what came
together, no flush); acks are counts, and go back when all three have written. One connection per hop; the window, the
batches and the number of copies are those of the product's case. Nothing is parsed but lengths, nothing is checked,
remembered, indexed, retried or elected: nobody needs to come near it. It says where Python on trio ends.

Both run in turn on one machine, round by round; a round counts as in ``throughput.py``. ``share`` is the speed of the
product in that of the yardstick (with one record at a time: of the latencies, the other way round).
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import trio
from rich.console import Console
from rich.table import Table
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import HOST, Process

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.harness.cluster import create
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import CONSOLE, Row, cpu_roles, cpu_unit, machine, middle, percentile, show
from bench.regression.check import one_case
from bench.throughput import BATCHES, RECORD_BYTES, Bench, Cpu, opaque_batch

LENGTH = struct.Struct("<Q")
BUFFER = 4 << 20
WINDOWS = {f"{size >> 10}k": (size, window) for size, window in BATCHES} | {"requests": (0, 64), "one": (0, 1)}
"""Case -> (bytes of a batch, or 0 for a single record of 100 B; number in flight)."""

CHAIN = (("r2", "follower", ()), ("r3", "follower", ()), ("r1", "leader", ("r2", "r3")), ("g1", "gateway", ("r1",)))
"""(name, role, next processes to connect to) of each process, in the order in which they start."""


def tuned(stream: trio.SocketStream) -> trio.SocketStream:
    """Set the stream's unsent data to at most 1 MiB, as the product does, and return it."""
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, 1 << 20)
    return stream


async def connected(port: int) -> trio.SocketStream:
    """Connect to the process of the chain that listens on this port."""
    return tuned(await trio.open_tcp_stream(HOST, port))


async def runs(stream: trio.SocketStream) -> AsyncIterator[tuple[memoryview, int]]:
    """Yield the whole messages that arrived together, as one piece of the receive buffer, with their number. The
    piece is valid until the next one."""
    buffer, filled = memoryview(bytearray(BUFFER)), 0
    while received := await stream.socket.recv_into(buffer[filled:]):
        filled += received
        end = count = 0
        while filled - end >= LENGTH.size:
            after = end + LENGTH.size + LENGTH.unpack_from(buffer, end)[0]
            if after > filled:
                break
            end, count = after, count + 1
        if count:
            yield buffer[:end], count
            buffer[: filled - end] = buffer[end:filled]
            filled -= end


async def counts(stream: trio.SocketStream) -> AsyncIterator[int]:
    """Yield the number of messages that are acked so far, the newest of each chunk that arrives."""
    kept = b""
    async for chunk in stream:
        kept += chunk
        whole = len(kept) // LENGTH.size * LENGTH.size
        if whole:
            yield LENGTH.unpack_from(kept, whole - LENGTH.size)[0]
            kept = kept[whole:]


async def follower(stream: trio.SocketStream) -> None:
    """Write every message that arrives to a file, and send back the number written so far."""
    written = 0
    with tempfile.TemporaryFile(buffering=0, dir=Path.cwd()) as file:
        async for run, count in runs(tuned(stream)):
            assert os.writev(file.fileno(), [run]) == len(run)
            written += count
            await stream.send_all(LENGTH.pack(written))


async def leader(stream: trio.SocketStream, ports: list[int]) -> None:
    """Write every message that arrives to a file, pass it on to the followers, and send back how many messages all
    three have written."""
    acked, told, speaking = [0] * len(ports), 0, trio.Lock()

    async def listen(which: int, link: trio.SocketStream) -> None:
        nonlocal told
        async for count in counts(link):
            acked[which] = count
            async with speaking:
                if min(acked) > told:
                    told = min(acked)
                    await stream.send_all(LENGTH.pack(told))

    with tempfile.TemporaryFile(buffering=0, dir=Path.cwd()) as file:
        async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
            links = [await stack.enter_async_context(await connected(port)) for port in ports]
            for which, link in enumerate(links):
                nursery.start_soon(listen, which, link)
            async for run, _ in runs(tuned(stream)):
                assert os.writev(file.fileno(), [run]) == len(run)
                for link in links:
                    await link.send_all(run)
            for link in links:
                await link.send_eof()


async def gateway(stream: trio.SocketStream, port: int) -> None:
    """Pass messages on to the leader at ``port``, and acks back."""

    async def listen() -> None:
        async for chunk in link:
            await stream.send_all(chunk)

    async with await connected(port) as link, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        async for run, _ in runs(tuned(stream)):
            await link.send_all(run)
        await link.send_eof()


async def serve(role: str, ports: list[int]) -> None:
    """Run one process of the chain until its stdin is closed. Prints the port at which it listens."""
    handlers = {
        "follower": follower,
        "leader": partial(leader, ports=ports),
        "gateway": lambda stream: gateway(stream, ports[0]),
    }
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, handlers[role], 0, host=HOST))
        print(listeners[0].socket.getsockname()[1], flush=True)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


@dataclass(slots=True)
class Chain:
    """The four running processes, and the port of their gateway."""

    processes: list[Process]
    port: int


@contextmanager
def chain(folder: Path) -> Iterator[Chain]:
    """Run the four processes during the block; they write into ``folder``."""
    folder.mkdir()
    with ExitStack() as stack:
        ports: dict[str, int] = {}
        processes = []
        for node, role, next_nodes in CHAIN:
            command = [sys.executable, __file__, "--role", role]
            for name in next_nodes:
                command += ["--next", str(ports[name])]
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
            stack.enter_context(child)  # closes its input and waits
            assert child.stdout
            ports[node] = int(child.stdout.readline())
            processes.append(Process(role, node, child.pid, "", ""))
        yield Chain(processes, ports["g1"])


async def limit(made: Chain, name: str, seconds: float) -> Row:
    """Measure a case on the yardstick for so many seconds, and until a batch is acknowledged, as the product's cases
    are measured."""
    size, window = WINDOWS[name]
    one = encode_batch([NewRecord(os.urandom(100), timestamp_ms=0)])
    batch, records = opaque_batch(size) if size else (one, 1)
    message = LENGTH.pack(len(batch)) + batch
    room, sent_at, latencies = trio.Semaphore(window), deque[float](), list[float]()

    async def listen() -> None:
        async for count in counts(link):
            now = trio.current_time()
            for _ in range(count - len(latencies)):
                latencies.append(now - sent_at.popleft())
                room.release()

    async with await connected(made.port) as link, trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        cpu, began = Cpu(made), trio.current_time()
        while trio.current_time() - began < seconds or not latencies:
            await room.acquire()
            sent_at.append(trio.current_time())
            await link.send_all(message)
        acked, took, used = len(latencies), trio.current_time() - began, cpu.stop()
        await link.send_eof()
    rate = acked * records / took
    p50, p99 = (percentile(latencies, share) * 1e3 for share in (0.5, 0.99))
    return Row(f"yardstick, {name}", "os", rate * RECORD_BYTES / 1e6 if size else None, rate, p50, p99, used)


def table(found: dict[str, tuple[Row, Row]]) -> Table:
    """Return a table with a line for each case: yardstick, product, and the CPU costs of both."""
    made = Table("case", "unit", "yardstick", "product", "share", "CPU", box=None)
    for which in ("yardstick", "product"):
        made.add_column(f"{which}: gateway, replicas, client", justify="right")
    for name, rows in found.items():
        if name == "one":
            unit, bare, whole = "p50 ms", *(row.p50_ms or 0.0 for row in rows)
        elif rows[0].mb_per_s:
            unit, bare, whole = "MB/s", *(row.mb_per_s or 0.0 for row in rows)
        else:
            unit, bare, whole = "records/s", *(row.records_per_s or 0.0 for row in rows)
        share = bare / whole if name == "one" else whole / bare
        costs = [", ".join(f"{cost:.2f}" for cost in cpu_roles(row).values()) for row in rows]
        made.add_row(name, unit, f"{bare:,.2f}", f"{whole:,.2f}", f"{share:.0%}", cpu_unit(rows[0]), *costs)
    return made


def measure(folder: Path, names: list[str], rounds: int, seconds: float) -> dict[str, tuple[Row, Row]]:
    """Run each case on both, in turn, and return the median round of each."""
    cluster = create(folder / "cluster")
    rows: dict[str, tuple[list[Row], list[Row]]] = {name: ([], []) for name in names}
    with chain(folder / "yardstick") as made:
        try:
            cluster.start()
            trio.run(cluster.wait_ready)
            bench = Bench(cluster, "os", seconds, 0)
            for number in range(rounds):
                for name, (bare, whole) in rows.items():
                    bare.append(trio.run(limit, made, name, seconds))
                    show(bare[-1])
                    whole.append(trio.run(one_case, bench, name, number))
                    show(whole[-1])
        finally:
            cluster.stop()
    return {name: (middle(bare), middle(whole)) for name, (bare, whole) in rows.items()}


@click.command(help=__doc__)
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Length of each measurement.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="The median counts.")
@click.option("--case", "names", type=click.Choice(list(WINDOWS)), multiple=True, help="Only these.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
@click.option("--role", hidden=True)
@click.option("--next", "ports", type=int, multiple=True, hidden=True)
def main(
    seconds: float,
    rounds: int,
    names: tuple[str, ...],
    json_file: Path | None,
    role: str | None,
    ports: tuple[int, ...],
) -> None:
    """Measure the yardstick and the product, and print how near the product comes."""
    require_linux()
    end_with_sigterm()
    if role:
        trio.run(serve, role, list(ports))
        return
    folder = Path(tempfile.mkdtemp(prefix="tidelog-yardstick-"))
    try:
        found = measure(folder, list(names or WINDOWS), rounds, seconds)
    finally:
        shutil.rmtree(folder)
    Console(highlight=False, width=max(CONSOLE.width, 200)).print(table(found))
    CONSOLE.print(f"flush os; {machine()}")
    if json_file:
        told = {name: {"yardstick": asdict(bare), "product": asdict(whole)} for name, (bare, whole) in found.items()}
        json_file.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
