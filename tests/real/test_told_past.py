"""What happened is told for good: of a leader and an active controller that were killed, the states before and after
and the causes, each event once."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from running import Cluster, in_sync, until
from tidelog.client.log import Log
from tidelog.errors import BrokerError
from tidelog.timeline.records import Document, decode
from tidelog.timeline.replay import past_after
from tidelog.types import TIMELINE

pytestmark = pytest.mark.real


def now() -> str:
    return datetime.now(UTC).isoformat()


async def told(log: Log) -> list[Document]:
    records = [decode(r.value) async for r in log.consume(TIMELINE, start="earliest", end="latest")]
    return [record for record in records if record is not None]


async def wait_told(log: Log) -> None:
    """Until the timeline has come to the present: of the topic, of who is live, and of who is active."""

    async def is_told() -> bool:
        past, status = past_after(await told(log)), await log.cluster.status()
        topic = past.topic_named("told")
        epochs = [p["epoch"] for p in topic.partitions.values()] if topic is not None else []
        present = [p.epoch for t in status.topics if t.name == "told" for p in t.partitions]
        fenced = {node: server["fenced"] for node, server in past.servers.items()}
        live = fenced == {server.node: server.fenced for server in status.servers}
        return live and epochs == present and past.active == (await log.cluster.quorum()).active

    await until(is_told)


async def test_the_timeline_shows_the_past_of_a_partition(failing_cluster: Cluster) -> None:
    def asked(*arguments: str) -> Any:
        return json.loads(failing_cluster.ok(*arguments, "--json"))

    async with failing_cluster.connect() as log:
        made = (await log.topics.create("told", replication_factor=3)).partitions[0]
        await wait_told(log)
        at_first = now()
        failing_cluster.local.kill(made.leader)
        await until(lambda: leads_another(log, made.leader))
        await until(lambda: is_fenced(log, made.leader))
        await wait_told(log)
        led = (await log.topics.describe("told")).partitions[0]
        without_leader = now()
        active = (await log.cluster.quorum()).active
        failing_cluster.local.kill(active)
        failing_cluster.local.restart(made.leader)
        await until(lambda: in_sync(log, "told"))
        await until(lambda: another_active(log, active))
        await wait_told(log)
        at_last = now()

        (before,) = asked("describe", "told/0", "--at", at_first)["partitions"]
        assert (before["leader"], before["leader_epoch"], before["isr"]) == (made.leader, 0, list(made.replicas))
        later = asked("describe", "told", "--at", without_leader)
        (between,) = later["partitions"]
        assert (between["leader"], between["epoch"], between["isr"]) == (led.leader, led.epoch, list(led.isr))
        assert made.leader not in between["isr"]
        assert (later["active_controller"], later["complete"]) == (active, True)
        assert [server["node"] for server in later["servers"] if server["fenced"]] == [made.leader]
        last = asked("describe", "told", "--at", at_last)
        assert last["active_controller"] == (await log.cluster.quorum()).active != active
        assert sorted(last["partitions"][0]["isr"]) == sorted(made.replicas)

        chain = asked("why", "told/0", "--at", without_leader)
        assert [entry["event"] for entry in chain] == ["created", "leader_elected"]
        assert f"{led.leader} leads after {made.leader}" in chain[-1]["words"]
        assert asked("why", "told/0", "--at", at_first) == chain[:1]
        whole = [(entry["epoch"], entry["event"]) for entry in asked("why", "told/0", "--at", at_last)]
        assert whole == [(entry["epoch"], entry["event"]) for entry in asked("why", "told/0")]

        numbers = [record["event"] for record in await told(log) if record["type"] == "event"]
        assert numbers == list(range(1, len(numbers) + 1))
        failing_cluster.local.restart(active)


async def another_active(log: Log, node: str) -> bool:
    return (await log.cluster.quorum()).active not in ("", node)


async def is_fenced(log: Log, node: str) -> bool:
    return any(server.node == node and server.fenced for server in (await log.cluster.status()).servers)


async def leads_another(log: Log, node: str) -> bool:
    return (await log.topics.describe("told")).partitions[0].leader not in ("", node)


async def test_the_timeline_is_the_clusters_own(failing_cluster: Cluster) -> None:
    async with failing_cluster.connect() as log:
        for wish in (log.topics.delete(TIMELINE), log.topics.grow(TIMELINE, 2), produce(log)):
            with pytest.raises(BrokerError, match="FORBIDDEN"):
                await wish
        with pytest.raises(BrokerError, match="INVALID_TOPIC"):
            await log.topics.create("__mine")
        with pytest.raises(BrokerError, match="INVALID_CONFIG"):
            await log.topics.alter(TIMELINE, {"cleanup": "compact"})
        await log.topics.alter(TIMELINE, {"retention_ms": 1 << 40})


async def produce(log: Log) -> None:
    async with log.producer(TIMELINE) as producer:
        await producer.send(b"forged")
