"""Transactions over a whole cluster, with the client library: what is seen, whoever ends in the middle."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import structlog
import tidelog
import tidelog.aio
import tidelog.sync
import trio
from click.testing import CliRunner
from tidelog.cli.main import main
from tidelog.client.core.partitioner import partition_of
from tidelog.client.log import Log
from tidelog.client.options import GroupOptions
from tidelog.client.trio_loop import connect
from tidelog.errors import TidelogError
from tidelog.types import TRANSACTIONS
from tidelog.verify.check_transactions import ABORTED, COMMITTED, UNKNOWN, Story, Try, check

from cluster.harness import running

APP = "billing"


async def seen(log: Log, topic: str = "orders", **how: str) -> list[bytes | None]:
    """All records, those of one partition in their order."""
    values: list[bytes | None] = []
    async for record in log.consume(topic, start="earliest", end="latest", **how):  # type: ignore[arg-type]
        values.append(record.value)
    return values


async def seen_at_last(log: Log, *values: bytes, topic: str = "orders") -> None:
    """Until exactly these are visible; more, or a part of a transaction that stays, is an error."""
    with trio.fail_after(30):
        while sorted(found := await seen(log, topic), key=str) != sorted(values, key=str):
            assert set(found) <= set(values)
            await trio.lowlevel.checkpoint()


async def coordinator_of(log: Log, app: str) -> str:
    partitions = (await log.topics.describe(TRANSACTIONS)).partitions
    return partitions[partition_of(app.encode(), len(partitions))].leader


async def test_transactions_keep_their_promises_to_applications(tmp_path: Path) -> None:
    """In one cluster, which takes longer to begin than all of it to show."""
    async with running(tmp_path) as cluster, connect(cluster.gateway) as log, trio.open_nursery() as nursery:
        for promise in (
            a_transaction_over_partitions_is_seen_whole_or_not_at_all,
            who_begins_takes_over_and_the_one_before_is_fenced,
            what_workers_stage_is_committed_together_and_once,
            what_was_consumed_and_what_was_made_of_it_change_together,
        ):
            await log.topics.create(promise.__name__, partitions=3, replication_factor=3)
            nursery.start_soon(promise, log, promise.__name__)


async def a_transaction_over_partitions_is_seen_whole_or_not_at_all(log: Log, topic: str) -> None:
    async with log.transaction("whole") as tx:
        for partition in range(3):
            await tx.send(topic, b"a%d" % partition, partition=partition)
        assert await seen(log, topic) == []
    await seen_at_last(log, b"a0", b"a1", b"a2", topic=topic)

    with pytest.raises(ZeroDivisionError):
        async with log.transaction("whole") as tx:
            await tx.send(topic, b"never", partition=1)
            raise ZeroDivisionError
    async with log.transaction("whole") as tx:
        await tx.send(topic, b"b", partition=1)
    await seen_at_last(log, b"a0", b"a1", b"a2", b"b", topic=topic)
    assert b"never" in await seen(log, topic, isolation="uncommitted")


async def who_begins_takes_over_and_the_one_before_is_fenced(log: Log, topic: str) -> None:
    with pytest.raises(TidelogError) as refused:
        async with log.transaction("taken") as zombie:
            await zombie.send(topic, b"old", partition=0)
            async with log.transaction("taken") as tx:
                await tx.send(topic, b"new", partition=0)
    assert refused.value.code == "FENCED_PRODUCER" and tidelog.advice(refused.value) == "stop"
    await seen_at_last(log, b"new", topic=topic)


async def what_workers_stage_is_committed_together_and_once(log: Log, topic: str) -> None:
    async def work(value: bytes, partition: int) -> None:
        async with log.stage("driver") as tx:
            await tx.send(topic, value, partition=partition)
        staged.append(tx.id)

    staged: list[str] = []
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(work, b"%d" % number, number % 2)
    assert await seen(log, topic) == []
    assert await log.commit("driver", 0, staged) is True
    first = list(staged)
    staged.clear()
    await work(b"again", 0)
    assert await log.commit("driver", 0, staged) is False, "the batch is committed already"
    await log.abort("driver", first)
    await seen_at_last(log, b"0", b"1", b"2", b"3", topic=topic)
    with pytest.raises(TidelogError, match="UNKNOWN_TRANSACTION"):
        await log.commit("driver", 1, ["nobody staged this"])


async def what_was_consumed_and_what_was_made_of_it_change_together(log: Log, topic: str) -> None:
    await log.topics.create("bills", partitions=1, replication_factor=3)
    async with log.producer(topic) as producer:
        for number in range(6):
            await producer.send(b"%d" % number, partition=0)

    async def bill(records: int, fails: bool) -> None:
        consuming = log.consume(topic, group="biller", group_options=GroupOptions(auto_commit_s=None))
        async with consuming as consumer, log.transaction("biller") as tx:
            for _ in range(records):
                record = await anext(consumer)
                await tx.send("bills", b"bill " + (record.value or b""))
            await tx.commit_offsets(consumer)
            if fails:
                raise ZeroDivisionError

    await bill(2, fails=False)
    with pytest.raises(ZeroDivisionError):
        await bill(3, fails=True)
    await bill(4, fails=False)
    await seen_at_last(log, *(b"bill %d" % number for number in range(6)), topic="bills")


async def test_programs_that_block_and_programs_on_asyncio_have_them_too(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3)
        await log.topics.create("bills", partitions=1, replication_factor=3)
        await trio.to_thread.run_sync(blocking, cluster.gateway)
        await seen_at_last(log, b"blocking", b"staged", b"read")
        await trio.to_thread.run_sync(asyncio.run, on_asyncio(cluster.gateway))
        await seen_at_last(log, b"blocking", b"staged", b"read", b"asyncio")


async def test_commands_list_open_transactions_and_end_them(tmp_path: Path) -> None:
    async def command(*arguments: str) -> str:
        """What it prints; the cluster, in the same process, prints nothing meanwhile."""
        words = [*arguments, "--gateway", cluster.gateway]
        done = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, words))
        return done.output

    with structlog.testing.capture_logs():
        async with running(tmp_path) as cluster, connect(cluster.gateway) as log:
            await log.topics.create("orders", partitions=1, replication_factor=3)
            assert json.loads(await command("transactions", "list", "--json")) == []
            with pytest.raises(TidelogError, match="TRANSACTION_ABORTED"):
                async with log.transaction(APP) as tx:
                    await tx.send("orders", b"held up")
                    async with log.stage("etl") as worker:
                        await worker.send("orders", b"staged")
                    (first, second) = json.loads(await command("transactions", "list", "--json"))
                    assert (first["app"], first["state"], first["partitions"]) == (APP, "open", 1)
                    assert (second["staged"], second["state"]) == (worker.id, "prepared")
                    described = json.loads(await command("transactions", "describe", APP, "--json"))
                    assert described["transactions"][0]["parts"] == ["orders/0"]
                    everything = ("consume", "orders", "--from", "earliest", "--to-end")
                    assert await command(*everything) == ""
                    assert await command(*everything, "--isolation", "uncommitted") == "held up\nstaged\n"
                    assert "aborted the transaction of billing" in await command("transactions", "abort", APP)
            assert "no open transaction" in await command("transactions", "abort", APP)
            assert "aborted" in await command("transactions", "abort", "etl", "--staged", worker.id)
            assert "has no such transaction" in await command("transactions", "abort", "etl", "--staged", "another")
            assert await log.commit("etl", 3, []) is True
            assert "committed batches: 3" in await command("transactions", "describe", "etl")
            assert "has no transactions" in await command("transactions", "describe", "nobody")


async def test_a_staged_transaction_is_renewed_and_committed_for_its_owner_only(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, connect(cluster.gateway) as log:
        await log.topics.create("facts", partitions=1, replication_factor=3)

        async def expires_ms() -> int:
            (found,) = (await log.transactions.describe("etl")).transactions
            return found.until_ms

        async with log.stage("etl", owner="first") as tx:
            await tx.send("facts", b"kept")
            before = await expires_ms()
            while await expires_ms() == before:
                await tx.renew()
            assert await expires_ms() > before
        assert await log.commit("etl", 0, [tx.id])
        async with log.stage("etl", owner="second") as other:
            await other.send("facts", b"refused")
        with pytest.raises(TidelogError, match="application etl belongs to first, not to second") as caught:
            await log.commit("etl", 0, [other.id])
        assert caught.value.detail["owner"] == "first"
        with pytest.raises(TidelogError, match="UNKNOWN_TRANSACTION"):
            await tx.renew()


def blocking(url: str) -> None:
    with tidelog.sync.connect(url) as log:
        with log.transaction(APP) as tx:
            tx.submit("orders", b"blocking", partition=1)
        with pytest.raises(ZeroDivisionError), log.transaction(APP) as tx:
            assert tx.send("orders", b"never", partition=1).partition == 1
            raise ZeroDivisionError
        with pytest.raises(TypeError), log.transaction(APP) as tx:
            tx.submit("orders", b"nor this")
            tx.submit("orders", "no bytes")  # type: ignore[arg-type]
        with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"), log.transaction(APP) as tx:
            tx.send("nowhere", b"")
        with pytest.raises(TidelogError, match="INVALID_TRANSACTION"), log.transaction("no name"):
            raise AssertionError("begun")
        with log.stage(APP) as tx:
            tx.send("orders", b"staged")
        with log.stage(APP) as dropped:
            dropped.send("orders", b"dropped")
        log.abort(APP, [dropped.id])
        assert (log.commit(APP, 0, [tx.id]), log.commit(APP, 0, [tx.id])) == (True, False)
        with log.producer("bills") as producer:
            producer.send(b"bill")
        options = GroupOptions(auto_commit_s=None)
        with log.consume("bills", group="reader", group_options=options) as consumer, log.transaction(APP) as tx:
            next(consumer)
            tx.send("orders", b"read")
            tx.commit_offsets(consumer)
        while not (positions := settled(log)):
            pass
        assert positions[0].offset == 1


def settled(log: tidelog.sync.Log) -> dict[int, tidelog.Position]:
    """The positions, once the transaction that moves them is at its end."""
    try:
        return log.groups.fetch_offsets("reader", "bills")
    except TidelogError as error:
        assert error.code == "UNSTABLE_OFFSETS"
        return {}


async def on_asyncio(url: str) -> None:
    async with tidelog.aio.connect(url) as log:
        async with log.transaction(APP) as tx:
            await tx.send("orders", b"asyncio")
        with pytest.raises(ZeroDivisionError):
            async with log.transaction(APP) as tx:
                await tx.send("orders", b"never")
                raise ZeroDivisionError


class Told:
    """What applications did, and what they were told: the checker of the simulation judges it."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.story = Story()
        self.places = frozenset({"orders/0", "orders/1"})

    def begun(self, label: str, app: str, batch: int = -1) -> Try:
        one = Try(label, app, self.places, batch=batch)
        self.story.tries.append(one)
        return one

    async def stands(self) -> int:
        positions = await self.log.groups.fetch_offsets("mover", "orders")
        return positions[0].offset if positions else 0

    async def move(self, name: str, times: int) -> None:
        """Read the group's position, write, move it on by one."""
        for number in range(times):
            one = self.begun(f"{name}.{number}", "mover")
            try:
                async with self.log.transaction("mover") as tx:
                    one.position = await self.stands()
                    for partition in (0, 1):
                        await tx.send("orders", one.label.encode(), partition=partition)
                    await tx.commit_offsets("mover", {("orders", 0): one.position + 1})
                    one.asked = number % 3 > 0
                    if not one.asked:
                        raise ZeroDivisionError
                one.fate = COMMITTED
            except ZeroDivisionError:
                one.fate = ABORTED
            except TidelogError as error:
                one.fate = ABORTED if error.code == "TRANSACTION_ABORTED" else UNKNOWN

    async def drive(self, batches: int) -> None:
        """Stage each batch twice, and commit it by both. Where a coordinator ends, the client asks again: then it may
        hear of the first that the batch was committed before, which only its own first request can have done."""
        for number in range(2 * batches):
            one = self.begun(f"driver.{number}", "driver", number // 2)
            async with self.log.stage("driver") as tx:
                for partition in (0, 1):
                    await tx.send("orders", one.label.encode(), partition=partition)
            one.asked = True
            committed = await self.log.commit("driver", one.batch, [tx.id])
            one.fate = COMMITTED if committed or number % 2 == 0 else ABORTED

    async def read(self, reader: str) -> None:
        """All that is visible, from the beginning."""
        seen = self.story.seen.setdefault(reader, [])
        async for record in self.log.consume("orders", start="earliest", end="latest"):
            seen.append((f"orders/{record.partition}", record.offset, (record.value or b"").decode()))


async def test_a_story_of_zombies_drivers_and_servers_that_end_is_sound(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=4) as cluster, connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2, replication_factor=3)
        told = Told(log)
        await told.move("first", 2)
        early = Told(log)
        async with trio.open_nursery() as nursery:
            for name in ("one", "another"):
                nursery.start_soon(told.move, name, 6)
            nursery.start_soon(told.drive, 3)
            coordinator = await coordinator_of(log, "mover")
            await cluster.stop(coordinator)
            await early.read("early")
            await cluster.start(coordinator)
            await cluster.stop((await log.topics.describe("orders")).partitions[0].leader)
        while await log.transactions.list():
            await trio.lowlevel.checkpoint()
        await told.read("late")
        told.story.moved["mover"] = await told.stands()
        assert check(told.story) == []
        early.story.tries, early.story.complete = told.story.tries, False
        assert check(early.story) == []
        fates = [one.fate for one in told.story.tries]
        assert fates.count(COMMITTED) >= 3 and fates.count(ABORTED) >= 5
        assert told.story.moved["mover"] > 0
