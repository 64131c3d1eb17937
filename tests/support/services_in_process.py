"""A controller and a replica server in the process of a test, at real ports."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.testing.real.service_tasks import ServiceTask
from tidelog_controller.config import ControllerConfig
from tidelog_replica.config import ReplicaConfig


@asynccontextmanager
async def two_services(folder: Path, secret: bytes = b"") -> AsyncIterator[tuple[str, str]]:
    """Yield the URLs of both services, once they listen. ``folder`` gets their data; ``secret`` is that of the
    cluster, empty for none."""
    transport = WebSocketTransport(secret=secret)
    async with trio.open_nursery() as nursery:
        controller = ControllerConfig(port=0, data_dir=str(folder / "c1"))
        url = await ServiceTask(nursery, controller, transport).start()
        replica = ReplicaConfig(port=0, data_dir=str(folder / "r1"), controllers=(url,))
        yield url, await ServiceTask(nursery, replica, transport).start()
        nursery.cancel_scope.cancel()
