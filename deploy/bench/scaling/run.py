"""How throughput and memory grow: with partitions, producers, the size of records, connections, subscriptions and
what a restart has to read.

    .venv/bin/python deploy/bench/scaling/run.py [--case partitions] [--quick] [--json FILE] [--out docs/plots]

    partitions      produce to 1 … 10,000 partitions, whose records choose theirs by themselves (a batch is filled,
                    then comes the next partition) or go round all of them; memory of each partition
    producers       1 … 64 producers, each with a connection of its own and a window of its own
    records         records of 10 B … 10 MiB, written and read
    cores           the CPU of a batch on one core and on all, and what that predicts for more servers
    sustained       10 GB without a pause, once with flush ``os`` and once with ``fsync``; takes 16 GB of disk
    recovery        the restart of a server that was killed, by the size of the last segment
    connections     memory of idle clients at the gateway
    subscriptions   the same of idle subscriptions

Each on a new cluster of real processes: one controller, three replica servers, one gateway; replication factor 3,
acks ``all``, flush ``os`` unless said otherwise. It prints Markdown and writes a picture for each table. CPU is from
/proc, in ms for 1000 records: what a busy machine disturbs least. Memory is the resident set.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click
import tidelog
import trio
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.runtime.process_settings import raise_open_files

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench import replicas, throughput
from bench.harness.cluster import new_cluster
from bench.harness.processes import end_with_sigterm, require_linux
from bench.scaling.clients import connections, subscriptions
from bench.scaling.cores import cores
from bench.scaling.load import LOAD_COLUMNS, LOAD_PANELS, PATIENT, Load, Run, free_gb, send
from bench.scaling.report import Panel, Table

PARTITIONS = (1, 10, 100, 1000, 10_000)
PRODUCERS = (1, 2, 4, 8, 16, 32, 64)
RECORDS = {
    10: "10 B",
    100: "100 B",
    1 << 10: "1 KiB",
    10 << 10: "10 KiB",
    100 << 10: "100 KiB",
    1 << 20: "1 MiB",
    10 << 20: "10 MiB",
}
"""Bytes of a record, with their text. The largest batch of any topic is 11 MiB."""
SUSTAINED_GB = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
TOPIC_GB = 5
"""GB that each topic of the case ``sustained`` gets. The one before is deleted first, so that the disk has room."""
SEGMENTS_MB = (128, 256, 512, 1000)
"""Sizes of the segment in the case ``recovery``, in MB."""
VALUE = 1 << 10
MOST_PENDING = 100_000
"""Most records of one producer without an ack, if its buffer does not end that sooner."""
WINDOW = 250
"""Records without an ack of each of many producers: about two full batches."""
SETTLE_S = 3.0
"""Seconds before memory is measured."""


async def partitions(run: Run) -> list[Table]:
    """Produce to more and more partitions, with and without a choice of partition, and measure cost and memory.
    Before the load each partition gets a record, so that every log is open."""
    columns = {"partitions": 0, **LOAD_COLUMNS}
    filled = Table(
        "partitions",
        "Records without keys: a batch is filled, then comes the next partition",
        columns,
        LOAD_PANELS,
        "CPU, ms",
    )
    round_all = Table(
        "partitions-round", "Records that go round all partitions: batches get small", columns, LOAD_PANELS, "CPU, ms"
    )
    memory = Table(
        "partitions-memory",
        "Memory of each partition, from its creation to its first record",
        {"partitions": 0, "ready, s": 1, "replica server, KB": 1, "gateway, KB": 1, "controller, KB": 1},
        (Panel("KB each", ("replica server, KB", "gateway, KB", "controller, KB")),),
        "replica server, KB",
    )
    run.tables.extend((filled, round_all, memory))
    for count in run.some(PARTITIONS):
        before, began = run.memory(), trio.current_time()
        topic = f"partitions-{count}"
        await run.create(topic, count)
        value = os.urandom(VALUE)
        async with run.connect() as log, log.producer(topic, PATIENT) as producer:
            for place in range(count):
                await producer.submit(value, partition=place)
            await producer.flush()
            ready_s = trio.current_time() - began
            if count >= 1000:  # the memory of fewer is hidden by what a process uses anyhow
                await trio.sleep(SETTLE_S)
                each = {node: (mb - before[node]) * 1e3 / count for node, mb in run.memory().items()}
                servers = sum(each[f"r{number}"] for number in (1, 2, 3)) / 3
                kinds = {"replica server, KB": servers, "gateway, KB": each["g1"], "controller, KB": each["c1"]}
                memory.add({"partitions": count, "ready, s": ready_s, **kinds})
            for table, places in ((filled, 0), (round_all, count)):
                load = Load(run.cluster)
                await load.begin()
                sent = await send(producer, value, run.seconds, MOST_PENDING, places)
                table.add({"partitions": count} | await load.end(sent, VALUE))
    return run.tables


def produce_in_process(gateways: list[str], topic: str, count: int, seconds: float) -> tuple[int, float, float]:
    """Run this many producers in this process, and return the number of records, the seconds and the CPU seconds."""

    async def task() -> tuple[int, float, float]:
        records = []
        async with AsyncExitStack() as stack:
            producers = []
            for _ in range(count):
                log = await stack.enter_async_context(tidelog.connect(gateways))
                producers.append(await stack.enter_async_context(log.producer(topic)))
                await producers[-1].send(b"")
            value, began, cpu_s = os.urandom(VALUE), trio.current_time(), time.process_time()

            async def one(producer: tidelog.Producer) -> None:
                records.append(await send(producer, value, seconds, WINDOW))

            async with trio.open_nursery() as nursery:
                for producer in producers:
                    nursery.start_soon(one, producer)
            return sum(records), trio.current_time() - began, time.process_time() - cpu_s

    return trio.run(task)


async def producers(run: Run) -> list[Table]:
    """Measure more and more producers in one client process, and the largest number again in two."""
    table = Table(
        "producers",
        f"Producers, each with its own connection and {WINDOW} records on their way",
        {"producers": 0, **LOAD_COLUMNS},
        LOAD_PANELS,
        "CPU, ms",
    )
    sizes = run.some(PRODUCERS)
    await run.create("producers", throughput.PARTITIONS)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        work = partial(produce_in_process, run.cluster.gateways(), "producers")
        list(pool.map(work, [1] * 2, [0.5] * 2))  # both have started
        for count, processes in [*((count, 1) for count in sizes), (sizes[-1], 2)]:
            load = Load(run.cluster)
            await load.begin()
            shares = [pool.submit(work, count // processes, run.seconds) for _ in range(processes)]
            done = [await trio.to_thread.run_sync(share.result) for share in shares]
            clients = max(seconds for _, seconds, _ in done), sum(cpu_s for _, _, cpu_s in done)
            row = await load.end(sum(records for records, _, _ in done), VALUE, clients)
            size = count if processes == 1 else count + 0.5  # a row of its own
            table.add({"producers": size} | row)
            if processes > 1:
                table.labels[size] = f"{count} in {processes} processes"
    return [table]


async def records(run: Run) -> list[Table]:
    """Write larger and larger records, then read them from the beginning, and measure both."""
    columns = {"record": 0, **LOAD_COLUMNS, "CPU, ms/MB": 2, "read, records/s": 0, "read, MB/s": 1}
    panels = (Panel("MB/s", ("MB/s", "read, MB/s")), Panel("CPU ms for 1000 records", ("CPU, ms",)))
    table = Table("records", "Records of growing size", columns, panels, "CPU, ms/MB", labels=RECORDS)
    for size in run.some(RECORDS):
        topic = f"records-{size}"
        await run.create(topic, throughput.PARTITIONS)
        async with run.connect() as log:
            async with log.producer(topic) as producer:
                value = os.urandom(size)
                await producer.send(value)
                load = Load(run.cluster)
                await load.begin()
                sent = await send(producer, value, run.seconds, MOST_PENDING)
                row = {"record": float(size)} | await load.end(sent, size)
            read, began = 0, trio.current_time()
            async with log.consume(topic, start="earliest", end="latest") as consumer:
                while batch := await consumer.next_records():
                    read += len(batch)
            per_s = read / (trio.current_time() - began)
            table.add(
                row
                | {"CPU, ms/MB": row["CPU, ms"] * 1e3 / size}
                | {"read, records/s": per_s, "read, MB/s": per_s * size / 1e6}
            )
            await log.topics.delete(topic)
    return [table]


async def sustained(run: Run) -> list[Table]:
    """Send without a pause for long, and measure each GB. Shows what a short run does not: segments that roll, the
    disk's speed, and a page cache that grows into memory that was never used."""
    value = os.urandom(VALUE)
    for flush in ("os", "fsync"):
        table = Table(
            f"sustained-{flush}",
            f"The first GB to the last of a long load, flush {flush}",
            {"GB": 0, **LOAD_COLUMNS, "replicas in the kernel, ms": 2, "free memory, GB": 1},
            (LOAD_PANELS[0], Panel("CPU ms for 1000 records", ("replicas, ms", "replicas in the kernel, ms"))),
            "CPU, ms",
        )
        run.tables.append(table)
        sizes = run.some(SUSTAINED_GB)
        for first in range(0, len(sizes), TOPIC_GB):
            topic = f"sustained-{flush}-{first}"
            await run.create(topic, 2 * throughput.PARTITIONS, flush=flush)
            async with run.connect() as log:
                async with log.producer(topic, PATIENT) as producer:
                    await producer.send(value)
                    for number in sizes[first : first + TOPIC_GB]:
                        kernel_s, load = run.kernel_s(), Load(run.cluster)
                        await load.begin()
                        sent = await send(producer, value, math.inf, MOST_PENDING, most=1_000_000_000 // VALUE)
                        row = {"GB": float(number)} | await load.end(sent, VALUE)
                        in_kernel = (run.kernel_s() - kernel_s) * 1e6 / sent
                        table.add(row | {"replicas in the kernel, ms": in_kernel, "free memory, GB": free_gb()})
                await log.topics.delete(topic)
    return run.tables


async def recovery(run: Run) -> list[Table]:
    """Kill the only replica of a topic whose log is one segment, and measure how long its start takes."""
    table = Table(
        "recovery",
        "Restart after kill -9, by the size of the last segment",
        {"MB": 0, "s": 2, "s more than empty": 2, "ms/MB more than empty": 2},
        (Panel("s until the log is open", ("s",)),),
        "ms/MB more than empty",
    )
    await replicas.create(run.cluster, "recovery-0", 1, 1)
    await replicas.time_restart(
        run.cluster, "recovery-0"
    )  # the first restart loads files that later ones find in the page cache
    empty_s = await replicas.time_restart(run.cluster, "recovery-0")
    table.add({"MB": 0.0, "s": empty_s})
    for size in run.some(SEGMENTS_MB):
        topic = f"recovery-{size}"
        await replicas.create(run.cluster, topic, 1, 1, segment_max_bytes=str(1 << 30))
        mb = await replicas.fill_one(run.cluster, topic, size * 1_000_000)
        seconds = await replicas.time_restart(run.cluster, topic)
        more_s = seconds - empty_s
        table.add({"MB": mb, "s": seconds, "s more than empty": more_s, "ms/MB more than empty": more_s * 1e3 / mb})
        async with run.connect() as log:
            await log.topics.delete(topic)
    return [table]


CASES: dict[str, Callable[[Run], Awaitable[list[Table]]]] = {
    case.__name__: case
    for case in (partitions, producers, records, cores, sustained, recovery, connections, subscriptions)
}


async def started(cluster: LocalCluster, case: Callable[[], Awaitable[list[Table]]]) -> list[Table]:
    """Start the cluster, run one case on it, and return its tables."""
    cluster.start()
    await cluster.wait_ready()
    return await case()


@click.command(help=__doc__)
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="Only these.")
@click.option("--seconds", type=float, default=8.0, show_default=True, help="Length of the load at each size.")
@click.option("--quick", is_flag=True, help="The smaller sizes only, a second each: does it run?")
@click.option(
    "--out", type=click.Path(path_type=Path), default="build/scaling", show_default=True, help="Folder for pictures."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
@click.option("--data", type=click.Path(path_type=Path), help="Where the data goes (default: a temporary folder).")
def main(
    names: tuple[str, ...], seconds: float, quick: bool, out: Path, json_file: Path | None, data: Path | None
) -> None:
    """Measure how throughput and memory grow, print the tables, and draw the pictures. Fails at the end if a case
    failed."""
    require_linux()
    end_with_sigterm()
    raise_open_files()
    click.echo(f"{throughput.machine()}\n")
    tables: list[Table] = []
    failed: list[str] = []
    for name in names or CASES:
        with new_cluster(data) as cluster:
            run = Run(cluster, 1.0 if quick else seconds, quick)
            try:
                found = trio.run(started, cluster, partial(CASES[name], run))
            except (tidelog.TidelogError, trio.TooSlowError) as error:
                click.echo(f"{name} failed: {error!r}\n")
                failed, found = [*failed, name], run.tables
        for table in found:
            click.echo(f"{table.markdown()}\n{table.draw(out)}\n")
        tables += found
    if json_file:
        report = {"machine": throughput.machine(), "seconds": seconds, "tables": [asdict(table) for table in tables]}
        json_file.write_text(json.dumps(report, indent=2) + "\n")
    if failed:
        raise click.ClickException(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
