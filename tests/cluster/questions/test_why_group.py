"""``tidelog why group`` on a real cluster: what each kind of lag is put down to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import tidelog
import trio
from tidelog.client.group_consumer import Hooks
from tidelog.client.log import Log
from tidelog.client.options import GroupOptions
from tidelog.wire.messages import Produce, ProducePart
from trio.testing import wait_all_tasks_blocked
from unit.tidelog.client.test_unreadable_batches import garbage

from cluster.harness import Cluster, connected, running
from cluster.questions.answers import why_by_command, why_until


@asynccontextmanager
async def filled(folder: Path, **config: str) -> AsyncIterator[tuple[Cluster, Log]]:
    """A cluster with a topic ``orders`` of one partition that has ten records, each in a batch of its own."""
    async with running(folder) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config=config)
        async with log.producer("orders") as producer:
            for _ in range(10):
                await producer.send(b"value")
        yield cluster, log


async def until(log: Log, words: str, group: str = "billing") -> str:
    """Ask why the group lags until the answer has these words, and return it."""
    text: str = await why_until(log, words, "group", group)
    return text


async def test_an_application_that_processes_pauses_and_does_not_poll(tmp_path: Path) -> None:
    async with filled(tmp_path) as (cluster, log), log.consume("orders", group="billing") as member:
        assert (await member.__anext__()).offset == 0
        await member.commit()
        text = await until(log, "is processing: its application has had orders/0@0 for")
        assert "9 offsets behind in 1 partition" in text
        by_command = await why_by_command(cluster, "group", "billing")
        assert by_command["facts"]["partitions"][0]["lag"] == 9
        await member.pause()
        await until(log, "has paused the partition.")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.__anext__)  # puts the record down, and gets no other
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await member.resume()
        await until(log, "does not poll: its application has not asked for a record for")


async def test_nobody_reads(tmp_path: Path) -> None:
    async with filled(tmp_path) as (_, log):
        async with log.consume("orders", group="billing") as member:
            await member.__anext__()
            await member.commit()
        await until(log, "It waits for a member: nobody reads as this group.")


async def test_a_transaction_that_stays_open(tmp_path: Path) -> None:
    async with filled(tmp_path) as (_, log), log.transaction("etl") as tx:
        await tx.send("orders", b"held")
        async with log.consume("orders", group="billing") as member:
            for _ in range(10):
                await member.__anext__()
            await member.commit()
            await until(log, "It waits for the transaction of application etl")
            text = await until(log, "which is open")
            assert "the last stable offset has stood at 10 for" in text


async def test_a_batch_that_no_reader_can_decode(tmp_path: Path) -> None:
    async with filled(tmp_path, validate_batches="false") as (cluster, log):
        topic = await log.topics.describe("orders")
        async with connected(cluster) as client:
            await client.init()
            batch = garbage(client.producer_id)
            client.link.post(Produce((ProducePart(1, topic.topic_id, 0, 2, 15_000, len(batch)),), batch))
            assert (await client.wait_ack(1)).error is None
        options = GroupOptions(auto_commit_s=None)
        async with log.consume("orders", group="billing", group_options=options) as member:
            for _ in range(10):
                await member.__anext__()
            await member.commit()
            await until(log, "It waits at a batch that no reader can decode, offsets 10 to 12")


async def test_a_member_that_must_give_a_partition_up(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3)
        async with log.producer("orders") as producer:
            for number in range(2):
                await producer.send(b"value", partition=number)
        finished, asked = trio.Event(), trio.Event()

        async def finish_work(partitions: list[tuple[str, int]]) -> None:
            asked.set()
            await finished.wait()

        hooks = Hooks(on_revoked=finish_work)
        async with log.consume("orders", group="billing", hooks=hooks) as first:
            for _ in range(2):  # has one record of each partition, and goes on to wait
                await first.__anext__()
            async with log.consume("orders", group="billing") as second, trio.open_nursery() as nursery:
                nursery.start_soon(second.next_records)
                nursery.start_soon(first.next_records)
                with trio.fail_after(60):
                    await asked.wait()
                text = await until(log, "Rebalance: ")
                assert "to give up orders/" in text and "which must give the partition up to " in text
                finished.set()
                nursery.cancel_scope.cancel()
