"""What docs/procedures.md tells an operator to do when servers are lost for good, done by the commands shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import tidelog
from tidelog.client.log import Log
from tidelog.wire.messages import PartitionInfo

from .harness import running
from .operating import run, until, until_fenced, until_moved


async def write(log: Log, topic: str, *values: bytes) -> None:
    async with log.producer(topic) as producer:
        for value in values:
            await producer.send(value)


async def read(log: Log, topic: str) -> list[bytes]:
    return [record.value async for record in log.consume(topic, start="earliest", end="latest")]


def whole(partition: PartitionInfo) -> bool:
    return bool(partition.leader) and sorted(partition.isr) == sorted(partition.replicas)


async def test_a_server_that_lost_its_disk_is_filled_and_one_that_is_gone_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("kept", replication_factor=3, config={"flush": "os"})
        await write(log, "kept", b"one")
        lost = (await until(log, "kept", whole)).leader

        await cluster.stop(lost)
        shutil.rmtree(tmp_path / lost)
        await write(log, "kept", b"two")
        await cluster.start(lost)
        await until(log, "kept", whole)

        await cluster.stop(lost)
        await cluster.start("r4")
        await run(cluster, "servers", "drain", lost)
        await run(cluster, "partitions", "rebalance", "--empty-drained", "--yes")
        healed = await until(log, "kept", lambda p: lost not in p.replicas and not p.target and whole(p))
        assert "r4" in healed.replicas and len(healed.replicas) == 3
        await until_moved(log)
        await until_fenced(log, lost)
        await run(cluster, "servers", "forget", lost)
        assert lost not in [server.node for server in (await log.cluster.status()).servers]
        assert await read(log, "kept") == [b"one", b"two"]


async def test_all_that_were_in_sync_are_lost_and_an_older_copy_leads_by_an_operators_word(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=2) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("kept", replication_factor=2, config={"min_insync_replicas": "1"})
        await write(log, "kept", b"both have it")
        leader = (await until(log, "kept", whole)).leader
        (behind,) = {"r1", "r2"} - {leader}
        await cluster.stop(behind)
        await until(log, "kept", lambda partition: partition.isr == (leader,))
        await write(log, "kept", b"one has it")
        await cluster.stop(leader)
        shutil.rmtree(tmp_path / leader)
        await cluster.start(behind)
        await until(log, "kept", lambda partition: not partition.leader)
        assert "nobody" in (await run(cluster, "why", "kept/0")).lower()

        await run(cluster, "topics", "configure", "kept", "unclean_election=true")
        await until(log, "kept", lambda partition: partition.leader == behind)
        await run(cluster, "topics", "configure", "kept", "unclean_election=false")
        assert await read(log, "kept") == [b"both have it"]
        for question in ("kept/0@1", "gap kept/0@1"):
            answer = await run(cluster, "why", *question.split())
            assert f"{behind} became leader although it may have lacked committed records" in answer, question
        await cluster.start(leader)
        await until(log, "kept", whole)
        await write(log, "kept", b"goes on")
        assert await read(log, "kept") == [b"both have it", b"goes on"]
        assert "unclean" in await run(cluster, "why", "kept/0")
