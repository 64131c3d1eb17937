"""Every metric of every process moves with the events that it counts, and by the right amount.

Each story acts on a small cluster of real shells in virtual time and reads the metrics of the processes. Each metric
that it names must have changed, and numbers that can be predicted are compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tidelog
import trio
from tidelog import ProducerOptions
from tidelog.acl import id_of
from tidelog.batch.format import encode_batch, read_header, seal_batch
from tidelog.client.core import batch as client_batch
from tidelog.errors import TidelogError
from tidelog.sansio.recent_sums import WINDOW_S
from tidelog.testing.shells.services import GATEWAY_URL
from tidelog.types import Quota
from tidelog_controller.observability import metrics as controller
from tidelog_gateway.observability import metrics as gateway
from tidelog_gateway.settings import ConnectionSettings
from tidelog_replica.observability import group_metrics
from tidelog_replica.observability import metrics as replica
from trio.testing import MockClock

from simulation.faults.altered import alter, forget_indexes
from simulation.staged import Stage, Staged, play

LEADER = ProducerOptions(acks="leader")
BRIEFLY = ProducerOptions(delivery_timeout_s=1.0, request_timeout_s=0.5)
WITHOUT_ID = ProducerOptions(idempotent=False, delivery_timeout_s=5.0, request_timeout_s=0.5)
Story = Callable[[Stage], Awaitable[None]]


async def send(
    stage: Stage, topic: str, count: int, options: ProducerOptions | None = None, partition: int = 0
) -> None:
    """Send so many batches of one record of 100 bytes."""
    async with stage.log.producer(topic, options) as producer:
        for _ in range(count):
            await producer.send(b"x" * 100, partition=partition)


async def records_come_and_go(stage: Stage) -> None:
    log, value = stage.log, stage.value
    await log.topics.create(
        "t", replication_factor=3, config={"min_insync_replicas": "2", "segment_max_bytes": "1024"}
    )
    await stage.until_in_sync("t")
    assert value("tidelog_topics") == value("tidelog_partitions") == 1
    assert value("tidelog_gateway_connections") == 1 and value("tidelog_gateway_metadata_index") > 0
    assert value("tidelog_replica_partitions{leader}") == 1 and value("tidelog_replica_partitions{follower}") == 2
    await send(stage, "t", 20)
    await stage.until_shown(40.0, "tidelog_replica_replicated_batches")
    for name in ("gateway_produced_batches", "gateway_produced_records", "gateway_produce_latency_seconds"):
        assert value(f"tidelog_{name}") == 20, name
    for name in ("replica_produced_batches", "replica_produced_records", "commit_latency_seconds"):
        assert value(f"tidelog_{name}") == 20, name
    size = value("tidelog_replica_produced_bytes")
    assert size == value("tidelog_gateway_produced_bytes") > 20 * 100
    assert size == value("tidelog_replica_replicated_bytes") / 2 == value("tidelog_replica_log_bytes") / 3
    assert value("tidelog_replica_fetched_bytes") >= 2 * size and value("tidelog_replica_fetches") > 0
    assert value("tidelog_replica_notices") > 0 < value("tidelog_replica_fetch_latency_seconds")
    assert value("tidelog_replica_segments") == 3 * -(-size // 1024)
    assert len([r async for r in log.consume("t", start="earliest", end="latest")]) == 20
    assert value("tidelog_gateway_delivered_records") == 20 and value("tidelog_gateway_delivered_bytes") >= size
    assert value("tidelog_gateway_deliveries") > 0 < value("tidelog_gateway_subscription_reads")
    assert value("tidelog_replica_reads") > 0 and value("tidelog_replica_read_bytes") >= size
    assert value("tidelog_gateway_requests{produce}") == 20

    async with trio.open_nursery() as nursery:
        for _ in range(2):  # a tail is kept for those who share it
            nursery.start_soon(_read_on, stage)
        await stage.until_shown(2.0, "tidelog_gateway_subscriptions")
        await stage.until_shown(1.0, "tidelog_gateway_long_polls")  # both wait for the same
        for _ in range(10):  # more than may be on its way from a replica server
            nursery.start_soon(_read_back, stage)
        await stage.until(lambda: value("tidelog_gateway_queued_reads") > 0)
        await send(stage, "t", 2)  # with the first each has shown that it waits
        await stage.until(lambda: value("tidelog_gateway_tail_cache_bytes") > 100)
        await stage.until(lambda: value("tidelog_gateway_end_to_end_latency_seconds") > 0)
        await log.topics.delete("t")
        await stage.until_shown(2.0, "tidelog_gateway_ended_subscriptions{UNKNOWN_TOPIC}")
    await stage.until_shown(0.0, "tidelog_gateway_subscriptions")
    await stage.until_shown(0.0, "tidelog_replica_log_bytes")


async def _read_back(stage: Stage) -> None:
    assert len([r async for r in stage.log.consume("t", start="latest", reverse=True)]) == 20


async def _read_on(stage: Stage) -> None:
    try:
        async for _ in stage.log.consume("t", start="latest"):
            pass
    except TidelogError as error:
        assert error.code == "UNKNOWN_TOPIC"


async def a_leader_dies(stage: Stage) -> None:
    log, value, services = stage.log, stage.value, stage.services
    await log.topics.create("t", replication_factor=3, config={"min_insync_replicas": "3"})
    await log.topics.create("alone", replication_factor=1)
    await stage.until_in_sync("t")
    alone = await stage.leader("alone")
    if await stage.leader("t") != alone:
        await log.partitions.transfer("t", 0, alone)
        await stage.until(lambda: value(f"tidelog_partition_leaders{{{alone}}}") == 2)
    else:
        await log.partitions.transfer("t", 0)
    await stage.until(lambda: stage.seen["tidelog_not_preferred_partitions"] == {0.0, 1.0})
    leader = await stage.leader("t")
    led = 1 + (leader == alone)
    before = stage.figures()
    services.kill(leader)
    await stage.until_shown(1.0, "tidelog_servers{fenced}")
    await stage.until(lambda: value("tidelog_offline_partitions") == led - 1)
    grown = {name: number - before.get(name, 0.0) for name, number in stage.figures().items()}
    assert grown["tidelog_fences"] == 1 and grown["tidelog_servers{live}"] == -1
    assert sum(number for name, number in grown.items() if name.startswith("tidelog_elections{")) == 1
    assert grown["tidelog_lost_leaders"] == led - 1
    assert value("tidelog_under_replicated_partitions") >= 1 == value("tidelog_under_min_isr_partitions")
    await stage.until_shown(1.0, "tidelog_replica_under_min_isr_partitions")
    assert (
        value("tidelog_replica_isr_size_partitions{2}") == value("tidelog_replica_under_replicated_partitions") == 1
    )
    try:
        await send(stage, "t", 1, BRIEFLY)
    except TidelogError as error:
        assert "NOT_ENOUGH_REPLICAS" in str(error)
    assert value("tidelog_replica_produce_errors{NOT_ENOUGH_REPLICAS}") >= 1
    assert value("tidelog_gateway_produce_errors{NOT_ENOUGH_REPLICAS}") >= 1
    services.start(leader)
    await stage.until(lambda: value("tidelog_replica_isr_size_partitions{3}") == 1)
    assert value("tidelog_isr_changes{isr_expanded}") == 1, "the election took the old leader out"
    await stage.until(lambda: value("tidelog_follower_catch_up_seconds") >= 1)


async def servers_run_late(stage: Stage) -> None:
    """Let time pass in which no process runs, as when a machine has no time for them."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    assert stage.value("tidelog_replica_late_ratio", "r1") < 0.01
    for _ in range(10):
        clock.jump(0.4)
        await stage.tick(0.1)
    assert 0.05 < stage.value("tidelog_replica_late_ratio", "r1") <= 10 * 0.4 / WINDOW_S
    await stage.tick(2 * WINDOW_S)
    assert stage.value("tidelog_replica_late_ratio", "r1") < 0.01


