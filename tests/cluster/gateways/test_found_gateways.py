"""Clients that were given one gateway go on at another, which the cluster has named."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import Unreachable
from tidelog.wire.messages import Metadata
from tidelog_gateway.clients import announcement

from cluster.harness import Cluster, connected, running

_ANY = Metadata(())


@pytest.fixture(autouse=True)
def announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the gateways is known to all after a moment."""
    monkeypatch.setattr(announcement, "ANNOUNCE_S", 0.02)


@asynccontextmanager
async def two_gateways(folder: Path, **settings: dict[str, object]) -> AsyncIterator[tuple[Cluster, dict[str, str]]]:
    """A cluster with ``g1`` and ``g2``, and the URLs of both by name. ``settings``: more of a node's."""
    async with running(folder, replicas=1, settings=settings) as cluster:
        yield cluster, {"g1": cluster.gateway, "g2": await cluster.start("g2")}


async def wait_named(log: tidelog.Log, urls: dict[str, str]) -> None:
    """Until the gateway names exactly these."""
    with trio.fail_after(20):
        while (named := {one.node: one.url for one in (await log.cluster.status()).gateways}) != urls:
            assert set(named) <= {"g1", "g2"}


async def test_a_client_that_was_given_one_gateway_goes_on_at_the_other(tmp_path: Path) -> None:
    seen: list[bytes | None] = []

    async def follow(log: tidelog.Log) -> None:
        async with log.consume("orders", start="earliest") as consumer:
            while len(seen) < 1000:
                seen.append((await consumer.__anext__()).value)

    async with two_gateways(tmp_path) as (cluster, urls), tidelog.connect(urls["g1"]) as log:
        await wait_named(log, urls)
        await log.topics.create("orders", config={"flush": "os"})
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(follow, log)
                async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=500)) as producer:
                    for n in range(1000):
                        await producer.submit(b"%d" % n)
                        if n == 400:
                            await cluster.stop("g1")
        assert seen == [b"%d" % n for n in range(1000)]
        await wait_named(log, {"g2": urls["g2"]})


async def test_a_client_that_is_not_to_find_gateways_does_not(tmp_path: Path) -> None:
    async with (
        two_gateways(tmp_path) as (cluster, urls),
        tidelog.connect(urls["g1"], discover=False, request_timeout_s=0.5) as log,
    ):
        await wait_named(log, urls)
        await cluster.stop("g1")
        with pytest.raises(Unreachable) as caught:
            await log.topics.list()
        assert urls["g2"] not in caught.value.message


async def test_found_addresses_that_lead_nowhere_do_not_keep_a_client_from_the_given_one(tmp_path: Path) -> None:
    """As behind a load balancer: the given address leads to a gateway again, the one that is named to none."""
    nowhere: dict[str, object] = {"advertised_url": "ws://127.0.0.1:1"}
    async with (
        two_gateways(tmp_path, g1=nowhere, g2=nowhere) as (cluster, urls),
        tidelog.connect(urls["g1"]) as log,
    ):
        await wait_named(log, dict.fromkeys(("g1", "g2"), "ws://127.0.0.1:1"))
        cluster.settings["g1"] = nowhere | {"port": int(urls["g1"].rpartition(":")[2])}
        for _ in range(2):
            await cluster.stop("g1")
            await cluster.start("g1")
            with trio.fail_after(20):
                await log.topics.list()


async def test_a_gateway_that_ends_in_order_is_no_longer_named(tmp_path: Path) -> None:
    """Although it waits for its clients: here for one whose batch is not acked."""
    async with (
        two_gateways(tmp_path, g2={"shutdown_s": 60.0}) as (cluster, urls),
        tidelog.connect(urls["g1"]) as log,
    ):
        await wait_named(log, urls)
        cluster.gateway = urls["g2"]
        async with connected(cluster) as client, trio.open_nursery() as nursery:
            topic_id = await client.create("orders", replication_factor=1)
            await cluster.stop("r1")
            client.send(topic_id, b"a")
            await client.link.call(_ANY, 10)  # so the batch was taken
            nursery.start_soon(cluster.stop, "g2")
            await wait_named(log, {"g1": urls["g1"]})
            assert not client.link.closed
            await cluster.start("r1")


async def test_a_gateway_names_only_those_that_say_where_they_are(tmp_path: Path) -> None:
    """One that listens on every address of its machine does not know; it names the others all the same."""
    everywhere: dict[str, object] = {"host": "0.0.0.0", "insecure": True}
    async with two_gateways(tmp_path, g2=everywhere) as (_, urls):
        for url in urls.values():
            async with tidelog.connect(url) as log:
                await wait_named(log, {"g1": urls["g1"]})
                quorum = await log.cluster.quorum()
                assert (quorum.gateways, quorum.gateway_urls) == (("g1", "g2"), {"g1": urls["g1"]})


async def test_the_next_active_controller_knows_the_gateways_too(tmp_path: Path) -> None:
    async with running(tmp_path, controllers=3, replicas=1) as cluster:
        urls = {"g1": cluster.gateway, "g2": await cluster.start("g2")}
        async with tidelog.connect(urls["g1"]) as log:
            await wait_named(log, urls)
            active = (await log.cluster.quorum()).active
            await cluster.stop(active)
            with trio.fail_after(20):
                while (await log.cluster.quorum()).gateway_urls != urls:
                    """The new one has not heard of both yet."""
