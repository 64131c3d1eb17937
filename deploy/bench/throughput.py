"""Throughput and latency of the whole path: client, gateway, leader, followers, ack; a cluster of real processes.

    .venv/bin/python deploy/bench/throughput.py [--seconds 5] [--rounds 3] [--flush fsync --flush os] [--json FILE]

Replication factor 3, min_insync_replicas 2, acks ``all``, three partitions, one gateway, one controller, one client
process, loopback. An opaque batch is one ``Produce`` message of its own; "in flight" is how many of them wait for
their acks at any time. The log files grow, as those of a real log do.

All processes share the machine, so read the ratios between the rows of one run, not the figures of two runs. What a
busy machine disturbs least is the CPU time per megabyte. CPU is what each process used during the case, from /proc:
in the JSON as cores (1.00 is one core), in the table as ms per MB of values, or per 1000 records.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import tidelog
import trio
from rich.console import Console
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log
from tidelog.net.link import PROTOCOL_VERSION, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.wire.messages import Hello, Metadata, MetadataAnswer, Produce, Produced, ProducePart

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.cluster import new_cluster
from bench.harness.processes import end_with_sigterm, require_linux
from bench.harness.rows import CONSOLE, Row, machine, middle, percentile, show, table

PARTITIONS = 3
BATCHES = ((16 << 10, 64), (128 << 10, 16), (1 << 20, 8))
"""(bytes, number in flight) of the opaque batches."""
RECORD_BYTES = 1000
"""Bytes of a value in the opaque batches."""
ACK_TIMEOUT_MS = 30_000
"""Time that a gateway may try a batch, in ms."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The parameters of every case, and its cluster."""

    cluster: LocalCluster
    flush: str
    seconds: float
    """Length of a case in seconds."""
    fill_bytes: int
    """Bytes that the consuming cases read."""

    async def create_topic(self, name: str) -> str:
        """Create the topic of a case, with three replicas, and return its name."""
        topic = f"bench-{self.flush}-{name}"
        config = {"flush": self.flush, "max_batch_bytes": str(2 << 20)}
        async with tidelog.connect(self.cluster.gateways()) as log:
            await log.topics.create(topic, partitions=PARTITIONS, replication_factor=3, config=config)
        return topic


class Cpu:
    """The CPU time that the cluster's processes and this one use, from its creation to ``stop``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = {p.id: p.pid for p in cluster.processes if p.pid} | {"client": os.getpid()}
        self._tick = os.sysconf("SC_CLK_TCK")
        self._before, self._began = self._read(), trio.current_time()

    def _read(self) -> dict[str, float]:
        used = {}
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / self._tick
        return used

    def stop(self) -> dict[str, float]:
        """Return the cores that each process has used on average since the creation."""
        seconds = trio.current_time() - self._began
        return {name: round((used - self._before[name]) / seconds, 5) for name, used in self._read().items()}


def opaque_batch(size: int) -> tuple[bytes, int]:
    """Return a batch of about ``size`` bytes of incompressible records, and their number."""
    count = (size - 512) // (RECORD_BYTES + 4)
    return encode_batch([NewRecord(os.urandom(RECORD_BYTES), timestamp_ms=0) for _ in range(count)]), count


async def send_batches(
    cluster: LocalCluster,
    topic: str,
    encode: Callable[[], bytes],
    window: int,
    enough: Callable[[int, float], bool],
    partitions: int = PARTITIONS,
) -> tuple[int, float, list[float], dict[str, float]]:
    """Send batches that ``encode`` makes, ``window`` in flight, each in a message of its own, until ``enough`` (of
    the number sent and the seconds) is true. Returns the number of acks, the seconds, the latencies in seconds, and
    the cores of each process. Fails if a batch is refused."""
    room = trio.Semaphore(window)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []

    def on_message(link: Any, id: int | None, message: Any) -> None:
        assert isinstance(message, Produced)
        now = trio.current_time()
        for ack in message.acks:
            assert ack.error is None, ack.error
            latencies.append(now - sent_at.pop(ack.id))
            room.release()

    hello = Hello(PROTOCOL_VERSION, role="client", node="bench")
    async with connect_link(WebSocketTransport(), cluster.gateways()[0], hello, on_message) as link:
        answer = await link.call(Metadata(topics=(topic,)), 10.0)
        assert isinstance(answer, MetadataAnswer)
        topic_id = answer.topics[0].topic_id
        cpu = Cpu(cluster)
        began = trio.current_time()
        number = 0
        while not enough(number, trio.current_time() - began):
            await room.acquire()
            batch = encode()
            part = ProducePart(number, topic_id, number % partitions, 2, ACK_TIMEOUT_MS, len(batch))
            sent_at[number] = trio.current_time()
            await link.send(Produce((part,), batch))
            number += 1
        result = len(latencies), trio.current_time() - began, latencies, cpu.stop()
        for _ in range(window):  # wait for all acks, so that none disturbs the next case
            await room.acquire()
    return result


async def produce_batches(bench: Bench, topic: str, size: int, window: int) -> Row:
    """Measure prebuilt batches, which show what the services can carry when the client does next to nothing. ``size``
    0: batches of a single record of 100 B, which show what a message costs."""
    one = encode_batch([NewRecord(os.urandom(100), timestamp_ms=0)])
    batch, count = opaque_batch(size) if size else (one, 1)
    acked, seconds, latencies, cpu = await send_batches(
        bench.cluster, topic, lambda: batch, window, lambda _, seconds: seconds >= bench.seconds
    )
    kind = f"opaque batches of {size >> 10} KiB" if size else "batches of one record of 100 B"
    return Row(
        f"produce, {kind}, {window} in flight",
        bench.flush,
        acked * count * RECORD_BYTES / seconds / 1e6 if size else None,
        acked * count / seconds,
        percentile(latencies, 0.5) * 1e3,
        percentile(latencies, 0.99) * 1e3,
        cpu,
    )


async def produce_records(bench: Bench, topic: str, size: int) -> Row:
    """Measure records that are submitted one by one to the Python client's batching producer."""
    value = os.urandom(size)
    async with tidelog.connect(bench.cluster.gateways()) as log, log.producer(topic) as producer:
        await producer.send(value)
        cpu = Cpu(bench.cluster)
        began = trio.current_time()
        waiting: deque[Any] = deque()
        acked = 0
        while trio.current_time() - began < bench.seconds:
            for _ in range(200):
                waiting.append(await producer.submit(value))
            while len(waiting) > 100_000:
                await waiting.popleft().wait()
                acked += 1
        await producer.flush()
        for pending in waiting:
            await pending.wait()
        acked += len(waiting)
        seconds = trio.current_time() - began
        used = cpu.stop()
    mb_per_s = acked * size / seconds / 1e6
    return Row(f"produce, records of {size} B, Python client", bench.flush, mb_per_s, acked / seconds, cpu=used)


