"""Real processes are stopped in order, drained, and given other replicas, under load: no produce fails."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from load import flowing
from running import HEAL_S, Cluster, in_sync, until
from tidelog.client.log import Log

pytestmark = pytest.mark.real

ReportGap = Callable[[str, float], None]


async def run(cluster: Cluster, *command: str) -> bytes:
    """A command that succeeds, while the load goes on."""
    return await trio.to_thread.run_sync(partial(cluster.ok, *command))


async def test_C15_a_rolling_restart_of_all_replica_servers_under_load(
    failing_cluster: Cluster, report_gap: ReportGap
) -> None:
    """``Load`` takes every produce that fails for a fault of its own."""
    async with flowing(failing_cluster, "rolling-restart") as load:
        load.begin_fault()
        for server in failing_cluster.local.of_role("replica"):
            failing_cluster.local.terminate(server.id)
            await load.more(20)
            failing_cluster.local.restart(server.id)
            await load.heal()
    report_gap("a rolling restart of all replica servers", load.longest_gap())


async def test_C9_leaderships_are_transferred_and_drained_under_load(
    failing_cluster: Cluster, report_gap: ReportGap
) -> None:
    async with flowing(failing_cluster, "transferred") as load:
        load.begin_fault()
        for _ in range(3):
            for partition in (await load.log.topics.describe(load.topic)).partitions:
                other = next(node for node in partition.isr if node != partition.leader)
                await load.log.partitions.transfer(load.topic, partition.partition, other)
            await load.more(20)
        await run(failing_cluster, "servers", "drain", "r1")
        leaders = [p.leader for p in (await load.log.topics.describe(load.topic)).partitions]
        assert "r1" not in leaders
        await load.more(20)
        await run(failing_cluster, "servers", "resume", "r1")
        why = (await run(failing_cluster, "why", f"{load.topic}/0")).decode()
        assert "takes no more records until" in why and "nothing is lost" in why
    report_gap("nine transfers and a drained server", load.longest_gap())


async def test_a_reassignment_under_load_and_its_progress(roomy_cluster: Cluster) -> None:
    cluster = roomy_cluster
    async with cluster.connect() as log:
        made = await log.topics.create("moved", replication_factor=3)
        replicas = made.partitions[0].replicas
        spare = next(s.node for s in (await log.cluster.status()).servers if s.node not in replicas)
        async with log.producer("moved") as producer:
            sent = [await producer.submit(b"%d" % number) for number in range(200)]
            target = (spare, *replicas[1:])
            done = cluster.tidelog("partitions", "reassign", "moved/0", ",".join(target), "--wait")
            assert done.returncode == 0, done.stderr
            sent += [await producer.submit(b"%d" % number) for number in range(200, 400)]
            acks = [await pending.wait() for pending in sent]
        assert [ack.offset for ack in acks] == list(range(400))
        partition = (await log.topics.describe("moved")).partitions[0]
        assert (partition.replicas, sorted(partition.isr), partition.target) == (target, sorted(target), ())
        gone = cluster.folder / replicas[0] / "data" / f"{made.topic_id}-0"

        async def is_deleted() -> bool:
            return not gone.exists()

        await until(is_deleted)
        assert json.loads(cluster.ok("partitions", "reassignments", "--json")) == []
        read = [record.value async for record in log.consume("moved", start="earliest", end="latest")]
        assert read == [b"%d" % number for number in range(400)]


async def test_new_servers_get_their_share_when_it_is_asked_for(roomy_cluster: Cluster) -> None:
    cluster = roomy_cluster
    cluster.ok("topics", "create", "uneven", "--partitions", "4", "--replication-factor", "1")
    for partition in range(4):
        cluster.ok("partitions", "reassign", f"uneven/{partition}", "r1", "--wait")
    cluster.ok("topics", "grow", "uneven", "--partitions", "5")
    assert json.loads(cluster.ok("partitions", "rebalance", "--dry-run", "--json"))
    cluster.ok("partitions", "rebalance", "--yes")

    async def is_even() -> bool:
        return not json.loads(cluster.ok("partitions", "reassignments", "--json"))

    await until(is_even)
    assert json.loads(cluster.ok("partitions", "rebalance", "--dry-run", "--json")) == []
    bad = cluster.tidelog("partitions", "reassign", "uneven/0", "r1,r1")
    assert bad.returncode == 1 and b"INVALID_REPLICAS" in bad.stderr
    assert cluster.tidelog("servers", "drain", "r99").returncode == 1


async def test_a_topic_is_read_only_then_paused_over_the_death_of_its_leader(failing_cluster: Cluster) -> None:
    cluster, lines = failing_cluster, b"".join(b"record %d\n" % number for number in range(200))

    async def another_leads(log: Log, leader: str) -> bool:
        return (await log.topics.describe("rests")).partitions[0].leader not in ("", leader)

    async with cluster.connect() as log:
        await log.topics.create("rests", replication_factor=3)
        cluster.ok("produce", "rests", "--file", "-", stdin=lines)
        cluster.ok("topics", "set-readonly", "rests")
        refused = cluster.tidelog("produce", "rests", "--file", "-", stdin=b"no\n")
        assert refused.returncode == 1 and b"TOPIC_READ_ONLY" in refused.stderr
        assert cluster.ok("consume", "rests", "--from", "earliest", "--to-end") == lines, "it is read on"
        cluster.ok("topics", "set-readonly", "rests", "--off")
        cluster.ok("topics", "pause", "rests")
        refused = cluster.tidelog("consume", "rests", "--to-end")
        assert refused.returncode == 1 and b"TOPIC_PAUSED" in refused.stderr
        leader = (await log.topics.describe("rests")).partitions[0].leader
        assert b"leads rests/0 in name" in cluster.ok("servers", "drain", leader)
        cluster.ok("servers", "resume", leader)
        cluster.local.kill(leader)
        await until(lambda: another_leads(log, leader))
        cluster.ok("topics", "resume", "rests")
        assert cluster.ok("consume", "rests", "--from", "earliest", "--to-end") == lines
        cluster.ok("produce", "rests", "--file", "-", stdin=b"again\n")
        cluster.local.restart(leader)
        await until(lambda: in_sync(log, "rests"))
        events = [entry.event for entry in await log.partitions.history("rests", 0)]
    assert events[:4] == ["created", "read_only", "writable", "paused"] and "resumed" in events[4:]


async def test_a_second_replica_server_with_the_same_id_is_reported_and_does_no_harm(
    failing_cluster: Cluster, tmp_path: Path
) -> None:
    config = failing_cluster.folder / "r2" / "config.toml"
    options = ["--config", str(config), "--port", "0", "--data-dir", str(tmp_path / "data")]
    command = [sys.executable, "-m", "tidelog.cli", "replica", *options]
    async with failing_cluster.connect() as log, trio.open_nursery() as nursery:
        await until(lambda: in_sync(log, "rests"))
        before = await log.cluster.status()
        run = partial(trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        twin = await nursery.start(run)
        with trio.fail_after(HEAL_S):
            told = b""
            while b"registration_refused" not in told:
                told += await twin.stdout.receive_some()
        assert b"choose another id" in told
        after = await log.cluster.status()
        assert (after.servers, after.topics) == (before.servers, before.topics)
        twin.kill()
