"""The services of one cluster as tasks of a trio loop, and the faults that a test injects into them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from tidelog_controller.config import ControllerConfig, ControllerSettings, GroupsTopicSettings, TimelineSettings
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import GroupSettings, ReplicaConfig, ReplicaSettings

import tidelog
from tidelog.batch.format import Record
from tidelog.errors import ConfigError, refuse
from tidelog.testing.real.faulty_disk import FaultyDisk, SlowSync
from tidelog.testing.real.faulty_network import FaultyTransport
from tidelog.testing.real.ports import KeptPort
from tidelog.testing.real.service_tasks import ServiceConfig, ServiceTask
from tidelog.wire.messages import ServerInfo, TopicInfo

CLUSTER = "test"
"""Id of every cluster for tests."""
CONTROLLER, GATEWAY = "c1", "g1"
POLL_S = 0.005
"""Seconds between two checks whether the cluster is ready."""
PATIENCE_S = 60.0
"""Seconds after which a start or a restart fails."""

_INTERNAL = GroupsTopicSettings(partitions=1)
_CONTROLLER = ControllerSettings(
    timeline=TimelineSettings(replication_factor=0), groups=_INTERNAL, transactions=_INTERNAL, streams=_INTERNAL
)
_REPLICA = ReplicaSettings(
    shutdown_s=0.0, reserve_bytes=0, groups=GroupSettings(heartbeat_ms=100, session_min_ms=200)
)


class Node:
    """One service of the cluster: its port and its configuration, which it keeps, and what its present incarnation
    runs over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = KeptPort()
        self.slow_sync = SlowSync()
        self.config: ServiceConfig
        self.transport = FaultyTransport()
        self.disk: FaultyDisk | None = None
        self.task: ServiceTask
        self.is_killed = False


