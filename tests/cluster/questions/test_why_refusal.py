"""``tidelog why ERROR-ID`` on a real cluster: errors of requests, acks and subscriptions have ids, and the gateway
that sent them shows the facts to their principal."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.explain.questions import answer_question, parse_question
from tidelog.wire.messages import Subscribe

from cluster.harness import connected, running
from cluster.operating import until, wait
from cluster.questions.answers import why, why_by_command


async def test_a_request_and_an_ack(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        with pytest.raises(TidelogError) as unknown:
            await log.groups.describe("nobody")
        found = await why_by_command(cluster, unknown.value.id)
        assert found["facts"]["op"] == "describe_group" and found["facts"]["code"] == "UNKNOWN_GROUP"
        assert found["facts"]["facts"] == {"group": "nobody"}
        assert f"(error id {unknown.value.id})" in str(unknown.value)

        await log.topics.create("orders", replication_factor=3, config={"min_insync_replicas": 3})
        partition = (await log.topics.describe("orders")).partitions[0]
        await cluster.stop(next(node for node in partition.replicas if node != partition.leader))
        await until(log, "orders", lambda found: len(found.isr) < 3)
        topic = await log.topics.describe("orders")
        async with connected(cluster) as client:
            await client.init()
            error = (await client.wait_ack(client.send(topic.topic_id, b"value", timeout_ms=500))).error
        assert error is not None
        found = await why(log, error.id)
        text = " ".join(found["sentences"])
        assert found["facts"]["facts"]["topic"] == "orders" and found["facts"]["facts"]["min_insync_replicas"] == "3"
        assert found["facts"]["op"] == "produce" and "orders/0" in text


async def test_the_gateway_that_the_id_names_is_asked(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster:
        other = await cluster.start("g2")
        async with tidelog.connect(other) as there, tidelog.connect(cluster.gateway) as here:
            with pytest.raises(TidelogError) as refused:
                await there.groups.describe("nobody")
            id = refused.value.id
            assert id.startswith("g2-")
            assert (await why(here, id))["sentences"][0].startswith(f"No refusal {id} is kept that you may see")

            async def is_known() -> bool:
                return "g2" in {gateway.node for gateway in await here.cluster.gateways()}

            await wait(is_known)
            found = await answer_question(here, parse_question([id]), tidelog.connect)
            assert found.facts["code"] == "UNKNOWN_GROUP"


async def test_a_subscription_that_ends(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
        topic = await log.topics.create("orders")
        async with connected(cluster) as client:
            await client.link.call(Subscribe(1, topic.topic_id, 0, 5, 1000), 15)
            with trio.fail_after(60):
                while not client.deliveries or client.deliveries[-1].error is None:
                    await client.wait_news()
            error = client.deliveries[-1].error
            assert error is not None
        found = await why(log, error.id)
        assert found["facts"]["op"] == "subscribe" and found["facts"]["facts"]["topic"] == "orders"
