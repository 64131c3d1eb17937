"""The majority of the controllers is lost while gateways and replica servers serve throughout."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from running import HEAL_S, Cluster, in_sync, running_cluster, until
from tidelog.client.log import Log

pytestmark = pytest.mark.real

CLIENTS, RECORDS = 8, 10
"""Fresh clients, and what each of them sends."""
Acked = dict[tuple[str, int, int], bytes]
"""By topic, partition and offset."""


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of this test alone."""
    with running_cluster(tmp_path) as running:
        yield running


async def fresh_clients(cluster: Cluster, topic: str, name: str, acked: Acked) -> None:
    """Each connects, takes a producer id, sends, and is gone; what is acked goes into ``acked``."""
    for client in range(CLIENTS):
        async with cluster.connect() as log, log.producer(topic) as producer:
            for number in range(RECORDS):
                value = f"{name} {client} {number}".encode()
                ack = await producer.send(value)
                assert acked.setdefault((topic, ack.partition, ack.offset), value) == value, "an offset acked twice"


async def what_is_there(log: Log, topic: str) -> Acked:
    """All records of a topic that are committed."""
    found: Acked = {}
    partitions = (await log.topics.describe(topic, offsets=True)).partitions
    count = sum(partition.high_watermark - partition.log_start for partition in partitions)
    with trio.fail_after(HEAL_S):
        async for record in log.consume(topic, start="earliest"):
            found[topic, record.partition, record.offset] = record.value or b""
            if len(found) == count:
                break
    return found


def rescue(cluster: Cluster, survivor: str) -> None:
    """The others are gone for good, and it goes on alone."""
    config = cluster.folder / survivor / "config.toml"
    local = cluster.local
    for process in local.of_role("controller"):
        if process.id != survivor:
            shutil.rmtree(cluster.folder / process.id / "data")
    cluster.ok("controllers", "rescue", "--config", str(config), "--yes")
    local.restart(survivor)


async def test_all_that_was_acked_is_at_its_offset_after_a_rescue_with_a_survivor_that_was_down(
    own_cluster: Cluster,
) -> None:
    local, acked = own_cluster.local, Acked()
    async with own_cluster.connect() as log:
        await log.topics.create("orders", partitions=2, replication_factor=3)
        await log.topics.create("single", partitions=1, replication_factor=1)
        active = (await log.cluster.quorum()).active
        survivor = next(p.id for p in local.of_role("controller") if p.id != active)
        local.kill(survivor)
        only = (await log.topics.describe("single")).partitions[0].leader
        local.kill(only)  # a life of its server that the survivor will not know
        local.restart(only)
        await until(lambda: in_sync(log, "orders"))
        await until(lambda: in_sync(log, "single"))
        await fresh_clients(own_cluster, "orders", "before", acked)
        await fresh_clients(own_cluster, "single", "before", acked)
        local.kill(*(p.id for p in local.of_role("controller") if p.id != survivor))
        rescue(own_cluster, survivor)
        await until(lambda: in_sync(log, "orders"))
        await until(lambda: in_sync(log, "single"))
    for gateway in local.of_role("gateway"):  # so that they take new blocks of ids
        local.kill(gateway.id)
        local.restart(gateway.id)
    await fresh_clients(own_cluster, "orders", "after", acked)
    await fresh_clients(own_cluster, "single", "after", acked)
    async with own_cluster.connect() as log:
        there = await what_is_there(log, "orders") | await what_is_there(log, "single")
    assert {place: there.get(place) for place in acked} == acked
    assert len(there) == len(acked) == 4 * CLIENTS * RECORDS
