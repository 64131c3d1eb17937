"""What tests of members of groups begin with: topics with records, and a coordinator in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import tidelog
import trio
from tidelog.types import TopicPartition

from support.fake_gateway import FakeCluster

BY_HAND = tidelog.GroupOptions(auto_commit_s=None)


@asynccontextmanager
async def filled(
    partitions: int = 2, count: int = 10, gateways: int = 1, pad: int = 0
) -> AsyncIterator[tuple[FakeCluster, tidelog.Log]]:
    """A topic with so many records in each partition, in batches of a few."""
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    with trio.fail_after(30):
        async with cluster.gateways(gateways) as urls, tidelog.connect(urls) as log:
            async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=200)) as producer:
                for n in range(count * partitions):
                    await producer.submit(b"%d" % (n // partitions) + b"." * pad, partition=n % partitions)
            yield cluster, log


def keys(cluster: FakeCluster, *partitions: int, topic: str = "orders") -> list[TopicPartition]:
    return [TopicPartition(cluster.topics[topic].topic_id, p) for p in partitions]


def offsets(cluster: FakeCluster) -> dict[int, int]:
    return {key.partition: at.offset for key, at in sorted(cluster.group.positions.items())}


async def until_heard(cluster: FakeCluster, beats: int = 3) -> None:
    """Until the member has said something so many times."""
    end = len(cluster.seen) + beats
    while len(cluster.seen) < end:
        await cluster.heard.wait()
