"""Whole clusters over real loopback sockets and disks: what a client sees, also when processes end."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from tidelog.wire.messages import Credit, Subscribe

from cluster.harness import Client, Cluster, connected, running


async def produce_all(client: Client, topic_id: str, values: list[bytes]) -> list[int]:
    """Send every value as a batch of its own, all in flight at once; returns the offsets."""
    ids = [client.send(topic_id, value) for value in values]
    acks = [await client.wait_ack(id) for id in ids]
    assert [ack.error for ack in acks] == [None] * len(acks)
    return [ack.offset for ack in acks]


@pytest.mark.parametrize("controllers", [1, 3])
async def test_produce_and_read_back(tmp_path: Path, controllers: int) -> None:
    async with running(tmp_path, controllers=controllers) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders", partitions=2)
        values = [b"%d" % i for i in range(50)]
        assert await produce_all(client, topic_id, values) == list(range(50))
        records = await client.read(topic_id, 50)
        assert [record.value for record in records] == values
        assert [record.offset for record in records] == list(range(50))


async def test_the_leader_ends_while_batches_are_in_flight(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders")
        await produce_all(client, topic_id, [b"before"])
        leader = (await client.partition("orders")).leader
        values = [b"%d" % i for i in range(40)]
        ids = [client.send(topic_id, value) for value in values[:20]]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cluster.stop, leader)
            ids += [client.send(topic_id, value) for value in values[20:]]
        acks = [await client.wait_ack(id) for id in ids]
        assert [ack.error for ack in acks] == [None] * 40
        records = await client.read(topic_id, 41)
        assert [record.value for record in records] == [b"before", *values]
        assert (await client.partition("orders")).leader not in ("", leader)


async def test_a_replica_server_returns_and_catches_up(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders", min_insync_replicas="1")
        await produce_all(client, topic_id, [b"one"])
        leader = (await client.partition("orders")).leader
        await cluster.stop(leader)
        await produce_all(client, topic_id, [b"two"])
        await cluster.start(leader)
        await wait_in_sync(client, "orders", 3)
        others = [node for node in ("r1", "r2", "r3") if node != leader]
        for node in others:
            await cluster.stop(node)
        records = await client.read(topic_id, 2)
        assert [record.value for record in records] == [b"one", b"two"]


async def test_the_active_controller_ends(tmp_path: Path) -> None:
    async with running(tmp_path, controllers=3) as cluster, connected(cluster) as client:
        await client.init()
        await client.create("before")
        for node in list(cluster.controllers):
            await cluster.stop(node)
            topic_id = await client.create(f"without-{node}")
            assert await produce_all(client, topic_id, [b"x"]) == [0]
            await cluster.start(node)


async def test_everything_is_there_after_a_restart_of_all(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders")
        await produce_all(client, topic_id, [b"%d" % i for i in range(20)])
        await stop_all(cluster)
    async with running(tmp_path) as cluster, connected(cluster) as client:
        records = await client.read(topic_id, 20)
        assert [record.value for record in records] == [b"%d" % i for i in range(20)]
        await client.init()
        assert await produce_all(client, topic_id, [b"after"]) == [20]


async def test_a_subscription_survives_a_failover(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders")
        await client.link.call(Subscribe(1, topic_id, 0, 0, 1 << 20), 5)
        await produce_all(client, topic_id, [b"one"])
        await client.wait_deliveries(1)
        await cluster.stop((await client.partition("orders")).leader)
        await produce_all(client, topic_id, [b"two"])
        client.link.post(Credit(1, 1 << 20))
        records = await client.wait_deliveries(2)
        assert [(record.offset, record.value) for record in records] == [(0, b"one"), (1, b"two")]


async def wait_in_sync(client: Client, topic: str, replicas: int) -> None:
    """Until the ISR has so many members; the gateway has no push for it, so ask."""
    with trio.fail_after(30):
        while len((await client.partition(topic)).isr) < replicas:
            await trio.lowlevel.checkpoint()


async def stop_all(cluster: Cluster) -> None:
    for node in ("g1", "r1", "r2", "r3", *cluster.controllers):
        await cluster.stop(node)


async def test_C15_replica_servers_stopped_in_order_one_after_the_other_fail_no_produce(tmp_path: Path) -> None:
    async with running(tmp_path, shutdown_s=20.0) as cluster, connected(cluster) as client:
        await client.init()
        topic_id = await client.create("orders", min_insync_replicas="2")
        for node in ("r1", "r2", "r3"):
            await wait_in_sync(client, "orders", 3)
            ids = [client.send(topic_id, b"%d" % number) for number in range(20)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cluster.stop, node)
                ids += [client.send(topic_id, b"%d" % number) for number in range(20)]
            errors = [(await client.wait_ack(id)).error for id in ids]
            refused = [error for error in errors if error]
            assert {error.code for error in refused} <= {"UNVERIFIED_SEQUENCE"}, (
                "it may be written, by an earlier try"
            )
            assert all(error.unknown_outcome for error in refused)
            assert (tmp_path / node / "clean-shutdown").exists()
            await cluster.start(node)
            assert not (tmp_path / node / "clean-shutdown").exists()
