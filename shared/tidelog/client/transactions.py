"""Transactions as an application has them; ``Log`` has all of it. What is promised: ``docs/transactions.md``.

Whatever fails in a transaction fails all of it: it is aborted, and what the error says tells what to do then.
``advice`` puts that into one word."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TypeVar

from tidelog.client.clock import random_name
from tidelog.client.connection import Connection
from tidelog.client.core.batch import Identity
from tidelog.client.group_consumer import GroupConsumer
from tidelog.client.loop import Loop, Work
from tidelog.client.options import ProducerOptions
from tidelog.client.producer import Ack, Headers, Pending, Producer, WallClock, make_producer
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.types import GROUPS, Position
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    Done,
    EndTransaction,
    GroupPosition,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    PrepareTransaction,
    SettleTransaction,
    StagedCommitted,
    TopicInfo,
    TransactionBegun,
    TransactionEnded,
    TransactionInfo,
)

A = TypeVar("A", bound=Message)
TIMEOUT_S = 60.0
"""A transaction that is not at its end by then is aborted by the cluster."""
VISIBLE_PAUSE_S = 0.1
"""Pause between two looks whether a commit is visible everywhere."""
_AGAIN = ("TRANSACTION_ABORTED", "UNKNOWN_TRANSACTION", "CLOSED")
_STOP = ("FENCED_PRODUCER", "INVALID_TRANSACTION", "FORBIDDEN", "UNAUTHENTICATED", "UNKNOWN_TOPIC", "BATCH_TOO_LARGE")


def advice(error: TidelogError) -> str:
    """What to do after a transaction failed with this error: ``again`` (nothing of it counts; do all of it in a new
    one), ``stop`` (another process has taken over, or it would fail again), ``look`` (nobody knows whether it is
    committed: read back what it would have changed, such as the positions of the group, before going on)."""
    if error.code in _STOP:
        return "stop"
    return "again" if error.code in _AGAIN or not error.unknown_outcome else "look"


class Transaction:
    """An open transaction. Made by ``Log.transaction`` and ``Log.stage``; records may be sent by many tasks."""

    def __init__(
        self,
        connection: Connection,
        describe: Callable[[str], object],
        identity: Identity,
        staged: str,
        options: ProducerOptions,
        wall_ms: WallClock,
        start: Callable[[Work], None],
    ) -> None:
        self.app = identity.app
        self.id = staged
        """Of a staged transaction: the name by which it is committed."""
        self.identity = identity
        self._connection = connection
        self._describe = describe
        self._options = options
        self._wall_ms = wall_ms
        self._start = start
        self._pending: tuple[tuple[str, int], ...] = ()
        self._producers: dict[str, Producer] = {}
        self._topics: dict[str, str] = {}
        """Names of topics by id."""
        self._closed = False

    @property
    def pending(self) -> tuple[tuple[str, int], ...]:
        """Known when the block has ended: (topic, partition) of each partition in which the committed transaction was
        not visible yet when the coordinator answered. It is committed all the same, and becomes visible there by
        itself; ``Log.wait_visible`` waits for that. A cluster of an earlier release never names any."""
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
        """Send a record to a topic and wait until it is in the log, to be seen when the transaction is committed."""
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
        """Accept a record, as ``Producer.submit``; the end of the transaction waits for it."""
        producer = await self._producer(topic)
        return await producer.submit(value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    async def _producer(self, topic: str) -> Producer:
        if topic not in self._producers:
            found = await self._describe(topic)  # type: ignore[misc]
            assert isinstance(found, TopicInfo)
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
        """Have the group come so far, by (topic, partition), if the transaction is committed: what was consumed and
        what was made of it change together. ``group``: a consumer of ``consume(group=…)``, whose membership counts,
        and, without ``positions``, all that it has handed out; or the name of a group without members. A consumer
        must not commit by itself: ``GroupOptions(auto_commit_s=None)``."""
        self._check_open()
        member, generation, instance = "", -1, ""
        if isinstance(group, GroupConsumer):
            member, generation, instance = group.member, group.generation, group.instance
            positions = group.positions if positions is None else positions
        if not positions:
            return
        parts = []
        for (topic, partition), at in sorted(positions.items()):
            found = await self._describe(topic)  # type: ignore[misc]
            epoch, offset = at if isinstance(at, Position) else (-1, at)
            parts.append(GroupPosition(found.topic_id, partition, offset, epoch))
        name = group.group if isinstance(group, GroupConsumer) else group
        request = CommitOffsets(name, tuple(parts), member, generation, instance, *self.identity)
        await self._connection.call(request)

    # --- the end -------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Everything is in the logs. Raises what failed first."""
        self._closed = True
        for producer in self._producers.values():
            await producer.flush()
        for producer in self._producers.values():
            failure = producer.failure()
            if failure is not None:
                raise failure

    def _end(self, ended: TransactionEnded) -> None:
        """It is committed. Positions of groups are in a topic that this transaction has not described: ``GROUPS``."""
        assert ended.committed
        self._pending = tuple(
            (self._topics.get(share.topic_id, GROUPS), number)
            for share in ended.pending
            for number in share.partitions
        )

    def _abandon(self) -> None:
        self._closed = True
        for producer in self._producers.values():
            producer.abandon()