async def produce_one_by_one(bench: Bench, topic: str) -> Row:
    """Measure one record at a time, the next when the last is acked: the latency of the whole path."""
    latencies = []
    async with tidelog.connect(bench.cluster.gateways()) as log, log.producer(topic) as producer:
        for _ in range(50):
            await producer.send(b"x" * 100)
        cpu = Cpu(bench.cluster)
        began = trio.current_time()
        while (now := trio.current_time()) - began < bench.seconds:
            await producer.send(b"x" * 100)
            latencies.append(trio.current_time() - now)
        used = cpu.stop()
    return _row_of_latencies("produce, one record of 100 B at a time, Python client", bench, latencies, used)


async def transact(bench: Bench, topic: str, whole: bool) -> Row:
    """Measure transactions of one record, one after the other: with ``whole`` the latency from the begin to the
    answer to the commit, otherwise that of the commit alone, whose record is acked by then."""

    async def one(log: Log) -> float:
        began = trio.current_time()
        async with log.transaction("bench") as tx:
            await tx.send(topic, b"x" * 100)
            began = began if whole else trio.current_time()
        return trio.current_time() - began

    latencies = []
    async with tidelog.connect(bench.cluster.gateways()) as log:
        for _ in range(10):  # the very first creates the topic of transactions
            await one(log)
        cpu, end = Cpu(bench.cluster), trio.current_time() + bench.seconds
        while trio.current_time() < end:
            latencies.append(await one(log))
        used = cpu.stop()
    timed = "begin to the answer to its commit" if whole else "its commit alone"
    return _row_of_latencies(f"transaction of one record of 100 B at a time, {timed}", bench, latencies, used)


def _row_of_latencies(case: str, bench: Bench, latencies: list[float], used: dict[str, float]) -> Row:
    """Return the row of operations that were done one after the other; latencies in seconds."""
    rate = len(latencies) / bench.seconds
    p50, p99 = percentile(latencies, 0.5) * 1e3, percentile(latencies, 0.99) * 1e3
    return Row(case, bench.flush, None, rate, p50, p99, used)


