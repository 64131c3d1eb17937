"""What a replica server costs beside produce and consume: catching up, recovering, reading from followers, idling.

    .venv/bin/python deploy/bench/replicas.py [--mb 512] [--case catch-up] [--json FILE]

    catch-up        a follower that missed everything copies it, and is in sync again: MB/s, CPU per MB
    catch-up-busy   the same while a producer writes: what the producer notices (p50, p99 before and during)
    recovery        the leader's server is killed with SIGKILL and started again: seconds until its log is open,
                    per GB of log; once with segments of 64 MiB, once with a single one (the worst case)
    readers         several consumers read the same topic from its leaders, then from any replica: MB/s of all
    readers-busy    16 consumers, a process each, read everything again and again while a producer writes: what the
                    producer notices (p50, p99 before and during), and how often a link between gateway and replica
                    servers was opened anew
    idle            1,000 partitions with 3 replicas each and no traffic: CPU of every process, memory

Real processes, loopback, as ``throughput.py``; figures of one run are to be compared with each other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import click
import tidelog
import trio
from rich.console import Console
from rich.table import Table
from tidelog.cli.local.local_cluster import LocalCluster, Process

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import throughput
from bench.harness.cluster import new_cluster
from bench.harness.processes import end_with_sigterm, require_linux

BATCH_BYTES = 128 << 10
IDLE_PARTITIONS = 1000
"""Partitions of the case ``idle``."""
SETTLE_S = 15.0
"""Seconds without a line in any log after which the cluster counts as quiet."""
IDLE_S = 30.0
"""Seconds for which an idle cluster is measured."""
READERS = 16
"""Consumers of the case ``readers-busy``."""
BUSY_S = 10.0
"""Seconds of each half of that case."""
CONSOLE = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Row:
    """The figures of one case, by name, as they are printed."""

    case: str
    figures: dict[str, float] = field(default_factory=dict)


Case = Callable[[LocalCluster, int], Awaitable[list[Row]]]


async def create(cluster: LocalCluster, topic: str, partitions: int, replicas: int, **config: str) -> None:
    """Create a topic with flush ``os``, since the disk of the machine is not what is measured here."""
    settings = {"flush": "os", "max_batch_bytes": str(2 << 20), **config}
    async with tidelog.connect(cluster.gateways()) as log:
        await log.topics.create(topic, partitions=partitions, replication_factor=replicas, config=settings)


async def fill(cluster: LocalCluster, topic: str, size: int) -> float:
    """Produce about ``size`` bytes to a topic of three partitions, and return the MB of values."""
    batch, count = throughput.opaque_batch(BATCH_BYTES)
    number = max(1, size // len(batch))
    await throughput.send_batches(cluster, topic, lambda: batch, 16, lambda sent, _: sent == number)
    return number * count * throughput.RECORD_BYTES / 1e6


async def until(done: Callable[[], Awaitable[bool]]) -> None:
    """Call ``done`` a hundred times a second until it returns True."""
    while True:
        if await done():
            return
        await trio.sleep(0.01)


async def until_quiet(cluster: LocalCluster) -> None:
    """Wait until no process has logged anything for ``SETTLE_S`` seconds: a busy machine takes its time to open so
    many logs."""
    size, since = -1, 0.0
    while size < 0 or trio.current_time() < since + SETTLE_S:
        now = _logged(cluster)
        if now != size:
            size, since = now, trio.current_time()
        await trio.sleep(0.5)


async def in_sync(cluster: LocalCluster, topic: str, members: int) -> None:
    """Wait until every partition of the topic has at least this many in-sync replicas."""
    async with tidelog.connect(cluster.gateways()) as log:

        async def enough() -> bool:
            return all(len(p.isr) >= members for p in (await log.topics.describe(topic)).partitions)

        await until(enough)


async def catch_up(cluster: LocalCluster, size: int) -> list[Row]:
    """Write a topic while one follower is down, then measure how fast the follower copies it and is in sync again."""
    mb = await _absent_follower(cluster, "catch-up", size)
    await _restart(cluster, "r3")
    began = time.monotonic()
    cpu = throughput.Cpu(cluster)
    await in_sync(cluster, "catch-up", 3)
    seconds = time.monotonic() - began
    used = cpu.stop()
    per_mb = {f"{name} ms/MB": used[name] * seconds * 1e3 / mb for name in ("r1", "r2", "r3")}
    return [Row("catch-up of a cold follower", {"MB": mb, "s": seconds, "MB/s": mb / seconds, **per_mb})]


async def _restart(cluster: LocalCluster, node: str) -> None:
    """Start a server and wait until it has registered again."""
    async with tidelog.connect(cluster.gateways()) as log:
        before = {server.node: server.broker_epoch for server in (await log.cluster.status()).servers}
        cluster.restart(node)

        async def registered() -> bool:
            return {s.node: s.broker_epoch for s in (await log.cluster.status()).servers}[node] != before[node]

        await until(registered)


async def _absent_follower(cluster: LocalCluster, topic: str, size: int) -> float:
    await create(cluster, topic, throughput.PARTITIONS, 3)
    await in_sync(cluster, topic, 3)
    cluster.kill("r3")
    return await fill(cluster, topic, size)


async def catch_up_busy(cluster: LocalCluster, size: int) -> list[Row]:
    """Measure a follower's catch-up while a producer writes, and the producer's latencies before and during it."""
    mb = await _absent_follower(cluster, "catch-up-busy", size)
    await create(cluster, "live", throughput.PARTITIONS, 2)
    before = await _latencies(cluster, 3.0)
    during: list[float] = []
    await _restart(cluster, "r3")
    began = time.monotonic()
    async with trio.open_nursery() as nursery:

        async def measure() -> None:
            while True:
                during.extend(await _latencies(cluster, 0.5))

        nursery.start_soon(measure)
        await in_sync(cluster, "catch-up-busy", 3)
        nursery.cancel_scope.cancel()
    seconds = time.monotonic() - began
    rows = [Row("catch-up beside a producer", {"MB": mb, "s": seconds, "MB/s": mb / seconds})]
    return rows + _latency_rows(before, during)


def _latency_rows(before: list[float], during: list[float]) -> list[Row]:
    rows = []
    for name, latencies in (("before", before), ("during", during)):
        figures = {
            f"p{share:.0%}"[:-1] + " ms": throughput.percentile(latencies, share) * 1e3 for share in (0.5, 0.99)
        }
        rows.append(Row(f"  one record at a time, {name}", {"records": len(latencies), **figures}))
    return rows


async def _latencies(cluster: LocalCluster, seconds: float) -> list[float]:
    latencies = []
    async with tidelog.connect(cluster.gateways()) as log, log.producer("live") as producer:
        began = trio.current_time()
        while (now := trio.current_time()) - began < seconds:
            await producer.send(b"x" * 100)
            latencies.append(trio.current_time() - now)
    return latencies


async def recovery(cluster: LocalCluster, size: int) -> list[Row]:
    """Kill the only replica of a topic and measure how much longer its start takes than with an empty log."""
    await create(cluster, "empty", 1, 1)
    start_s = await time_restart(cluster, "empty")
    rows = [Row("restart after kill -9, empty log", {"s": start_s})]
    for name, segment in (("segments of 64 MiB", 64 << 20), ("one segment", 1 << 30)):
        topic = f"recovery-{segment >> 20}"
        await create(cluster, topic, 1, 1, segment_max_bytes=str(segment))
        mb = await fill_one(cluster, topic, size)
        seconds = await time_restart(cluster, topic)
        async with tidelog.connect(cluster.gateways()) as log:
            await log.topics.delete(topic)
        figures = {"MB": mb, "s": seconds, "s/GB more than empty": (seconds - start_s) / mb * 1e3}
        rows.append(Row(f"restart after kill -9, {name}", figures))
    return rows


async def time_restart(cluster: LocalCluster, topic: str) -> float:
    """Kill and start the leader of the topic's only partition, and return the seconds until it answers where the log
    ends."""
    async with tidelog.connect(cluster.gateways()) as log:
        (partition,) = (await log.topics.describe(topic)).partitions
        cluster.kill(partition.leader)
        began = time.monotonic()
        cluster.restart(partition.leader)

        async def elected() -> bool:
            return (await log.topics.describe(topic)).partitions[0].leader_epoch != partition.leader_epoch

        await until(elected)
        await log.partitions.list_offset(topic, 0, "latest")
        return time.monotonic() - began


async def fill_one(cluster: LocalCluster, topic: str, size: int) -> float:
    """Produce about ``size`` bytes to a topic of one partition, and return the MB of values."""
    batch, count = throughput.opaque_batch(BATCH_BYTES)
    number = max(1, size // len(batch))
    await throughput.send_batches(cluster, topic, lambda: batch, 16, lambda sent, _: sent == number, partitions=1)
    return number * count * throughput.RECORD_BYTES / 1e6


async def readers(cluster: LocalCluster, size: int) -> list[Row]:
    """Measure three consumers at once, first from the leaders, then from any replica."""
    await create(cluster, "readers", throughput.PARTITIONS, 3)
    mb = await fill(cluster, "readers", size)
    await in_sync(cluster, "readers", 3)
    rows = []
    for read_from in ("leader", "any"):
        cpu = throughput.Cpu(cluster)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_consume, cluster, "readers", read_from)
        seconds = trio.current_time() - began
        used = cpu.stop()
        shares = {f"{name} cores": used[name] for name in ("r1", "r2", "r3", "g1")}
        rows.append(Row(f"3 readers, read_from={read_from}", {"MB/s": 3 * mb / seconds, **shares}))
    return rows


async def _consume(cluster: LocalCluster, topic: str, read_from: str) -> None:
    async with tidelog.connect(cluster.gateways()) as log:
        consumer = log.consume(topic, start="earliest", end="latest", read_from=read_from)
        while await consumer.next_batch() is not None:
            continue


async def readers_busy(cluster: LocalCluster, size: int) -> list[Row]:
    """Measure sixteen consumers that read everything while a producer writes, and the producer's latencies before and
    during it."""
    await create(cluster, "readers-busy", throughput.PARTITIONS, 3)
    await fill(cluster, "readers-busy", size)
    await create(cluster, "live", throughput.PARTITIONS, 3)
    command = [sys.executable, __file__, "--read", cluster.gateways()[0], "readers-busy"]
    async with trio.open_nursery() as nursery:
        processes = [
            await nursery.start(partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(READERS)
        ]
        for process in processes:
            await process.stdout.receive_some()  # connected
        before = await _latencies(cluster, BUSY_S)
        opened = _links_opened(cluster)
        for process in processes:
            await process.stdin.send_all(b"read\n")
        during = await _latencies(cluster, BUSY_S)
        opened = _links_opened(cluster) - opened
        counts = [int(b"".join([chunk async for chunk in process.stdout])) for process in processes]
    mb = sum(counts) / 1e6
    figures = {"MB/s": mb / BUSY_S, "least MB": min(counts) / 1e6, "links opened anew": float(opened)}
    return [Row(f"{READERS} readers beside a producer", figures), *_latency_rows(before, during)]


async def read_for_a_while(url: str, topic: str) -> None:
    """Print ``connected`` and wait for a line on stdin. Then read the whole topic again and again for ``BUSY_S``, and
    print how many bytes of batches were read."""
    size = 0
    async with tidelog.connect([url]) as log:
        await log.topics.describe(topic)
        print("connected", flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline)
        with trio.move_on_after(BUSY_S):
            while True:
                consumer = log.consume(topic, start="earliest", end="latest")
                while (batch := await consumer.next_batch()) is not None:
                    size += len(batch.data)
    print(size)


def _links_opened(cluster: LocalCluster) -> int:
    return Path(cluster.get("g1").log).read_text().count("replica_link_up")


async def idle(cluster: LocalCluster, size: int) -> list[Row]:
    """Measure CPU and memory of a cluster with many partitions and no traffic."""
    before = {process.id: _memory(process) for process in cluster.processes}
    await create(cluster, "idle", IDLE_PARTITIONS, 3)
    await in_sync(cluster, "idle", 3)
    await until_quiet(cluster)
    cpu = throughput.Cpu(cluster)
    await trio.sleep(IDLE_S)
    used = cpu.stop()
    used.pop("client")
    rows = [Row(f"{IDLE_PARTITIONS} idle partitions: % of a core", {name: 100 * part for name, part in used.items()})]
    grown = {p.id: (_memory(p) - before[p.id]) * 1e3 / IDLE_PARTITIONS for p in cluster.processes}
    rows.append(Row("  memory per partition and server, KB", grown))
    return rows


def _logged(cluster: LocalCluster) -> int:
    return sum(Path(process.log).stat().st_size for process in cluster.processes)


def _memory(process: Process) -> float:
    return throughput.resident_bytes(process.pid) / 1e6


CASES: dict[str, Case] = {
    "catch-up": catch_up,
    "catch-up-busy": catch_up_busy,
    "recovery": recovery,
    "readers": readers,
    "readers-busy": readers_busy,
    "idle": idle,
}


async def run(cluster: LocalCluster, case: Case, size: int) -> list[Row]:
    """Start the cluster, run one case on it, and return its figures."""
    cluster.start()
    await cluster.wait_ready()
    return await case(cluster, size)


def table(rows: list[Row]) -> Table:
    """Return all figures as a table."""
    made = Table("case", "figures", box=None)
    for row in rows:
        made.add_row(row.case, "  ".join(f"{name} {value:,.3g}" for name, value in row.figures.items()))
    return made


@click.command()
@click.option("--mb", type=int, default=512, show_default=True, help="MB that the cases write.")
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="Only these.")
@click.option("--data", type=click.Path(path_type=Path), help="Where the data goes (default: a temporary folder).")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(mb: int, names: tuple[str, ...], data: Path | None, json_file: Path | None) -> None:
    """Measure catch-up, recovery, follower reads and idling, every case on a new cluster of 1 controller, 3 replica
    servers and 1 gateway, and print the figures."""
    require_linux()
    end_with_sigterm()
    rows: list[Row] = []
    CONSOLE.print(throughput.machine())
    for name in names or CASES:
        with new_cluster(data) as cluster:
            found = trio.run(run, cluster, CASES[name], mb * 1_000_000)
        CONSOLE.print(table(found))
        rows += found
    if json_file:
        report = {"machine": throughput.machine(), "mb": mb, "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        trio.run(read_for_a_while, *sys.argv[2:4])
    else:
        main()
