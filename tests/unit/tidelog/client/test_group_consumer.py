"""Consumers that are members of a group, against a coordinator in memory: which records are returned, finished,
committed and given up, and when."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import tidelog
import trio
from support.group_topics import BY_HAND, filled, keys, offsets, until_heard
from tidelog.client.core.group_member import MemberCore
from tidelog.client.group_consumer import GroupConsumer, Hooks
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.types import Position
from tidelog.wire.messages import GroupPosition


@pytest.mark.parametrize("place", [{"end": 5}, {"partitions": [0]}, {"reverse": True}])
async def test_a_member_of_a_group_chooses_no_end_and_no_partitions(place: dict[str, Any]) -> None:
    async with filled(partitions=3) as (_, log):
        with pytest.raises(ConfigError, match=f"{next(iter(place))}: not for a group"):
            log.consume("orders", group="billing", **place)


async def test_a_member_gets_the_records_of_its_share_and_begins_where_the_group_has_come_to() -> None:
    async with filled(partitions=3) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0, 2))
        (key,) = keys(cluster, 2)
        cluster.group.positions[key] = GroupPosition(*key, 7, 4)
        async with log.consume("orders", group="billing", instance="i1") as consumer:
            seen = [await consumer.__anext__() for _ in range(13)]
            assert consumer.assignment == [("orders", 0), ("orders", 2)]
            assert consumer.positions == {("orders", 0): Position(4, 10), ("orders", 2): Position(4, 10)}
        assert [r.offset for r in seen if r.partition == 0] == list(range(10))
        assert [r.offset for r in seen if r.partition == 2] == [7, 8, 9]


async def test_where_the_group_has_come_nowhere_it_begins_at_start_and_that_is_committed_at_once() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        options = BY_HAND
        async with log.consume("orders", group="g", instance="i1", start="latest", group_options=options) as consumer:
            await consumer.commit()
            while not offsets(cluster):
                with trio.move_on_after(0.01):
                    await consumer.__anext__()
            assert offsets(cluster) == {0: 10}
            async with log.producer("orders") as producer:
                await producer.send(b"new")
            assert (await consumer.__anext__()).value == b"new"


async def test_auto_commit_covers_processed_records_and_commit_all_delivered_ones() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        often = tidelog.GroupOptions(auto_commit_s=0.01)
        async with log.consume("orders", group="g", instance="i1", group_options=often) as consumer:
            for _ in range(4):
                record = await consumer.__anext__()
            while offsets(cluster) != {0: 3}:
                await until_heard(cluster)
            await until_heard(cluster)
            assert (record.offset, offsets(cluster)) == (3, {0: 3}), "the fourth is still in hand"
            await consumer.commit()
            assert offsets(cluster) == {0: 4}
            await consumer.__anext__()
        assert offsets(cluster) == {0: 4}, "the last one was not finished"
        assert cluster.group.positions[keys(cluster, 0)[0]].leader_epoch == 4


async def test_whole_batches_are_finished_when_the_next_is_asked_for() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1") as consumer:
            first = await consumer.next_records()
            second = await consumer.next_records()
        assert offsets(cluster) == {0: len(first)} and second


async def test_in_a_rebalance_kept_partitions_never_stop_and_revoked_ones_are_committed_first() -> None:
    """The second member gets the partition at the record where the first has stopped, and not before."""
    async with filled(partitions=2, count=200) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0, 1))
        first = log.consume("orders", group="g", instance="i1", group_options=tidelog.GroupOptions())
        second = log.consume("orders", group="g", instance="i2")
        seen: list[tidelog.Record] = []
        async with first, second:
            while {r.partition for r in seen} != {0, 1} or seen[-1].partition != 1:
                seen.append(await first.__anext__())
            subscribed = list(cluster.subs.values())
            cluster.group.give("i2", keys(cluster, 1))
            with trio.move_on_after(0.2):
                await second.__anext__()
                raise AssertionError("the first has a record of it in hand")
            assert cluster.group.holder(keys(cluster, 1)[0]) == first._member._join.member
            async with log.producer("orders") as producer:
                for _ in range(20):
                    await producer.submit(b"later", partition=0)
            for _ in range(20):
                record = await first.__anext__()
                assert record.partition == 0
                seen.append(record)
            handed = max(r.offset for r in seen if r.partition == 1)
            assert (await second.__anext__()).offset == handed + 1
            assert first.assignment == [("orders", 0)] and second.assignment == [("orders", 1)]
            kept = [sub for sub in subscribed if sub.key[1] == 0]
            assert kept and all(sub in cluster.subs.values() for sub in kept), "never subscribed anew"
        mine = [r.offset for r in seen if r.partition == 0]
        assert mine == list(range(len(mine)))


async def test_a_partition_that_is_taken_away_before_its_beginning_was_found_is_just_given_up() -> None:
    async with filled(partitions=2) as (cluster, log):
        told: list[list[tuple[str, int]]] = []
        revoked = trio.Event()
        hooks = Hooks(told.append, lambda _: revoked.set())
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", hooks=hooks) as consumer:
            assert (await consumer.__anext__()).partition == 0
            consumer.on_assigned(tuple(keys(cluster, 1)))
            consumer.on_revoked(tuple(keys(cluster, 1)))
            await revoked.wait()
            assert (await consumer.__anext__()).partition == 0
        assert told == [[("orders", 0)]], "of the first alone it is told that it may be read"


async def test_hooks_are_called_and_may_commit_before_a_partition_is_revoked() -> None:
    async with filled(partitions=2, count=100) as (cluster, log):
        told: list[tuple[str, list[tuple[str, int]]]] = []
        consumer: GroupConsumer

        async def on_revoked(partitions: list[tuple[str, int]]) -> None:
            told.append(("revoked", partitions))
            await consumer.commit()

        hooks = Hooks(lambda p: told.append(("assigned", p)), on_revoked, lambda p: told.append(("lost", p)))
        cluster.group.give("i1", keys(cluster, 0, 1))
        consumer = log.consume("orders", group="g", instance="i1", hooks=hooks, group_options=BY_HAND)
        async with consumer:
            for _ in range(150):
                await consumer.__anext__()
            handed = 150
            cluster.group.give("i2", keys(cluster, 0, 1))
            while len(told) == 1:
                with trio.move_on_after(0.02):
                    await consumer.__anext__()
                    handed += 1
            await until_heard(cluster)
            assert sum(offsets(cluster).values()) == handed
        assert told == [(name, [("orders", 0), ("orders", 1)]) for name in ("assigned", "revoked")]


async def test_a_member_that_waits_does_nothing_between_its_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[float] = []
    on_tick = MemberCore.on_tick
    monkeypatch.setattr(MemberCore, "on_tick", lambda core, now: ticks.append(now) or on_tick(core, now))
    async with filled(partitions=1, count=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1") as consumer:
            await consumer.__anext__()
            await until_heard(cluster)
            ticks.clear()
            await until_heard(cluster, beats=5)
            assert len(ticks) <= 5 * 4


async def test_a_consumer_that_lost_its_partitions_drops_their_records_and_resumes_from_commits() -> None:
    async with filled(partitions=1, count=40) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        lost: list[list[tuple[str, int]]] = []
        consuming = log.consume(
            "orders", group="g", instance="i1", group_options=BY_HAND, hooks=Hooks(on_lost=lost.append)
        )
        async with consuming as consumer:
            for _ in range(5):
                await consumer.__anext__()
            await consumer.commit()
            for _ in range(4):
                await consumer.__anext__()
            cluster.group.members.clear()
            while not lost:
                await until_heard(cluster)
            assert (await consumer.__anext__()).offset == 5, "others may have processed more: the group says where"
            assert lost == [[("orders", 0)]]


async def test_a_commit_under_another_generation_goes_again_in_the_present_one() -> None:
    async with filled(partitions=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", group_options=BY_HAND) as consumer:
            await consumer.__anext__()
            cluster.group.heartbeat_ms = 10**6
            cluster.group.give("i1", keys(cluster, 1))
            await consumer.commit()
        assert cluster.group.commits[-1][1] == cluster.group.generation


async def test_E6_a_member_that_was_replaced_cannot_commit_and_says_so() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        cluster.group.heartbeat_ms = 10**6
        async with log.consume("orders", group="g", instance="i1", group_options=BY_HAND) as consumer:
            await consumer.__anext__()
            cluster.group.members.clear()
            before = offsets(cluster)
            with pytest.raises(TidelogError, match="UNKNOWN_MEMBER"):
                await consumer.commit()
            assert offsets(cluster) == before


async def test_E4_a_committed_position_that_is_gone_raises_with_its_place_and_is_never_reset() -> None:
    async with filled(partitions=1) as (cluster, log):
        (key,) = keys(cluster, 0)
        cluster.group.give("i1", [key])
        cluster.group.positions[key] = GroupPosition(*key, 3, 4)
        cluster.log("orders").start = 7
        async with log.consume("orders", group="g", instance="i1", start="earliest") as consumer:
            for _ in range(2):
                with pytest.raises(TidelogError, match="orders/0 at offset 3") as told:
                    await consumer.__anext__()
                assert (told.value.code, told.value.detail["log_start"]) == ("OFFSET_OUT_OF_RANGE", 7)
        assert offsets(cluster) == {0: 3}


async def test_several_topics_share_a_group() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.add_topic("bills", 1)
        async with log.producer("bills") as producer:
            await producer.send(b"a bill")
        cluster.group.give("i1", [*keys(cluster, 0), *keys(cluster, 0, topic="bills")])
        async with log.consume(["orders", "bills"], group="g", instance="i1") as consumer:
            seen = [await consumer.__anext__() for _ in range(11)]
            assert {r.topic for r in seen} == {"orders", "bills"}
            assert consumer.assignment == [("bills", 0), ("orders", 0)]
            await consumer.commit()
        assert {k.topic_id: at.offset for k, at in cluster.group.positions.items()} == {
            cluster.topics["orders"].topic_id: 10,
            cluster.topics["bills"].topic_id: 1,
        }


async def test_records_and_commits_go_on_at_the_next_gateway() -> None:
    async with filled(partitions=2, count=200, gateways=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0, 1))
        seen = []
        async with log.consume("orders", group="g", instance="i1") as consumer:
            for n in range(400):
                record = await consumer.__anext__()
                seen.append((record.partition, record.offset))
                if n % 90 == 50:
                    cluster.cut()
            await consumer.commit()
        assert sorted(seen) == [(p, n) for p in range(2) for n in range(200)]
        assert offsets(cluster) == {0: 200, 1: 200}


async def test_closing_leaves_the_group_and_a_static_member_keeps_its_share() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("", keys(cluster, 0))
        async with log.consume("orders", group="g") as consumer:
            await consumer.__anext__()
        assert [(left.keep, left.group) for left in cluster.group.left] == [(False, "g")]
        async with log.consume("orders", group="g", instance="i1") as consumer:
            await until_heard(cluster)
        assert cluster.group.left[-1].keep
        with pytest.raises(TidelogError, match="closed"):
            await consumer.__anext__()


async def test_a_consumer_that_nobody_holds_leaves_and_so_does_one_when_the_connection_is_closed() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("", keys(cluster, 0))
        async for _ in log.consume("orders", group="g"):
            break
        gc.collect()
        while not cluster.group.left:
            await until_heard(cluster, 1)
        async with cluster.gateways() as urls:
            async with tidelog.connect(urls) as other:
                async for _ in other.consume("orders", group="g"):
                    break
            assert len(cluster.group.left) == 2


@pytest.mark.parametrize("code", ["GROUP_FULL", "FENCED_INSTANCE", "INVALID_GROUP"])
async def test_a_group_that_will_not_have_it_is_an_error(code: str) -> None:
    async with filled() as (cluster, log):

        def refuse_all(message: object) -> None:
            raise refuse(code, "no")

        cluster.group.answer = refuse_all  # type: ignore[method-assign,assignment]
        async with log.consume("orders", group="g", instance="i1") as consumer:
            for _ in range(2):
                with pytest.raises(TidelogError, match=code):
                    await consumer.__anext__()


async def test_records_read_ahead_of_all_partitions_stay_within_the_buffer_as_they_come_and_go() -> None:
    async with filled(partitions=4, count=200, pad=1000) as (cluster, log):
        options = tidelog.ConsumerOptions(buffer_bytes=512 << 10, partition_bytes=512 << 10)
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", options=options) as consumer:
            most = 0
            for n in range(600):
                if n in (50, 100, 150):
                    cluster.group.give("i1", keys(cluster, n // 50))
                    while len(consumer.assignment) <= n // 50:
                        await until_heard(cluster)
                await consumer.__anext__()
                waiting = sum(reader.core.waiting for reader in consumer._readers.all)
                most = max(most, waiting if n > 300 else 0)
        assert 0 < most <= (512 << 10) + 4 * 1200


async def test_wrong_usage_raises() -> None:
    async with filled() as (_, log):
        with pytest.raises(ConfigError, match="need a group"):
            log.consume(["orders", "bills"])  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="at least one topic"):
            log.consume([], group="g")
        with pytest.raises(ConfigError, match="earliest, latest, an offset"):
            log.consume("orders", group="g", start="middle")
        with pytest.raises(ConfigError, match="sticky, range"):
            tidelog.GroupOptions(assignor="best")


@pytest.mark.parametrize("closed", [True, False], ids=["in a block", "never closed"])
async def test_a_member_whose_task_is_cancelled_with_its_connection_leaves_at_once(closed: bool) -> None:
    async with filled(partitions=1) as (cluster, _), cluster.gateways() as urls:
        cluster.group.give("", keys(cluster, 0))
        with trio.CancelScope() as scope:
            async with tidelog.connect(urls) as log:
                consumer = log.consume("orders", group="g")
                async with consumer if closed else nullcontext():
                    for _ in range(4):
                        await consumer.__anext__()
                    scope.cancel()
                    await trio.sleep_forever()
        assert [left.member for left in cluster.group.left] == [consumer.member]
        assert offsets(cluster) == {0: 3 if closed else 0}, "what was finished is committed where it is closed"


async def test_a_member_whose_task_is_cancelled_leaves_while_its_connection_stays() -> None:
    async with filled(partitions=1) as (cluster, log):
        cluster.group.give("", keys(cluster, 0))
        with trio.CancelScope() as scope:
            async with log.consume("orders", group="g") as consumer:
                await consumer.__anext__()
                scope.cancel()
                await trio.sleep_forever()
        while not cluster.group.left:
            await until_heard(cluster, 1)
        assert [left.member for left in cluster.group.left] == [consumer.member]