async def gateways_wait(stage: Stage) -> None:
    """Let gateways wait for a leader that does not answer, and then stops."""
    log, value = stage.log, stage.value
    await log.topics.create("t", replication_factor=3)
    await stage.until_in_sync("t")
    leader = await stage.leader("t")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_read_on, stage)
        await stage.until_shown(1.0, "tidelog_gateway_subscriptions")
        stage.net.block("g1", leader, 60.0)
        nursery.start_soon(send, stage, "t", 1)
        await stage.until_shown(1.0, "tidelog_gateway_in_flight_batches")
        assert value("tidelog_gateway_held_bytes") == value("tidelog_gateway_produced_bytes") > 100
        stage.services.kill(leader)
        await stage.until_shown(0.0, "tidelog_gateway_held_bytes")
        await stage.until_shown(1.0, "tidelog_gateway_delivered_records")
        for name in ("tidelog_gateway_produce_retries", "tidelog_gateway_read_retries"):
            assert value(name) >= 1
        await stage.until(lambda: value(f"tidelog_gateway_server_unreachable_seconds{{{leader}}}") > 1)
        nursery.cancel_scope.cancel()


async def controllers_come_and_go(stage: Stage) -> None:
    log, value, services = stage.log, stage.value, stage.services
    active = stage.active
    away, other = [node for node in ("c1", "c2", "c3") if node != active]
    services.kill(away)
    term = value("tidelog_raft_term", active)
    for number in range(20):
        await log.topics.create(f"t{number}")
    with pytest.raises(TidelogError, match="TOPIC_EXISTS"):
        await log.topics.create("t0")
    assert value("tidelog_controller_refused_requests{TOPIC_EXISTS}") == 1
    assert value("tidelog_controller_requests{create_topic}") == 21 and value("tidelog_topics") == 20
    assert value("tidelog_raft_snapshots", active) >= 1 <= value("tidelog_raft_snapshot_bytes", active)
    services.start(away)
    await stage.until_shown(1.0, "tidelog_raft_installed_snapshots", away)
    stage.thread_s = 2.0
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(log.partitions.set_read_only, f"t{number}")
        await stage.until(lambda: value("tidelog_controller_waiting_inputs", active) > 0)
        stage.thread_s = 0.002
    assert value("tidelog_read_only_partitions") == 5
    services.kill(other)
    services.kill(away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.partitions.set_read_only, "t9")
        await stage.until(lambda: value("tidelog_controller_waiting_requests", active) > 0)
        services.start(other)
        services.start(away)
    await stage.until_shown(6.0, "tidelog_read_only_partitions")
    assert value("tidelog_controller_waiting_requests") == value("tidelog_controller_waiting_inputs") == 0
    services.kill(stage.active)
    await stage.until(lambda: value("tidelog_controller_active") == 1)
    assert value("tidelog_raft_term", stage.active) > term
    assert value("tidelog_raft_elections", stage.active) >= value("tidelog_controller_activations", stage.active) >= 1


