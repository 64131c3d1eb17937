"""The blocking face of transactions: ``tidelog.sync.Log`` has all of it. What each means is said where
``tidelog.Log`` has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from tidelog.client import producer as async_producer
from tidelog.client import transactions as transacting
from tidelog.client.options import ProducerOptions
from tidelog.client.producer import Ack, Headers
from tidelog.client.transactions import TIMEOUT_S
from tidelog.sync.consumer import GroupConsumer
from tidelog.sync.portal import Portal
from tidelog.sync.producer import Feed, Pending
from tidelog.types import Position
from tidelog.wire.messages import ListTransactionsAnswer, TransactionInfo

Opening = AbstractAsyncContextManager[transacting.Transaction]


class Transaction(Feed):
    """An open transaction; any thread may send. Made by ``Log.transaction`` and ``Log.stage``, to be used with
    ``with``: it is open from there on."""

    def __init__(self, portal: Portal, opening: Opening) -> None:
        super().__init__(portal)
        self.app = self.id = ""
        """Application, and the name of a staged transaction; known once it is open."""
        self._opening = opening
        self._inner: transacting.Transaction
        self._within = ExitStack()

    def send(
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
        return self.submit(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        ).wait()

    def submit(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Accept a record, as ``Producer.submit``; the end of the transaction waits for it. A record that is refused
        aborts it, unless ``wait`` has said so."""
        return self._put(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    def commit_offsets(
        self, group: str | GroupConsumer, positions: Mapping[tuple[str, int], Position | int] | None = None
    ) -> None:
        """Have the group come so far if the transaction is committed; see ``tidelog.Transaction.commit_offsets``."""
        whose = group if isinstance(group, str) else group._tell()
        self._portal.run(self._inner.commit_offsets, whose, positions)

    @property
    def pending(self) -> tuple[tuple[str, int], ...]:
        """Partitions in which the committed transaction was not visible yet; see ``tidelog.Transaction``."""
        return self._inner.pending

    def __enter__(self) -> Self:
        self._inner = self._within.enter_context(self._portal.entered(self._opening))
        self.app, self.id = self._inner.app, self._inner.id
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._portal.is_foreign:
            return
        if error is not None:
            self._within.__exit__(kind, error, trace)
            return
        with self._within:
            self._portal.run(self._settle)

    # In the background thread:

    async def _accept(self, *record: Any, **details: Any) -> async_producer.Pending:
        return await self._inner.submit(*record, **details)

    async def _settle(self) -> None:
        await self._catch_up()
        for refused in self._refused.values():
            raise refused


class Transacting:
    """The part of ``tidelog.sync.Log`` for transactions; every call blocks."""

    _portal: Portal

    def transaction(
        self, app: str, *, timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> Transaction:
        """``with log.transaction("billing") as tx``: all that is sent in the block becomes visible together when it
        ends, or, where it raises, never; see ``tidelog.Log.transaction``."""
        return Transaction(self._portal, self._portal.log.transaction(app, timeout_s=timeout_s, options=options))

    def stage(
        self, app: str, *, name: str = "", timeout_s: float = TIMEOUT_S, options: ProducerOptions | None = None
    ) -> Transaction:
        """As ``transaction``, but at its end it waits to be committed, together with others, by its ``id``; see
        ``tidelog.Log.stage``."""
        opening = self._portal.log.stage(app, name=name, timeout_s=timeout_s, options=options)
        return Transaction(self._portal, opening)

    def commit(self, app: str, batch: int, staged: Iterable[str], *, alone: bool = False) -> bool:
        """Commit all these staged transactions together, as batch number ``batch`` of the application, once; see
        ``tidelog.Log.commit``."""
        return self._portal.run(partial(self._portal.log.commit, app, batch, tuple(staged), alone=alone))

    def wait_visible(self, app: str, *, timeout_s: float = TIMEOUT_S) -> None:
        """Wait until readers see everything that the application has committed by now; see
        ``tidelog.Log.wait_visible``."""
        self._portal.run(partial(self._portal.log.wait_visible, app, timeout_s=timeout_s))

    def abort(self, app: str, staged: Iterable[str]) -> None:
        """Drop these staged transactions; does nothing to what is committed, or not known."""
        self._portal.run(partial(self._portal.log.abort, app, tuple(staged)))

    def transactions(self) -> tuple[TransactionInfo, ...]:
        """Every transaction that is not at its end, by application."""
        return self._portal.run(self._portal.log.transactions)

    def describe_transactions(self, app: str) -> ListTransactionsAnswer:
        """What is known of an application's transactions."""
        return self._portal.run(self._portal.log.describe_transactions, app)

    def abort_transaction(self, app: str) -> bool:
        """Abort the transaction of an application that is open, whoever has it; False where none is."""
        return self._portal.run(self._portal.log.abort_transaction, app)

    def settle_transaction(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition; see ``tidelog.Log.settle_transaction``."""
        settle = self._portal.log.settle_transaction
        self._portal.run(partial(settle, topic, partition, producer_id, epoch, commit=commit))
