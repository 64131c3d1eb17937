"""The faults of the fixture ``tidelog_faulty_cluster``, one by one, from tests without a loop and on trio."""

from __future__ import annotations

import threading

import pytest
import tidelog
import trio
from tidelog.errors import Unreachable
from tidelog.sync import Log
from tidelog.testing import RealCluster
from tidelog.testing.real.cluster_tasks import Node

PATIENT = tidelog.ProducerOptions(delivery_timeout_s=120)
"""Options of producers that outlast any fault, also on a busy machine."""


def send(log: Log, value: bytes) -> None:
    with log.producer("orders", PATIENT) as producer:
        producer.send(value)


def values(cluster: RealCluster) -> list[bytes]:
    return [record.value for record in cluster.records("orders") if record.value is not None]


def test_a_killed_leader_is_replaced_and_comes_back_with_its_records(tidelog_faulty_cluster: RealCluster) -> None:
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"before")
        killed = cluster.kill_leader("orders")
        cluster.kill(killed)  # which changes nothing
        send(log, b"after")
        assert cluster.leader("orders") != killed
        cluster.restart(killed)
        live = {server.node for server in log.cluster.status().servers if not server.fenced}
        assert live == {"r1", "r2", "r3"}
        cluster.wait_in_sync("orders")
        for other in {"r1", "r2", "r3"} - {killed}:
            cluster.kill(other)
        assert cluster.records("orders") and cluster.leader("orders") == killed
    assert values(cluster) == [b"before", b"after"]


@pytest.mark.parametrize("node", ["c1", "r1", "g1"])
def test_every_server_can_be_restarted_and_clients_go_on(tidelog_faulty_cluster: RealCluster, node: str) -> None:
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"before")
        cluster.restart(node)
        send(log, b"after")
    assert values(cluster) == [b"before", b"after"]


def test_a_killed_server_takes_no_change_of_its_files(tidelog_faulty_cluster: RealCluster) -> None:
    """What its last tasks do while they are cancelled, such as the mark of a clean end, does not reach the disk."""
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"one")
    files = {path: path.stat() for path in cluster._folder.glob("r1/**/*")}
    cluster.kill("r1")
    after = {path: path.stat() for path in cluster._folder.glob("r1/**/*")}
    assert files and after.keys() == files.keys()
    assert {path: stat.st_mtime_ns for path, stat in after.items()} == {
        path: stat.st_mtime_ns for path, stat in files.items()
    }


def open_link(cluster: RealCluster, node: str, other: str) -> None:
    """Open a connection from one server to another, as its own requests do, and close it."""
    nodes = cluster._tasks._nodes

    async def connect() -> None:
        connection = await nodes[node].transport.connect(nodes[other].port.url)
        await connection.aclose()

    cluster._thread.run(connect)


def test_what_is_cut_off_is_reached_by_nobody_until_it_is_healed(tidelog_faulty_cluster: RealCluster) -> None:
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    cluster.cut("g1")
    with pytest.raises(Unreachable), tidelog.sync.connect(cluster.address, connect_timeout_s=0.5):
        raise AssertionError
    cluster.heal()
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"one")
        leader = cluster.leader("orders")
        cluster.cut(leader)
        send(log, b"two")
        assert cluster.leader("orders") != leader
        cluster.heal()
    assert values(cluster) == [b"one", b"two"]


def test_a_cut_between_two_servers_outlasts_a_restart(tidelog_faulty_cluster: RealCluster) -> None:
    """A follower that does not reach its leader leaves the ISR, although both reach the controller."""
    cluster = tidelog_faulty_cluster
    cluster.topic("orders", replication_factor=2, replica_max_lag_ms=500)
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"one")
        (partition,) = log.topics.describe("orders").partitions
        (follower,) = set(partition.replicas) - {partition.leader}
        cluster.cut(partition.leader, follower)
        cluster.restart(follower)
        for one, other in ((partition.leader, follower), (follower, partition.leader)):
            with pytest.raises(Unreachable, match="the link is cut"):
                open_link(cluster, one, other)
        send(log, b"two")
        (partition,) = log.topics.describe("orders").partitions
        assert len(partition.isr) == 1
        cluster.heal()
        open_link(cluster, partition.leader, follower)
        cluster.wait_in_sync("orders")
    assert values(cluster) == [b"one", b"two"]


