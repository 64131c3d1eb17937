"""Clients that gateways do not let in. Tests ``client/connection.py``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import tidelog
import trio
from support.fake_gateway import FakeCluster
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import serve_links
from tidelog.net.websocket.transport import WebSocketTransport


async def test_a_client_refused_by_all_gateways_fails_at_once_and_by_one_goes_to_another() -> None:
    async with refusing() as closed, refusing() as other, FakeCluster().gateways() as urls:
        with trio.fail_after(30), pytest.raises(TidelogError, match="UNAUTHENTICATED"):
            async with tidelog.connect([closed, other], connect_timeout_s=1e6):
                pytest.fail("nobody lets us in")
        async with tidelog.connect([closed, *urls]) as log:
            assert await log.topics.list() == ()


@asynccontextmanager
async def refusing() -> AsyncIterator[str]:
    """Yield a gateway that refuses every client."""
    async with trio.open_nursery() as nursery:

        async def serve(task_status: trio.TaskStatus[str]) -> None:
            no = refuse("UNAUTHENTICATED", "no")
            gateway = WebSocketTransport()
            await serve_links(
                gateway, "127.0.0.1", 0, lambda _: no, lambda *_: None, allowed={"client": frozenset()},
                task_status=task_status,
            )  # fmt: skip

        yield await nursery.start(serve)
        nursery.cancel_scope.cancel()
