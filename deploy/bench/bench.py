"""Throughput and latency of the whole path: client, gateway, leader, followers, ack; a cluster of real processes.

    .venv/bin/python deploy/bench/bench.py [--seconds 5] [--flush fsync --flush os] [--json FILE]

Replication factor 3, acks ``all``, one gateway, one client process, loopback. All processes share the machine, so
read the ratios between rows of one run, not the figures of two runs. CPU is what each process used during the case,
in seconds per second (1.00 is one core), from /proc.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import tempfile
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import tidelog
import trio
from rich.console import Console
from rich.table import Table
from tidelog.cli.local_cluster import LocalCluster, free_base_port
from tidelog.link import connect_link
from tidelog.records import NewRecord, encode_batch
from tidelog.websocket import WebSocketTransport
from tidelog.wire.messages import Hello, Metadata, Produce, Produced, ProducePart

PARTITIONS = 3
BATCHES = ((16 << 10, 64), (128 << 10, 16), (1 << 20, 8))
"""(bytes, in flight) of the opaque batches; the largest leaves room for the batch header."""
CONSOLE = Console(highlight=False)


@dataclass(slots=True)
class Row:
    """One case's figures. ``mb_per_s`` counts payload bytes, 10^6 each; times in ms."""

    case: str
    flush: str
    mb_per_s: float | None = None
    records_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu: dict[str, float] | None = None


