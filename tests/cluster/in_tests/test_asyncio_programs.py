"""Programs on asyncio while a test injects faults: a producer and a group of consumers go on, and nothing that was
acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import tidelog
from tidelog.testing import RealCluster

RECORDS = 120
FAULT_AT = (30, 60, 90)
"""Numbers of acknowledged records at which the fault begins, at which it ends, and until which nothing else may be
read: the program must go on in each part."""
PATIENT = tidelog.ProducerOptions(delivery_timeout_s=120)
"""Options of producers that outlast any fault, also on a busy machine."""


class Progress:
    """The numbers that a program has handled, which others wait for."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._grown = asyncio.Condition()

    async def add(self, number: int) -> None:
        async with self._grown:
            self.numbers.append(number)
            self._grown.notify_all()

    async def reach(self, count: int) -> None:
        """Wait until so many different numbers were handled."""
        async with self._grown:
            await self._grown.wait_for(lambda: len(set(self.numbers)) >= count)


async def produce(address: str, acked: Progress) -> None:
    """Send the numbers in order, each when the one before is acknowledged."""
    async with tidelog.aio.connect(address) as log, log.producer("orders", PATIENT) as producer:
        for number in range(RECORDS):
            await producer.send(b"%d" % number, key=b"%d" % (number % 7))
            await acked.add(number)


async def consume(address: str, seen: Progress) -> None:
    """Read as a member of a group, until cancelled."""
    quick = tidelog.GroupOptions(session_timeout_s=2.0, auto_commit_s=0.05)
    async with tidelog.aio.connect(address) as log:
        async for record in log.consume("orders", group="billing", group_options=quick):
            assert record.value is not None
            await seen.add(int(record.value))


Fault = Callable[[RealCluster], Awaitable[Callable[[], Awaitable[None]]]]
"""Injects a fault, and returns what ends it."""


async def kill_leader(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    killed = await cluster.awaitable.kill_leader("orders")
    return lambda: cluster.awaitable.restart(killed)


async def kill_coordinator(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    killed = await cluster.awaitable.kill_leader("__groups")
    return lambda: cluster.awaitable.restart(killed)


async def cut_leader_from_gateway(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    await cluster.awaitable.cut(await cluster.awaitable.leader("orders"), "g1")
    return cluster.awaitable.heal


async def cut_leader_off(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    await cluster.awaitable.cut(await cluster.awaitable.leader("orders"))
    return cluster.awaitable.heal


async def pause_leader(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    await cluster.awaitable.pause(await cluster.awaitable.leader("orders"))
    return cluster.awaitable.heal


async def slow_disk(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    await cluster.awaitable.slow_disk(await cluster.awaitable.leader("orders"), 0.2)
    return cluster.awaitable.heal


async def restart_gateway(cluster: RealCluster) -> Callable[[], Awaitable[None]]:
    await cluster.awaitable.kill("g1")
    await cluster.awaitable.restart("g1")
    return cluster.awaitable.heal


GOING_ON = [kill_leader, kill_coordinator, cut_leader_off, pause_leader, slow_disk, restart_gateway]
"""Faults during which acknowledgements go on."""


async def run_programs(cluster: RealCluster, fault: Fault, acked: Progress, seen: Progress) -> None:
    """Run a producer and two consumers until everything is consumed, with the fault from the first to the second
    number of ``FAULT_AT``."""
    await cluster.awaitable.topic("orders", partitions=2)
    async with AsyncExitStack() as stack:
        group = await stack.enter_async_context(asyncio.TaskGroup())
        members = [group.create_task(consume(cluster.address, seen)) for _ in range(2)]
        await _run_load(cluster, fault, acked, seen, group)
        for member in members:
            member.cancel()


async def _run_load(
    cluster: RealCluster, fault: Fault, acked: Progress, seen: Progress, group: asyncio.TaskGroup
) -> None:
    group.create_task(produce(cluster.address, acked))
    begins, ends, goes_on = FAULT_AT
    await acked.reach(begins)
    await seen.reach(1)  # the group has a coordinator
    end_fault = await fault(cluster)
    await acked.reach(ends)
    await seen.reach(ends)
    await end_fault()
    await acked.reach(goes_on)
    await seen.reach(RECORDS)


@pytest.mark.parametrize("fault", GOING_ON, ids=lambda fault: fault.__name__)
def test_a_producer_and_a_group_go_on_through_a_fault(tidelog_faulty_cluster: RealCluster, fault: Fault) -> None:
    async def main() -> tuple[list[int], list[int]]:
        acked, seen = Progress(), Progress()
        async with asyncio.timeout(300):
            await run_programs(tidelog_faulty_cluster, fault, acked, seen)
        return acked.numbers, seen.numbers

    acked, seen = asyncio.run(main())
    assert acked == list(range(RECORDS)) and set(seen) == set(acked)
    kept = [int(record.value or b"") for record in tidelog_faulty_cluster.records("orders")]
    assert sorted(kept) == acked, "what was acknowledged is there, and once"


def test_a_leader_without_its_gateway_holds_the_program_up_until_the_link_is_healed(
    tidelog_faulty_cluster: RealCluster,
) -> None:
    """The leader is fine and stays leader: nobody but the gateway misses it."""

    async def main() -> list[int]:
        cluster, acked, seen = tidelog_faulty_cluster, Progress(), Progress()
        await cluster.awaitable.topic("orders")
        async with asyncio.timeout(300), asyncio.TaskGroup() as group:
            group.create_task(produce(cluster.address, acked))
            await acked.reach(10)
            end_fault = await cut_leader_from_gateway(cluster)
            held = len(acked.numbers)
            reading = asyncio.create_task(seen.reach(1))
            done, _ = await asyncio.wait([reading], timeout=0.2)
            reading.cancel()
            assert not done and len(acked.numbers) <= held + 1
            await end_fault()
            await acked.reach(RECORDS)
        return acked.numbers

    acked = asyncio.run(main())
    kept = [int(record.value or b"") for record in tidelog_faulty_cluster.records("orders")]
    assert kept == acked == list(range(RECORDS))
