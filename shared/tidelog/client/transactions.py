"""Transactions as an application sees them, for ``Log``. What is promised: ``docs/transactions.md``.

Any failure in a transaction fails the whole transaction: it is aborted. ``advice`` says in one word what to do after
a given error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from tidelog.client.connection import GatewayConnection
from tidelog.client.core.batch import TransactionIdentity
from tidelog.client.group_consumer import GroupConsumer
from tidelog.client.lookups import describe_topic
from tidelog.client.loop import WallClock, Work, random_name
from tidelog.client.options import ProducerOptions
from tidelog.client.producer import Ack, Pending, Producer, make_producer
from tidelog.errors import TidelogError, refuse
from tidelog.types import GROUPS, Headers, Position
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    EndTransaction,
    GroupPosition,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    TransactionBegun,
    TransactionEnded,
)

A = TypeVar("A", bound=Message)
VISIBLE_PAUSE_S = 0.1
"""Pause in seconds between two checks whether a commit is visible everywhere."""
_AGAIN = ("TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "CLOSED")
_STOP = ("FENCED_PRODUCER", "INVALID_TRANSACTION", "FORBIDDEN", "UNAUTHENTICATED", "UNKNOWN_TOPIC", "BATCH_TOO_LARGE")


def advice(error: TidelogError) -> str:
    """Return in one word what to do after a transaction failed with this error. ``again``: the transaction is not
    committed; repeat all of it in a new transaction. ``stop``: another process has taken over, or a repetition would
    fail in the same way. ``look``: it is not known whether the transaction is committed; before going on, read the
    state that it would have changed, such as the positions of the group."""
    if error.code in _STOP:
        return "stop"
    return "again" if error.code in _AGAIN or not error.unknown_outcome else "look"


class Transaction:
    """An open transaction, until the end of its ``async with`` block. Made by ``Log.transaction`` and ``Log.stage``;
    any number of tasks may send records in it."""

    def __init__(
        self,
        connection: GatewayConnection,
        identity: TransactionIdentity,
        begin: BeginTransaction,
        options: ProducerOptions,
        wall_ms: WallClock,
        start: Callable[[Work], None],
    ) -> None:
        self.app = identity.app
        self.id = begin.staged
        """The name by which a staged transaction is committed."""
        self.identity = identity
        self._connection = connection
        self._begin = begin
        self._options = options
        self._wall_ms = wall_ms
        self._start = start
        self._pending: tuple[tuple[str, int], ...] = ()
        self._producers: dict[str, Producer] = {}
        self._topics: dict[str, str] = {}
        """Names of the topics that this transaction has described, by topic id."""
        self._closed = False

    @property
    def pending(self) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs in which the committed transaction was not visible yet when the coordinator
        answered; empty before the block has ended. The transaction is committed all the same, and becomes visible
        there without further action; ``Log.wait_visible`` waits for that. Always empty in a cluster of an earlier
        release."""
        return self._pending

    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Ack:
        """Send a record to a topic, wait until it is in the log, and return its ``Ack``. The record becomes visible
        when the transaction is committed. Raises ``UNKNOWN_TOPIC``, ``CLOSED`` after the end of the block, and what
        ``Producer.send`` raises."""
        pending = await self.submit(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )
        return await pending.wait()

    async def submit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Put a record into the open batch of its partition, and return its ``Pending`` without waiting for the
        acknowledgement. The end of the transaction waits for it. Raises ``UNKNOWN_TOPIC``, ``CLOSED`` after the end
        of the block, and what ``Producer.submit`` raises."""
        producer = await self._producer(topic)
        return await producer.submit(value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    async def _producer(self, topic: str) -> Producer:
        """Return the producer of this transaction for a topic, and start one if there is none yet. Raises
        ``UNKNOWN_TOPIC``, and ``CLOSED`` after the end of the block."""
        if topic not in self._producers:
            found = await describe_topic(self._connection, topic)
            self._topics[found.topic_id] = topic
            if topic not in self._producers:
                self._check_open()
                producer = make_producer(self._connection, found, self._options, self._wall_ms, self.identity)
                producer.begin(self._start)
                self._producers[topic] = producer
        self._check_open()
        return self._producers[topic]

    def _check_open(self) -> None:
        if self._closed:
            raise refuse("CLOSED", f"the transaction of {self.app} is over")

    async def commit_offsets(
        self, group: str | GroupConsumer, positions: Mapping[tuple[str, int], Position | int] | None = None
    ) -> None:
        """Add positions of a group, by (topic, partition), to the transaction: they are stored when it is committed,
        so consumed input and produced output change together. ``group`` is the name of a group without members, or a
        ``GroupConsumer``: then its membership is checked, and without ``positions`` those after the last records that
        it returned are used. That consumer must not commit automatically: ``GroupOptions(auto_commit_s=None)``. Does
        nothing if there are no positions. Raises ``FENCED_GENERATION`` if a partition of the consumer was taken away
        before its records that were returned had been committed: their output must not be committed either, since
        other members process them again. Raises ``CLOSED`` after the end of the block, ``UNKNOWN_TOPIC``, and the
        error of the commit."""
        self._check_open()
        if isinstance(group, GroupConsumer):
            await self._commit_consumed(group, positions)
        elif positions:
            parts = await self._parts(positions)
            await self._connection.call(CommitOffsets(group, parts, "", -1, "", *self.identity))

    async def _commit_consumed(
        self, consumer: GroupConsumer, chosen: Mapping[tuple[str, int], Position | int] | None
    ) -> None:
        """Add the positions ``chosen``, or those after the last records that this consumer returned. A refusal for
        the consumer's generation, which is out of date after a rebalance, is not the end: the consumer asks for its
        generation and share, and what it still has is added in the new generation."""
        refused = -1
        while True:
            positions = consumer.positions if chosen is None else chosen
            parts = await self._parts(positions)
            consumer._check_kept()
            if not parts:
                return
            generation = consumer.generation  # no other task runs between this and the call
            whose = consumer.member, generation, consumer.instance
            try:
                await self._connection.call(CommitOffsets(consumer.group, parts, *whose, *self.identity))
            except TidelogError as error:
                if error.code != "FENCED_GENERATION" or generation == refused:
                    raise
                refused = generation
                await consumer._hear()
            else:
                consumer._on_stored(positions)
                return

    async def _parts(self, positions: Mapping[tuple[str, int], Position | int]) -> tuple[GroupPosition, ...]:
        """Return these positions as the request carries them. Raises ``UNKNOWN_TOPIC``."""
        parts = []
        for (topic, partition), at in sorted(positions.items()):
            found = await describe_topic(self._connection, topic)
            epoch, offset = at if isinstance(at, Position) else (-1, at)
            parts.append(GroupPosition(found.topic_id, partition, offset, epoch))
        return tuple(parts)

    async def renew(self) -> None:
        """Let the time-out of the transaction begin again now, so that a long one is not aborted as long as its
        program makes progress. The cluster has a bound for the whole (the setting ``transactions.open_max_ms``, a
        day). Raises ``TRANSACTION_ABORTED``, ``UNKNOWN_TRANSACTION`` or ``FENCED_PRODUCER`` if the transaction is not
        open any more, and ``UNSUPPORTED`` if the gateway is of an earlier release. With an earlier release of its
        coordinator the call may succeed and change nothing."""
        begun = await self._connection.ask(replace(self._begin, renew=True), TransactionBegun)
        if (begun.producer_id, begun.producer_epoch) != self.identity[1:]:  # an earlier release has begun another one
            _give_up(self._connection, TransactionIdentity(self.app, begun.producer_id, begun.producer_epoch))
            raise refuse("TRANSACTION_ABORTED", f"the transaction of {self.app} is aborted: perhaps it took too long")

    # --- the end -------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Refuse further records and wait until every record is in the log. Raises ``DeliveryFailed`` if a record
        failed and no caller got the error."""
        self._closed = True
        for producer in self._producers.values():
            await producer.flush()
        for producer in self._producers.values():
            failure = producer.failure()
            if failure is not None:
                raise failure

    def _end(self, ended: TransactionEnded) -> None:
        """Keep the partitions in which the committed transaction is not visible yet, for ``pending``. A topic id that
        this transaction has not used is that of the topic with the positions of groups (``GROUPS``)."""
        assert ended.committed
        self._pending = tuple(
            (self._topics.get(share.topic_id, GROUPS), number)
            for share in ended.pending
            for number in share.partitions
        )

    def _abandon(self) -> None:
        """Refuse further records, and end the producers: their unacknowledged records fail."""
        self._closed = True
        for producer in self._producers.values():
            producer.abandon()