class Cpu:
    """CPU seconds that the cluster's processes and this one use between ``start`` and ``stop``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = {p.id: p.pid for p in cluster.processes} | {"client": os.getpid()}
        self._tick = os.sysconf("SC_CLK_TCK")
        self.start()

    def _read(self) -> dict[str, float]:
        used = {}
        for name, pid in self._pids.items():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used[name] = (int(fields[11]) + int(fields[12])) / self._tick
        return used

    def start(self) -> None:
        """Count from here."""
        self._before, self._began = self._read(), trio.current_time()

    def stop(self) -> dict[str, float]:
        """Cores used by each process since ``start``; controllers together."""
        seconds = trio.current_time() - self._began
        cores: dict[str, float] = {}
        for name, used in self._read().items():
            shown = "controllers" if name.startswith("c") and name != "client" else name
            cores[shown] = cores.get(shown, 0.0) + (used - self._before[name]) / seconds
        return {name: round(value, 2) for name, value in cores.items()}


def percentile(values: list[float], share: float) -> float:
    """Nearest-rank percentile; ``share`` in 0..1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def opaque_batches(
    cluster: LocalCluster, topic: str, flush: str, size: int, window: int, seconds: float
) -> Row:
    """Prebuilt batches, ``window`` in flight: what the services can carry when the client does next to nothing."""
    batch = encode_batch([NewRecord(os.urandom(1000), timestamp_ms=0) for _ in range((size - 512) // 1004)])
    room = trio.Semaphore(window)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    acked = 0

    def on_message(link: Any, id: int | None, message: Any) -> None:
        nonlocal acked
        assert isinstance(message, Produced)
        now = trio.current_time()
        for ack in message.acks:
            assert ack.error is None, ack.error
            latencies.append(now - sent_at.pop(ack.id))
            acked += 1
            room.release()

    hello = Hello(version=1, role="client", node="bench")
    async with connect_link(WebSocketTransport(), cluster.gateways()[0], hello, on_message) as link:
        (info,) = (await link.call(Metadata(topics=(topic,)), 10.0)).topics
        cpu = Cpu(cluster)
        began = trio.current_time()
        number = 0
        while trio.current_time() - began < seconds:
            await room.acquire()
            part = ProducePart(number, info.topic_id, number % PARTITIONS, 2, 30_000, len(batch))
            sent_at[number] = trio.current_time()
            await link.send(Produce((part,), batch))
            number += 1
        elapsed = trio.current_time() - began
        used = cpu.stop()
        done = acked
        for _ in range(window):
            await room.acquire()
    return Row(
        f"produce, opaque batches of {size >> 10} KiB, {window} in flight",
        flush,
        done * len(batch) / elapsed / 1e6,
        None,
        percentile(latencies, 0.5) * 1e3,
        percentile(latencies, 0.99) * 1e3,
        used,
    )


async def client_records(cluster: LocalCluster, topic: str, flush: str, size: int, seconds: float) -> Row:
    """Records one by one through the Python client's batching producer."""
    value = os.urandom(size)
    async with tidelog.connect(cluster.gateways()) as log, log.producer(topic) as producer:
        await producer.send(value)
        cpu = Cpu(cluster)
        began = trio.current_time()
        waiting: deque[Any] = deque()
        acked = 0
        while trio.current_time() - began < seconds:
            for _ in range(200):
                waiting.append(await producer.submit(value))
            while len(waiting) > 100_000:
                await waiting.popleft().wait()
                acked += 1
        await producer.flush()
        acked += len(waiting)
        elapsed = trio.current_time() - began
        used = cpu.stop()
        for pending in waiting:
            await pending.wait()
    return Row(f"produce, records of {size} B", flush, acked * size / elapsed / 1e6, acked / elapsed, cpu=used)


async def single_records(cluster: LocalCluster, topic: str, flush: str, seconds: float) -> Row:
    """One record of 100 B at a time: the latency of the whole path."""
    latencies = []
    async with tidelog.connect(cluster.gateways()) as log, log.producer(topic) as producer:
        for _ in range(50):
            await producer.send(b"x" * 100)
        cpu = Cpu(cluster)
        began = trio.current_time()
        while (now := trio.current_time()) - began < seconds:
            await producer.send(b"x" * 100)
            latencies.append(trio.current_time() - now)
        used = cpu.stop()
    return Row(
        "produce, one record of 100 B at a time",
        flush,
        None,
        len(latencies) / seconds,
        percentile(latencies, 0.5) * 1e3,
        percentile(latencies, 0.99) * 1e3,
        used,
    )


async def consume(cluster: LocalCluster, topic: str, flush: str) -> Row:
    """Everything of a topic, decoded to records, through the gateway."""
    count = size = 0
    async with tidelog.connect(cluster.gateways()) as log:
        cpu = Cpu(cluster)
        began = trio.current_time()
        async for record in log.consume(topic, start="earliest", end="latest"):
            count += 1
            size += len(record.value or b"")
        elapsed = trio.current_time() - began
    return Row("consume, records of 1000 B", flush, size / elapsed / 1e6, count / elapsed, cpu=cpu.stop())


async def run(cluster: LocalCluster, flushes: tuple[str, ...], seconds: float) -> list[Row]:
    """All cases for each flush policy, each on a topic of its own."""
    began = trio.current_time()
    cluster.start()
    await cluster.wait_ready()
    CONSOLE.print(f"cluster up in {trio.current_time() - began:.1f} s; {machine()}")
    rows: list[Row] = []
    for flush in flushes:
        topics = []
        async with tidelog.connect(cluster.gateways()) as log:
            for number in range(6):
                topics.append(f"bench-{flush}-{number}")
                config = {"flush": flush, "max_batch_bytes": str(2 << 20)}
                await log.create_topic(topics[-1], partitions=PARTITIONS, replication_factor=3, config=config)
        for topic, (size, window) in zip(topics, BATCHES, strict=False):
            rows.append(await opaque_batches(cluster, topic, flush, size, window, seconds))
            show(rows[-1])
        rows.append(await consume(cluster, topics[1], flush))
        show(rows[-1])
        for topic, size in zip(topics[3:], (1024, 100), strict=False):
            rows.append(await client_records(cluster, topic, flush, size, seconds))
            show(rows[-1])
        rows.append(await single_records(cluster, topics[5], flush, seconds))
        show(rows[-1])
    return rows


def machine() -> str:
    """The conditions, in a line."""
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}, Linux {platform.release()}"


def show(row: Row) -> None:
    """A line as soon as a case is done."""
    figures = [
        f"{row.mb_per_s:.1f} MB/s" if row.mb_per_s else "",
        f"{row.records_per_s:,.0f} records/s" if row.records_per_s else "",
        f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms" if row.p50_ms and row.p99_ms else "",
    ]
    CONSOLE.print(f"  flush {row.flush:6} {row.case}: {', '.join(filter(None, figures))}")


def table(rows: list[Row]) -> Table:
    """The figures and each process's CPU."""
    made = Table("case", "flush", "MB/s", "records/s", "p50 ms", "p99 ms", "CPU (cores)", box=None)
    for row in rows:
        cpu = " ".join(f"{name} {value:.2f}" for name, value in (row.cpu or {}).items())
        made.add_row(
            row.case,
            row.flush,
            f"{row.mb_per_s:.1f}" if row.mb_per_s else "",
            f"{row.records_per_s:,.0f}" if row.records_per_s else "",
            f"{row.p50_ms:.2f}" if row.p50_ms else "",
            f"{row.p99_ms:.2f}" if row.p99_ms else "",
            cpu,
        )
    return made


@click.command()
@click.option("--seconds", type=float, default=5.0, show_default=True, help="Length of each case.")
@click.option(
    "--flush", "flushes", type=click.Choice(["fsync", "interval", "os"]), multiple=True, default=("os", "fsync")
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Where the cluster's data goes (default: a temporary folder)."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(seconds: float, flushes: tuple[str, ...], data: Path | None, json_file: Path | None) -> None:
    """Measure produce, consume and latency through a cluster of 1 controller, 3 replica servers and 1 gateway."""
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=data))
    cluster = LocalCluster.create(folder, controllers=1, replicas=3, gateways=1, base_port=free_base_port(5))
    try:
        rows = trio.run(run, cluster, flushes, seconds)
    finally:
        cluster.stop()
        shutil.rmtree(folder)
    CONSOLE.print(table(rows))
    if json_file:
        json_file.write_text(
            json.dumps({"machine": machine(), "rows": [asdict(row) for row in rows]}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
