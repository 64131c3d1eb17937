"""A controller and a replica server in the process of a test, at real ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve as serve_controller
from tidelog_replica.config import ReplicaConfig
from tidelog_replica.server import serve as serve_replica


@asynccontextmanager
async def two_services(folder: Path, secret: bytes = b"") -> AsyncIterator[tuple[str, str]]:
    """Yield the URLs of both services, once they listen. ``folder`` gets their data; ``secret`` is that of the
    cluster, empty for none."""
    transport = WebSocketTransport(secret=secret)
    async with trio.open_nursery() as nursery:

        async def controller(task_status: trio.TaskStatus[str]) -> None:
            config = ControllerConfig(port=0, data_dir=str(folder / "c1"))
            await serve_controller(config, transport=transport, task_status=task_status)

        async def replica(task_status: trio.TaskStatus[str]) -> None:
            config = ReplicaConfig(port=0, data_dir=str(folder / "r1"), controllers=(url,))
            await serve_replica(config, transport=transport, task_status=task_status)

        url = await nursery.start(controller)
        yield url, await nursery.start(replica)
        nursery.cancel_scope.cancel()
