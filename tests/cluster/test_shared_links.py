"""Clients share the links of a gateway to the replica servers: reading much, or waiting much, stops nobody else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from tidelog.errors import TidelogError
from tidelog.net.link import PROTOCOL_VERSION, connect_link
from tidelog.types import NodeId
from tidelog.wire.messages import (
    Credit,
    Hello,
    ListOffset,
    Message,
    Metadata,
    MetadataAnswer,
    Read,
    ReadAnswer,
    Subscribe,
)
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.shell import GatewayShell

from cluster.harness import Client, Cluster, connected, running

MIB = 1 << 20
PARTITIONS = 25


class Breaks:
    """The links to replica servers that a gateway has lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[NodeId] = []
        on_peer_down = GatewayShell.on_peer_down

        def note(shell: GatewayShell, node: NodeId) -> None:
            self.nodes.append(node)
            on_peer_down(shell, node)

        monkeypatch.setattr(GatewayShell, "on_peer_down", note)


@asynccontextmanager
async def filled(
    folder: Path, partitions: int, batches: int, size: int
) -> AsyncIterator[tuple[Cluster, Client, str]]:
    """A cluster of one replica server; a topic with so many batches of this size in each partition, and its id."""
    async with running(folder, replicas=1) as cluster, connected(cluster) as client:
        topic_id = await client.create("filled", partitions, 1, flush="os")
        value = os.urandom(size - 200)
        for partition in range(partitions):
            acks = [client.send(topic_id, value, partition=partition) for _ in range(batches)]
            for ack in acks:
                assert (await client.wait_ack(ack)).error is None
        yield cluster, client, topic_id


async def keep_acking(client: Client, topic_id: str, over: trio.Event) -> None:
    """Produce one batch after the other, each of which must be acknowledged."""
    while not over.is_set():
        ack = await client.wait_ack(client.send(topic_id, b"x" * 100))
        assert ack.error is None


async def test_large_reads_of_one_client_break_no_link_and_lose_no_ack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled(tmp_path, 1, 6, MIB) as (cluster, reader, topic_id):
        breaks, over = Breaks(monkeypatch), trio.Event()
        other = await reader.create("other", 1, 1)
        sizes: list[int] = []
        async with connected(cluster) as producer, trio.open_nursery() as nursery:
            nursery.start_soon(keep_acking, producer, other, over)

            async def read() -> None:
                answer = await reader.link.call(Read(topic_id, 0, 0, max_bytes=4 * MIB), 60)
                assert isinstance(answer, ReadAnswer)
                sizes.append(len(answer.payload))

            for _ in range(2):
                async with trio.open_nursery() as reads:
                    for _ in range(24):
                        reads.start_soon(read)
            over.set()
        assert breaks.nodes == []
        assert len(sizes) == 48 and min(sizes) > MIB // 2


async def test_a_gateway_without_a_window_is_slowed_down_not_dropped(tmp_path: Path) -> None:
    async with filled(tmp_path, 1, 6, MIB) as (cluster, client, topic_id):
        told = await client.link.call(Metadata(), 15)
        assert isinstance(told, MetadataAnswer)
        hello = Hello(PROTOCOL_VERSION, "gateway", "g2", "test")
        async with (
            connect_link(cluster.transport, told.servers[0].url, hello) as link,
            trio.open_nursery() as nursery,
        ):
            for _ in range(48):
                nursery.start_soon(link.call, Read(topic_id, 0, 0, max_bytes=4 * MIB), 60)


async def test_eight_consumers_that_catch_up_break_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, size = 9, MIB // 2
    async with (
        filled(tmp_path, PARTITIONS, batches, size) as (cluster, producer, topic_id),
        AsyncExitStack() as stack,
    ):
        breaks, over = Breaks(monkeypatch), trio.Event()
        other = await producer.create("other", 1, 1)
        consumers = [await stack.enter_async_context(connected(cluster)) for _ in range(8)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_acking, producer, other, over)
            async with trio.open_nursery() as catching_up:
                for number, consumer in enumerate(consumers):
                    catching_up.start_soon(catch_up, consumer, topic_id, number, batches)
            over.set()
        assert breaks.nodes == []


async def catch_up(consumer: Client, topic_id: str, first: int, end: int) -> None:
    """Read all partitions from offset ``first`` to the end; credit comes back with what is delivered."""
    for partition in range(PARTITIONS):
        await consumer.link.call(Subscribe(partition, topic_id, partition, first, 2 * MIB), 30)
    missing, seen = PARTITIONS * (end - first), 0
    while missing:
        for delivery in consumer.deliveries[seen:]:
            assert delivery.error is None
            missing -= max(1, len(delivery.payload) // (MIB // 2 - 400))
            consumer.link.post(Credit(delivery.sub, len(delivery.payload)))
        seen = len(consumer.deliveries)
        if missing:
            await consumer.wait_news()


async def test_idle_long_polls_of_nine_connections_starve_no_tenth(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, connected(cluster) as client, AsyncExitStack() as stack:
        topic_id = await client.create("idle", PARTITIONS, 1)
        tenth = await stack.enter_async_context(connected(cluster))
        idle = [await stack.enter_async_context(connected(cluster)) for _ in range(9)]
        answers: list[Message | TidelogError] = []
        for one in idle:
            for number in range(GatewayConfig().client_max_in_flight - 1):
                poll = Read(topic_id, number % PARTITIONS, 0, max_wait_ms=30_000)
                one.link.start_call(poll, 60, answers.append)
            await one.link.call(Metadata(), 30)  # the gateway has all that was sent before
        with trio.fail_after(30):
            for partition in range(PARTITIONS):
                answer = await tenth.link.call(Read(topic_id, partition, 0), 20)
                assert isinstance(answer, ReadAnswer)
                await tenth.link.call(ListOffset(topic_id, partition, "latest"), 20)
            await tenth.link.call(Subscribe(1, topic_id, 3, 0, MIB), 20)
            assert (await client.wait_ack(client.send(topic_id, b"news", partition=3))).error is None
            assert [record.value for record in await tenth.wait_deliveries(1)] == [b"news"]
        assert not any(isinstance(answer, TidelogError) for answer in answers)