@asynccontextmanager
async def begin_transaction(
    connection: GatewayConnection,
    app: str,
    staged: str,
    timeout_s: float,
    options: ProducerOptions | None,
    wall_ms: WallClock,
) -> AsyncIterator[Transaction]:
    """Begin a transaction of ``app`` at its coordinator, and yield it. The caller commits or prepares it inside the
    block. If the block raises, the request to abort is sent without waiting for the answer. At the end the
    transaction's producers stop. ``staged``: the name under which it is to be committed together with others, or
    ""."""
    wanted = replace(options or ProducerOptions(), acks="all", idempotent=True)
    begin = BeginTransaction(app, random_name(), staged, round(timeout_s * 1000))
    begun = await connection.ask(begin, TransactionBegun)
    if begun.window:
        wanted = replace(wanted, max_in_flight=min(wanted.max_in_flight, begun.window))
    identity = TransactionIdentity(app, begun.producer_id, begun.producer_epoch)
    connection.use_producer(begun.producer_id, begun.producer_epoch, begun.ticket)
    done = False
    async with connection.loop.tasks() as start:
        tx = Transaction(connection, identity, begin, wanted, wall_ms, start)
        try:
            yield tx
            done = True
        finally:
            tx._abandon()
            connection.release_producer(begun.producer_id, begun.producer_epoch)
            if not done:
                _give_up(connection, identity)


async def wait_visible(connection: GatewayConnection, app: str, timeout_s: float) -> None:
    """Ask the coordinator again and again until readers see everything that the application has committed, then
    return. Raises ``REQUEST_TIMED_OUT`` after ``timeout_s`` seconds, with the number of partitions that do not show
    it yet."""
    until = connection.loop.now() + timeout_s
    while True:
        found = (await connection.ask(ListTransactions(app), ListTransactionsAnswer)).transactions
        left = sum(
            max(1, sum(len(share.partitions) for share in info.pending))
            for info in found
            if info.state == "committing"
        )
        if not left:
            return
        if connection.loop.now() >= until:
            text = f"what {app} has committed is not visible in {left} partitions after {timeout_s} s"
            raise refuse("REQUEST_TIMED_OUT", text, partitions=left)
        await connection.loop.sleep(VISIBLE_PAUSE_S)


def _give_up(connection: GatewayConnection, identity: TransactionIdentity) -> None:
    """Send the request to abort this transaction, without waiting for an answer. If the request is lost, or there is
    no link, the cluster aborts the transaction after its timeout. A committed transaction stays committed."""
    link = connection.link
    if link is not None:
        request = EndTransaction(*identity, False)
        link.start_call(request, connection.request_timeout_s, lambda _: None)
