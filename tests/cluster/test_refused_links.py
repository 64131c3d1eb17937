"""What came no further than a controller's port is told in the timeline: hellos, and what a role may not send."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidelog
import trio
from tidelog.errors import TidelogError
from tidelog.feature_levels import service_hello
from tidelog.net.link import PROTOCOL_VERSION, connect_link
from tidelog.timeline.records import decode
from tidelog.types import TIMELINE
from tidelog.wire.messages import CreateTopic, Heartbeat, Hello, Message, Seal

from .harness import Cluster, running

ANSWER_S = 30.0


async def refused(cluster: Cluster, hello: Hello, message: Message | None = None) -> str:
    """The code with which a controller refuses the hello, or the message."""
    with pytest.raises(TidelogError) as caught:
        async with connect_link(cluster.transport, cluster.controllers["c1"], hello) as link:
            assert message is not None
            await link.call(message, ANSWER_S)
    return caught.value.code


async def told(cluster: Cluster, count: int) -> list[tuple[str, str, str]]:
    """Op, cause and who asked, of the first so many refusals in the timeline."""
    found: list[tuple[str, str, str]] = []
    async with tidelog.connect(cluster.gateway) as log:
        with trio.fail_after(ANSWER_S):
            async for record in log.consume(TIMELINE, start="earliest"):
                one = decode(record.value)
                assert one is not None
                if one["type"] == "refused":
                    found.append((one["op"], one["cause"], one["asked_by"].partition(":")[0]))
                    if len(found) == count:
                        break
    return found


async def test_the_timeline_records_refusals_at_the_port_of_the_active_controller(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        assert await refused(cluster, Hello(PROTOCOL_VERSION, "replica", "r9", "other")) == "WRONG_CLUSTER"
        assert await refused(cluster, Hello(PROTOCOL_VERSION, "client", "eve"), CreateTopic("x", asker="ann")) == (
            "FORBIDDEN"
        )
        assert await refused(cluster, service_hello("gateway", "g1"), Heartbeat("r1", 1)) == "FORBIDDEN"
        assert await refused(cluster, service_hello("replica", "r2"), Seal("r1", 1, ())) == "FORBIDDEN"
        assert await told(cluster, 4) == [
            ("hello", "WRONG_CLUSTER", "a replica at 127.0.0.1"),
            ("create_topic", "FORBIDDEN", "eve at 127.0.0.1"),
            ("heartbeat", "FORBIDDEN", "g1 at 127.0.0.1"),
            ("seal", "FORBIDDEN", "r2"),
        ]
