"""``connect`` and what it gives: the cluster as an application sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tidelog.batch.format import BatchHeader, split
from tidelog.client.admin.access import AccessAdmin
from tidelog.client.admin.cluster import ClusterAdmin
from tidelog.client.admin.groups import GroupAdmin
from tidelog.client.admin.old_names import keep_old_names
from tidelog.client.admin.partitions import PartitionAdmin
from tidelog.client.admin.topics import TopicAdmin
from tidelog.client.admin.transactions import TransactionAdmin
from tidelog.client.backward_consumer import BackwardConsumer
from tidelog.client.batch_sender import BatchSender
from tidelog.client.clock import process_name, random_name, wall_ms
from tidelog.client.conditional_appender import ConditionalAppender
from tidelog.client.connection import GatewayConnection
from tidelog.client.consumer import Consumer, Plan
from tidelog.client.group_consumer import GroupConsumer, Start
from tidelog.client.lookups import Where, check_partitions, describe_topic, find_offset, find_positions, parse_place
from tidelog.client.loop import Loop
from tidelog.client.options import ACKS, ConsumerOptions, GroupOptions, ProducerOptions, Reading
from tidelog.client.producer import Producer, WallClock, open_producer
from tidelog.client.rebalance_listener import NO_HOOKS, Hooks
from tidelog.client.record_stream import RecordStream
from tidelog.client.transactions import TIMEOUT_S, Transaction, begin_transaction, wait_visible
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.net.tls import TlsOptions
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import (
    AbortStaged,
    CommitStaged,
    Done,
    EndTransaction,
    InitProducer,
    InitTaskProducer,
    JoinGroup,
    ListOffset,
    PrepareTransaction,
    ProducerId,
    Read,
    ReadAnswer,
    StagedCommitted,
    TaskProducer,
    TransactionEnded,
)

if TYPE_CHECKING:
    from tidelog.tracing import Tracing

DEFAULT_URL = "ws://127.0.0.1:9292"
NO_FILES = TlsOptions()
GOODBYE_S = 1.0
"""How long a connection that is closed waits for the end of what was not closed before."""


@keep_old_names
class Log:
    """A connected client. Made by ``connect``; may be used by many tasks. What applications do with records stands
    here; administration stands behind the attributes ``topics``, ``partitions``, ``groups``, ``transactions``,
    ``access`` and ``cluster``."""

    topics: TopicAdmin
    partitions: PartitionAdmin
    groups: GroupAdmin
    transactions: TransactionAdmin
    access: AccessAdmin
    cluster: ClusterAdmin

    def __init__(self, connection: GatewayConnection, clock: WallClock) -> None:
        self.topics = TopicAdmin(connection)
        self.partitions = PartitionAdmin(connection)
        self.groups = GroupAdmin(connection)
        self.transactions = TransactionAdmin(connection)
        self.access = AccessAdmin(connection)
        self.cluster = ClusterAdmin(connection)
        self._connection = connection
        self._wall_ms = clock

    @property
    def tracing(self) -> Tracing | None:
        """What ``connect`` was given: whether producers trace, and by what."""
        return self._connection.tracing

    @property
    def waits(self) -> tuple[TidelogError, ...]:
        """The last refusal of each request that is being repeated: what its caller waits for."""
        return tuple(self._connection.waits.values())

    # --- producing and consuming -----------------------------------------------------------------------------

    @asynccontextmanager
    async def producer(self, topic: str, options: ProducerOptions | None = None) -> AsyncIterator[Producer]:
        """``async with log.producer("orders") as producer``. Raises ``UNKNOWN_TOPIC``; at the end ``DeliveryFailed``
        if records failed that nobody waited for."""
        found = await describe_topic(self._connection, topic)
        async with open_producer(self._connection, found, options or ProducerOptions(), self._wall_ms) as producer:
            yield producer

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[False] = False,
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> Consumer: ...

    @overload
    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        reverse: Literal[True],
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> BackwardConsumer: ...

    @overload
    def consume(
        self,
        topic: str | Iterable[str],
        *,
        group: str,
        start: Start = "earliest",
        instance: str = "",
        hooks: Hooks = NO_HOOKS,
        options: ConsumerOptions | None = None,
        group_options: GroupOptions | None = None,
        **reading: Unpack[Reading],
    ) -> GroupConsumer: ...

    def consume(self, topic: str | Iterable[str], *, group: str | None = None, **how: Any) -> RecordStream:
        """``async for record in log.consume("orders", start="earliest")``. ``end``: stop there (half-open;
        ``latest``: at what is committed when the consumer is opened), else wait for more for ever. Records come in
        order per partition. ``read_from``, ``consistency``, ``max_staleness_s``, ``isolation`` and ``on_unreadable``
        take the place of the same in ``options``; raises ``ConfigError`` where they do not go together. ``start`` and
        ``end`` are the leaders' word in any case. The iterator raises ``UNKNOWN_TOPIC``, ``OFFSET_OUT_OF_RANGE``,
        ``LOG_TRUNCATED``, ``UnreadableBatch`` (unless ``on_unreadable`` is ``skip``), and ``TOPIC_PAUSED`` as soon as
        one of its partitions is paused.

        ``reverse``: newest first, from below ``start`` down to ``end`` (or the log's beginning): the same records, in
        the other order, as from ``end`` to ``start``.

        ``group``: as a member of this consumer group, which shares the partitions of these topics among its members
        and keeps how far it has come; ``start`` counts only where it has not come anywhere. ``instance``: the name of
        a static member, which may be away for the session timeout without losing its share. See ``GroupConsumer``."""
        if group is not None:
            return _join_group(self._connection, topic, group, **how)
        if not isinstance(topic, str):
            raise ConfigError("several topics at a time need a group")
        return _open_consumer(self._connection, topic, **how)

    # --- transactions ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(
        self, app: str, *, timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> AsyncIterator[Transaction]:
        """``async with log.transaction("billing") as tx``: all that is sent in the block becomes visible together
        when it ends, or, where it raises, never. ``app`` has one transaction at a time: another process that begins
        one takes over, and this one ends with ``FENCED_PRODUCER``. After ``timeout_s`` the cluster aborts it. When
        the block is left all readers can see it, except in partitions that ``tx.pending`` names. Raises what failed;
        see ``advice``."""
        async with begin_transaction(self._connection, app, "", timeout_s, options, self._wall_ms) as tx:
            yield tx
            await tx._settle()
            tx._end(await self._connection.ask(EndTransaction(*tx.identity, True), TransactionEnded))

    @asynccontextmanager
    async def stage(
        self, app: str, *, name: str = "", timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> AsyncIterator[Transaction]:
        """As ``transaction``, but at its end it waits to be committed, by whoever gets its ``id``, together with
        others (``commit``). Nobody waits for ever: what nobody commits for an hour (a setting) is aborted. The id is
        ``name``, where one is given: a second attempt under the same name takes the place of the first."""
        async with begin_transaction(
            self._connection, app, name or random_name(), timeout_s, options, self._wall_ms
        ) as tx:
            yield tx
            await tx._settle()
            await self._connection.ask(PrepareTransaction(*tx.identity), Done)

    async def commit(self, app: str, batch: int, staged: Iterable[str], *, alone: bool = False) -> bool:
        """Commit all these staged transactions together, as batch number ``batch`` of the application; False where
        that batch was committed before: then nothing changes, and what was staged anew is dropped. ``alone``: so is
        whatever else this application has staged, for one that has a batch at a time. Raises
        ``UNKNOWN_TRANSACTION`` where one of them has expired, or is not prepared: nothing is committed, stage all of
        it again. Without an answer the same may be asked again. It waits some seconds at most until readers can see
        the batch; ``wait_visible`` tells for sure."""
        if batch < 0:
            raise ConfigError(f"batches are numbered from 0, not {batch}")
        answer = await self._connection.ask(CommitStaged(app, batch, tuple(staged), alone), StagedCommitted)
        return not answer.repeated

    async def wait_visible(self, app: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until readers see everything that the application has committed by now: every partition of it has the
        marker. As a rule that is so when the commit returns (``Transaction.pending``). Raises ``REQUEST_TIMED_OUT``
        with ``detail["partitions"]``, how many do not have it after ``timeout_s``: what is committed stays so."""
        await wait_visible(self._connection, app, timeout_s)

    async def abort(self, app: str, staged: Iterable[str]) -> None:
        """Drop these staged transactions; does nothing to what is committed, or not known."""
        await self._connection.ask(AbortStaged(app, tuple(staged)), Done)

    # --- batches ---------------------------------------------------------------------------------------------

    async def read_batches(
        self,
        topic_id: str,
        partition: int,
        at: Position,
        *,
        max_bytes: int = 1 << 20,
        wait_s: float = 0.0,
        isolation: str = "committed",
    ) -> tuple[ReadAnswer, list[tuple[BatchHeader, memoryview]]]:
        """Whole batches from a position on, as they lie in the log: what ``tidelog.batch.format`` decodes. The first
        may begin before. None after ``wait_s`` (30 at most) without news. Raises ``OFFSET_OUT_OF_RANGE``,
        ``LOG_TRUNCATED``, ``CORRUPT_BATCH``."""
        wait_ms = round(1000 * wait_s)
        request = Read(
            topic_id,
            partition,
            at.offset,
            at.leader_epoch,
            max_bytes=max_bytes,
            max_wait_ms=wait_ms,
            isolation=isolation,
        )
        answer = await self._connection.call(request, self._connection.request_timeout_s + wait_s)
        assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
        return answer, list(split(answer.payload))

    def sender(self, acks: str, transaction: str = "") -> BatchSender:
        """For batches that the caller has encoded and numbered; of a transaction of this application, if any."""
        return BatchSender(self._connection, ACKS[acks], transaction)

    async def producer_ids(self, count: int) -> ProducerId:
        """So many producer ids that nobody else ever gets, for a ``sender``: from ``producer_id`` on, at epoch 0,
        with one ``ticket`` for ``use_producer``. Raises ``UNSUPPORTED`` where the gateway's release gives one at a
        time."""
        answer = await self._connection.ask(InitProducer(count), ProducerId)
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
        return await self._connection.ask(InitTaskProducer(app, owner, batch, task), TaskProducer, timeout_s)

    def appender(self, topic_id: str, partition: int) -> ConditionalAppender:
        """For batches that belong at offsets of their own: copies of another log."""
        return ConditionalAppender(self._connection, topic_id, partition)


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
    connection = GatewayConnection(gateways, loop, name, request_timeout_s, token, tracing)
    return _running(connection, connect_timeout_s, clock)


@asynccontextmanager
async def _running(connection: GatewayConnection, connect_timeout_s: float, clock: WallClock) -> AsyncIterator[Log]:
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


def _open_consumer(
    connection: GatewayConnection,
    topic: str,
    *,
    start: Where = "latest",
    end: Where | None = None,
    partitions: Iterable[int] | None = None,
    reverse: bool = False,
    options: ConsumerOptions | None = None,
    **reading: Unpack[Reading],
) -> RecordStream:
    chosen = None if partitions is None else sorted(set(partitions))
    wanted_options = replace(options or ConsumerOptions(), **reading)

    async def plan() -> Plan:
        found = await describe_topic(connection, topic)
        wanted = list(range(len(found.partitions))) if chosen is None else chosen
        check_partitions(found, wanted)

        async def locate(where: Where, partitions: list[int]) -> dict[int, Position]:
            return await find_positions(connection, found, where, partitions, wanted_options.isolation)

        starts = await locate(start, wanted)
        ends = {} if end is None else await locate(end, wanted)
        return Plan(found.topic_id, starts, {p: position.offset for p, position in ends.items()}, locate)

    kind = BackwardConsumer if reverse else Consumer
    return kind(connection, topic, wanted_options, plan)


def _join_group(
    connection: GatewayConnection,
    topic: str | Iterable[str],
    group: str,
    *,
    start: Start = "earliest",
    instance: str = "",
    hooks: Hooks = NO_HOOKS,
    options: ConsumerOptions | None = None,
    group_options: GroupOptions | None = None,
    **reading: Unpack[Reading],
) -> GroupConsumer:
    topics = (topic,) if isinstance(topic, str) else tuple(sorted(set(topic)))
    chosen = group_options or GroupOptions()
    if not topics:
        raise ConfigError("a member of a group names at least one topic")
    if not isinstance(start, int):
        parse_place(start)

    async def locate(key: TopicPartition, start: Start) -> Position:
        if isinstance(start, int):
            return Position(-1, start)
        kind, timestamp_ms = parse_place(start)
        return Position(-1, (await find_offset(connection, ListOffset(*key, kind, timestamp_ms))).offset)

    join = JoinGroup(
        group,
        random_name(),
        topics,
        instance,
        chosen.assignor,
        round(chosen.session_timeout_s * 1000),
        round(chosen.rebalance_timeout_s * 1000),
        process_name(),
    )
    wanted = replace(options or ConsumerOptions(), **reading)
    return GroupConsumer(connection, join, start, wanted, chosen, locate, hooks)
