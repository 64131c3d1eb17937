"""A small cluster of real shells in memory, whose metrics a test reads while it acts on the cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import tidelog
import tidelog_controller.server
import tidelog_gateway.server
import tidelog_replica.server
import trio
from tidelog.runtime.disk import Disk
from tidelog.runtime.metrics import MetricsPage
from tidelog.sansio.counters import Histogram
from tidelog.testing.hardware.loop import stream
from tidelog.testing.options import CONTROLLER_SETTINGS, REPLICA_SETTINGS
from tidelog.testing.shells.determinism import determined, run
from tidelog.testing.shells.services import CONTROLLERS, GATEWAY_URL, REPLICAS, Services
from tidelog.testing.shells.streams import NODE, Net
from tidelog_replica.storage.open_files import OpenFiles

LOOK_S = 0.05
LIMIT_S = 15.0
REPLICA = replace(REPLICA_SETTINGS, reserve_bytes=1 << 16, scrub_interval_s=2.0)
CONTROLLER = replace(
    CONTROLLER_SETTINGS, balance=replace(CONTROLLER_SETTINGS.balance, lag_threshold_s=0.5, lag_patience_s=1.0)
)
Figures = dict[str, float]
"""Values by ``name{label value,…}``; for a histogram the number of its observations."""


class Staged(Services):
    """Services with settings for short tests: replica servers with few descriptors and a disk reserve, frequent
    scrubs, low thresholds for slow servers, and a gateway that takes few clients."""

    controller_settings = CONTROLLER
    replica_settings = REPLICA
    gateway_config = replace(
        Services.gateway_config, throttle_target_s=0.1, throttle_least_bytes_s=1 << 10, client_max_connections=20
    )

    def disk(self, node: str) -> Disk:
        """Return the disk of a replica server with a small number of open files."""
        return OpenFiles(self.disks[node], 64)


class Stage:
    """The cluster, a client, and all values that the metrics of its processes have shown."""

    def __init__(self, net: Net, services: Staged) -> None:
        self.net = net
        self.services = services
        self.pages: dict[str, MetricsPage] = {}
        self.thread_s = 0.002
        """The longest time of a call in a thread."""
        self.log: tidelog.Log
        self.seen: dict[str, set[float]] = {}
        """Every value of every sample, by name of the metric."""

    def figures(self, *nodes: str) -> Figures:
        """Return the present metrics of these processes, added up; by default of all that run. Also records them in
        ``seen``."""
        found: Figures = {}
        for node, page in self.pages.items():
            if self.services.running(node) and (not nodes or node in nodes):
                for metric, labels, value in page.samples():
                    number = float(value.count if isinstance(value, Histogram) else value)
                    name = f"{metric.name}{{{','.join(labels)}}}" if labels else metric.name
                    found[name] = found.get(name, 0.0) + number
                    self.seen.setdefault(metric.name, set()).add(number)
        return found

    def value(self, name: str, *nodes: str) -> float:
        """Return one figure, or the sum of all with this name; 0.0 if there is none."""
        found = self.figures(*nodes)
        return found.get(name, sum(number for label, number in found.items() if label.startswith(f"{name}{{")))

    async def until(self, condition: Callable[[], Any], every_s: float = LOOK_S) -> None:
        """Wait until the condition holds, reading all figures every ``every_s`` seconds. Raises ``trio.TooSlowError``
        after ``LIMIT_S``."""
        with trio.fail_after(LIMIT_S):
            while self.figures() is not None and not condition():
                await self.tick(every_s)

    async def tick(self, seconds: float = LOOK_S) -> None:
        """Let some virtual time pass."""
        await trio.sleep(seconds)

    async def until_shown(self, wanted: float, name: str, *nodes: str, every_s: float = LOOK_S) -> None:
        """Wait until a figure has a value. A value that lasts less than ``every_s`` may be missed."""
        await self.until(lambda: self.value(name, *nodes) == wanted, every_s)

    async def until_in_sync(self, topic: str) -> None:
        """Wait until every replica of a topic is in sync."""
        while True:
            found = await self.log.topics.describe(topic)
            if all(len(p.isr) == len(p.replicas) for p in found.partitions):
                return
            await self.tick()

    async def leader(self, topic: str, partition: int = 0) -> str:
        """Return the leader of a partition."""
        return (await self.log.topics.describe(topic)).partitions[partition].leader

    @property
    def active(self) -> str:
        """The active controller."""
        return next(node for node in CONTROLLERS if self.value("tidelog_controller_active", node))


def play(folder: Path, story: Callable[[Stage], Awaitable[None]], seed: int = 1) -> Stage:
    """Run a story on a cluster in which all servers have registered, in virtual time, and return the stage."""
    rng, threads = stream(seed, "stage entropy"), stream(seed, "stage threads")
    net = Net(stream(seed, "stage network"), lambda line: None)
    stage: list[Stage] = []

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            services = Staged(net, nursery, folder, stream(seed, "stage disks"))
            stage.append(Stage(net, services))
            for node in services.names:
                services.start(node)
            here = stage[0]
            with trio.fail_after(LIMIT_S):
                while len(here.pages) < len(services.names):  # noqa: ASYNC110 (virtual time)
                    await trio.sleep(LOOK_S)
            await here.until(lambda: here.value("tidelog_servers{live}") == len(REPLICAS))
            await here.until(lambda: here.value("tidelog_gateway_replica_links") == len(REPLICAS))
            NODE.set("app")
            async with tidelog.connect(GATEWAY_URL) as here.log:
                await story(here)
            nursery.cancel_scope.cancel()

    def watch(make: Callable[..., MetricsPage], *arguments: Any) -> MetricsPage:
        page = stage[0].pages[NODE.get()] = make(*arguments)
        return page

    with ExitStack() as stack:
        stack.enter_context(determined(rng, lambda: threads.uniform(0.0, stage[0].thread_s)))
        stack.enter_context(mock.patch.object(trio, "open_tcp_stream", net.open_tcp_stream))
        stack.enter_context(mock.patch.object(trio, "open_tcp_listeners", net.open_tcp_listeners))
        for server in (tidelog_controller.server, tidelog_replica.server, tidelog_gateway.server):
            stack.enter_context(mock.patch.object(server, "metrics_page", partial(watch, server.metrics_page)))
        run(main)
    return stage[0]
