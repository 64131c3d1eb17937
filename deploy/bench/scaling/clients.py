"""The cases that measure what idle clients cost the gateway: connections, and subscriptions at the end of a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import tidelog
import trio
from bench import replicas, throughput
from bench.harness.processes import resident_mb
from bench.scaling.load import Run, counter
from bench.scaling.report import Panel, Table

CLIENTS = (500, 1000, 2000)
"""Numbers of connections or subscriptions that are measured."""
PER_CLIENT = 500
"""Subscriptions of one client."""
OPENING = 20
"""Connections that are opened at a time."""
SETTLE_S = 3.0
"""Seconds between opening and measuring."""


async def open_clients(run: Run, table: Table, add: Callable[[trio.Nursery, int], Awaitable[None]]) -> list[Table]:
    """Open more and more clients by ``add`` (which opens this many, to stay until the end), add a row to the table
    for each number, and return the table."""
    pid = run.cluster.get("g1").pid
    async with trio.open_nursery() as nursery:
        there, held = 0, resident_mb(pid)
        for count in (0, *run.some(CLIENTS)):
            cpu, began = throughput.Cpu(run.cluster), trio.current_time()
            await add(nursery, count - there)
            opened_s = (trio.current_time() - began) * cpu.stop()["g1"]
            await trio.sleep(SETTLE_S)
            cpu = throughput.Cpu(run.cluster)
            await trio.sleep(run.seconds)
            row = {table.axis: count, "gateway, MB": resident_mb(pid), "idle CPU, %": cpu.stop()["g1"] * 100}
            if count:
                row["KB each"] = (row["gateway, MB"] - held) * 1e3 / (count - there)
                row["CPU ms to open each"] = opened_s * 1e3 / (count - there)
            table.add(row)
            there, held = count, row["gateway, MB"]
        nursery.cancel_scope.cancel()
    return [table]


def clients_table(name: str, what: str) -> Table:
    """Return an empty table of idle clients. ``KB each``: memory of those that were added since the row before."""
    return Table(
        name,
        f"Idle {what} at the gateway",
        {what: 0, "gateway, MB": 1, "KB each": 1, "CPU ms to open each": 2, "idle CPU, %": 2},
        (Panel("MB", ("gateway, MB",)), Panel("% of a core", ("idle CPU, %",))),
        "KB each",
    )


async def connections(run: Run) -> list[Table]:
    """Measure clients that connect and send nothing more."""

    async def one(task_status: trio.TaskStatus[None]) -> None:
        async with run.connect():
            task_status.started()
            await trio.sleep_forever()

    async def add(nursery: trio.Nursery, count: int) -> None:
        limiter = trio.CapacityLimiter(OPENING)

        async def limited() -> None:
            async with limiter:
                await nursery.start(one)

        async with trio.open_nursery() as opening:
            for _ in range(count):
                opening.start_soon(limited)

    return await open_clients(run, clients_table("connections", "connections"), add)


async def subscriptions(run: Run) -> list[Table]:
    """Measure consumers at the end of a topic to which nothing is written."""
    await run.create("idle", 1)

    async def subscribe(log: tidelog.Log) -> None:
        async with log.consume("idle", start="latest") as consumer:
            assert await consumer.next_batch() is None

    async def client(count: int, task_status: trio.TaskStatus[None]) -> None:
        async with run.connect() as log, trio.open_nursery() as nursery:
            for _ in range(count):
                nursery.start_soon(subscribe, log)
            task_status.started()

    wanted = 0

    async def add(nursery: trio.Nursery, count: int) -> None:
        nonlocal wanted
        wanted += count
        for first in range(0, count, PER_CLIENT):
            await nursery.start(client, min(PER_CLIENT, count - first))

        async def enough() -> bool:
            return await counter(run.cluster, "subscriptions") >= wanted

        await replicas.until(enough)

    what = f"subscriptions, {PER_CLIENT} of each client"
    return await open_clients(run, clients_table("subscriptions", what), add)
