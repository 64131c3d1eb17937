"""Deleted means deleted: what compaction has removed no cache on the way to a reader serves any more."""

from __future__ import annotations

from pathlib import Path

import trio
from tidelog.batch.format import NewRecord, decode_batch, encode_batch, split
from tidelog.wire.messages import Delivery, DescribeMetrics, MetricsAnswer, Produce, ProducePart, Subscribe
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import ReplicaSettings

from cluster.harness import QUICK_GROUPS, Client, connected, running

QUICK = ReplicaSettings(shutdown_s=0, groups=QUICK_GROUPS, retention_check_interval_s=0.05)
NAME = "tidelog_gateway_tail_cache_bytes"


async def put(client: Client, topic: str, id: int, key: bytes, value: bytes | None) -> None:
    """Write one record."""
    data = encode_batch([NewRecord(value, key, 1)])
    client.link.post(Produce((ProducePart(id, topic, 0, 2, 15_000, len(data)),), data))
    assert (await client.wait_ack(id)).error is None


async def subscribe(client: Client, topic: str, sub: int) -> None:
    """Read all of it from the beginning."""
    await client.link.call(Subscribe(sub, topic, 0, 0, 1 << 20), 15)


def values(client: Client, *subs: int) -> list[bytes | None]:
    """What these subscriptions got."""
    mine = [one for one in client.deliveries if isinstance(one, Delivery) and one.sub in subs]
    return [r.value for one in mine for _, batch in split(one.payload) for r in decode_batch(batch)]  # type: ignore[arg-type]


async def kept_bytes(client: Client) -> float:
    """What the gateway's cache holds."""
    answer = await client.link.call(DescribeMetrics(""), 15)
    assert isinstance(answer, MetricsAnswer)
    return next(float(line.split()[-1]) for line in answer.page.splitlines() if line.startswith(f"{NAME} "))


async def test_a_deleted_value_is_gone_for_readers_though_the_caches_of_server_and_gateway_held_it(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, replicas=1, settings={"r1": {"settings": QUICK}}) as cluster,
        connected(cluster) as client,
    ):
        config = {"cleanup": "compact", "segment_max_bytes": "1024"}
        topic = await client.create("table", replication_factor=1, **config)
        await subscribe(client, topic, 1)
        await subscribe(client, topic, 2)
        await put(client, topic, 1, b"key", b"secret")
        await client.wait_deliveries(2)
        assert values(client, 1) == values(client, 2) == [b"secret"] and await kept_bytes(client) > 0
        await put(client, topic, 2, b"key", None)
        for number in range(3, 15):
            await put(client, topic, number, b"other", b"%d" % number * 200)
        with trio.fail_after(30):
            while b"secret" in [record.value for record in await client.read(topic, 2)]:
                pass  # until the server has compacted, and says so to who asks it
        cluster.gateways_ahead_s = GatewayConfig(node="g1", controllers=("ws://c",)).tail_cache_max_age_s
        await subscribe(client, topic, 3)
        with trio.fail_after(30):
            while b"14" * 200 not in values(client, 3):
                await client.wait_news()
        assert b"secret" not in values(client, 3)
