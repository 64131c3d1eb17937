"""The trio consumer against a gateway in memory: backwards, paused, elsewhere, and never more than its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import tidelog
import trio
import trio.testing
from support.fake_gateway import FakeCluster
from tidelog.errors import Closed, TidelogError
from tidelog.types import Position


@asynccontextmanager
async def filled(
    count: int = 10, partitions: int = 1, gateways: int = 1, pad: int = 0
) -> AsyncIterator[tuple[FakeCluster, tidelog.Log]]:
    """Yield a cluster in memory and a client. Its topic has this many records in each partition, at the times 0,
    1000, 2000, …"""
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    with trio.fail_after(30):
        async with cluster.gateways(gateways) as urls, tidelog.connect(urls) as log:
            options = tidelog.ProducerOptions(batch_bytes=300)
            async with log.producer("orders", options) as producer:
                for n in range(count * partitions):
                    when = 1000 * (n // partitions)
                    await producer.submit(b"%d" % n + b"." * pad, partition=n % partitions, timestamp_ms=when)
            yield cluster, log


async def test_backwards_is_forwards_turned_round() -> None:
    async with filled(300, partitions=3) as (_, log):
        forwards = [r async for r in log.consume("orders", start=20, end="latest")]
        backwards = [r async for r in log.consume("orders", start="latest", end=20, reverse=True)]
        for partition in range(3):
            mine = [r for r in forwards if r.partition == partition]
            assert [r for r in backwards if r.partition == partition] == mine[::-1]
            assert len(mine) == 280


async def test_backwards_from_the_end_a_time_or_a_position() -> None:
    async with filled() as (_, log):
        assert [r.offset async for r in log.consume("orders", reverse=True)] == list(range(10))[::-1]
        noon = datetime.fromtimestamp(3, UTC)
        assert [r.offset async for r in log.consume("orders", start=noon, reverse=True)] == [2, 1, 0]
        since = log.consume("orders", end=noon, reverse=True)
        assert [r.offset async for r in since] == [9, 8, 7, 6, 5, 4, 3]
        at = {0: Position(4, 5)}
        assert [r.offset async for r in log.consume("orders", start=at, end=5, reverse=True)] == []
        assert [r.offset async for r in log.consume("orders", start=at, end=3, reverse=True)] == [4, 3]


async def test_backwards_goes_on_where_it_was_left() -> None:
    async with filled() as (_, log):
        async with log.consume("orders", reverse=True) as consumer:
            assert [(await consumer.__anext__()).offset for _ in range(4)] == [9, 8, 7, 6]
            saved = consumer.positions
        assert saved == {0: Position(-1, 6)}
        rest = [r.offset async for r in log.consume("orders", start=saved, reverse=True)]
        assert rest == [5, 4, 3, 2, 1, 0]
        with pytest.raises(Closed):
            await consumer.next_batch()


async def test_backwards_outlives_its_gateway() -> None:
    async with filled(400, gateways=2) as (cluster, log):
        seen = []
        async for record in log.consume("orders", reverse=True):
            seen.append(record.offset)
            if record.offset % 90 == 0:
                cluster.cut()
        assert seen == list(range(400))[::-1]


async def test_a_pause_in_the_middle_of_a_batch_holds_the_rest_of_it() -> None:
    async with filled(100, partitions=2) as (_, log), log.consume("orders", start=0, end="latest") as consumer:
        first = await consumer.__anext__()
        await consumer.pause(first.partition)
        assert consumer.paused == [first.partition]
        others = [await consumer.__anext__() for _ in range(100)]
        assert {r.partition for r in others} == {1 - first.partition}
        assert consumer.positions == {first.partition: Position(4, 1), 1 - first.partition: Position(4, 100)}
        await consumer.resume()
        rest = [r.offset async for r in consumer]
        assert rest == list(range(1, 100))


async def test_a_consumer_with_everything_paused_waits() -> None:
    async with filled(5) as (_, log), log.consume("orders", start=0) as consumer:
        await consumer.pause()
        with trio.move_on_after(0.05) as waited:
            await consumer.__anext__()
        assert waited.cancelled_caught
        await consumer.resume(0)
        assert (await consumer.__anext__()).offset == 0


async def test_records_that_were_handed_out_together_do_not_come_again_after_a_pause() -> None:
    async with filled(100) as (_, log), log.consume("orders", start=0, end="latest") as consumer:
        seen = await consumer.next_records()
        await consumer.pause(0)
        await consumer.resume(0)
        while records := await consumer.next_records():
            seen += records
        assert [r.offset for r in seen] == list(range(100))


async def test_seek_goes_anywhere_at_any_time() -> None:
    async with filled(10, partitions=2) as (_, log):
        reading = log.consume("orders", start=0, end="latest", partitions=[1])
        async with reading as consumer:
            assert [(await consumer.__anext__()).offset for _ in range(3)] == [0, 1, 2]
            await consumer.seek(7)
            assert [r.offset async for r in consumer] == [7, 8, 9]
            await consumer.seek(datetime.fromtimestamp(8, UTC), 1)
            assert [r.offset async for r in consumer] == [8, 9]
            await consumer.seek({1: Position(4, 9)})
            assert [r.offset async for r in consumer] == [9]
            await consumer.seek("latest")
            assert [r.offset async for r in consumer] == []
            with pytest.raises(TidelogError, match="does not read partition 0"):
                await consumer.seek("earliest", 0)
            with pytest.raises(TidelogError, match="does not read partition 5"):
                await consumer.pause(5)


async def test_E4_retention_that_overtakes_a_consumer_raises_and_nothing_is_skipped_until_it_seeks() -> None:
    async with filled(10, partitions=2) as (cluster, log):
        cluster.log("orders", 0).start = 7
        async with log.consume("orders", start=3, end="latest") as consumer:
            seen, errors = [], []
            for _ in range(2):
                try:
                    async for record in consumer:
                        seen.append((record.partition, record.offset))
                except TidelogError as error:
                    errors.append(error)
            assert seen == [(1, n) for n in range(3, 10)]
            assert [(e.code, e.detail["partition"], e.detail["offset"]) for e in errors] == [
                ("OFFSET_OUT_OF_RANGE", 0, 3)
            ] * 2
            assert consumer.positions[0] == Position(-1, 3)
            await consumer.seek("earliest", 0)
            assert [r.offset async for r in consumer] == [7, 8, 9]


async def test_records_read_ahead_are_bounded_in_bytes_whatever_the_application_does() -> None:
    async with filled(600, partitions=2, pad=1000) as (cluster, log):
        batch = max(len(data) for data in cluster.log("orders").batches)
        assert 600 * batch > 500 << 10
        options = tidelog.ConsumerOptions(buffer_bytes=128 << 10, partition_bytes=64 << 10)
        most = 0
        async with log.consume("orders", start=0, options=options) as consumer:
            for n in range(1200):
                if n == 300:
                    await consumer.pause(0)
                if n == 700:
                    await consumer.resume(0)
                await consumer.__anext__()
                if n % 100 == 0:
                    await trio.testing.wait_all_tasks_blocked(0.01)
                most = max(most, consumer.buffered_bytes)
        assert 100 << 10 < most <= 2 * ((64 << 10) + batch)