def test_a_paused_leader_is_replaced_and_goes_on_as_a_follower(tidelog_faulty_cluster: RealCluster) -> None:
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"one")
        leader = cluster.leader("orders")
        cluster.pause(leader)
        send(log, b"two")
        assert cluster.leader("orders") != leader
        cluster.heal()
        send(log, b"three")
    assert values(cluster) == [b"one", b"two", b"three"]


def test_a_slow_disk_holds_up_acks_until_it_is_quick_again(tidelog_faulty_cluster: RealCluster) -> None:
    """Each server's sync would take an hour: nothing is acknowledged before ``heal`` lets the syncs return."""
    cluster = tidelog_faulty_cluster
    cluster.topic("orders", replication_factor=1)
    slow = cluster.leader("orders")
    with tidelog.sync.connect(cluster.address) as log, log.producer("orders", PATIENT) as producer:
        producer.send(b"one")
        cluster.slow_disk(slow, 3600)
        pending = producer.submit(b"two")
        assert values(cluster) == [b"one"]
        cluster.heal()
        assert pending.wait().offset == 1


def test_a_slow_and_paused_cluster_ends_without_waiting_for_that(tidelog_faulty_cluster: RealCluster) -> None:
    """The end of the fixture is what is tested: it would take an hour."""
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    for node in ("r1", "r2", "r3"):
        cluster.slow_disk(node, 3600)
    hasty = tidelog.ProducerOptions(delivery_timeout_s=0.5)
    with (
        tidelog.sync.connect(cluster.address) as log,
        pytest.raises(tidelog.DeliveryFailed),
        log.producer("orders", hasty) as producer,
    ):
        producer.submit(b"one")
    for node in cluster.nodes:
        cluster.pause(node)


async def test_the_awaitable_form_leaves_the_loop_of_a_trio_test_free(tidelog_faulty_cluster: RealCluster) -> None:
    cluster, ticks = tidelog_faulty_cluster, 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await trio.lowlevel.checkpoint()
            ticks += 1

    await cluster.awaitable.topic("orders")
    async with tidelog.connect(cluster.address) as log, log.producer("orders", PATIENT) as producer:
        await producer.send(b"one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tick)
            await trio.lowlevel.checkpoint()
            before = ticks
            killed = await cluster.awaitable.kill_leader("orders")
            await cluster.awaitable.restart(killed)
            assert ticks > before + 1
            nursery.cancel_scope.cancel()
        leader = await cluster.awaitable.leader("orders")
        for call in (cluster.awaitable.cut, cluster.awaitable.pause):
            await call(leader)
            await cluster.awaitable.heal()
        await cluster.awaitable.slow_disk(leader, 0)
        await cluster.awaitable.wait_in_sync("orders")
        await cluster.awaitable.kill(leader)
        await producer.send(b"two")
    assert [record.value for record in await cluster.awaitable.records("orders")] == [b"one", b"two"]


def test_several_threads_may_use_a_cluster_at_once(tidelog_faulty_cluster: RealCluster) -> None:
    cluster = tidelog_faulty_cluster
    cluster.topic("orders")
    threads = [threading.Thread(target=cluster.restart, args=(node,)) for node in ("r1", "r2", "r3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with tidelog.sync.connect(cluster.address) as log:
        send(log, b"one")
    assert values(cluster) == [b"one"]


def test_a_kept_port_is_given_to_nobody_else() -> None:
    node = Node("r1")
    try:
        assert node.port.url == f"ws://127.0.0.1:{node.port.number}"
    finally:
        node.port.close()
