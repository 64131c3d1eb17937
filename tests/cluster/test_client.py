"""The Python client against whole clusters: what it promises holds while servers and gateways end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.wire.messages import ListOffset

from cluster.harness import Cluster, running


async def second_gateway(cluster: Cluster) -> list[str]:
    return [cluster.gateway, await cluster.start("g2")]


async def read_all(log: tidelog.Log, topic: str) -> list[tidelog.Record]:
    with trio.fail_after(30):
        return [record async for record in log.consume(topic, start="earliest", end="latest")]


async def test_topics_records_and_offsets(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        topic = await log.topics.create("orders", partitions=3, replication_factor=3, config={"flush": "os"})
        assert [len(partition.isr) for partition in topic.partitions] == [3, 3, 3]
        with pytest.raises(TidelogError, match="TOPIC_EXISTS"):
            await log.topics.create("orders")
        async with log.producer("orders") as producer:
            ack = await producer.send(b"v", key=b"k", headers={"h": b"1"}, timestamp_ms=5000)
            assert ack.offset == 0
            assert ack.durability == "all/os"
            for n in range(3000):
                await producer.submit(b"%d" % n, partition=n % 3, timestamp_ms=10_000 + n)
        records = await read_all(log, "orders")
        assert len(records) == 3001
        [first] = [record for record in records if record.key is not None]
        assert first == ("orders", ack.partition, 0, ack.leader_epoch, 5000, b"k", b"v", (("h", b"1"),))
        for partition in range(3):
            mine = [r.value for r in records if r.partition == partition and r.key is None]
            assert mine == [b"%d" % n for n in range(partition, 3000, 3)]
        described = await log.topics.describe("orders", offsets=True)
        assert sum(partition.high_watermark for partition in described.partitions) == 3001
        at = await log.partitions.list_offset("orders", 1, datetime.fromtimestamp(11, UTC))
        assert (at.offset, at.timestamp_ms) == (333 + (ack.partition == 1), 11_000)
        asked = ListOffset(topic.topic_id, 1, "timestamp", 11_000)
        assert await log._connection.call(asked) == at, "the gateway answers with the record itself"
        with pytest.raises(TidelogError, match="MALFORMED"):
            await log._connection.call(ListOffset(topic.topic_id, 1, "timestamp"))
        assert (await log.partitions.history("orders", 0))[0].leader_epoch == topic.partitions[0].leader_epoch
        assert len((await log.cluster.status()).servers) == 3
        assert (await log.cluster.quorum()).active == "c1"
        await log.topics.delete("orders")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
async def test_compressed_batches_come_back(tmp_path: Path, compression: str) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders")
        values = [b"all the same %d" % (n % 7) for n in range(500)]
        async with log.producer("orders", tidelog.ProducerOptions(compression=compression)) as producer:
            for value in values:
                await producer.submit(value)
        assert [record.value for record in await read_all(log, "orders")] == values


@pytest.mark.parametrize("acks", ["none", "leader"])
async def test_other_acks(tmp_path: Path, acks: str) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        async with log.producer("orders", tidelog.ProducerOptions(acks=acks)) as producer:
            assert (await producer.send(b"a")).durability.split("/")[0] == {"none": "received"}.get(acks, acks)


async def test_a_failover_under_load_loses_doubles_and_disorders_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, controllers=3) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config={"flush": "os"})
        async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=2000)) as producer:
            for n in range(4000):
                await producer.submit(b"%d" % n)
                if n == 2000:
                    await cluster.stop((await log.topics.describe("orders")).partitions[0].leader)
        assert [record.value for record in await read_all(log, "orders")] == [b"%d" % n for n in range(4000)]


async def test_a_consumer_and_a_producer_outlive_their_gateway(tmp_path: Path) -> None:
    seen: list[bytes | None] = []

    async def follow(log: tidelog.Log) -> None:
        async with log.consume("orders", start="earliest") as consumer:
            while len(seen) < 1000:
                seen.append((await consumer.__anext__()).value)

    async with running(tmp_path) as cluster:
        urls = await second_gateway(cluster)
        async with tidelog.connect(urls) as log:
            await log.topics.create("orders", replication_factor=3, config={"flush": "os"})
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow, log)
                    async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=500)) as producer:
                        for n in range(1000):
                            await producer.submit(b"%d" % n)
                            if n == 400:
                                await cluster.stop("g1")
            assert seen == [b"%d" % n for n in range(1000)]
            assert [record.value for record in await read_all(log, "orders")] == seen


async def test_a_consumer_of_any_replica_gets_all_that_is_committed_and_outlives_its_replica(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3)
        seen: list[bytes | None] = []
        reading = log.consume("orders", start="earliest", read_from="any", consistency="bounded", max_staleness_s=2.0)
        with trio.fail_after(60):
            async with log.producer("orders") as producer, reading as consumer:
                for n in range(30):
                    await producer.send(b"%d" % n)
                    seen.append((await consumer.__anext__()).value)
                    if n == 10:  # one of the two copies that are not the leader; it comes back
                        partition = (await log.topics.describe("orders")).partitions[0]
                        copy = next(node for node in partition.isr if node != partition.leader)
                        await cluster.stop(copy)
                    if n == 20:
                        await cluster.start(copy)
                        while len((partition := (await log.topics.describe("orders")).partitions[0]).isr) < 3:
                            pass
                        await cluster.stop(partition.leader)
        assert seen == [b"%d" % n for n in range(30)]
