"""Runs controllers, replica servers and gateways as tasks of this process, at real ports."""

from __future__ import annotations

from collections.abc import Callable

import trio
from tidelog_controller.config import ControllerConfig
from tidelog_controller.server import serve as serve_controller
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.requests.requests import FaultPlayground
from tidelog_gateway.server import serve as serve_gateway
from tidelog_replica.config import ReplicaConfig
from tidelog_replica.server import serve as serve_replica

from tidelog.net.transport import Transport
from tidelog.runtime.disk import Disk

ServiceConfig = ControllerConfig | ReplicaConfig | GatewayConfig


class ServiceTask:
    """One service of any role, which runs as a task: from ``start`` until ``cancel``, or until its nursery is
    cancelled. The kind of its configuration says which service it is."""

    def __init__(
        self,
        nursery: trio.Nursery,
        config: ServiceConfig,
        transport: Transport,
        *,
        disk: Disk | None = None,
        clock: Callable[[], float] = trio.current_time,
        playground: FaultPlayground | None = None,
    ) -> None:
        """``disk``: the disk of a replica server; None: the real one. ``clock`` returns the time in seconds.
        ``playground``: the nodes in which clients of a gateway may cause faults (``tidelog dev``)."""
        self.url = ""
        """URL at which the service listens; "" until it does."""
        self._nursery = nursery
        self._config = config
        self._transport = transport
        self._disk = disk
        self._clock = clock
        self._playground = playground
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._drops_errors = False

    @property
    def is_running(self) -> bool:
        """Whether the task has not ended."""
        return not self._ended.is_set()

    async def start(self) -> str:
        """Start the service, wait until it listens, and return its URL. Raises the error with which the start fails.
        Called once. An error of the running service ends its nursery."""
        self.url = await self._nursery.start(self._run)
        return self.url

    def cancel(self, *, drops_errors: bool = False) -> None:
        """End the service, as a signal does; ``wait_ended`` waits for it. ``drops_errors``: the errors with which it
        fails from now on are dropped, since what it runs over has been taken from it."""
        self._drops_errors = self._drops_errors or drops_errors
        self._scope.cancel()

    async def wait_ended(self) -> None:
        """Wait until the task has ended."""
        await self._ended.wait()

    async def stop(self) -> None:
        """End the service, and wait until the task has ended."""
        self.cancel()
        await self.wait_ended()

    async def _run(self, task_status: trio.TaskStatus[str]) -> None:
        try:
            with self._scope:
                await self._serve(task_status)
        except Exception:
            if not self._drops_errors:
                raise
        finally:
            self._ended.set()

    async def _serve(self, task_status: trio.TaskStatus[str]) -> None:
        """Run the service that the configuration is for, until it is cancelled."""
        config, transport, clock = self._config, self._transport, self._clock
        match config:
            case ControllerConfig():
                await serve_controller(config, transport=transport, clock=clock, task_status=task_status)
            case ReplicaConfig():
                await serve_replica(
                    config, transport=transport, disk=self._disk, clock=clock, task_status=task_status
                )
            case GatewayConfig():
                await serve_gateway(
                    config, transport=transport, clock=clock, playground=self._playground, task_status=task_status
                )
