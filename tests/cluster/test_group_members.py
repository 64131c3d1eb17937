"""Members of a consumer group against a whole cluster: who has what, when it moves, and what is not lost by it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.client.core.partitioner import partition_of
from tidelog.client.group_consumer import GroupConsumer
from tidelog.errors import TidelogError
from tidelog.types import GROUPS, Position

from cluster.harness import Cluster, running

GROUP = "billing"
PATIENT = tidelog.GroupOptions(session_timeout_s=30.0, auto_commit_s=0.1)
QUICK = tidelog.GroupOptions(session_timeout_s=2.0, auto_commit_s=0.1)
"""For members that die without a word."""


class Reading:
    """Members that read side by side, and all that they saw."""

    def __init__(self, log: tidelog.Log, nursery: trio.Nursery) -> None:
        self._log = log
        self._nursery = nursery
        self._news = trio.Event()
        self.members: dict[str, GroupConsumer] = {}
        self.seen: list[tuple[str, int, int]] = []
        """(member, partition, offset)."""
        self._scopes: dict[str, trio.CancelScope] = {}

    def start(self, name: str, *, instance: str = "", options: tidelog.GroupOptions = PATIENT) -> GroupConsumer:
        member = self._log.consume("orders", group=GROUP, instance=instance, group_options=options)
        self.members[name] = member
        self._nursery.start_soon(self._read, name, member)
        return member

    async def stop(self, name: str) -> None:
        """Let a member leave its group."""
        await self.members[name].aclose()
        self._scopes.pop(name).cancel()

    async def _read(self, name: str, member: GroupConsumer) -> None:
        with trio.CancelScope() as self._scopes[name]:
            try:
                async for record in member:
                    self.seen.append((name, record.partition, record.offset))
                    self._news.set()
            except TidelogError as error:
                assert error.code in ("CLOSED", "FENCED_INSTANCE")

    async def until(self, holds: Callable[[], bool]) -> None:
        """Looked at after every record."""
        with trio.fail_after(60):
            while not holds():
                self._news = trio.Event()
                await self._news.wait()

    def share(self, name: str) -> set[int]:
        return {partition for _, partition in self.members[name].assignment}


@asynccontextmanager
async def reading(folder: Path, partitions: int = 4) -> AsyncIterator[tuple[Cluster, tidelog.Log, Reading]]:
    """A cluster with records that come without end, and nobody who reads them yet."""

    async def write(log: tidelog.Log) -> None:
        async with log.producer("orders") as producer:
            while True:
                for partition in range(partitions):
                    await producer.send(b"x", partition=partition)

    async with running(folder) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=partitions, replication_factor=3, config={"flush": "os"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write, log)
            yield cluster, log, Reading(log, nursery)
            nursery.cancel_scope.cancel()


def unbroken(seen: list[tuple[str, int, int]], name: str, partition: int) -> bool:
    """The member saw that partition record by record."""
    offsets = [offset for who, at, offset in seen if (who, at) == (name, partition)]
    return offsets == list(range(offsets[0], offsets[0] + len(offsets)))


async def test_a_rebalance_moves_half_doubles_nothing_and_does_not_stop_the_other_half(tmp_path: Path) -> None:
    async with reading(tmp_path) as (_, _log, group):
        group.start("one")
        await group.until(lambda: {p for _, p, _ in group.seen} == {0, 1, 2, 3})
        assert group.share("one") == {0, 1, 2, 3}
        group.start("two")
        await group.until(lambda: len(group.share("one")) == 2 and len(group.share("two")) == 2)
        moved = group.share("two")
        assert group.share("one") == {0, 1, 2, 3} - moved
        await group.until(lambda: {p for who, p, _ in group.seen if who == "two"} == moved)
        places = [(p, offset) for _, p, offset in group.seen]
        assert len(places) == len(set(places)), "given up after its last record was committed"
        assert all(unbroken(group.seen, "one", p) for p in group.share("one"))
        await group.stop("two")
        await group.until(lambda: group.share("one") == {0, 1, 2, 3})
        for partition in moved:
            last = max(offset for _, p, offset in group.seen if p == partition)
            await group.until(lambda p=partition, end=last: ("one", p, end + 1) in group.seen)


async def test_a_member_that_is_gone_without_a_word_loses_its_share_after_its_session(tmp_path: Path) -> None:
    async with reading(tmp_path) as (cluster, _, group):
        with trio.CancelScope() as dies:
            async with trio.open_nursery() as nursery, tidelog.connect(cluster.gateway) as other:
                dead = Reading(other, nursery)
                dead.start("dead", options=QUICK)
                await dead.until(lambda: len(dead.seen) > 100 and {p for _, p, _ in dead.seen} == {0, 1, 2, 3})
                group.start("one")
                dies.cancel()
        await group.until(lambda: group.share("one") == {0, 1, 2, 3})
        await group.until(lambda: {p for _, p, _ in group.seen} == {0, 1, 2, 3})
        for partition in range(4):
            first = min(offset for _, p, offset in group.seen if p == partition)
            handed = max(offset for _, p, offset in dead.seen if p == partition)
            assert first <= handed + 1, "nothing is passed over"


async def test_a_static_member_comes_back_to_what_it_had_and_its_former_process_is_fenced(tmp_path: Path) -> None:
    async with reading(tmp_path) as (cluster, log, group):
        group.start("one", instance="i1")
        group.start("two", instance="i2")
        await group.until(lambda: len(group.share("one")) == 2 and len(group.share("two")) == 2)
        had, others = group.share("two"), group.share("one")
        generation = (await log.groups.describe(GROUP)).generation
        await group.stop("two")
        assert [m.away for m in (await log.groups.describe(GROUP)).members if m.instance == "i2"] == [True]
        group.start("two again", instance="i2")
        await group.until(lambda: group.share("two again") == had)
        await group.until(lambda: any((who, p) == ("one", min(others)) for who, p, _ in group.seen))
        assert group.share("one") == others and unbroken(group.seen, "one", min(others))
        assert (await log.groups.describe(GROUP)).generation <= generation + 1
        async with tidelog.connect(cluster.gateway) as other:
            thief = other.consume("orders", group=GROUP, instance="i1", group_options=QUICK)
            async with thief:
                await thief.__anext__()
                with pytest.raises(TidelogError, match="FENCED_INSTANCE"):
                    while True:
                        await group.members["one"].commit()
                assert {partition for _, partition in thief.assignment} == others


async def test_a_failover_of_the_coordinator_moves_nothing_and_loses_no_commit(tmp_path: Path) -> None:
    async with reading(tmp_path) as (cluster, log, group):
        group.start("one")
        group.start("two")
        await group.until(lambda: len(group.share("one")) == 2 and len(group.share("two")) == 2)
        shares = group.share("one"), group.share("two")
        await group.until(lambda: {p for who, p, _ in group.seen if who == "one"} >= shares[0])
        infos = (await log.topics.describe(GROUPS)).partitions[partition_of(GROUP.encode(), 16)]
        await group.members["one"].commit()
        before = await log.groups.fetch_offsets(GROUP, "orders")
        await cluster.stop(infos.leader)
        count = len(group.seen)
        await group.until(lambda: len(group.seen) > count + 200)
        await group.members["one"].commit()
        after = await log.groups.fetch_offsets(GROUP, "orders")
        assert all(after[p].offset > before[p].offset for p in shares[0])
        assert (group.share("one"), group.share("two")) == shares
        described = await log.groups.describe(GROUP)
        assert described.coordinator != infos.leader and described.state == "stable"
        places = [(p, offset) for _, p, offset in group.seen]
        assert len(places) == len(set(places))


async def test_the_lag_is_the_number_of_records_left_to_process(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", partitions=2)
        async with log.producer("orders") as producer:
            for n in range(30):
                await producer.send(b"%d" % n, partition=n % 3 % 2)
        with trio.fail_after(60):
            async with log.consume("orders", group=GROUP, group_options=QUICK) as consumer:
                for _ in range(12):
                    await consumer.__anext__()
                await consumer.commit()
                progress = await log.groups.progress(GROUP)
                assert sum(one.lag for one in progress) == 18
                assert [one.high_watermark for one in progress] == [20, 10]
                assert all(one.member and one.lag == one.high_watermark - one.offset for one in progress)
        ends = await log.partitions.find_positions("orders", "latest")
        await log.groups.reset(GROUP, "orders", ends)
        assert [one.lag for one in await log.groups.progress(GROUP)] == [0, 0]
        await log.groups.reset(GROUP, "orders", {0: Position(-1, 500)})
        with trio.fail_after(60):
            async with log.consume("orders", group=GROUP, group_options=QUICK) as consumer:
                with pytest.raises(TidelogError, match="orders/0 at offset 500"):  # E4: told, never reset
                    await consumer.__anext__()
        assert (await log.groups.fetch_offsets(GROUP, "orders"))[0].offset == 500
        await log.groups.delete(GROUP)
        assert await log.groups.list() == ()
