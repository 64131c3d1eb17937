"""Positions of a group consumer in a transaction: they are added only while every record that was returned and is not
committed still belongs to the consumer. Tests ``GroupConsumer._check_kept`` and ``Transaction.commit_offsets``."""

from __future__ import annotations

from typing import Any

import pytest
import tidelog
import trio
from support.fake_gateway import FakeCluster
from support.group_topics import BY_HAND, filled, keys, offsets, until_heard
from tidelog.client.core.batch import TransactionIdentity
from tidelog.client.group_consumer import GroupConsumer, Hooks
from tidelog.client.loop import wall_ms
from tidelog.client.transactions import Transaction
from tidelog.errors import TidelogError
from tidelog.wire.messages import BeginTransaction


def transaction(log: tidelog.Log) -> Transaction:
    """Return a transaction that the fake cluster takes for open."""
    begin = BeginTransaction("app", "owner")
    options = tidelog.ProducerOptions()

    def start(_: Any) -> None:
        raise AssertionError("no producer is needed")

    return Transaction(log._connection, TransactionIdentity("app", 1, 0), begin, options, wall_ms, start)


async def lose(cluster: FakeCluster, lost: list[object]) -> None:
    """Put the member out of the group, and wait until the consumer has noticed."""
    cluster.group.members.clear()
    while not lost:
        await until_heard(cluster)


def member(log: tidelog.Log, hooks: Hooks) -> GroupConsumer:
    """Return a consumer that commits by hand, as the instance i1."""
    return log.consume("orders", group="g", instance="i1", group_options=BY_HAND, hooks=hooks)


@pytest.mark.parametrize("explicit", [False, True])
async def test_positions_of_records_that_others_process_by_now_are_refused_and_not_left_out(explicit: bool) -> None:
    async with filled(partitions=1) as (cluster, log):
        lost: list[object] = []
        cluster.group.give("i1", keys(cluster, 0))
        async with member(log, Hooks(on_lost=lost.append)) as consumer:
            record = await consumer.__anext__()
            places = {("orders", 0): record.offset + 1} if explicit else None
            await lose(cluster, lost)
            with pytest.raises(TidelogError, match=r"FENCED_GENERATION.*orders/0"):
                await transaction(log).commit_offsets(consumer, places)
            while not consumer.assignment:
                await until_heard(cluster)
            with pytest.raises(TidelogError, match="FENCED_GENERATION"):
                await transaction(log).commit_offsets(consumer, places)
        assert offsets(cluster) == {0: 0}, "the new generation does not make the old records its own"


async def test_positions_of_a_partition_that_was_given_up_between_two_records_are_refused() -> None:
    async with filled(partitions=2) as (cluster, log):
        revoked = trio.Event()
        cluster.group.give("i1", keys(cluster, 0))
        async with member(log, Hooks(on_revoked=lambda _: revoked.set())) as consumer:
            await consumer.__anext__()
            cluster.group.give("i2", keys(cluster, 0))
            await until_heard(cluster)
            cluster.group.give("i1", keys(cluster, 1))
            assert (await consumer.__anext__()).partition == 1
            await revoked.wait()
            with pytest.raises(TidelogError, match=r"FENCED_GENERATION.*orders/0"):
                await transaction(log).commit_offsets(consumer)


async def test_what_a_transaction_or_a_commit_covers_may_go_to_others() -> None:
    async with filled(partitions=2) as (cluster, log):
        lost: list[object] = []
        cluster.group.give("i1", keys(cluster, 0))
        async with member(log, Hooks(on_lost=lost.append)) as consumer:
            await consumer.__anext__()
            await transaction(log).commit_offsets(consumer)
            cluster.group.give("i2", keys(cluster, 0))
            await until_heard(cluster)
            cluster.group.give("i1", keys(cluster, 1))
            assert (await consumer.__anext__()).partition == 1
            await transaction(log).commit_offsets(consumer)
            await consumer.__anext__()
            await consumer.commit()
            await lose(cluster, lost)
            consumer._check_kept()
            await consumer.__anext__()
            await transaction(log).commit_offsets(consumer)
        assert offsets(cluster) == {0: 1, 1: 3}


async def test_a_rebalance_that_leaves_the_partition_does_not_fail_the_transaction() -> None:
    async with filled(partitions=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        async with member(log, Hooks()) as consumer:
            await consumer.__anext__()
            cluster.group.heartbeat_ms = 10**6
            await until_heard(cluster)
            cluster.group.give("i1", keys(cluster, 1))
            await transaction(log).commit_offsets(consumer)
            assert cluster.group.commits[-1][1:] == (
                cluster.group.generation,
                cluster.group.positions[keys(cluster, 0)[0]],
            )
        assert offsets(cluster)[0] == 1


async def test_a_position_that_is_not_the_members_own_in_its_present_generation_is_refused() -> None:
    async with filled(partitions=2) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        cluster.group.give("i2", keys(cluster, 1))
        async with member(log, Hooks()) as consumer:
            await consumer.__anext__()
            with pytest.raises(TidelogError, match="FENCED_GENERATION"):
                await transaction(log).commit_offsets(consumer, {("orders", 1): 5})
        assert offsets(cluster) == {0: 0}
