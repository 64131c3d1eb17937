"""Gateways that are stopped, or full: their clients go to another, and nothing fails, is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.wire.messages import Metadata

from cluster.harness import connected, running

_ANY = Metadata(())


async def test_a_gateway_that_is_stopped_under_load_fails_nothing(tmp_path: Path) -> None:
    seen: list[bytes | None] = []

    async def follow(log: tidelog.Log) -> None:
        async with log.consume("orders", start="earliest") as consumer:
            while len(seen) < 2000:
                seen.append((await consumer.__anext__()).value)

    async with running(tmp_path) as cluster:
        cluster.settings["g2"] = {"shutdown_s": 60.0}
        async with tidelog.connect([await cluster.start("g2"), cluster.gateway]) as log:
            await log.topics.create("orders", replication_factor=3, config={"flush": "os"})
            with trio.fail_after(40):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(follow, log)
                    async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=500)) as producer:
                        for n in range(2000):
                            await producer.submit(b"%d" % n)
                            if n == 800:
                                await cluster.stop("g2")
            assert seen == [b"%d" % n for n in range(2000)]


async def test_a_gateway_that_stops_takes_nothing_new_and_finishes_its_requests(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster:
        cluster.settings["g2"] = {"shutdown_s": 60.0}
        cluster.gateway = await cluster.start("g2")
        async with connected(cluster) as client, connected(cluster) as idle, trio.open_nursery() as nursery:
            topic_id = await client.create("orders", replication_factor=1)
            await client.init()
            await client.wait_ack(client.send(topic_id, b"a"))
            await cluster.stop("r1")
            waits = client.send(topic_id, b"b")
            await client.link.call(_ANY, 10)  # so the batch was taken
            nursery.start_soon(cluster.stop, "g2")
            with trio.fail_after(10):
                await idle.link.wait_closed()
            refused = await client.wait_ack(client.send(topic_id, b"c"))
            assert refused.error is not None
            assert (refused.error.code, refused.error.unknown_outcome) == ("OVERLOADED", False)
            with pytest.raises(TidelogError, match="ending"):
                await client.link.call(_ANY, 10)
            with pytest.raises(TidelogError, match="connection refused"):
                async with connected(cluster):
                    raise AssertionError("it takes newcomers")
            await cluster.start("r1")
            assert (await client.wait_ack(waits)).error is None
            with trio.fail_after(10):
                await client.link.wait_closed()


async def test_a_gateway_stops_without_requests_that_do_not_end_in_time(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster:
        cluster.settings["g2"] = {"shutdown_s": 0.1}
        cluster.gateway = await cluster.start("g2")
        async with connected(cluster) as client:
            topic_id = await client.create("orders", replication_factor=1)
            await cluster.stop("r1")
            client.send(topic_id, b"b")
            await client.link.call(_ANY, 10)
            with trio.fail_after(10):
                await cluster.stop("g2")
                await client.link.wait_closed()


async def test_a_full_gateway_sends_clients_to_the_next(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster:
        cluster.settings["g2"] = {"client_max_connections": 1}
        full = await cluster.start("g2")
        async with tidelog.connect(full) as first:
            with pytest.raises(TidelogError, match="client_max_connections = 1 are connected"):
                async with tidelog.connect(full, connect_timeout_s=0.2):
                    raise AssertionError("there is room for two")
            async with tidelog.connect([full, cluster.gateway]) as second:
                assert len((await second.cluster.status()).servers) == 1
            assert len((await first.cluster.status()).servers) == 1
        with trio.fail_after(10):
            async with tidelog.connect(full):
                """There is room again."""
