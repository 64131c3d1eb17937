"""The gateway over loopback connections, between a scripted controller, scripted replica servers and a client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
import trio
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError, refuse
from tidelog.net.link import PROTOCOL_VERSION, Handler, Link, connect_link, serve_links
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import PRODUCER_WINDOW, ClusterImage, PartitionState, ServerState, TopicState
from tidelog.wire.messages import (
    AllocateProducerIds,
    AlterLearners,
    AlterTopic,
    ControllerInfo,
    CreateTopic,
    Delivery,
    DescribeQuorum,
    Done,
    Fetch,
    Hello,
    InitProducer,
    ListOffset,
    Message,
    Metadata,
    MetadataAnswer,
    MetadataUpdate,
    OffsetAnswer,
    Produce,
    ProduceAck,
    Produced,
    ProducePart,
    ProducerId,
    ProducerIds,
    QuorumAnswer,
    Read,
    ReadAnswer,
    Subscribe,
    TopicCreated,
    Watch,
    Welcome,
)
from tidelog.wire.metadata_image import encode_delta, encode_image
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.server import serve

NODES = ("r1", "r2")


@dataclass
class Replica:
    """Acks everything at once; ``stored`` is one batch per offset."""

    node: str
    stored: list[bytes] = field(default_factory=list)
    refusals: list[TidelogError] = field(default_factory=list)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)

    def on_message(self, link: Link, id: int | None, message: Message) -> None:
        match message:
            case Produce(parts, payload):
                assert isinstance(payload, memoryview)
                acks = []
                position = 0
                for part in parts:
                    batch = bytes(payload[position : position + part.size])
                    position += part.size
                    if self.refusals:
                        acks.append(ProduceAck(part.id, error=self.refusals.pop(0).to_info()))
                        continue
                    offset = len(self.stored)
                    prefix = stamp_prefix(offset, part.leader_epoch, read_header(batch).crc32c)
                    self.stored.append(prefix + batch[16:])
                    acks.append(ProduceAck(part.id, offset, part.leader_epoch, "all/os"))
                link.post(Produced(tuple(acks)))
            case Read(offset=offset, leader_epoch=leader_epoch) if id is not None:
                data = b"".join(self.stored[offset:])
                link.answer(id, ReadAnswer(leader_epoch, len(self.stored), 0, data))
            case ListOffset(at=at) if id is not None:
                link.answer(id, OffsetAnswer(0 if at == "earliest" else len(self.stored)))


class Cluster:
    """A controller and two replica servers with one topic of one partition."""

    def __init__(self) -> None:
        self.transport = WebSocketTransport()
        self.replicas = {node: Replica(node) for node in NODES}
        self.image = ClusterImage()
        self.watchers: list[Link] = []
        self.altered: list[Message] = []
        self.controller = ""

    def on_controller(self, link: Link, id: int | None, message: Message) -> None:
        assert id is not None
        match message:
            case DescribeQuorum():
                info = ControllerInfo("c1", self.controller, "leader")
                link.answer(id, QuorumAnswer("c1", 1, 1, (info,)))
            case Watch():
                link.answer(id, Done())
                link.post(MetadataUpdate(self.image.index, True, encode_image(self.image)))
                self.watchers.append(link)
            case AllocateProducerIds(count):
                link.answer(id, ProducerIds(100, count))
            case AlterTopic() | AlterLearners():
                self.altered.append(message)
                link.answer(id, Done())
            case CreateTopic(name="taken"):
                link.answer(id, refuse("TOPIC_EXISTS", "taken"))
            case CreateTopic(name):
                link.answer(id, TopicCreated("t2"))
                state = PartitionState(NODES, NODES, "r1", 1, 1)
                self.change(TopicState("t2", name, partitions=(state,)))

    def change(self, topic: TopicState) -> None:
        topics = tuple(t for t in self.image.topics if t.topic_id != topic.topic_id)
        self.image = replace(self.image, index=self.image.index + 1, topics=(*topics, topic))
        for link in self.watchers:
            link.post(MetadataUpdate(self.image.index, False, encode_delta([], [topic], [])))

    def lead(self, node: str | None, leader_epoch: int) -> None:
        self.change(TopicState("t", "orders", partitions=(PartitionState(NODES, NODES, node, leader_epoch, 1),)))

    async def run_replica(self, node: str, task_status: trio.TaskStatus[str]) -> None:
        replica = self.replicas[node]
        with replica.scope:
            await self._serve(node, "replica", replica.on_message, task_status)

    async def run_controller(self, task_status: trio.TaskStatus[str]) -> None:
        await self._serve("c1", "controller", self.on_controller, task_status)

    async def _serve(self, node: str, role: str, handler: Handler, task_status: trio.TaskStatus[str]) -> None:
        await serve_links(
            self.transport,
            "127.0.0.1",
            0,
            lambda _: Welcome(PROTOCOL_VERSION, "test", node, role, 16 << 20, 100),
            handler,
            allowed={"gateway": frozenset({m.OP for m in ALLOWED})},
            task_status=task_status,
        )


ALLOWED = (
    DescribeQuorum,
    Watch,
    AllocateProducerIds,
    CreateTopic,
    AlterTopic,
    AlterLearners,
    Produce,
    Read,
    ListOffset,
)


@dataclass
class Client:
    link: Link
    acks: dict[int, ProduceAck]
    deliveries: list[Delivery]
    news: list[trio.Event]

    async def wait_ack(self, id: int) -> ProduceAck:
        with trio.fail_after(30):
            while id not in self.acks:
                await self.news[0].wait()
        return self.acks.pop(id)

    def produce(self, *batches: bytes, first_id: int = 1, topic_id: str = "t") -> None:
        parts = tuple(ProducePart(first_id + i, topic_id, 0, 2, 5000, len(b)) for i, b in enumerate(batches))
        self.link.post(Produce(parts, list(batches)))


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Cluster, Client]]:
    cluster = Cluster()
    async with trio.open_nursery() as nursery:
        servers = []
        for node in NODES:
            url = await nursery.start(cluster.run_replica, node)
            servers.append(ServerState(node, url, 1, False))
        cluster.image = ClusterImage(1, "test", tuple(servers))
        cluster.lead("r1", 1)
        cluster.controller = await nursery.start(cluster.run_controller)
        config = GatewayConfig(port=0, controllers=("ws://127.0.0.1:1", cluster.controller))

        async def gateway(task_status: trio.TaskStatus[str]) -> None:
            await serve(config, transport=cluster.transport, task_status=task_status)

        with trio.fail_after(30):
            url = await nursery.start(gateway)
        client = Client(None, {}, [], [trio.Event()])  # type: ignore[arg-type]

        def handle(_link: Link, _id: int | None, message: Message) -> None:
            if isinstance(message, Produced):
                client.acks.update({ack.id: ack for ack in message.acks})
            elif isinstance(message, Delivery):
                client.deliveries.append(message)
            client.news[0].set()
            client.news[0] = trio.Event()

        hello = Hello(PROTOCOL_VERSION, "client", "test")
        async with connect_link(cluster.transport, url, hello, handle) as client.link:
            yield cluster, client
        nursery.cancel_scope.cancel()


def batch(sequence: int = 0, producer_id: int = 7) -> bytes:
    records = [NewRecord(b"x", timestamp_ms=1)]
    return encode_batch(records, producer_id=producer_id, base_sequence=sequence)


async def test_produce_read_and_offsets() -> None:
    async with running() as (cluster, client):
        client.produce(batch(0), batch(1))
        assert await client.wait_ack(1) == ProduceAck(1, 0, 1, "all/os")
        assert await client.wait_ack(2) == ProduceAck(2, 1, 1, "all/os")
        answer = await client.link.call(Read("t", 0, 1), 30)
        assert isinstance(answer, ReadAnswer)
        assert bytes(answer.payload) == cluster.replicas["r1"].stored[1]  # type: ignore[arg-type]
        metadata = await client.link.call(Metadata(("orders", "none"), offsets=True), 30)
        assert isinstance(metadata, MetadataAnswer)
        (topic,) = metadata.topics
        (partition,) = topic.partitions
        assert (topic.name, partition.leader, partition.log_start, partition.high_watermark) == ("orders", "r1", 0, 2)


async def test_a_failover_is_latency_for_an_idempotent_producer() -> None:
    async with running() as (cluster, client):
        client.produce(batch(0))
        await client.wait_ack(1)
        cluster.replicas["r1"].refusals.append(refuse("NOT_LEADER", "no"))
        client.produce(batch(1), first_id=2)
        cluster.replicas["r1"].scope.cancel()
        cluster.lead(None, 2)
        cluster.lead("r2", 3)
        ack = await client.wait_ack(2)
        assert (ack.error, ack.leader_epoch) == (None, 3)


async def test_a_topic_serves_when_its_creation_is_answered() -> None:
    async with running() as (_, client):
        assert await client.link.call(CreateTopic("new"), 30) == TopicCreated("t2")
        client.produce(batch(), topic_id="t2")
        assert (await client.wait_ack(1)).error is None
        with pytest.raises(TidelogError, match="TOPIC_EXISTS"):
            await client.link.call(CreateTopic("taken"), 30)


async def test_changes_of_a_topic_go_to_the_controller() -> None:
    forged = AlterTopic("orders", {"retention_ms": "5"}, asker="somebody else")
    changes = [replace(forged, asker=""), AlterLearners("orders", 0, ("r9",))]
    async with running() as (cluster, client):
        for change in (forged, changes[1]):
            assert await client.link.call(change, 30) == Done()
        named = [(message.client, message.sequence) for message in cluster.altered]
        assert [replace(message, client="", sequence=0, asker="") for message in cluster.altered] == changes
        assert all(message.asker.startswith("anonymous (test) at ") for message in cluster.altered), (
            "who asks is told"
        )
        assert named[0][0] == named[1][0] != "" and named[0][1] < named[1][1], "each is a request of its own"


async def test_producer_ids_come_from_one_block() -> None:
    async with running() as (_, client):
        assert [await client.link.call(InitProducer(), 30) for _ in range(3)] == [
            ProducerId(100, window=PRODUCER_WINDOW),
            ProducerId(101, window=PRODUCER_WINDOW),
            ProducerId(102, window=PRODUCER_WINDOW),
        ]


async def test_a_subscription_is_pushed() -> None:
    async with running() as (cluster, client):
        client.produce(batch(0), batch(1))
        await client.wait_ack(2)
        assert await client.link.call(Subscribe(1, "t", 0, 0, 10_000), 30) == Done()
        with trio.fail_after(30):
            while not client.deliveries:
                await client.news[0].wait()
        assert bytes(client.deliveries[0].payload) == b"".join(cluster.replicas["r1"].stored)  # type: ignore[arg-type]


async def test_a_client_may_not_send_requests_between_services() -> None:
    async with running() as (_, client):
        with pytest.raises(TidelogError, match="FORBIDDEN"):
            await client.link.call(Fetch("r9", 1, 1, ()), 30)