async def the_controllers_are_gone(stage: Stage) -> None:
    log, services = stage.log, stage.services
    await log.topics.create("t", replication_factor=3)
    await stage.until_in_sync("t")
    leader = await stage.leader("t")
    for node in ("c1", "c2", "c3"):
        services.kill(node)
    await stage.until(lambda: stage.value("tidelog_replica_session_lapsed_seconds", leader) > 0)
    await send(stage, "t", 1, WITHOUT_ID)
    assert stage.value("tidelog_replica_unconfirmed_partitions", leader) == 0
    services.kill(next(node for node in ("r1", "r2", "r3") if node != leader))
    while not stage.value("tidelog_replica_unconfirmed_partitions", leader):
        with suppress(TidelogError):
            await send(stage, "t", 1, WITHOUT_ID)
    for node in ("c1", "c2", "c3"):
        services.start(node)
    await stage.until_shown(0.0, "tidelog_replica_session_lapsed_seconds", leader)
    await stage.until_shown(0.0, "tidelog_replica_unconfirmed_partitions", leader)


async def an_old_disk_comes_back(stage: Stage) -> None:
    """Restore a controller's disk from before the last topics."""
    value, services = stage.value, stage.services
    old = next(node for node in ("c1", "c2", "c3") if node != stage.active)
    folder, copy = services.folder / old, services.folder / f"{old}-copy"
    services.kill(old)
    shutil.copytree(folder, copy)
    services.start(old)
    for number in range(5):
        await stage.log.topics.create(f"t{number}")
    await stage.until(
        lambda: value("tidelog_raft_applied_index", old) == value("tidelog_raft_commit_index", stage.active)
    )
    for _ in range(10):  # heartbeats tell the others what it has acknowledged
        await stage.tick()
    services.kill(old)
    shutil.rmtree(folder)
    copy.rename(folder)
    services.start(old)
    await stage.until_shown(1.0, "tidelog_raft_rolled_back", old, every_s=0.001)
    await stage.until_shown(0.0, "tidelog_raft_rolled_back", old)
    assert value("tidelog_raft_rolled_back") == 0.0


