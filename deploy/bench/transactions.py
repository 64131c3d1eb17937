"""What transactions cost: the decision, what readers wait for, and bulk.

    .venv/bin/python deploy/bench/transactions.py [--seconds 3] [--flush os --flush fsync] [--json FILE]

    commit    applications that write one record of 100 B to each of 1, 3, 10 partitions and commit: transactions/s,
              and how long one takes from begin to the answer to its commit
    visible   one record at a time: from its send until a consumer has it, plain and in a transaction; and how much
              of the latter is after the commit was asked for
    staged    eight workers that write records of 1 KiB: each in a staged transaction, all committed at once, against
              idempotent producers: MB/s until all is committed, CPU per MB

Replication factor 3, acks ``all``, one gateway, one controller, one client process, loopback; real processes, as
``throughput.py``: figures of one run are to be compared with each other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import tidelog
import trio
from rich.console import Console
from rich.table import Table
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import throughput
from bench.harness.cluster import running_cluster
from bench.harness.processes import end_with_sigterm, require_linux

WIDTHS = (1, 3, 10)
"""Numbers of partitions that a transaction of the case ``commit`` writes to."""
APPLICATIONS = (1, 8)
"""Numbers of applications at a time in that case."""
WORKERS = 8
RECORD = b"x" * 100
LARGE = b"x" * 1024
CONSOLE = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Row:
    """The figures of one case, by name, as they are printed. Times in ms."""

    case: str
    flush: str
    figures: dict[str, float] = field(default_factory=dict)


Case = Callable[[LocalCluster, str, float], Awaitable[list[Row]]]


def spread(seconds: list[float]) -> dict[str, float]:
    """Return median and 99th percentile of these times, in ms."""
    return {name: throughput.percentile(seconds, share) * 1e3 for name, share in (("p50 ms", 0.5), ("p99 ms", 0.99))}


async def create(log: Log, topic: str, partitions: int, flush: str) -> None:
    """Create a topic with three replicas, and the coordinators, by a first transaction."""
    await log.topics.create(topic, partitions=partitions, replication_factor=3, config={"flush": flush})
    async with log.transaction("first") as tx:
        await tx.send(topic, RECORD)


async def commit(cluster: LocalCluster, flush: str, seconds: float) -> list[Row]:
    """Measure transactions per second and the time of each, by number of partitions and of applications."""
    rows = []
    async with tidelog.connect(cluster.gateways()) as log:
        for width in WIDTHS:
            topic = f"commit-{width}"
            await create(log, topic, width, flush)
            for applications in APPLICATIONS:
                cpu, began = throughput.Cpu(cluster), trio.current_time()
                took: list[float] = []
                async with trio.open_nursery() as nursery:
                    for number in range(applications):
                        nursery.start_soon(_transact, log, f"app-{number}", topic, width, seconds, took)
                all_s = trio.current_time() - began
                used = sum(cpu.stop().values()) * all_s
                figures = {"tx/s": len(took) / all_s, **spread(took), "CPU ms each": used / len(took) * 1e3}
                rows.append(Row(f"{width} partitions, {applications} applications", flush, figures))
    return rows


async def _transact(log: Log, app: str, topic: str, width: int, seconds: float, took: list[float]) -> None:
    end = trio.current_time() + seconds
    while (began := trio.current_time()) < end:
        async with log.transaction(app) as tx:
            for partition in range(width):
                await tx.submit(topic, RECORD, partition=partition)
        took.append(trio.current_time() - began)


async def visible(cluster: LocalCluster, flush: str, seconds: float) -> list[Row]:
    """Measure the time until a consumer has a record, plain and in a transaction."""
    topic = "visible"
    plain: list[float] = []
    whole: list[float] = []
    decided: list[float] = []
    async with tidelog.connect(cluster.gateways()) as log:
        await create(log, topic, 1, flush)
        consumer = log.consume(topic)
        async with consumer, log.producer(topic) as producer:
            end = trio.current_time() + seconds
            while (began := trio.current_time()) < end:
                await producer.submit(RECORD)
                await anext(consumer)
                plain.append(trio.current_time() - began)
            end = trio.current_time() + seconds
            while (began := trio.current_time()) < end:
                async with log.transaction("app") as tx:
                    await tx.send(topic, RECORD)
                    asked = trio.current_time()
                await anext(consumer)
                whole.append(trio.current_time() - began)
                decided.append(trio.current_time() - asked)
    names = ("plain record", "record in a transaction, from begin", "  from its commit")
    return [Row(name, flush, spread(took)) for name, took in zip(names, (plain, whole, decided), strict=True)]


async def staged(cluster: LocalCluster, flush: str, seconds: float) -> list[Row]:
    """Measure writing in bulk, in staged transactions that are committed together and by idempotent producers."""
    rows = []
    async with tidelog.connect(cluster.gateways()) as log:
        await create(log, "staged", WORKERS, flush)
        for name in ("idempotent producers", "staged transactions"):
            cpu = throughput.Cpu(cluster)
            began = trio.current_time()
            sent: list[int] = []
            ids: list[str] = []
            async with trio.open_nursery() as nursery:
                for partition in range(WORKERS):
                    work = _produce if name.startswith("idempotent") else _stage
                    nursery.start_soon(work, log, partition, seconds, sent, ids)
            written = trio.current_time()
            if ids:
                assert await log.commit("etl", 0, ids)
            took = trio.current_time() - began
            mb = sum(sent) * len(LARGE) / 1e6
            used = sum(cpu.stop().values()) * took
            figures = {"MB/s": mb / took, "CPU ms/MB": used / mb * 1e3}
            if ids:
                figures["commit ms"] = (began + took - written) * 1e3
            rows.append(Row(f"{WORKERS} {name}", flush, figures))
    return rows


async def _produce(log: Log, partition: int, seconds: float, sent: list[int], _: list[str]) -> None:
    async with log.producer("staged") as producer:
        end, count = trio.current_time() + seconds, 0
        while trio.current_time() < end:
            await producer.submit(LARGE, partition=partition)
            count += 1
    sent.append(count)


async def _stage(log: Log, partition: int, seconds: float, sent: list[int], ids: list[str]) -> None:
    async with log.stage("etl") as tx:
        end, count = trio.current_time() + seconds, 0
        while trio.current_time() < end:
            await tx.submit("staged", LARGE, partition=partition)
            count += 1
    sent.append(count)
    ids.append(tx.id)


CASES: dict[str, Case] = {"commit": commit, "visible": visible, "staged": staged}


def report(rows: list[Row]) -> None:
    """Print a table for each kind of figures."""
    for names in dict.fromkeys(tuple(row.figures) for row in rows):
        table = Table("case", "flush", *names, box=None)
        for row in rows:
            if tuple(row.figures) == names:
                table.add_row(row.case, row.flush, *(f"{value:,.2f}" for value in row.figures.values()))
        CONSOLE.print(table)


@click.command()
@click.option("--seconds", type=float, default=3.0, show_default=True, help="Length of each measurement.")
@click.option("--flush", "flushes", multiple=True, default=("os",), show_default=True, help="Repeatable.")
@click.option("--case", "cases", multiple=True, type=click.Choice(list(CASES)), help="Only this one; repeatable.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write the figures here too.")
def main(seconds: float, flushes: tuple[str, ...], cases: tuple[str, ...], json_file: Path | None) -> None:
    """Run each case on a new cluster, for each flush policy, and print tables."""
    require_linux()
    end_with_sigterm()
    rows: list[Row] = []
    for flush in flushes:
        for name in cases or tuple(CASES):
            with running_cluster() as cluster:
                rows += trio.run(CASES[name], cluster, flush, seconds)
    report(rows)
    if json_file:
        json_file.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
