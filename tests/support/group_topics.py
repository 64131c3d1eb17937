"""What tests of group members start with: topics with records, and a coordinator in memory."""

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
    """Yield a fake cluster and a client, with so many records in each partition of ``orders``, in small batches."""
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    with trio.fail_after(30):
        async with cluster.gateways(gateways) as urls, tidelog.connect(urls) as log:
            async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=200)) as producer:
                for n in range(count * partitions):
                    await producer.submit(b"%d" % (n // partitions) + b"." * pad, partition=n % partitions)
            yield cluster, log


def keys(cluster: FakeCluster, *partitions: int, topic: str = "orders") -> list[TopicPartition]:
    """Return the keys of partitions of a topic."""
    return [TopicPartition(cluster.topics[topic].topic_id, p) for p in partitions]


def offsets(cluster: FakeCluster) -> dict[int, int]:
    """Return the committed offset of each partition."""
    return {key.partition: at.offset for key, at in sorted(cluster.group.positions.items())}


async def until_heard(cluster: FakeCluster, beats: int = 3) -> None:
    """Wait until clients have sent so many more messages."""
    end = len(cluster.seen) + beats
    while len(cluster.seen) < end:
        await cluster.heard.wait()