async def partitions_are_moved_and_paused(stage: Stage) -> None:
    log, value = stage.log, stage.value
    await log.topics.create("t", replication_factor=2)
    replicas = (await log.topics.describe("t")).partitions[0].replicas
    new = next(node for node in ("r1", "r2", "r3") if node not in replicas)
    leader = await stage.leader("t")
    stage.net.block(leader, new, 1.0)
    await log.partitions.reassign("t", 0, [leader, new])
    await stage.until_shown(1.0, "tidelog_reassigning_partitions")
    await stage.until_shown(0.0, "tidelog_reassigning_partitions")
    assert value(f"tidelog_partition_replicas{{{new}}}") == 1
    await log.partitions.pause("t")
    await stage.until_shown(1.0, "tidelog_paused_partitions")
    await stage.until_shown(0.0, "tidelog_replica_partitions{follower}")
    assert value("tidelog_replica_partitions{leader}") == value("tidelog_replica_partitions{idle}") == 0
    await log.partitions.resume("t")
    await stage.until_shown(0.0, "tidelog_paused_partitions")
    await log.partitions.set_read_only("t")
    await stage.until_shown(1.0, "tidelog_read_only_partitions")
    await log.partitions.set_read_only("t", read_only=False)
    await stage.until_shown(0.0, "tidelog_read_only_partitions")
    await log.cluster.drain_server(new)
    await stage.until_shown(1.0, "tidelog_servers{draining}")
    await log.cluster.drain_server(new, drain=False)
    await stage.until_shown(0.0, "tidelog_servers{draining}")


async def a_follower_lags(stage: Stage) -> None:
    log, value = stage.log, stage.value
    config = {"min_insync_replicas": "1", "replica_max_lag_ms": "1600"}
    await log.topics.create("t", replication_factor=3, config=config)
    await stage.until_in_sync("t")
    leader = await stage.leader("t")
    follower = next(node for node in ("r1", "r2", "r3") if node != leader)
    stage.net.block(leader, follower, 60.0)
    await send(stage, "t", 5, LEADER)
    await stage.until_shown(5.0, f"tidelog_partition_lag_records{{t,0,{follower}}}")
    assert value(f"tidelog_replication_lag_records{{{follower}}}") == 5
    assert value(f"tidelog_replication_largest_lag_records{{{follower}}}") == 5
    assert value(f"tidelog_replication_lag_seconds{{{follower}}}") > 1
    assert value("tidelog_catching_up_replicas", follower) == 1
    await stage.until(lambda: value(f"tidelog_server_lag_seconds{{{follower}}}") > 1)
    await stage.until_shown(1.0, "tidelog_slow_servers")
    unreachable = f"tidelog_replica_peer_unreachable_seconds{{{leader}}}"
    await stage.until(lambda: value(unreachable, follower) > 1)
    stage.net.heal()
    await stage.until_in_sync("t")
    assert unreachable not in stage.figures(follower)
    await stage.until_shown(0.0, "tidelog_catching_up_replicas")
    await stage.until_shown(0.0, f"tidelog_server_lag_seconds{{{follower}}}")
    assert value(f"tidelog_replication_lag_records{{{follower}}}") == 0
    assert f"tidelog_partition_lag_records{{t,0,{follower}}}" not in stage.figures()


