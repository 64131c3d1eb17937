"""What the services of a real cluster tell of themselves: whether they live and are ready, and what they count."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import BrokerError
from tidelog.types import NodeId
from tidelog.wire.messages import DrainServer
from unit.tidelog.net.test_http_pages import ask_at

from cluster.harness import Cluster, connected, running


async def wait_ready(url: str, ready: bool) -> str:
    """Until the service is, or is not; why not."""
    with trio.fail_after(30):
        reply = await ask_at(url, "/readyz")
        while (reply.status == 200) != ready:
            reply = await ask_at(url, "/readyz")
    assert (await ask_at(url, "/healthz")).status == 200
    return reply.body.decode()


async def drain(cluster: Cluster, node: NodeId, drained: bool) -> None:
    async with connected(cluster) as client:
        await client.link.call(DrainServer(node, drained), 15)


async def test_a_service_is_ready_while_it_can_do_its_work(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=0) as cluster:
        replica = await cluster.start("r1")
        for url in (cluster.controllers["c1"], cluster.gateway, replica):
            assert await wait_ready(url, True) == "ready\n"

        await drain(cluster, "r1", True)
        assert await wait_ready(replica, False) == "r1 is drained: tidelog servers resume r1 ends that\n"
        await drain(cluster, "r1", False)
        await wait_ready(replica, True)

        await cluster.stop("c1")
        for url in (cluster.gateway, replica):
            assert "there is no link to the active controller\n" in await wait_ready(url, False)
        await cluster.start("c1")
        for url in (cluster.gateway, replica):
            await wait_ready(url, True)


async def test_a_controller_without_a_majority_is_not_ready(tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        cluster = Cluster(tmp_path, nursery, 3, 0.0)
        first = await cluster.start("c1")
        assert await wait_ready(first, False) == "c1 has no vote yet\nno active controller is known\n"
        for node in ("c2", "c3"):
            await cluster.start(node)
        for url in cluster.controllers.values():
            await wait_ready(url, True)
        for node in ("c2", "c3"):
            await cluster.stop(node)
        assert await wait_ready(first, False) == "no active controller is known\n"
        nursery.cancel_scope.cancel()


async def test_the_metrics_of_servers_are_served_through_a_gateway(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=1) as cluster:
        cluster.settings["r2"] = {"metrics": False}
        await cluster.start("r2")
        async with tidelog.connect(cluster.gateway) as log:
            assert "\ntidelog_replica_registered 1.0\n" in (await log.cluster.metrics("r1")).page
            assert "\ntidelog_controller_active 1.0\n" in (await log.cluster.metrics("c1")).page
            own = await log.cluster.metrics()
            assert own.version and own.time_ms > 0 and "\ntidelog_gateway_connections " in own.page
            while "r2" not in {server.node for server in (await log.cluster.status()).servers}:
                continue
            for node, code in (("r2", "UNSUPPORTED"), ("c9", "UNKNOWN_SERVER")):
                with pytest.raises(BrokerError) as refused:
                    await log.cluster.metrics(node)
                assert refused.value.code == code