class ClusterTasks:
    """A controller, replica servers and a gateway, which run in a nursery, and the faults that are injected into
    them. All methods run in trio."""

    def __init__(self, folder: Path, replicas: int) -> None:
        """``folder`` gets the data. ``replicas``: number of replica servers."""
        self._nursery: trio.Nursery
        self._nodes = {name: Node(name) for name in (CONTROLLER, *_servers(replicas), GATEWAY)}
        self._cuts: set[frozenset[str]] = set()
        """The pairs of services that are cut from each other."""
        self.address = self._nodes[GATEWAY].port.url
        controllers = (self._nodes[CONTROLLER].port.url,)
        for name, node in self._nodes.items():
            node.config = _config(name, node.port.number, str(folder / name), controllers)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all services."""
        return tuple(self._nodes)

    def close(self) -> None:
        """Give the ports back. Called when no service runs any more."""
        for node in self._nodes.values():
            node.port.close()

    def release(self) -> None:
        """End what may hold up the end of a service: paused networks and slow disks."""
        for node in self._nodes.values():
            node.slow_sync.slow_down(0)
            node.transport.gate.open()

    async def start(self, nursery: trio.Nursery) -> None:
        """Start all services as tasks of the nursery, and wait until the gateway knows every replica server as live.
        Raises ``TooSlowError`` if that takes longer than ``PATIENCE_S``."""
        self._nursery = nursery
        with trio.fail_after(PATIENCE_S):
            for node in self._nodes.values():
                await self._run(node)
            await self._wait_servers(lambda servers: all(name in servers for name in self._nodes if name[0] == "r"))

    async def _run(self, node: Node) -> None:
        """Start a new incarnation of a service over a new network, with the cuts that are in force."""
        node.transport, node.is_killed = FaultyTransport(), False
        node.disk = FaultyDisk(node.slow_sync) if isinstance(node.config, ReplicaConfig) else None
        node.task = ServiceTask(self._nursery, node.config, node.transport, disk=node.disk)
        self._apply_cuts(node)
        await node.task.start()

    async def _wait_servers(self, enough: Callable[[Mapping[str, ServerInfo]], bool]) -> None:
        """Wait until the replica servers that the gateway sees as live, by name, are enough."""
        async with tidelog.connect(self.address) as log:
            while True:
                status = await log.cluster.status()
                if enough({server.node: server for server in status.servers if not server.fenced}):
                    return
                await trio.sleep(POLL_S)

    # --- topics ----------------------------------------------------------------------------------------------

    async def create_topic(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, object]
    ) -> TopicInfo:
        """Create a topic, and wait until its partitions have leaders; see ``TopicAdmin.create``."""
        async with tidelog.connect(self.address) as log:
            return await log.topics.create(
                name, partitions=partitions, replication_factor=replication_factor, config=config
            )

    async def records(self, topic: str) -> list[Record]:
        """Return every committed record of a topic, by partition and offset."""
        async with tidelog.connect(self.address) as log:
            found = [record async for record in log.consume(topic, start="earliest", end="latest")]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def leader(self, topic: str, partition: int) -> str:
        """Return the name of a partition's leader, and wait until it has one. Raises ``UNKNOWN_TOPIC``, also for
        an unknown partition, and ``TooSlowError`` after ``PATIENCE_S``."""
        with trio.fail_after(PATIENCE_S):
            async with tidelog.connect(self.address) as log:
                while True:
                    if leader := _leader_of(await log.topics.describe(topic), partition):
                        return leader
                    await trio.sleep(POLL_S)

    async def wait_in_sync(self, topic: str) -> None:
        """Wait until all replicas of a topic's partitions are in sync. Raises ``UNKNOWN_TOPIC``, and
        ``TooSlowError`` after ``PATIENCE_S``, as when a server is down."""
        with trio.fail_after(PATIENCE_S):
            async with tidelog.connect(self.address) as log:
                while True:
                    if _is_in_sync(await log.topics.describe(topic)):
                        return
                    await trio.sleep(POLL_S)

    # --- faults ----------------------------------------------------------------------------------------------

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            raise ConfigError(f"no server {name!r}: there are {', '.join(self._nodes)}")
        return self._nodes[name]

    async def kill(self, name: str) -> None:
        """Kill a service: at one moment its connections close and its files take no more changes. It hands nothing
        over. Returns when its tasks have ended. Does nothing if it is killed already."""
        node = self._node(name)
        if not node.is_killed:
            node.is_killed = True
            node.transport.cut()
            if node.disk is not None:
                node.disk.kill()
            node.transport.gate.open()
            node.task.cancel(drops_errors=True)
        await node.task.wait_ended()

    async def restart(self, name: str) -> None:
        """Start a service again on its own data, after killing it if it runs. Returns when it is live: a replica
        server is registered, and the gateway knows its new incarnation. If a cut or a killed service keeps it from
        that, this returns when it listens. Raises ``TooSlowError`` after ``PATIENCE_S``."""
        node = self._node(name)
        with trio.fail_after(PATIENCE_S):
            is_seen = name != GATEWAY and self._is_seen(name)
            before = await self._epoch(name) if is_seen else -1
            await self.kill(name)
            await self._run(node)
            if is_seen and name != CONTROLLER:
                await self._wait_servers(lambda live: name in live and live[name].broker_epoch != before)

    def _is_seen(self, name: str) -> bool:
        """Return whether nothing keeps the gateway from learning through the controller about this service."""
        needed = {CONTROLLER, GATEWAY}
        cut = any(pair <= needed | {name} for pair in self._cuts)
        return not cut and not any(
            self._nodes[one].is_killed
            or self._nodes[one].transport.is_cut
            or not self._nodes[one].transport.gate.is_open
            for one in needed
        )

    async def _epoch(self, name: str) -> int:
        """Return the broker epoch of a replica server as the gateway knows it; -1 if it does not know the server."""
        async with tidelog.connect(self.address) as log:
            servers = (await log.cluster.status()).servers
        return next((server.broker_epoch for server in servers if server.node == name), -1)

    async def cut(self, name: str, other: str | None) -> None:
        """Cut a service off from everything, or from one other service alone: connections break, and new ones are
        refused."""
        node = self._node(name)
        pair = frozenset({name, name if other is None else self._node(other).name})
        if other == name:
            raise ConfigError(f"{name} cannot be cut from itself")
        self._cuts.add(pair)
        self._apply_cuts(node)
        if other is not None:
            self._apply_cuts(self._node(other))

    def _apply_cuts(self, node: Node) -> None:
        """Bring the cuts that are in force to the network of a service."""
        for pair in self._cuts:
            if pair == {node.name}:
                node.transport.cut()
            elif node.name in pair:
                (other,) = pair - {node.name}
                node.transport.cut_from(self._nodes[other].port.url)

    async def pause(self, name: str) -> None:
        """Let a service neither receive nor send, while its connections stay open, as a process that hangs."""
        self._node(name).transport.gate.close()

    async def heal(self) -> None:
        """End every cut, pause and slow disk. Killed services stay killed."""
        self._cuts.clear()
        for node in self._nodes.values():
            node.slow_sync.slow_down(0)
            if not node.is_killed:
                node.transport.heal()

    async def slow_disk(self, name: str, seconds: float) -> None:
        """Let each sync of a replica server's log take so many seconds from now on; 0: none. Raises ``ConfigError``
        if it is no replica server."""
        node = self._node(name)
        if node.disk is None:
            raise ConfigError(f"{name} is no replica server: only those have a disk that can be slow")
        node.slow_sync.slow_down(seconds)


def _leader_of(topic: TopicInfo, partition: int) -> str:
    """Return the name of a partition's leader; "" if it has none. Raises ``UNKNOWN_TOPIC`` for an unknown
    partition."""
    if partition not in range(len(topic.partitions)):
        raise refuse("UNKNOWN_TOPIC", f"{topic.name} has {len(topic.partitions)} partitions, and no {partition}")
    return topic.partitions[partition].leader


def _is_in_sync(topic: TopicInfo) -> bool:
    """Return whether every replica of a topic is in sync."""
    return all(set(found.isr) == set(found.replicas) for found in topic.partitions)


def _servers(replicas: int) -> tuple[str, ...]:
    return tuple(f"r{number}" for number in range(1, replicas + 1))


def _config(name: str, port: int, data: str, controllers: tuple[str, ...]) -> ServiceConfig:
    """Return the configuration of the service with this name, whose first letter says what it is."""
    if name == CONTROLLER:
        return ControllerConfig(
            node=name, cluster=CLUSTER, port=port, data_dir=data, settings=_CONTROLLER, shutdown_s=0.0
        )
    if name == GATEWAY:
        return GatewayConfig(
            node=name, cluster=CLUSTER, port=port, controllers=controllers, console=False, shutdown_s=0.0
        )
    return ReplicaConfig(
        node=name, cluster=CLUSTER, port=port, data_dir=data, controllers=controllers, settings=_REPLICA
    )


@asynccontextmanager
async def running_cluster(folder: Path, replicas: int) -> AsyncIterator[ClusterTasks]:
    """Run a cluster with its data below ``folder`` while the block runs. The cluster is ready when the block
    begins."""
    cluster = ClusterTasks(folder, replicas)
    try:
        async with trio.open_nursery() as nursery:
            try:
                await cluster.start(nursery)
                yield cluster
            finally:
                cluster.release()
                nursery.cancel_scope.cancel()
    finally:
        cluster.close()