async def a_server_is_slow(stage: Stage) -> None:
    """Make every ack later than the target, and send more than is acked."""
    log, value = stage.log, stage.value
    await log.topics.create("t", replication_factor=1)
    await stage.until_in_sync("t")
    server, principal = await stage.leader("t"), "anonymous"
    async with trio.open_nursery() as nursery:

        async def keep_sending() -> None:
            async with log.producer("t") as producer:
                while True:
                    await producer.send(b"x" * 1000)

        for _ in range(8):  # while some are flushed, the others arrive
            nursery.start_soon(keep_sending)
        await stage.until(lambda: value("tidelog_gateway_produced_records") > 8)
        stage.thread_s = 0.5
        await stage.until(lambda: value(f"tidelog_gateway_server_slow_intervals{{{server}}}") >= 1)
        await stage.until(lambda: value(f"tidelog_gateway_server_limit_bytes_per_second{{{server}}}") >= 1 << 10)
        await stage.until(lambda: value(f"tidelog_gateway_throttle_holds{{{principal}}}") >= 1)
        await stage.until(lambda: value(f"tidelog_gateway_throttled_acks{{{principal}}}") >= 1)
        assert value(f"tidelog_gateway_throttle_time_seconds{{{principal}}}") > 0
        nursery.cancel_scope.cancel()


async def disks_fail(stage: Stage) -> None:
    log, value, services = stage.log, stage.value, stage.services
    await log.topics.create("many", partitions=12)
    async with log.producer("many") as producer:
        await producer.send(b"the first", partition=0)
        stage.thread_s = 2.0
        async with trio.open_nursery() as nursery:
            for partition in range(12):  # one after the other: what comes at once is flushed together
                nursery.start_soon(partial(producer.send, b"x", partition=partition))
                await stage.tick()
            await stage.until(lambda: value("tidelog_replica_waiting_flushes") > 0)
            stage.thread_s = 0.002
    await log.topics.create("t", replication_factor=3, config={"segment_max_bytes": "1024"})
    await stage.until_in_sync("t")
    await send(stage, "t", 20)
    for _ in range(40):  # what the records have begun is over: a disk that is full in its midst would end the server
        await stage.tick()
    leader = await stage.leader("t")
    free = value("tidelog_replica_disk_free_bytes", leader)
    services.disks[leader].full = True
    await stage.until_shown(1.0, "tidelog_replica_disk_full", leader)
    assert value("tidelog_replica_disk_free_bytes", leader) == 0 < free
    services.disks[leader].full = False
    await stage.until_shown(0.0, "tidelog_replica_disk_full")
    await stage.until_in_sync("t")
    leader = await stage.leader("t")
    disk = services.disks[leader]
    folder = f"/{(await log.topics.describe('t')).topic_id}-0/"
    disk.flip(next(path for path in disk.files() if path.endswith(f"{folder}00000000000000000000.log")), 200, 3)
    assert len([r async for r in log.consume("t", start="earliest", end="latest")]) == 20
    for node in services.disks:
        stage.net.block(node, leader, 60.0)
    await stage.until_shown(1.0, "tidelog_replica_damaged_partitions", leader)
    assert value("tidelog_replica_partitions{offline}", leader) == 1
    stage.net.heal()
    await stage.until_shown(1.0, "tidelog_replica_quarantined_segments", leader)
    await stage.until_shown(0.0, "tidelog_replica_damaged_partitions")


def _unreadable(*args: Any, **fields: Any) -> bytes:
    """Return a batch with a correct CRC and a body that is no CBOR, in place of ``encode_batch``."""
    header = read_header(encode_batch(*args, **fields))
    return seal_batch(header, b"\xff" * header.body_length)


async def batches_cannot_be_decoded(stage: Stage) -> None:
    config = {"validate_batches": "false", "segment_max_bytes": "1024"}
    await stage.log.topics.create("t", replication_factor=3, config=config)
    await stage.until_in_sync("t")
    await send(stage, "t", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_batch, "encode_batch", _unreadable)
        await send(stage, "t", 2)
    await send(stage, "t", 20)
    await stage.until_shown(6.0, "tidelog_replica_unreadable_batches")


