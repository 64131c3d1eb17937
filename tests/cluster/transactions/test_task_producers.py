"""Producers of the tasks of numbered batches over a whole cluster: what a replay is told, whoever ends meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.client.core.partitioner import partition_of
from tidelog.client.trio_loop import connect
from tidelog.errors import TidelogError
from tidelog.types import TRANSACTIONS

from cluster.harness import running


async def test_a_replayed_task_is_the_same_producer_and_writes_nothing_twice(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        async with connect(cluster.gateway) as log:
            topic = await log.topics.create("orders", replication_factor=3)
            own = await log.producer_ids(5)
            first = await log.task_producer("etl", "query", 7, 3, 30.0)
            other = await log.producer_ids(5)
            for ids in (own, other):
                assert not ids.producer_id <= first.producer_id < ids.producer_id + 5
            log.use_producer(first.producer_id, first.producer_epoch, first.ticket)
            batch = encode_batch(
                [NewRecord(b"a", None, first.timestamp_ms)],
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
            )
            await log.sender("all").send(topic.topic_id, 0, batch, 30.0)
            partitions = (await log.topics.describe(TRANSACTIONS)).partitions
            coordinator = partitions[partition_of(b"etl", len(partitions))].leader
        await cluster.stop(coordinator)
        async with connect(await cluster.start("g2")) as log:
            assert await log.task_producer("etl", "query", 7, 3, 30.0) == first
            log.use_producer(first.producer_id, first.producer_epoch, first.ticket)
            await log.sender("all").send(topic.topic_id, 0, batch, 30.0)
            later = await log.task_producer("etl", "query", 8, 3, 30.0)
            assert (later.producer_id, later.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
            with pytest.raises(TidelogError, match="batch 7 of etl is over: batch 8 has begun"):
                await log.task_producer("etl", "query", 7, 3, 30.0)
            values = [record.value async for record in log.consume("orders", start="earliest", end="latest")]
            assert values == [b"a"]
