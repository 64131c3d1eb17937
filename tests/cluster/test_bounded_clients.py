"""A whole cluster whose gateway bounds what clients may do and have."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.net.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import Acl, Quota
from tidelog.wire.messages import Credit, Hello, Message, Produce, ProducePart, Read, Subscribe

from cluster.harness import Client, connected, running


async def allow(log: Log, quota: Quota) -> None:
    """Set a quota that the gateway heeds from now on: it hears of it by itself."""
    await log.access.alter_quotas([quota])
    while (await log.access.describe()).quotas != (() if quota.is_none else (quota,)):
        await trio.lowlevel.checkpoint()


async def test_a_client_over_its_quota_gets_the_time_to_wait(tmp_path: Path) -> None:
    async with (
        running(tmp_path, replicas=1) as cluster,
        tidelog.connect(cluster.gateway) as log,
        connected(cluster) as client,
    ):
        topic_id = await client.create("orders", replication_factor=1)
        await allow(log, Quota("anonymous", bytes_in_s=10))
        assert (await client.wait_ack(client.send(topic_id, b"x" * 1000))).error is None
        refused = (await client.wait_ack(client.send(topic_id, b"y"))).error
        assert refused is not None and refused.code == "QUOTA_EXCEEDED"
        assert int(refused.detail["pause_ms"]) > 10_000 and not refused.unknown_outcome
        await allow(log, Quota("anonymous"))
        assert (await client.wait_ack(client.send(topic_id, b"z"))).error is None
        assert [r.value for r in await client.read(topic_id, 2)] == [b"x" * 1000, b"z"]


async def test_a_client_that_received_too_much_waits_with_reads_and_with_its_credit(tmp_path: Path) -> None:
    async with (
        running(tmp_path, replicas=1) as cluster,
        tidelog.connect(cluster.gateway) as log,
        connected(cluster) as client,
    ):
        topic_id = await client.create("orders", replication_factor=1)
        for _ in range(2):
            await client.wait_ack(client.send(topic_id, b"x" * 1000))
        await allow(log, Quota("anonymous", bytes_out_s=10))
        await client.link.call(Subscribe(1, topic_id, 0, 0, 1), 5)
        await client.wait_deliveries(1)
        with pytest.raises(TidelogError) as refused:
            await client.link.call(Read(topic_id, 0, 0), 5)
        assert refused.value.code == "QUOTA_EXCEEDED" and refused.value.pause_s > 10
        client.link.post(Credit(1, 1_000_000))
        await client.wait_ack(client.send(topic_id, b"y"))  # the leader would have answered a read before
        assert len(client.deliveries) == 1, "the credit is held back"
        await allow(log, Quota("anonymous"))
        await client.wait_deliveries(3)


async def test_a_consumer_that_wants_more_credit_than_the_gateway_keeps_reads_on(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=1)
        async with log.producer("orders", tidelog.ProducerOptions(linger_s=0)) as producer:
            for _ in range(24):
                await producer.submit(bytes(500_000))
        options = tidelog.ConsumerOptions(buffer_bytes=64 << 20, partition_bytes=64 << 20)
        with trio.fail_after(60):
            found = [r async for r in log.consume("orders", start="earliest", end="latest", options=options)]
        assert len(found) == 24


async def test_connections_over_the_quota_are_refused(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        await allow(log, Quota("anonymous", connections=1))
        with pytest.raises(TidelogError, match="QUOTA_EXCEEDED"):
            async with tidelog.connect(cluster.gateway, connect_timeout_s=0.2):
                pytest.fail("there is one already")
        await allow(log, Quota("anonymous", connections=2))
        async with tidelog.connect(cluster.gateway):
            pass


@asynccontextmanager
async def strict(folder: Path) -> AsyncIterator[tuple[Log, str, str]]:
    """A client of a gateway that lets everybody do everything, the URL of one that heeds rules, and alice's token."""
    async with running(folder, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = {"authentication": True, "authorization": True}
        url = await cluster.start("g2")
        yield log, url, await log.access.create_token("alice")


def one_part(id: int, topic_id: str, size: int) -> ProducePart:
    return ProducePart(id, topic_id, 0, 2, 15_000, size)


async def test_of_one_message_only_the_forbidden_batches_are_refused(tmp_path: Path) -> None:
    async with strict(tmp_path) as (log, url, token):
        ids = [(await log.topics.create(name)).topic_id for name in ("open", "seen", "hidden")]
        await log.access.alter_acls([Acl("alice", "write", "topic:open"), Acl("alice", "describe", "topic:seen")])
        async with linked(url, token) as client:
            batches = [encode_batch([NewRecord(name, timestamp_ms=1)]) for name in (b"1", b"22", b"333", b"4444")]
            topic_ids = [*ids, ids[0]]
            parts = [one_part(n, topic_ids[n], len(batch)) for n, batch in enumerate(batches)]
            client.link.post(Produce(tuple(parts), b"".join(batches)))
            acks = [await client.wait_ack(n) for n in range(4)]
            errors = [None if ack.error is None else ack.error.code for ack in acks]
            assert errors == [None, "FORBIDDEN", "UNKNOWN_TOPIC", None]
        values = [r.value async for r in log.consume("open", start="earliest", end="latest")]
        assert values == [b"1", b"4444"]


async def test_a_client_that_loses_the_right_to_read_is_disconnected_and_others_stay(tmp_path: Path) -> None:
    async with strict(tmp_path) as (log, url, token):
        topic_id = (await log.topics.create("orders")).topic_id
        rule = Acl("alice", "read", "topic:orders")
        async with linked(url, token) as reader, linked(url, token) as other:
            with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
                await reader.link.call(Subscribe(1, topic_id, 0, 0, 1), 5)
            await log.access.alter_acls([rule])
            await until_allowed(reader, topic_id)
            await log.access.alter_acls(remove=[rule])
            with trio.fail_after(30):
                await reader.link.wait_closed()
            assert "may not read any more" in str(reader.link.error)
            with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
                await other.link.call(Read(topic_id, 0, 0), 5)


async def test_the_audit_topic_names_the_principal_of_each_change_and_refusal(tmp_path: Path) -> None:
    guard = {"authentication": True, "authorization": True, "audit": True}
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = guard
        url = await cluster.start("g2")
        token = await log.access.create_token("alice")
        await log.access.alter_acls([Acl("alice", "create", "topic:orders")])
        await until(lambda: tidelog.connect(url, token=token))
        async with tidelog.connect(url, token=token) as alice:
            await alice.topics.create("orders")
            with pytest.raises(TidelogError, match="FORBIDDEN"):
                await alice.topics.delete("orders")
        with pytest.raises(TidelogError, match="UNAUTHENTICATED"):
            async with tidelog.connect(url, token=token[:-1]):
                pytest.fail("that is not her token")
        events: list[dict[str, str]] = []
        with trio.fail_after(30):
            await until(lambda: log.consume("__audit", start="earliest"))
            async with log.consume("__audit", start="earliest") as consumer:
                while len(events) < 3:
                    events += [json.loads(record.value or b"") for record in await consumer.next_records()]
        found = {(e["event"], e.get("principal", ""), e["op"], e.get("outcome", "")) for e in events}
        assert ("change", "alice", "create_topic", "done") in found
        assert ("denied", "alice", "delete_topic", "") in found
        assert ("unauthenticated", "", "hello", "") in found
        assert all(token.split("_", 2)[2] not in json.dumps(event) for event in events)
        async with log.producer("__audit") as producer:
            with pytest.raises(TidelogError, match="the cluster's own topic"):
                await producer.send(b"it was not me")


async def test_the_audit_topic_names_the_principal_that_fences_the_transaction_of_another(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        cluster.settings["g2"] = {"audit": True}
        url = await cluster.start("g2")
        await log.topics.create("orders")
        async with tidelog.connect(url) as owner, tidelog.connect(url) as other:
            for _ in range(2):
                async with owner.transaction("shop") as tx:
                    await tx.send("orders", b"mine")
            with pytest.raises(TidelogError):
                async with owner.transaction("shop") as zombie:
                    await zombie.send("orders", b"mine")
                    async with other.transaction("shop") as tx:
                        await tx.send("orders", b"others")
                    await zombie.send("orders", b"mine")
        with trio.fail_after(30):
            await until(lambda: log.consume("__audit", start="earliest"))
            async with log.consume("__audit", start="earliest") as consumer:
                records = await consumer.next_records()
        first = json.loads(records[0].value or b"")
        assert (first["event"], first["op"], first["outcome"]) == ("change", "begin_transaction", "done")
        assert first["request"]["app"] == "shop", "and nothing is told of the owner's before"


async def until(opened: Callable[[], AbstractAsyncContextManager[object]]) -> None:
    """What was made at one gateway is known at the other, too, in a moment."""
    with trio.fail_after(30):
        while True:
            try:
                async with opened():
                    return
            except TidelogError:
                await trio.lowlevel.checkpoint()


async def until_allowed(client: Client, topic_id: str) -> None:
    """The rule came to the other gateway; this one hears of it."""
    with trio.fail_after(30):
        while True:
            try:
                await client.link.call(Subscribe(1, topic_id, 0, 0, 1), 5)
            except TidelogError:
                await trio.lowlevel.checkpoint()
            else:
                return


@asynccontextmanager
async def linked(url: str, token: str) -> AsyncIterator[Client]:
    """A client with a token."""
    clients: list[Client] = []

    def handle(link: Link, id: int | None, message: Message) -> None:
        clients[0].on_message(link, id, message)

    hello = Hello(PROTOCOL_VERSION, "client", "test", token=token)
    async with connect_link(WebSocketTransport(), url, hello, handle) as link:
        clients.append(Client(link))
        yield clients[0]