async def copies_differ(stage: Stage) -> None:
    """Keep an odd copy that cannot be repaired, because writes need it in the ISR, until that changes."""
    config = {"min_insync_replicas": "3"}
    await stage.log.topics.create("t", replication_factor=3, config=config)
    await stage.until_in_sync("t")
    await send(stage, "t", 5)
    leader = await stage.leader("t")
    odd = next(node for node in sorted(stage.services.disks) if node != leader)
    stage.services.kill(odd)
    disk = stage.services.disks[odd]
    topic_id = (await stage.log.topics.describe("t")).topic_id
    path = next(path for path in disk.files() if path.endswith(f"/{topic_id}-0/{0:020d}.log"))
    alter(disk, path, 3)
    forget_indexes(disk, path.rpartition("/")[0])
    stage.services.start(odd)
    await stage.tick()
    await stage.until_in_sync("t")
    await stage.log.cluster.scrub_server(leader)
    await stage.until_shown(1.0, "tidelog_replica_differing_partitions", leader)
    await stage.log.topics.alter("t", {"min_insync_replicas": "2"})
    await stage.log.cluster.scrub_server(odd)
    await stage.until_shown(0.0, "tidelog_replica_differing_partitions", leader)


async def transactions_end(stage: Stage) -> None:
    log, value = stage.log, stage.value
    await log.topics.create("t")
    async with log.transaction("billing") as tx:
        await tx.send("t", b"x")
        assert value("tidelog_replica_transactions{open}") == 1
        await stage.until(lambda: value("tidelog_replica_oldest_transaction_seconds{open}") >= 1)
        await stage.until(lambda: value("tidelog_replica_stable_offset_age_seconds") >= 1)
    await stage.until_shown(1.0, "tidelog_replica_ended_transactions{committed}")
    assert value("tidelog_replica_stable_offset_age_seconds") == 0
    assert value("tidelog_replica_transactions{open}") == value("tidelog_replica_ended_transactions{aborted}") == 0
    with pytest.raises(ZeroDivisionError):
        async with log.transaction("billing"):
            raise ZeroDivisionError
    await stage.until_shown(1.0, "tidelog_replica_ended_transactions{aborted}")


async def retention_waits_for_a_group(stage: Stage) -> None:
    log, value = stage.log, stage.value
    config = {"segment_max_bytes": "1024", "retention_records": "1", "retention_waits_for": "archive"}
    await log.topics.create("t", replication_factor=3, config=config)
    await stage.until_in_sync("t")
    await send(stage, "t", 40)
    kept, share = (f"tidelog_partition_retention_wait_{kind}{{t,0,archive}}" for kind in ("bytes", "ratio"))
    await stage.until(lambda: value(kept) > 1500)
    assert 0 < value(share) < 1e-3 and value("tidelog_replica_retention_unread_records") == 0
    await log.topics.alter("t", {"retention_waits_max_bytes": "1500"})
    await stage.until(lambda: value("tidelog_replica_retention_unread_records") > 0)
    assert 0 < value(kept) <= 1500 and value(share) == value(kept) / 1500
    start = (await log.topics.describe("t", offsets=True)).partitions[0].log_start
    assert value("tidelog_replica_retention_unread_records") == start
    await log.topics.alter("t", {"retention_waits_for": ""})
    await stage.until_shown(0.0, kept)


async def streams_are_created_and_deleted(stage: Stage) -> None:
    await _ask_over_http(stage, "PUT", "/v1/streams/chat", 201)
    await stage.until_shown(1.0, "tidelog_replica_streams")
    await _ask_over_http(stage, "PUT", "/v1/streams/chat", 200)
    assert stage.value("tidelog_replica_streams") == 1
    await _ask_over_http(stage, "DELETE", "/v1/streams/chat", 204)
    await stage.until_shown(0.0, "tidelog_replica_streams")


