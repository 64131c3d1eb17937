"""The processes of a cluster as task trees: started, killed without a goodbye, restarted with the content of their
disks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Protocol

import trio
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve as serve_controller
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.server import serve as serve_gateway
from tidelog_replica.config import ReplicaConfig
from tidelog_replica.server import serve as serve_replica
from tidelog_replica.shell import DiskFailed

from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.runtime.disk import Disk
from tidelog.testing.hardware.disk import SimDisk
from tidelog.testing.options import CONTROLLER_SETTINGS, REPLICA_SETTINGS
from tidelog.testing.shells.streams import NODE

CONTROLLERS = {f"c{n}": f"ws://c{n}:9192" for n in (1, 2, 3)}
REPLICAS = ("r1", "r2", "r3")
GATEWAY_URL = "ws://g1:9292"


class Network(Protocol):
    """The network of the processes, from which a killed one is removed."""

    def detach(self, node: str) -> None:
        """Break all connections of a node and close its listeners."""


class Services:
    """All processes of a run by name. ``folder`` holds the stores of the controllers, in real files."""

    controllers: Mapping[str, str] = CONTROLLERS
    """The URL of each controller, by name."""
    controller_settings = CONTROLLER_SETTINGS
    replica_settings = REPLICA_SETTINGS
    gateway_config = GatewayConfig(shutdown_s=0.0)

    def __init__(self, net: Network, nursery: trio.Nursery, folder: Path, rng: Random) -> None:
        self.net = net
        self.disks = {node: SimDisk() for node in REPLICAS}
        self.names = (*self.controllers, *REPLICAS, "g1")
        self.exits = 0
        """The number of times that a server ended itself."""
        self._nursery = nursery
        self.folder = folder
        self._rng = rng
        self._scopes: dict[str, trio.CancelScope] = {}

    def disk(self, node: str) -> Disk:
        """Return the disk that a replica server uses."""
        return self.disks[node]

    def running(self, node: str) -> bool:
        """Return whether a process runs."""
        return node in self._scopes

    def start(self, node: str) -> None:
        """Start a process; does nothing if it runs."""
        if not self.running(node):
            self._scopes[node] = trio.CancelScope()
            self._nursery.start_soon(self._live, node, self._scopes[node])

    def kill(self, node: str, power: bool = False) -> None:
        """Kill a process at once; does nothing if it is down. It is first cut off from network and disk, so that
        nothing that its tasks do while they are cancelled has an effect. ``power``: unsynced data may be lost."""
        scope = self._scopes.pop(node, None)
        if scope is None:
            return
        self.net.detach(node)
        if node in self.disks:
            self.disks[node] = left = self.disks[node].clone()
            left.heal()
            if power:
                left.crash(self._rng)
        scope.cancel()

    def start_later(self, node: str, seconds: float) -> None:
        """Start a process after some seconds, if it is down then."""

        async def later() -> None:
            await trio.sleep(seconds)
            self.start(node)

        self._nursery.start_soon(later)

    async def _live(self, node: str, scope: trio.CancelScope) -> None:
        """Run a process until it is killed. If it ends by itself, start it again soon, as a supervisor does. A
        replica server ends when its disk fails, also while it starts."""
        NODE.set(node)
        with scope:
            try:
                await self._serve(node)()
            except* DiskFailed:
                self.exits += 1
            except* OSError as failed:
                if failed.split(_names_a_file)[1] is not None:
                    raise
                self.exits += 1
        if self._scopes.get(node) is scope:  # it ended by itself: its supervisor starts it again
            self.kill(node)
            await trio.sleep(0.3)
            self.start(node)

    def _serve(self, node: str) -> Callable[[], Awaitable[None]]:
        """Return the function that runs the server of a node."""
        transport, urls = WebSocketTransport(), tuple(self.controllers.values())
        if node.startswith("c"):
            controller = ControllerConfig(
                shutdown_s=0.0,
                node=node,
                cluster="sim",
                host=node,
                data_dir=str(self.folder / node),
                peers=dict(self.controllers),
                settings=self.controller_settings,
            )
            return lambda: serve_controller(controller, transport=transport)
        if node.startswith("r"):
            replica = ReplicaConfig(
                node=node, host=node, data_dir="/data", controllers=urls, settings=self.replica_settings
            )
            return lambda: serve_replica(replica, transport=transport, disk=self.disk(node))
        gateway = replace(self.gateway_config, node=node, host=node, controllers=urls)
        return lambda: serve_gateway(gateway, transport=transport)


def _names_a_file(error: BaseException) -> bool:
    """Return whether an error is one of a disk, not of the network."""
    return isinstance(error, OSError) and error.filename is not None
