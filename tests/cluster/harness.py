"""A whole cluster in one nursery: real services, real loopback sockets, real disks; and a bare client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio
from tidelog.batch.format import NewRecord, Record, decode_batch, encode_batch, split
from tidelog.cli.local.local_cluster import free_base_port
from tidelog.net.link import PROTOCOL_VERSION, Link, connect_link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.runtime.disk import Disk
from tidelog.testing.real.service_tasks import ServiceTask
from tidelog.types import PRODUCER_WINDOW
from tidelog.wire.messages import (
    CreateTopic,
    Delivery,
    Hello,
    InitProducer,
    Message,
    Metadata,
    MetadataAnswer,
    PartitionInfo,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    ProducerId,
    Read,
    ReadAnswer,
    TopicCreated,
    UseProducer,
)
from tidelog_controller.config import ControllerConfig
from tidelog_gateway.config import GatewayConfig
from tidelog_replica.config import GroupSettings, ReplicaConfig, ReplicaSettings

QUICK_GROUPS = GroupSettings(heartbeat_ms=100, session_min_ms=1000)
"""Members of groups need not wait long for each other."""


class Cluster:
    """Starts and stops its processes, which are tasks here. A stopped one loses its connections at once, but for a
    replica server, which waits ``shutdown_s`` for others to take over."""

    def __init__(self, folder: Path, nursery: trio.Nursery, controllers: int, shutdown_s: float) -> None:
        self.transport = WebSocketTransport()
        self._folder = folder
        self._nursery = nursery
        self._tasks: dict[str, ServiceTask] = {}
        base = free_base_port(controllers)  # controllers must know each other's port before they listen
        self.controllers = {f"c{i + 1}": f"ws://127.0.0.1:{base + i}" for i in range(controllers)}
        self.gateway = ""
        self.settings: dict[str, dict[str, object]] = {}
        """More settings, by node."""
        self.disks: dict[str, Disk] = {}
        """Disks of replica servers that have another than the real one."""
        self.gateways_ahead_s = 0.0
        """How far the gateways' clock is ahead of the others', for the age of what they keep."""
        self._shutdown_s = shutdown_s

    async def start(self, node: str) -> str:
        """Start a process by its name (``c1``, ``r2``, ``g1``); returns its URL."""
        self._tasks[node] = task = self._task(node)
        with trio.fail_after(20):
            return await task.start()

    async def stop(self, node: str) -> None:
        """End a process, without any goodbye of its protocol."""
        await self._tasks[node].stop()

    @property
    def running(self) -> set[str]:
        """The names of the processes that run."""
        return {node for node, task in self._tasks.items() if task.is_running}

    def _task(self, node: str) -> ServiceTask:
        folder = str(self._folder / node)
        urls = tuple(self.controllers.values())
        if node.startswith("c"):
            port = int(self.controllers[node].rpartition(":")[2])
            controller = ControllerConfig(
                shutdown_s=self._shutdown_s,
                node=node,
                cluster="test",
                port=port,
                data_dir=folder,
                peers=self.controllers,
                **self.settings.get(node, {}),  # type: ignore[arg-type]
            )
            return ServiceTask(self._nursery, controller, self.transport)
        elif node.startswith("r"):
            settings = ReplicaSettings(shutdown_s=self._shutdown_s, groups=QUICK_GROUPS)
            more = {"settings": settings} | self.settings.get(node, {})
            replica = ReplicaConfig(node=node, port=0, data_dir=folder, controllers=urls, **more)  # type: ignore[arg-type]
            return ServiceTask(self._nursery, replica, self.transport, disk=self.disks.get(node))
        else:
            more = {"port": 0, "shutdown_s": 0.0} | self.settings.get(node, {})
            gateway = GatewayConfig(node=node, controllers=urls, **more)  # type: ignore[arg-type]
            transport = self.transport if gateway.tls is None else WebSocketTransport(tls=gateway.tls)
            return ServiceTask(self._nursery, gateway, transport, clock=self._gateways_clock)

    def _gateways_clock(self) -> float:
        return trio.current_time() + self.gateways_ahead_s


@asynccontextmanager
async def running(
    folder: Path,
    *,
    controllers: int = 1,
    replicas: int = 3,
    shutdown_s: float = 0.0,
    settings: Mapping[str, dict[str, object]] | None = None,
    disks: Mapping[str, Disk] | None = None,
) -> AsyncIterator[Cluster]:
    """A cluster whose gateway listens and knows all the replica servers. ``settings``, ``disks``: see ``Cluster``."""
    async with trio.open_nursery() as nursery:
        cluster = Cluster(folder, nursery, controllers, shutdown_s)
        cluster.settings.update(settings or {})
        cluster.disks.update(disks or {})
        for node in cluster.controllers:
            await cluster.start(node)
        urls = [await cluster.start(f"r{number}") for number in range(1, replicas + 1)]
        cluster.gateway = await cluster.start("g1")
        await wait_registered(cluster, urls)
        yield cluster
        nursery.cancel_scope.cancel()


@dataclass
class Client:
    """A client without a library: one link, batches by hand."""

    link: Link
    acks: dict[int, ProduceAck] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    producer_id: int = 0
    _news: trio.Event = field(default_factory=trio.Event)
    _next_id: int = 0
    _sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    _in_flight: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Topic and partition of each batch of the idempotent producer that has no ack yet, by the id of its ack."""
    _waiting: list[tuple[tuple[str, int], Produce]] = field(default_factory=list)
    """Batches for which the producer's window has no room yet."""

    def on_message(self, _link: Link, _id: int | None, message: Message) -> None:
        if isinstance(message, Produced):
            self.acks.update({ack.id: ack for ack in message.acks})
            for ack in message.acks:
                self._in_flight.pop(ack.id, None)
            waiting, self._waiting = self._waiting, []
            for place, produce in waiting:
                self._post(place, produce)
        elif isinstance(message, Delivery):
            self.deliveries.append(message)
        self._news.set()
        self._news = trio.Event()

    async def create(self, name: str, partitions: int = 1, replication_factor: int = 3, **config: str) -> str:
        """Create a topic, waiting for enough replica servers; returns its id."""
        answer = await self.link.call(CreateTopic(name, partitions, replication_factor, config), 15)
        assert isinstance(answer, TopicCreated)
        return answer.topic_id

    async def init(self) -> None:
        """Become an idempotent producer."""
        answer = await self.link.call(InitProducer(), 15)
        assert isinstance(answer, ProducerId)
        self.producer_id = answer.producer_id
        await self.link.call(UseProducer(answer.producer_id, 0, answer.ticket), 15)

    def send(self, topic_id: str, *values: bytes, partition: int = 0, acks: int = 2, timeout_ms: int = 15_000) -> int:
        """Produce one batch; returns the id that its ack will have."""
        self._next_id += 1
        sequence = self._sequences.get((topic_id, partition), 0)
        self._sequences[topic_id, partition] = sequence + len(values)
        data = encode_batch(
            [NewRecord(value, timestamp_ms=1) for value in values],
            producer_id=self.producer_id,
            base_sequence=sequence if self.producer_id else 0,
        )
        part = ProducePart(self._next_id, topic_id, partition, acks, timeout_ms, len(data))
        self._post((topic_id, partition), Produce((part,), data))
        return self._next_id

    def _post(self, place: tuple[str, int], produce: Produce) -> None:
        if self.producer_id:
            if list(self._in_flight.values()).count(place) >= PRODUCER_WINDOW:
                self._waiting.append((place, produce))
                return
            self._in_flight[produce.parts[0].id] = place
        self.link.post(produce)

    async def wait_ack(self, id: int) -> ProduceAck:
        """The fate of a batch."""
        with trio.fail_after(30):
            while id not in self.acks:
                await self._news.wait()
        return self.acks.pop(id)

    async def wait_news(self) -> None:
        """Until something comes."""
        await self._news.wait()

    async def wait_deliveries(self, records: int) -> list[Record]:
        """What was pushed, when it is so many records."""
        with trio.fail_after(30):
            while True:
                found = [
                    record
                    for delivery in self.deliveries
                    for _, batch in split(delivery.payload)  # type: ignore[arg-type]
                    for record in decode_batch(batch)
                ]
                if len(found) >= records:
                    return found
                await self._news.wait()

    async def read(self, topic_id: str, end: int, partition: int = 0) -> list[Record]:
        """The records of a partition below ``end``."""
        found: list[Record] = []
        while len(found) < end:
            answer = await self.link.call(Read(topic_id, partition, len(found), max_wait_ms=5000), 15)
            assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
            for _, batch in split(answer.payload):
                found.extend(decode_batch(batch))
        return found

    async def partition(self, topic: str, index: int = 0) -> PartitionInfo:
        """What the gateway knows of a partition."""
        answer = await self.link.call(Metadata((topic,)), 15)
        assert isinstance(answer, MetadataAnswer)
        return answer.topics[0].partitions[index]


@asynccontextmanager
async def connected(cluster: Cluster) -> AsyncIterator[Client]:
    """A client of the cluster's gateway."""
    clients: list[Client] = []

    def handle(link: Link, id: int | None, message: Message) -> None:
        clients[0].on_message(link, id, message)

    hello = Hello(PROTOCOL_VERSION, "client", "test")
    async with connect_link(cluster.transport, cluster.gateway, hello, handle) as link:
        clients.append(Client(link))
        yield clients[0]


async def wait_registered(cluster: Cluster, urls: Sequence[str]) -> None:
    """Until the gateway knows these replica servers as live, under these URLs: the metadata of a cluster that was
    stopped still shows their former lives, and what is asked of those has no answer until the present ones begin."""
    async with connected(cluster) as client:
        with trio.fail_after(20):
            while True:
                answer = await client.link.call(Metadata(), 15)
                assert isinstance(answer, MetadataAnswer)
                if {server.url for server in answer.servers if not server.fenced} >= set(urls):
                    return
