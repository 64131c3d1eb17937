"""``Log``, the cluster as an application sees it, and ``open_log``, by which every ``connect`` opens one.

Methods import what they need when they are called: a program that lists topics loads no producer and no consumer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from tidelog.client.admin.old_names import keep_old_names
from tidelog.client.connection import GatewayConnection
from tidelog.client.loop import Loop, random_name, wall_ms
from tidelog.client.options import ACKS, TABLE_COLUMNS, TRANSACTION_TIMEOUT_S, ProducerOptions
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.net.addresses import gateway_url
from tidelog.net.tls import TlsOptions
from tidelog.types import Position, staged_name
from tidelog.wire import messages

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.batch.format import BatchHeader
    from tidelog.client.admin.access import AccessAdmin
    from tidelog.client.admin.cluster import ClusterAdmin
    from tidelog.client.admin.groups import GroupAdmin
    from tidelog.client.admin.partitions import PartitionAdmin
    from tidelog.client.admin.topics import TopicAdmin
    from tidelog.client.admin.transactions import TransactionAdmin
    from tidelog.client.arrow_reader import ArrowReader
    from tidelog.client.backward_consumer import BackwardConsumer
    from tidelog.client.batch_sender import BatchSender
    from tidelog.client.conditional_appender import ConditionalAppender
    from tidelog.client.consumer import Consumer
    from tidelog.client.group_consumer import GroupConsumer, Hooks, Start
    from tidelog.client.lookups import Where
    from tidelog.client.loop import WallClock
    from tidelog.client.options import ConsumerOptions, GroupOptions, Reading
    from tidelog.client.producer import Producer
    from tidelog.client.record_stream import RecordStream
    from tidelog.client.transactions import Transaction
    from tidelog.tracing import Tracing
    from tidelog.wire.messages import ProducerId, ReadAnswer, TaskProducer

DEFAULT_URL = "ws://127.0.0.1:9292"
NO_FILES = TlsOptions()
GOODBYE_S = 1.0
"""Longest wait of a closing connection for the end of consumers that were not closed before."""


@keep_old_names
class Log:
    """A connected client of a cluster, from ``connect`` until the end of its ``async with`` block. Any number of
    tasks may use it. Its methods send and read records. Its attributes ``topics``, ``partitions``, ``groups``,
    ``transactions``, ``access`` and ``cluster`` have the methods for administration."""

    def __init__(self, connection: GatewayConnection, clock: WallClock) -> None:
        self._connection = connection
        self._wall_ms = clock

    @property
    def tracing(self) -> Tracing | None:
        """The ``tracing`` argument that was passed to ``connect``; None if the producers of this client do not
        trace."""
        return self._connection.tracing

    @property
    def waits(self) -> tuple[TidelogError, ...]:
        """The last error of each request that this client is repeating now: the reasons why callers wait. Empty if no
        request is being repeated."""
        return tuple(self._connection.waits.values())

    # --- administration --------------------------------------------------------------------------------------

    @cached_property
    def topics(self) -> TopicAdmin:
        """The methods that create, describe, change and delete topics."""
        from tidelog.client.admin.topics import TopicAdmin

        return TopicAdmin(self._connection)

    @cached_property
    def partitions(self) -> PartitionAdmin:
        """The methods that describe, compare and move partitions."""
        from tidelog.client.admin.partitions import PartitionAdmin

        return PartitionAdmin(self._connection)

    @cached_property
    def groups(self) -> GroupAdmin:
        """The methods that describe, reset and delete consumer groups."""
        from tidelog.client.admin.groups import GroupAdmin

        return GroupAdmin(self._connection)

    @cached_property
    def transactions(self) -> TransactionAdmin:
        """The methods that list and end transactions."""
        from tidelog.client.admin.transactions import TransactionAdmin

        return TransactionAdmin(self._connection)

    @cached_property
    def access(self) -> AccessAdmin:
        """The methods that create and revoke tokens, and change rules and quotas."""
        from tidelog.client.admin.access import AccessAdmin

        return AccessAdmin(self._connection)

    @cached_property
    def cluster(self) -> ClusterAdmin:
        """The methods that describe and change the cluster itself."""
        from tidelog.client.admin.cluster import ClusterAdmin

        return ClusterAdmin(self._connection)

    # --- producing and consuming -----------------------------------------------------------------------------

    @asynccontextmanager
    async def producer(self, topic: str, options: ProducerOptions | None = None) -> AsyncIterator[Producer]:
        """Open a producer for a topic: ``async with log.producer("orders") as producer``. The end of the block waits
        until every record is acknowledged or has failed, and raises ``DeliveryFailed`` if records failed and no
        caller got the error. Raises ``UNKNOWN_TOPIC``, and ``ConfigError`` if the topic has no partitions."""
        from tidelog.client.lookups import describe_topic
        from tidelog.client.producer import open_producer

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
        hooks: Hooks | None = ...,
        options: ConsumerOptions | None = None,
        group_options: GroupOptions | None = None,
        **reading: Unpack[Reading],
    ) -> GroupConsumer: ...

    def consume(self, topic: str | Iterable[str], *, group: str | None = None, **how: Any) -> RecordStream:
        """Return an iterator over the records of a topic: ``async for record in log.consume("orders",
        start="earliest")``. Nothing is requested before the first record or ``async with``. The iteration begins at
        ``start`` and stops before ``end``; without ``end`` it waits for more records for ever. Both are a place:
        ``earliest``, ``latest`` (the end of what is committed when the consumer is opened), an offset, a ``datetime``
        (the first record at or after it), or a mapping from partition to offset or ``Position``. The leaders look up
        places and times, also if records are read from other replicas. ``partitions``: the partitions to read, by
        default all. Records come in order per partition.

        ``read_from``, ``consistency``, ``max_staleness_s``, ``isolation`` and ``on_unreadable`` override the fields
        of that name in ``options``. Contradictions raise ``ConfigError``. The iterator raises ``UNKNOWN_TOPIC``,
        ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``, ``UnreadableBatch`` (if ``on_unreadable`` is ``skip``, only for a
        wrong CRC), and, if a partition that it reads is paused, ``TOPIC_PAUSED`` after what has arrived of it.

        ``reverse``: return the newest record first, from below ``start`` down to ``end`` (or to the log's start).
        These are the records from ``end`` to ``start`` in reverse order.

        ``group``: read as a member of this consumer group, which shares the partitions of its topics among its
        members and stores their positions. ``start`` counts only in partitions without a committed position, is no
        mapping, and is ``earliest`` by default (without a group ``latest``). ``end``, ``partitions`` and ``reverse``
        are not for groups. ``instance``: the name of a static member, which may be away for the session timeout
        without losing its partitions. See ``GroupConsumer``.
        """
        from tidelog.client.consumers import join_group, open_consumer

        if group is not None:
            if excess := [name for name in ("end", "partitions", "reverse") if name in how]:
                raise ConfigError(f"{', '.join(excess)}: not for a group, whose members share all partitions")
            return join_group(self._connection, topic, group, **how)
        if not isinstance(topic, str):
            raise ConfigError("several topics at a time need a group")
        return open_consumer(self._connection, topic, **how)

    def read_arrow(
        self,
        topic: str,
        *,
        start: Where = "earliest",
        end: Where | None = "latest",
        partitions: Iterable[int] | None = None,
        columns: Sequence[str] = TABLE_COLUMNS,
        values: str = "raw",
        keys: str = "raw",
        schema: pa.Schema | None = None,
        on_invalid: str = "raise",
        options: ConsumerOptions | None = None,
        **reading: Unpack[Reading],
    ) -> ArrowReader:
        """Return an iterator over the records of a topic as record batches of pyarrow: ``async for batch in
        log.read_arrow("orders")``. By default it reads what is committed when it is opened. ``start``, ``end``,
        ``partitions`` and the other options are those of ``consume``; with ``end=None`` it waits for more for ever.
        Needs the extra ``arrow``.

        ``columns``: any of ``topic`` (string), ``partition`` (int32), ``offset`` (int64), ``timestamp`` (ms, UTC),
        ``key``, ``value``, ``headers`` (a list of structs ``key``: string, ``value``: binary) and ``leader_epoch``
        (int64), in this order. What is not asked for is not decoded: for ``partition`` and
        ``offset`` most batches are not even decompressed, and malformed ones are not found.

        ``values``: ``raw`` (binary), ``string`` (text in UTF-8) or ``json`` (a struct). ``schema``: the fields to
        take from JSON values; others are left out, missing ones are null. Without a schema it is inferred from the
        first record batch, some 16,000 records at most, and a later value with another field does not fit. ``keys``:
        ``raw`` or ``string``. A record without key or value has null. ``on_invalid``: what happens at a key or value
        that is not of this form. ``raise``: the error ``InvalidValue``; ``null``: it becomes null; ``report``: it
        becomes null, and a further column ``invalid`` has the reason.

        Raises ``ConfigError`` for contradictions, and if pyarrow is missing. The iterator raises what that of
        ``consume`` raises, behind the rows before the failure."""
        from tidelog.client.arrow_reader import ArrowReader, layout_of
        from tidelog.client.consumer import Consumer
        from tidelog.client.consumers import open_consumer

        layout = layout_of(topic, columns, values, keys, schema, on_invalid)
        how: dict[str, Any] = {"start": start, "end": end, "partitions": partitions, "options": options}
        consumer = open_consumer(self._connection, topic, **how, **reading)
        assert isinstance(consumer, Consumer)
        return ArrowReader(consumer, layout, endless=end is None)

    # --- transactions ----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def transaction(
        self, app: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S, options: ProducerOptions | None = None
    ) -> AsyncIterator[Transaction]:
        """Open a transaction: ``async with log.transaction("billing") as tx``. The end of the block commits it, and
        all records sent in the block become visible together. If the block raises, the transaction is aborted and no
        record is ever visible to readers of committed records. ``app``: the transactional id, which has one
        transaction at a time: if another process begins one, this one ends with ``FENCED_PRODUCER``. The cluster
        aborts a transaction that is still open after ``timeout_s`` seconds. When the block has ended, all readers can
        see the records, except in the partitions named by ``tx.pending``. Raises the first failure of a record or of
        the commit; ``advice`` returns what to do after it."""
        from tidelog.client.transactions import begin_transaction

        async with begin_transaction(self._connection, app, "", timeout_s, options, self._wall_ms) as tx:
            yield tx
            await tx._settle()
            tx._end(
                await self._connection.ask(messages.EndTransaction(*tx.identity, True), messages.TransactionEnded)
            )

    @asynccontextmanager
    async def stage(
        self,
        app: str,
        *,
        name: str = "",
        owner: str = "",
        timeout_s: float = TRANSACTION_TIMEOUT_S,
        options: ProducerOptions | None = None,
    ) -> AsyncIterator[Transaction]:
        """Open a transaction that the end of the block prepares but does not commit. ``commit``, called by any
        process with the transaction's ``id``, then commits it together with others. The cluster aborts it if the
        block raises or takes longer than ``timeout_s`` seconds, or if it is not committed within an hour (a setting).
        The id is ``name``, or a random name if none is given. A second attempt under a name replaces the first.
        ``owner`` names the sequence of batches that the application writes, such as the id of a checkpoint; it
        becomes part of the id. ``commit`` then refuses the transactions of another owner."""
        from tidelog.client.transactions import begin_transaction

        async with begin_transaction(
            self._connection, app, staged_name(owner, name or random_name()), timeout_s, options, self._wall_ms
        ) as tx:
            yield tx
            await tx._settle()
            await self._connection.ask(messages.PrepareTransaction(*tx.identity), messages.Done)

    async def commit(self, app: str, batch: int, staged: Iterable[str], *, alone: bool = False) -> bool:
        """Commit these staged transactions together, as batch number ``batch`` of application ``app``. Returns True
        if this call committed them. Returns False if that batch was committed before: nothing changes, and the newly
        staged transactions are dropped. ``alone``: also drop every other transaction that this application has
        staged; for applications with one batch at a time. Raises ``UNKNOWN_TRANSACTION`` if one of the transactions
        has expired or is not prepared: none is committed, and all must be staged again. Raises
        ``INVALID_TRANSACTION`` with the detail ``owner`` if the application belongs to another owner (``stage``), and
        ``ConfigError`` if
        ``batch`` is negative. A call that got no answer may be repeated. The call waits some seconds at most for
        readers to see the batch; ``wait_visible`` waits until they do."""
        if batch < 0:
            raise ConfigError(f"batches are numbered from 0, not {batch}")
        answer = await self._connection.ask(
            messages.CommitStaged(app, batch, tuple(staged), alone), messages.StagedCommitted
        )
        return not answer.repeated

    async def wait_visible(self, app: str, *, timeout_s: float = TRANSACTION_TIMEOUT_S) -> None:
        """Wait until readers see everything that the application has committed, that is, until every partition of its
        transactions has the marker. That is usually so when the commit returns (``Transaction.pending``). Raises
        ``REQUEST_TIMED_OUT`` after ``timeout_s`` seconds; ``detail["partitions"]`` is then the number of partitions
        without the marker. The commit stays in force."""
        from tidelog.client.transactions import wait_visible

        await wait_visible(self._connection, app, timeout_s)

    async def abort(self, app: str, staged: Iterable[str]) -> None:
        """Drop these staged transactions of application ``app``, so that their records never become visible.
        Transactions that are committed or unknown are left alone."""
        await self._connection.ask(messages.AbortStaged(app, tuple(staged)), messages.Done)

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
        """Read whole batches of a partition from a position on, as they are in the log. Returns the leader's answer,
        and each batch as a pair of its decoded header and its bytes; ``tidelog.batch.format`` decodes the records.
        The first batch may begin before the position. The list is empty if no batch has arrived after ``wait_s`` (at
        most 30). Raises ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``, ``CORRUPT_BATCH``."""
        from tidelog.batch.format import split

        wait_ms = round(1000 * wait_s)
        request = messages.Read(
            topic_id,
            partition,
            at.offset,
            at.leader_epoch,
            max_bytes=max_bytes,
            max_wait_ms=wait_ms,
            isolation=isolation,
        )
        answer = await self._connection.call(request, self._connection.request_timeout_s + wait_s)
        assert isinstance(answer, messages.ReadAnswer) and not isinstance(answer.payload, list)
        return answer, list(split(answer.payload))

    def sender(self, acks: str, transaction: str = "") -> BatchSender:
        """Return a sender for batches that the caller has encoded and numbered. ``acks``: ``none``, ``leader`` or
        ``all``. ``transaction``: the transactional id that the batches belong to; "" for none. Sends nothing yet."""
        from tidelog.client.batch_sender import BatchSender

        return BatchSender(self._connection, ACKS[acks], transaction)

    async def producer_ids(self, count: int) -> ProducerId:
        """Reserve ``count`` producer ids that no other client ever gets, for a ``sender``. The answer names
        consecutive ids from ``producer_id`` on, at epoch 0, with one ``ticket`` for ``use_producer``. Raises
        ``UNSUPPORTED`` if the gateway's release gives one id at a time."""
        answer = await self._connection.ask(messages.InitProducer(count), messages.ProducerId)
        if answer.count < count:
            raise refuse("UNSUPPORTED", f"the gateway's release does not give {count} producer ids at a time")
        return answer

    def use_producer(self, producer_id: int, epoch: int, ticket: str) -> None:
        """Announce to the gateway that a ``sender`` of this client will send batches under this producer id and
        epoch. ``ticket``: the ticket that the cluster gave with the id, to this process or to another process of the
        same principal. If it is "" nothing is announced, because the cluster needs no ticket. The announcement is
        repeated on every new link to a gateway."""
        self._connection.use_producer(producer_id, epoch, ticket)

    async def task_producer(self, app: str, owner: str, batch: int, task: int, timeout_s: float) -> TaskProducer:
        """Return the producer id, epoch, ticket and record timestamp of task ``task`` of numbered batch ``batch`` of
        an application, for a ``sender``. Every attempt of the task gets identical values as long as no later batch
        has begun (``InitTaskProducer``). Raises ``INVALID_TRANSACTION``, ``FENCED_PRODUCER``, and ``UNSUPPORTED`` or
        ``UNSUPPORTED_LEVEL`` if the cluster lacks this feature."""
        return await self._connection.ask(
            messages.InitTaskProducer(app, owner, batch, task), messages.TaskProducer, timeout_s
        )

    def appender(self, topic_id: str, partition: int) -> ConditionalAppender:
        """Return an appender to one partition for batches that already have offsets, such as copies of another log.
        Sends nothing yet."""
        from tidelog.client.conditional_appender import ConditionalAppender

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
    failed_timeout_s: float = inf,
    *,
    discover: bool = True,
    operator: bool = False,
) -> AbstractAsyncContextManager[Log]:
    """Return the context manager that connects to one of the gateways ``urls``, yields a ``Log`` that runs on
    ``loop``, and closes the connection at the end. Every ``connect`` calls this function. Raises ``ConfigError`` if
    there is no URL, or a text that is none (``net.addresses.gateway_url``). Entering raises ``Unreachable`` if no
    gateway was reached within ``connect_timeout_s``, or if each has failed within ``failed_timeout_s``. ``discover``:
    later also go on at gateways that the cluster names. ``operator``: ask for a reserved connection if a gateway is
    full."""
    gateways = tuple(map(gateway_url, (urls,) if isinstance(urls, str) else urls))
    if not gateways:
        raise ConfigError("no gateway URL is given")
    connection = GatewayConnection(
        gateways, loop, name, request_timeout_s, token, tracing, discover=discover, operator=operator
    )
    return _running(connection, connect_timeout_s, failed_timeout_s, clock)


@asynccontextmanager
async def _running(
    connection: GatewayConnection, connect_timeout_s: float, failed_timeout_s: float, clock: WallClock
) -> AsyncIterator[Log]:
    """Run the connection's task during the block, wait until a link is open, and yield the ``Log``. At the end,
    members of groups get up to ``GOODBYE_S`` seconds to leave, and the connection is closed."""
    loop = connection.loop
    async with loop.tasks() as start:
        connection.open(start)
        try:
            now = loop.now()
            await connection.wait_up(now + connect_timeout_s, now + failed_timeout_s)
            yield Log(connection, clock)
        finally:
            with loop.shielded():  # a member of a group whose task is cancelled still leaves it
                await connection.say_goodbye(loop.now() + GOODBYE_S)
            connection.close()
