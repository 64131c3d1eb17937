"""What the application changes as a member of a group: pause, resume, seek, and that it has committed what it has.
Tests ``client/group_consumer.py`` and ``client/group_membership.py``."""

from __future__ import annotations

import pytest
import tidelog
import trio
from support.group_topics import BY_HAND, filled, keys, offsets, until_heard
from tidelog.client.group_consumer import Hooks
from tidelog.errors import TidelogError
from tidelog.types import Position
from tidelog.wire.messages import GroupPosition


async def test_a_consumer_that_committed_all_delivered_records_is_not_asked_before_a_partition_is_revoked() -> None:
    async with filled(partitions=2) as (cluster, log):
        revoked = trio.Event()
        hooks = Hooks(on_revoked=lambda _: revoked.set())
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", hooks=hooks, group_options=BY_HAND) as consumer:
            assert [(await consumer.__anext__()).offset for _ in range(2)] == [0, 1]
            await consumer.commit()
            cluster.group.give("i2", keys(cluster, 0))
            cluster.group.give("i1", keys(cluster, 1))
            await revoked.wait()
            assert offsets(cluster)[0] == 2
            assert (await consumer.__anext__()).partition == 1


async def test_a_record_in_hand_holds_its_partition_also_where_the_one_before_was_committed() -> None:
    async with filled(partitions=2) as (cluster, log):
        told: list[str] = []
        hooks = Hooks(on_revoked=lambda _: told.append("revoked"))
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", hooks=hooks, group_options=BY_HAND) as consumer:
            await consumer.__anext__()
            await consumer.commit()
            await consumer.__anext__()
            cluster.group.give("i2", keys(cluster, 0))
            await until_heard(cluster)
            assert told == []
            cluster.group.give("i1", keys(cluster, 1))
            assert (await consumer.__anext__()).partition == 1


async def test_records_of_a_paused_partition_are_held_until_it_is_resumed_and_none_is_lost() -> None:
    async with filled(partitions=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0, 1))
        async with log.consume("orders", group="g", instance="i1") as consumer:
            first = await consumer.__anext__()
            paused, other = ("orders", first.partition), 1 - first.partition
            await consumer.pause(paused)
            assert consumer.paused == [paused]
            assert [(r.partition, r.offset) for r in [await consumer.__anext__() for _ in range(10)]] == [
                (other, offset) for offset in range(10)
            ]
            assert consumer.positions[paused] == Position(4, 1)
            await consumer.resume()
            assert [(await consumer.__anext__()).offset for _ in range(9)] == list(range(1, 10))
            with pytest.raises(tidelog.TidelogError, match="does not have orders/7"):
                await consumer.pause(("orders", 7))
        assert offsets(cluster) == {first.partition: 9, other: 10}


async def test_a_pause_ends_when_the_partition_goes_to_another_member() -> None:
    async with filled(partitions=1) as (cluster, log):
        revoked = trio.Event()
        hooks = Hooks(on_revoked=lambda _: revoked.set())
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", hooks=hooks) as consumer:
            await consumer.__anext__()
            await consumer.pause()
            cluster.group.give("i2", keys(cluster, 0))
            with trio.move_on_after(0.1):  # the application asks for more, and there is none
                await consumer.__anext__()
            await revoked.wait()
            cluster.group.give("i1", keys(cluster, 0))
            assert (await consumer.__anext__()).offset == 1
            assert consumer.paused == []


async def test_a_seek_continues_elsewhere_and_commits_store_the_new_position() -> None:
    async with filled(partitions=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0, 1))
        async with log.consume("orders", group="g", instance="i1", group_options=BY_HAND) as consumer:
            first = await consumer.__anext__()
            share = ("orders", first.partition)
            await consumer.seek({share: 7, ("orders", 1 - first.partition): Position(4, 8)})
            await consumer.commit()
            assert offsets(cluster) == {first.partition: 7, 1 - first.partition: 8}
            seen = [await consumer.__anext__() for _ in range(5)]
            assert sorted((r.partition == first.partition, r.offset) for r in seen) == [
                (False, 8),
                (False, 9),
                (True, 7),
                (True, 8),
                (True, 9),
            ]
            await consumer.seek("earliest", share)
            assert consumer.positions[share].offset == 0
            again = await consumer.__anext__()
            assert (again.partition, again.offset) == (first.partition, 0)


async def test_E4_a_seek_is_the_way_on_where_the_committed_position_is_gone() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        (key,) = keys(cluster, 0)
        cluster.group.positions[key] = GroupPosition(*key, 3, 4)
        cluster.log("orders").start = 7
        async with log.consume("orders", group="g", instance="i1") as consumer:
            with pytest.raises(TidelogError) as caught:
                await consumer.__anext__()
            assert caught.value.code == "OFFSET_OUT_OF_RANGE"
            await consumer.seek("earliest")
            assert (await consumer.__anext__()).offset == 7