async def consume(bench: Bench, topic: str, decoded: bool) -> Row:
    """Measure reading a whole topic through the gateway, ``decoded`` to records or as batches. Fills the topic first
    if it is empty."""
    count = size = 0
    async with tidelog.connect(bench.cluster.gateways()) as log:
        high_watermarks = (await log.topics.describe(topic, offsets=True)).partitions
        if not sum(state.high_watermark for state in high_watermarks):
            batch, _ = opaque_batch(128 << 10)
            number = max(PARTITIONS, bench.fill_bytes // len(batch))
            await send_batches(bench.cluster, topic, lambda: batch, 16, lambda sent, _: sent == number)
        cpu = Cpu(bench.cluster)
        began = trio.current_time()
        consumer = log.consume(topic, start="earliest", end="latest")
        if decoded:
            async for record in consumer:
                count += 1
                size += len(record.value or b"")
        else:
            while (fetched := await consumer.next_batch()) is not None:
                count += fetched.header.record_count
            size = count * RECORD_BYTES
        seconds = trio.current_time() - began
    kind = f"records of {RECORD_BYTES} B" if decoded else "batches of 128 KiB, not decoded"
    return Row(f"consume, {kind}, Python client", bench.flush, size / seconds / 1e6, count / seconds, cpu=cpu.stop())


Case = Callable[[Bench, str], Awaitable[Row]]


def cases(smoke: bool) -> dict[str, Case]:
    """Return all cases by name, or (``smoke``) a few of them. Each is a function of the bench and its topic."""
    made: dict[str, Case] = {
        f"{size >> 10}k": partial(produce_batches, size=size, window=window) for size, window in BATCHES
    }
    made["requests"] = partial(produce_batches, size=0, window=64)
    made["records-1024"] = partial(produce_records, size=1024)
    made["records-100"] = partial(produce_records, size=100)
    made["one"] = produce_one_by_one
    made["transactions"] = partial(transact, whole=True)
    made["commit"] = partial(transact, whole=False)
    made["consume"] = partial(consume, decoded=True)
    made["consume-batches"] = partial(consume, decoded=False)
    return {name: case for name, case in made.items() if not smoke or name in ("128k", "one", "consume")}


async def run(
    cluster: LocalCluster,
    chosen: dict[str, Case],
    flushes: tuple[str, ...],
    seconds: float,
    rounds: int,
    fill_bytes: int,
) -> tuple[float, float, list[Row]]:
    """Start the cluster, and run the chosen cases for each flush policy, each on a topic of its own. Returns the
    seconds that the cluster took to start, the MB that it then held in memory, and the median row of each case."""
    began = trio.current_time()
    cluster.start()
    await cluster.wait_ready()
    start_s = trio.current_time() - began
    resident_mb = sum(resident_bytes(process.pid) for process in cluster.processes) / 1e6
    CONSOLE.print(f"cluster up in {start_s:.1f} s, {resident_mb:.0f} MB in memory; {machine()}")
    rows: list[Row] = []
    for flush in flushes:
        bench = Bench(cluster, flush, seconds, fill_bytes)
        for name, case in chosen.items():
            topic = await bench.create_topic(name)
            tries = []
            for _ in range(rounds):
                tries.append(await case(bench, topic))
                show(tries[-1])
            rows.append(middle(tries))
    return start_s, resident_mb, rows


def resident_bytes(pid: int) -> int:
    """Return the memory of a process in bytes, without what it shares with other processes."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


@click.command()
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Length of each case.")
@click.option("--rounds", type=int, default=1, show_default=True, help="Times each case is run; the median counts.")
@click.option(
    "--flush", "flushes", type=click.Choice(["fsync", "interval", "os"]), multiple=True, default=("os", "fsync")
)
@click.option("--case", "names", type=click.Choice(list(cases(False))), multiple=True, help="Only these.")
@click.option("--smoke", is_flag=True, help="A few cases of a second each: does it run?")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Where the cluster's data goes (default: a temporary folder)."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(
    seconds: float,
    rounds: int,
    flushes: tuple[str, ...],
    names: tuple[str, ...],
    smoke: bool,
    data: Path | None,
    json_file: Path | None,
) -> None:
    """Measure produce, consume and latency through a cluster of 1 controller, 3 replica servers and 1 gateway, and
    print the table."""
    require_linux()
    end_with_sigterm()
    chosen = {name: case for name, case in cases(smoke).items() if not names or name in names}
    if smoke:
        seconds = min(seconds, 1.0)
    fill_bytes = (8 << 20) if smoke else (256 << 20)
    with new_cluster(data) as cluster:
        start_s, resident_mb, rows = trio.run(run, cluster, chosen, flushes, seconds, rounds, fill_bytes)
    Console(highlight=False, width=max(CONSOLE.width, 190)).print(table(rows))
    if json_file:
        report = {
            "machine": machine(),
            "seconds": seconds,
            "rounds": rounds,
            "start_s": start_s,
            "resident_mb": resident_mb,
            "rows": [asdict(row) for row in rows],
        }
        json_file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
