"""Consumers of whole clusters: backwards, on lines that are gone, at offsets as acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.types import Position

from cluster.harness import running


async def test_E4_a_position_whose_history_ended_earlier_is_reported_forwards_and_backwards(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config={"flush": "os"})
        async with log.producer("orders") as producer:
            for n in range(3):
                first = await producer.send(b"%d" % n)
            await cluster.stop((await log.topics.describe("orders")).partitions[0].leader)
            for n in range(3, 6):
                last = await producer.send(b"%d" % n)
        assert first.leader_epoch < last.leader_epoch
        sound = {0: Position(last.leader_epoch, 5)}
        gone = {0: Position(first.leader_epoch, 5)}
        with trio.fail_after(30):
            assert [r.value async for r in log.consume("orders", start=sound, end="latest")] == [b"5"]
            values = [r.value async for r in log.consume("orders", start=sound, reverse=True)]
            assert values == [b"4", b"3", b"2", b"1", b"0"]
            beyond = Position(last.leader_epoch, 60)
            for start, code in ((gone, "LOG_TRUNCATED"), ({0: beyond}, "LOG_TRUNCATED"), (60, "OFFSET_OUT_OF_RANGE")):
                for consumer in (
                    log.consume("orders", start=start),
                    log.consume("orders", start=start, reverse=True),
                ):
                    with pytest.raises(TidelogError, match="orders/0 at offset") as told:
                        await consumer.__anext__()
                    assert told.value.code == code
            async with log.consume("orders", start=gone, end="latest") as consumer:
                with pytest.raises(TidelogError) as told:
                    await consumer.__anext__()
                assert told.value.detail["end_offset"] == 3
                await consumer.seek(int(told.value.detail["end_offset"]), 0)
                assert [r.value async for r in consumer] == [b"3", b"4", b"5"]


async def test_E5_every_read_shows_a_record_at_its_acknowledged_offset(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3, config={"flush": "os"})
        acked: dict[tuple[int, int], bytes] = {}
        async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=500)) as producer:
            pending = []
            for n in range(600):
                pending.append((b"%d" % n, await producer.submit(b"%d" % n)))
                if n == 300:
                    await cluster.stop((await log.topics.describe("orders")).partitions[0].leader)
            for value, each in pending:
                ack = await each.wait()
                acked[ack.partition, ack.offset] = value
        assert len(acked) == 600
        with trio.fail_after(60):
            forwards = {
                (r.partition, r.offset): r.value async for r in log.consume("orders", start="earliest", end="latest")
            }
            copies = log.consume("orders", start="earliest", end="latest", read_from="any")
            assert {(r.partition, r.offset): r.value async for r in copies} == forwards
            backwards = [r async for r in log.consume("orders", reverse=True)]
            assert {(r.partition, r.offset): r.value for r in backwards} == forwards
            assert [r.offset for r in backwards if r.partition == 0] == sorted(
                (o for p, o in forwards if p == 0), reverse=True
            )
            for (partition, offset), value in list(acked.items())[::50]:
                one = log.consume("orders", start=offset, end=offset + 1, partitions=[partition])
                assert [(r.offset, r.value) async for r in one] == [(offset, value)]
        assert forwards == acked
