"""The blocking transaction, as ``tidelog.sync`` returns it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tidelog.client import producer as async_producer
from tidelog.client import transactions as transacting
from tidelog.client.producer import Ack
from tidelog.sync.portal import Portal
from tidelog.sync.producer import Feed, Pending
from tidelog.types import Headers, Position

if TYPE_CHECKING:
    from tidelog.sync.faces import GroupConsumer

Opening = AbstractAsyncContextManager[transacting.Transaction]


class Transaction(Feed):
    """A transaction that is open within its ``with`` block. Any number of threads may send records in it. Made by
    ``Log.transaction`` and ``Log.stage``."""

    def __init__(self, portal: Portal, opening: Opening) -> None:
        super().__init__(portal)
        self.app = self.id = ""
        """Transactional id (``app``), and the name of a staged transaction; "" until the block begins."""
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
        """Send a record to a topic, wait until it is in the log, and return its ``Ack``. The record becomes visible
        when the transaction is committed. Raises ``BrokerError`` if the record failed, and ``CLOSED`` after the end
        of the block."""
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
        """Queue a record, as ``Producer.submit`` does, and return its ``Pending`` without waiting for the
        acknowledgement. The end of the transaction waits for it. A record that is refused aborts the transaction,
        unless ``Pending.wait`` has raised the error."""
        return self._put(topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)

    def commit_offsets(
        self, group: str | GroupConsumer, positions: Mapping[tuple[str, int], Position | int] | None = None
    ) -> None:
        """Add positions of a group to the transaction, which are stored when it is committed. ``group`` is a group's
        name or a ``GroupConsumer``, whose positions are used if none are given. Does nothing if there are no
        positions. Raises the errors of ``tidelog.Transaction.commit_offsets``."""
        whose = group if isinstance(group, str) else group._current()
        self._portal.run(self._inner.commit_offsets, whose, positions)

    def renew(self) -> None:
        """Let the time-out of the transaction begin again now, as ``tidelog.Transaction.renew`` does, and raise its
        errors."""
        self._portal.run(self._inner.renew)

    @property
    def pending(self) -> tuple[tuple[str, int], ...]:
        """The (topic, partition) pairs in which the committed transaction was not visible yet at the end of the
        block; empty before the end. The transaction becomes visible there without further action."""
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
        """Wait until all queued records were submitted. Raises the first refusal that no caller has got."""
        await self._catch_up()
        for refused in self._refused.values():
            raise refused
