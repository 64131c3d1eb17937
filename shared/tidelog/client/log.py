"""``connect`` and what it gives: the cluster as an application sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from tidelog.client.admin.access import Securing
from tidelog.client.admin.cluster import Upgrading
from tidelog.client.admin.copy_comparison import compare_copies, ignore
from tidelog.client.admin.groups import Grouping
from tidelog.client.admin.partitions import Moving
from tidelog.client.admin.replica_comparison import Comparison, compare
from tidelog.client.batch_sender import BatchSender
from tidelog.client.clock import wall_ms
from tidelog.client.conditional_appender import ConditionalAppender
from tidelog.client.connection import Connection
from tidelog.client.consumers import Consuming, check_partitions
from tidelog.client.loop import Loop
from tidelog.client.options import ACKS, ProducerOptions
from tidelog.client.producer import Producer, WallClock, open_producer
from tidelog.client.transactions import Transacting
from tidelog.errors import ConfigError, TidelogError, TimedOut, refuse
from tidelog.net.tls import TlsOptions
from tidelog.wire.messages import (
    AddController,
    AlterLearners,
    AlterTopic,
    CopyRead,
    CreateTopic,
    DeleteTopic,
    DescribeMetrics,
    DescribeQuorum,
    Digest,
    DigestAnswer,
    History,
    HistoryAnswer,
    HistoryEntry,
    InitProducer,
    InitTaskProducer,
    Message,
    Metadata,
    MetadataAnswer,
    MetricsAnswer,
    Play,
    PlayAnswer,
    PlayedMessage,
    PlayedNode,
    ProducerId,
    QuorumAnswer,
    ReadCopy,
    RemoveController,
    ScrubServer,
    ScrubStatus,
    TaskProducer,
    TopicCreated,
    TopicInfo,
)

if TYPE_CHECKING:
    from tidelog.tracing import Tracing

DEFAULT_URL = "ws://127.0.0.1:9292"
NO_FILES = TlsOptions()
_POLL_S = 0.01  # first pause while a new topic's partitions get their leaders; doubles
_POLL_MAX_S = 0.2
GOODBYE_S = 1.0
"""How long a connection that is closed waits for the end of what was not closed before."""
DIGEST_PATIENCE_S = 3.0
"""A server that cannot tell what it holds is asked again for so long."""

A = TypeVar("A", bound=Message)


class Log(Consuming, Grouping, Moving, Securing, Transacting, Upgrading):
    """A connected client. Made by ``connect``; may be used by many tasks."""

    def __init__(self, connection: Connection, clock: WallClock) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._wall_ms = clock

    @property
    def tracing(self) -> Tracing | None:
        """What ``connect`` was given: whether producers trace, and by what."""
        return self._connection.tracing

    @property
    def waits(self) -> tuple[TidelogError, ...]:
        """The last refusal of each request that is being repeated: what its caller waits for."""
        return tuple(self._connection.waits.values())

    # --- topics ----------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic, and wait until its partitions have leaders. ``config``: fields of ``TopicConfig``. Raises
        ``BrokerError``: ``TOPIC_EXISTS``, ``INVALID_TOPIC``, ``INVALID_CONFIG``, ``INVALID_REPLICATION_FACTOR``."""
        request = CreateTopic(name, partitions, replication_factor, _texts(config or {}))
        created = await self._ask(request, TopicCreated, again=False)
        pause = _POLL_S
        deadline = self._loop.now() + self._connection.request_timeout_s
        while True:
            topic = next((t for t in await self._topics(name) if t.topic_id == created.topic_id), None)
            if topic is not None and all(partition.leader for partition in topic.partitions):
                return topic
            if self._loop.now() > deadline:
                raise TimedOut(f"{name} was created, but not all of its partitions have a leader yet")
            await self._loop.sleep(pause)
            pause = min(2 * pause, _POLL_MAX_S)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records. Raises ``UNKNOWN_TOPIC``."""
        await self._connection.call(DeleteTopic(name), again=False)

    async def configure_topic(self, name: str, config: Mapping[str, object]) -> None:
        """Change settings of a topic (fields of ``TopicConfig``); those that are not named stay. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (also for what is fixed when a topic is created)."""
        await self._connection.call(AlterTopic(name, _texts(config)))

    async def set_learners(self, topic: str, partition: int, learners: Iterable[str]) -> None:
        """Which servers copy a partition's log without being replicas of it; none ends that. Raises
        ``UNKNOWN_TOPIC``, ``INVALID_CONFIG`` (a learner is a live server and no replica)."""
        await self._connection.call(AlterLearners(topic, partition, tuple(learners)))

    async def topics(self) -> tuple[TopicInfo, ...]:
        """Describe every topic."""
        return (await self.status()).topics

    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """One topic; ``offsets``: with log start and high watermark of each partition, asked from the leaders. Raises
        ``UNKNOWN_TOPIC``."""
        for found in await self._topics(topic, offsets=offsets):
            if found.name == topic:
                return found
        raise refuse("UNKNOWN_TOPIC", f"there is no topic {topic}", topic=topic)

    async def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Every change of a partition's leader, ISR and replicas that is remembered, oldest first, with its cause."""
        found = await self.describe(topic)
        check_partitions(found, [partition])
        return (await self.histories(found, [partition]))[partition]

    async def histories(self, topic: TopicInfo, partitions: Iterable[int]) -> dict[int, tuple[HistoryEntry, ...]]:
        """``history`` of many partitions at a time."""

        async def ask(partition: int) -> HistoryAnswer:
            return await self._ask(History(topic.topic_id, partition), HistoryAnswer)

        return {partition: answer.entries for partition, answer in (await self._each(ask, partitions)).items()}

    async def status(self, *, offsets: bool = False) -> MetadataAnswer:
        """Cluster, servers and topics as the gateway knows them; ``offsets``: with what the leaders tell of each
        partition."""
        return await self._ask(Metadata(all_topics=True, offsets=offsets), MetadataAnswer)

    async def quorum(self) -> QuorumAnswer:
        """The controllers, and which is the active one."""
        return await self._ask(DescribeQuorum(), QuorumAnswer)

    async def metrics(self, node: str = "") -> MetricsAnswer:
        """What a replica server counts, the active controller, or (no name) this gateway: its page in Prometheus'
        text format, its version and its clock. Raises ``UNKNOWN_SERVER``, ``UNREACHABLE``, ``UNSUPPORTED``."""
        return await self._ask(DescribeMetrics(node), MetricsAnswer, again=False)

    async def add_controller(self, node: str, url: str) -> None:
        """Take a running controller into the group, as a learner; it votes when it has caught up (``quorum`` tells).
        One that has lost its disk begins again. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``."""
        await self._connection.call(AddController(node, url))

    async def remove_controller(self, node: str) -> None:
        """Take a controller out of the group. Raises ``CHANGE_IN_PROGRESS``, ``QUORUM_AT_RISK``,
        ``UNKNOWN_CONTROLLER``."""
        await self._connection.call(RemoveController(node), again=False)

    async def play(self, node: str = "", act: str = "") -> tuple[PlayedNode, ...]:
        """Have something happen to a node of a cluster that ``tidelog dev`` runs: ``kill``, ``pause``, ``cut`` or
        ``heal``; "": nothing. The nodes as they are now. Raises ``UNSUPPORTED`` everywhere else."""
        return (await self._ask(Play(node, act), PlayAnswer)).nodes

    async def played_messages(self, act: str) -> tuple[PlayedMessage, ...]:
        """Of a cluster that ``tidelog dev`` runs: ``record``: hear from now on what its services say to each other;
        ``stop``: no more, and what it was, in order, the newest 2,000. Raises ``UNSUPPORTED`` everywhere else."""
        return (await self._ask(Play("", act), PlayAnswer)).messages

    # --- records ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def producer(self, topic: str, options: ProducerOptions | None = None) -> AsyncIterator[Producer]:
        """``async with log.producer("orders") as producer``. Raises ``UNKNOWN_TOPIC``; at the end ``DeliveryFailed``
        if records failed that nobody waited for."""
        found = await self.describe(topic)
        async with open_producer(self._connection, found, options or ProducerOptions(), self._wall_ms) as producer:
            yield producer

    def sender(self, acks: str, transaction: str = "") -> BatchSender:
        """For batches that the caller has encoded and numbered; of a transaction of this application, if any."""
        return BatchSender(self._connection, ACKS[acks], transaction)

    async def producer_ids(self, count: int) -> ProducerId:
        """So many producer ids that nobody else ever gets, for a ``sender``: from ``producer_id`` on, at epoch 0,
        with one ``ticket`` for ``use_producer``. Raises ``UNSUPPORTED`` where the gateway's release gives one at a
        time."""
        answer = await self._ask(InitProducer(count), ProducerId)
        if answer.count < count:
            raise refuse("UNSUPPORTED", f"the gateway's release does not give {count} producer ids at a time")
        return answer

    def use_producer(self, producer_id: int, epoch: int, ticket: str) -> None:
        """A ``sender`` of this client will send batches under that producer id. ``ticket``: what the cluster gave
        with the id, perhaps to another process of the same principal; "" where the cluster needs none."""
        self._connection.use_producer(producer_id, epoch, ticket)

    async def task_producer(self, app: str, owner: str, batch: int, task: int, timeout_s: float) -> TaskProducer:
        """The producer of a task of a numbered batch of an application, for a ``sender``: the same for every
        attempt, as long as no later batch has begun (``InitTaskProducer``). Raises ``INVALID_TRANSACTION``,
        ``FENCED_PRODUCER``, and ``UNSUPPORTED`` or ``UNSUPPORTED_LEVEL`` where the cluster does not have this."""
        answer = await self._connection.call(InitTaskProducer(app, owner, batch, task), timeout_s)
        assert isinstance(answer, TaskProducer)
        return answer

    def appender(self, topic_id: str, partition: int) -> ConditionalAppender:
        """For batches that belong at offsets of their own: copies of another log."""
        return ConditionalAppender(self._connection, topic_id, partition)

    # --- replicas ----------------------------------------------------------------------------------------------

    async def digest(self, topic_id: str, partition: int, node: str, offsets: Iterable[int] = ()) -> DigestAnswer:
        """Bounds of the log of one replica, and its hash chain at each of up to 64 offsets. No other server can
        answer for it, so it has ``DIGEST_PATIENCE_S`` to come back. Raises ``OFFLINE``, ``NOT_LEADER`` (it has no
        such partition), ``UNREACHABLE``."""
        request = Digest(node, topic_id, partition, tuple(offsets))
        answer = await self._connection.call(request, patience_s=DIGEST_PATIENCE_S)
        assert isinstance(answer, DigestAnswer)
        return answer

    async def compare_replicas(self, topic: TopicInfo, partition: int, live: Collection[str]) -> Comparison:
        """Whether the logs of a partition's replicas and learners, as far as they are among ``live``, are the same
        below all their high watermarks (``tidelog.client.admin.replica_comparison``)."""
        info = topic.partitions[partition]
        nodes = [node for node in (*info.replicas, *info.learners) if node in live]
        return await compare(
            self._loop, nodes, lambda node, offsets: self.digest(topic.topic_id, partition, node, offsets)
        )

    async def read_copy(self, topic_id: str, partition: int, node: str, offset: int) -> CopyRead:
        """Have a replica server read about 1 MiB of its copy from its disk: fingerprints of the batches from
        ``offset`` on. Raises ``OFFLINE`` (for example because the copy is damaged), ``NOT_LEADER`` (the server has no
        copy of the partition), ``FORBIDDEN`` (without the right to read the topic), ``OFFSET_OUT_OF_RANGE``,
        ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4. What the server reads counts for the quota
        of bytes out; a quota that is used up is waited out."""
        request = ReadCopy(node, topic_id, partition, offset)
        while True:
            try:
                answer = await self._connection.call(request, patience_s=DIGEST_PATIENCE_S)
            except TidelogError as error:
                if error.code != "QUOTA_EXCEEDED":
                    raise
                await self._loop.sleep(error.pause_s)
            else:
                assert isinstance(answer, CopyRead)
                return answer

    async def compare_copies(
        self,
        topic: TopicInfo,
        partition: int,
        live: Collection[str],
        max_bytes_per_s: float = 0,
        on_records: Callable[[int], None] = ignore,
    ) -> Comparison:
        """Whether the disks of a partition's replicas and learners, as far as they are among ``live``, hold the same
        batches below all their high watermarks (``tidelog.client.admin.copy_comparison``). ``max_bytes_per_s``: how
        fast each copy is read; 0: no limit. ``on_records`` is called with the number of further records compared."""
        info = topic.partitions[partition]
        nodes = [node for node in (*info.replicas, *info.learners) if node in live]
        return await compare_copies(
            self._loop,
            nodes,
            lambda node, offsets: self.digest(topic.topic_id, partition, node, offsets),
            lambda node, offset: self.read_copy(topic.topic_id, partition, node, offset),
            max_bytes_per_s,
            on_records,
        )

    async def scrub_server(self, node: str, *, begin: bool = True) -> ScrubStatus:
        """How far the scrubber of a replica server is. With ``begin`` it first starts a new round, and gives up one
        that is under way. Raises ``UNREACHABLE``, and ``UNSUPPORTED_LEVEL`` below feature level 4."""
        return await self._ask(ScrubServer(node, begin), ScrubStatus)

    # --- how -------------------------------------------------------------------------------------------------

    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        found = await self._connection.call(request, again=again)
        assert isinstance(found, answer)
        return found

    async def _topics(self, name: str, offsets: bool = False) -> tuple[TopicInfo, ...]:
        return (await self._ask(Metadata(topics=(name,), offsets=offsets), MetadataAnswer)).topics


def _texts(config: Mapping[str, object]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}


def open_log(
    urls: str | Iterable[str],
    loop: Loop,
    connect_timeout_s: float,
    request_timeout_s: float,
    token: str,
    name: str,
    clock: WallClock = wall_ms,
    tracing: Tracing | None = None,
) -> AbstractAsyncContextManager[Log]:
    """What ``connect`` of every loop gives."""
    gateways = (urls,) if isinstance(urls, str) else tuple(urls)
    if not gateways:
        raise ConfigError("no gateway URL is given")
    connection = Connection(gateways, loop, name, request_timeout_s, token, tracing)
    return _running(connection, connect_timeout_s, clock)


@asynccontextmanager
async def _running(connection: Connection, connect_timeout_s: float, clock: WallClock) -> AsyncIterator[Log]:
    loop = connection.loop
    async with loop.tasks() as start:
        connection.begin(start)
        try:
            await connection.wait_up(loop.now() + connect_timeout_s)
            yield Log(connection, clock)
        finally:
            with loop.shielded():  # a member of a group whose task is cancelled still leaves it
                await connection.say_goodbye(loop.now() + GOODBYE_S)
            connection.end()