async def _ask_over_http(stage: Stage, method: str, path: str, status: int) -> None:
    """Send a request to the gateway, and wait for the start of an answer with this status."""
    at = urlsplit(GATEWAY_URL)
    assert at.hostname is not None and at.port is not None
    async with await stage.net.open_tcp_stream(at.hostname, at.port) as link:
        await link.send_all(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
        answer = await link.receive_some()
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer


async def clients_are_refused(stage: Stage) -> None:
    """A token that was revoked, and a quota that is used up."""
    log = stage.log
    await log.topics.create("t", replication_factor=3)
    token = await log.access.create_token("alice")
    await log.access.alter_quotas([Quota("alice", bytes_in_s=100)])
    async with tidelog.connect(GATEWAY_URL, token=token) as alice, alice.producer("t", LEADER) as producer:
        await stage.until_shown(1, "tidelog_gateway_principal_connections{alice}")
        for _ in range(3):
            await producer.send(b"x" * 100)
        assert stage.value("tidelog_gateway_quota_refusals{alice,bytes_in_s}") >= 1
        await producer.send(b"x" * 100)
        await stage.until(lambda: stage.value("tidelog_gateway_quota_pause_seconds{alice,bytes_in_s}") > 0)
    await log.access.revoke_token(id_of(token))
    with pytest.raises(TidelogError, match="revoked"):
        async with tidelog.connect(GATEWAY_URL, token=token, connect_timeout_s=1.0):
            pass
    assert stage.value("tidelog_gateway_refused_connections{token_revoked}") >= 1


async def operators_come_into_a_full_gateway(stage: Stage) -> None:
    """So many clients that no more are let in, and then operators."""
    limit = stage.value("tidelog_gateway_connections_limit")
    assert limit == Staged.gateway_config.client_max_connections

    async def is_let_in(clients: AsyncExitStack, operator: bool = False) -> bool:
        client = tidelog.connect(GATEWAY_URL, connect_timeout_s=1.0, operator=operator)
        try:
            await clients.enter_async_context(client)
        except TidelogError as error:
            assert "client_max_connections" in str(error)
            return False
        return True

    async with AsyncExitStack() as clients:
        for _ in range(int(limit) - 1):  # the client of the stage is there, too
            assert await is_let_in(clients, operator=True)
        assert stage.value("tidelog_gateway_reserved_connections") == 0
        assert not await is_let_in(clients)
        most = ConnectionSettings().operator_reserved_connections
        for number in range(most):
            assert await is_let_in(clients, operator=True)
            assert stage.value("tidelog_gateway_reserved_connections") == number + 1
        assert not await is_let_in(clients, operator=True) and not await is_let_in(clients)
        assert stage.value("tidelog_gateway_connections") == limit + most
        assert stage.value("tidelog_gateway_refused_connections{gateway_full}") >= 3
    await stage.until_shown(0, "tidelog_gateway_reserved_connections")


STORIES: dict[Story, tuple[str, ...]] = {
    records_come_and_go: (
        *("gateway_connections", "gateway_requests", "gateway_produced_batches", "gateway_produced_records"),
        *("gateway_produced_bytes", "gateway_produce_latency_seconds", "gateway_subscriptions"),
        *("gateway_subscription_reads", "gateway_tail_cache_bytes", "gateway_deliveries"),
        *("gateway_queued_reads", "gateway_long_polls"),
        *("gateway_delivered_records", "gateway_delivered_bytes", "gateway_ended_subscriptions"),
        *("gateway_metadata_index", "gateway_replica_links", "gateway_end_to_end_latency_seconds"),
        *("topics", "partitions", "partition_leaders", "partition_replicas", "commit_latency_seconds"),
        *("replica_partitions", "replica_produced_batches", "replica_produced_records", "replica_produced_bytes"),
        *(
            "replica_fetches",
            "replica_notices",
            "replica_fetch_latency_seconds",
            "replica_fetched_bytes",
            "replica_replicated_batches",
            "replica_replicated_bytes",
        ),
        *("replica_reads", "replica_read_bytes", "replica_flush_seconds", "replica_segments", "replica_log_bytes"),
        *("replica_recent_flush_seconds", "replica_disk_size_bytes"),
        *("replica_open_files", "replica_connections", "replica_events", "replica_peer_patience_seconds"),
        *("controller_requests", "controller_connections", "controller_watchers", "controller_events"),
        *("raft_proposals", "raft_commit_latency_seconds", "raft_persist_seconds", "raft_commit_index"),
        *("raft_applied_index", "raft_log_entries", "raft_log_bytes", "servers", "replica_registered"),
        *("raft_role", "raft_term", "controller_active", "controller_activations", "raft_elections"),
    ),
    a_leader_dies: (
        *("not_preferred_partitions", "elections", "lost_leaders", "isr_changes", "fences", "offline_partitions"),
        *("under_replicated_partitions", "under_min_isr_partitions", "replica_isr_size_partitions"),
        *("replica_under_replicated_partitions", "replica_under_min_isr_partitions", "replica_produce_errors"),
        *("gateway_produce_errors", "follower_catch_up_seconds"),
    ),
    servers_run_late: ("replica_late_ratio",),
    gateways_wait: (
        "gateway_server_unreachable_seconds",
        *("gateway_in_flight_batches", "gateway_held_bytes", "gateway_produce_retries", "gateway_read_retries"),
    ),
    controllers_come_and_go: (
        *("controller_refused_requests", "controller_waiting_inputs", "controller_waiting_requests"),
        *("raft_installed_snapshots", "raft_snapshots", "raft_snapshot_bytes"),
    ),
    the_controllers_are_gone: ("replica_session_lapsed_seconds", "replica_unconfirmed_partitions"),
    an_old_disk_comes_back: ("raft_rolled_back",),
    partitions_are_moved_and_paused: ("reassigning_partitions", "paused_partitions", "read_only_partitions"),
    a_follower_lags: (
        *("partition_lag_records", "replication_lag_records", "replication_largest_lag_records"),
        *("replication_lag_seconds", "server_lag_seconds", "slow_servers", "catching_up_replicas"),
        "replica_peer_unreachable_seconds",
    ),
    a_server_is_slow: (
        *("gateway_server_limit_bytes_per_second", "gateway_server_slow_intervals", "gateway_throttle_holds"),
        *("gateway_throttled_acks", "gateway_throttle_time_seconds"),
    ),
    clients_are_refused: (
        *("gateway_principal_connections", "gateway_quota_refusals", "gateway_quota_pause_seconds"),
    ),
    operators_come_into_a_full_gateway: (
        *("gateway_connections_limit", "gateway_reserved_connections", "gateway_refused_connections"),
    ),
    batches_cannot_be_decoded: ("replica_unreadable_batches",),
    copies_differ: ("replica_differing_partitions",),
    transactions_end: (
        *("replica_transactions", "replica_oldest_transaction_seconds", "replica_ended_transactions"),
        "replica_stable_offset_age_seconds",
    ),
    disks_fail: (
        *("replica_waiting_flushes", "replica_disk_free_bytes", "replica_disk_full", "replica_quarantined_segments"),
        "replica_damaged_partitions",
    ),
    streams_are_created_and_deleted: ("replica_streams",),
    retention_waits_for_a_group: (
        *("partition_retention_wait_bytes", "partition_retention_wait_ratio", "replica_retention_unread_records"),
    ),
}
TABLES = {*controller.METRICS, *replica.METRICS, *gateway.METRICS} - {*group_metrics.METRICS}
"""Those of consumer groups are looked at in ``test_group_metrics.py``."""


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_figure_of_a_story_takes_different_values(story: Story, tmp_path: Path) -> None:
    stage = play(tmp_path, story)
    still = [name for name in STORIES[story] if len({0.0, *stage.seen.get(f"tidelog_{name}", ())}) < 2]
    assert not still, f"these have shown nothing: {still}"


def test_no_metric_is_left_out() -> None:
    told = {f"tidelog_{name}" for names in STORIES.values() for name in names}
    assert {metric.name for metric in TABLES} == told
