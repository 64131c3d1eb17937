"""Records nearly as large as a message may be."""

from __future__ import annotations

import os
from pathlib import Path

import tidelog
import trio
from tidelog.client.log import Log

from cluster.harness import running

LARGEST = str(11 << 20)


async def wait_in_sync(log: Log, topic: str, servers: int) -> None:
    """Until so many servers have everything of every partition."""
    with trio.fail_after(60):
        while any(len(state.isr) != servers for state in (await log.topics.describe(topic)).partitions):
            await log.cluster.status()


async def test_records_of_10_mib_are_written_copied_and_read(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        config = {"max_batch_bytes": LARGEST, "min_insync_replicas": "1"}
        await log.topics.create("large", partitions=2, replication_factor=3, config=config)
        await wait_in_sync(log, "large", 3)
        await cluster.stop("r3")
        values = [os.urandom(size) for size in (4_000_000, 10 << 20)]
        async with log.producer("large") as producer:
            for partition in range(2):
                for value in values:
                    await producer.send(value, partition=partition)
        await cluster.start("r3")
        await wait_in_sync(log, "large", 3)
        for partition in range(2):
            async with log.consume("large", partitions=[partition], start="earliest", end="latest") as consumer:
                assert [record.value async for record in consumer] == values