class Transacting(ABC):
    """The part of ``Log`` that begins, ends and describes transactions."""

    _connection: Connection
    _loop: Loop
    _wall_ms: WallClock

    @abstractmethod
    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        """A request and its answer."""

    @abstractmethod
    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic."""

    @asynccontextmanager
    async def transaction(
        self, app: str, *, timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> AsyncIterator[Transaction]:
        """``async with log.transaction("billing") as tx``: all that is sent in the block becomes visible together
        when it ends, or, where it raises, never. ``app`` has one transaction at a time: another process that begins
        one takes over, and this one ends with ``FENCED_PRODUCER``. After ``timeout_s`` the cluster aborts it. When
        the block is left all readers can see it, except in partitions that ``tx.pending`` names. Raises what failed;
        see ``advice``."""
        async with self._begun(app, "", timeout_s, options) as tx:
            yield tx
            await tx._settle()
            tx._end(await self._ask(EndTransaction(*tx.identity, True), TransactionEnded))

    @asynccontextmanager
    async def stage(
        self, app: str, *, name: str = "", timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> AsyncIterator[Transaction]:
        """As ``transaction``, but at its end it waits to be committed, by whoever gets its ``id``, together with
        others (``commit``). Nobody waits for ever: what nobody commits for an hour (a setting) is aborted. The id is
        ``name``, where one is given: a second attempt under the same name takes the place of the first."""
        async with self._begun(app, name or random_name(), timeout_s, options) as tx:
            yield tx
            await tx._settle()
            await self._ask(PrepareTransaction(*tx.identity), Done)

    async def commit(self, app: str, batch: int, staged: Iterable[str], *, alone: bool = False) -> bool:
        """Commit all these staged transactions together, as batch number ``batch`` of the application; False where
        that batch was committed before: then nothing changes, and what was staged anew is dropped. ``alone``: so is
        whatever else this application has staged, for one that has a batch at a time. Raises
        ``UNKNOWN_TRANSACTION`` where one of them has expired, or is not prepared: nothing is committed, stage all of
        it again. Without an answer the same may be asked again. It waits some seconds at most until readers can see
        the batch; ``wait_visible`` tells for sure."""
        if batch < 0:
            raise ConfigError(f"batches are numbered from 0, not {batch}")
        answer = await self._ask(CommitStaged(app, batch, tuple(staged), alone), StagedCommitted)
        return not answer.repeated

    async def wait_visible(self, app: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until readers see everything that the application has committed by now: every partition of it has the
        marker. As a rule that is so when the commit returns (``Transaction.pending``). Raises ``REQUEST_TIMED_OUT``
        with ``detail["partitions"]``, how many do not have it after ``timeout_s``: what is committed stays so."""
        until = self._loop.now() + timeout_s
        while True:
            found = (await self.describe_transactions(app)).transactions
            left = sum(
                max(1, sum(len(share.partitions) for share in info.pending))
                for info in found
                if info.state == "committing"
            )
            if not left:
                return
            if self._loop.now() >= until:
                text = f"what {app} has committed is not visible in {left} partitions after {timeout_s} s"
                raise refuse("REQUEST_TIMED_OUT", text, partitions=left)
            await self._loop.sleep(VISIBLE_PAUSE_S)

    async def abort(self, app: str, staged: Iterable[str]) -> None:
        """Drop these staged transactions; does nothing to what is committed, or not known."""
        await self._ask(AbortStaged(app, tuple(staged)), Done)

    async def transactions(self) -> tuple[TransactionInfo, ...]:
        """Every transaction that is not at its end, by application."""
        return (await self._ask(ListTransactions(), ListTransactionsAnswer)).transactions

    async def describe_transactions(self, app: str) -> ListTransactionsAnswer:
        """The last transaction of an application, those that it has staged, and the newest batches that it has
        committed; all empty where it is not known, or has been forgotten."""
        return await self._ask(ListTransactions(app), ListTransactionsAnswer)

    async def abort_transaction(self, app: str) -> bool:
        """Abort the transaction of an application that is open, whoever has it: that one is told at its next batch,
        or its commit (``TRANSACTION_ABORTED``). False where none is open. What it has staged: ``abort``."""
        for info in (await self.describe_transactions(app)).transactions:
            if info.state == "open" and not info.staged:
                request = EndTransaction(app, info.producer_id, info.producer_epoch, False)
                return not (await self._ask(request, TransactionEnded)).committed
        return False

    async def settle_transaction(
        self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool
    ) -> None:
        """End a hanging transaction in one partition, so that readers of what is committed get on: one that is open
        in its log, and that no coordinator has. Its records there become visible (``commit``) or are never seen.
        Raises ``INVALID_TRANSACTION`` where a coordinator has it, ``UNKNOWN_TRANSACTION`` where readers do not wait
        for it. Takes the right to administer the cluster."""
        topic_id = (await self.describe(topic)).topic_id
        await self._ask(SettleTransaction(topic_id, partition, producer_id, epoch, commit), Done)

    @asynccontextmanager
    async def _begun(
        self, app: str, staged: str, timeout_s: float, options: ProducerOptions | None
    ) -> AsyncIterator[Transaction]:
        wanted = replace(options or ProducerOptions(), acks="all", idempotent=True)
        begin = BeginTransaction(app, random_name(), staged, round(timeout_s * 1000))
        begun = await self._ask(begin, TransactionBegun)
        if begun.window:
            wanted = replace(wanted, max_in_flight=min(wanted.max_in_flight, begun.window))
        identity = Identity(app, begun.producer_id, begun.producer_epoch)
        self._connection.use_producer(begun.producer_id, begun.producer_epoch, begun.ticket)
        done = False
        async with self._loop.tasks() as start:
            tx = Transaction(self._connection, self.describe, identity, staged, wanted, self._wall_ms, start)
            try:
                yield tx
                done = True
            finally:
                tx._abandon()
                self._connection.release_producer(begun.producer_id, begun.producer_epoch)
                if not done:
                    self._give_up(identity)

    def _give_up(self, identity: Identity) -> None:
        """Abort, without waiting for it: also where nobody hears of it, its time-out ends it. What is committed stays
        so."""
        link = self._connection.link
        if link is not None:
            request = EndTransaction(*identity, False)
            link.start_call(request, self._connection.request_timeout_s, lambda _: None)
