"""Administration of transactions, whoever has them: ``Log.transactions``."""

from __future__ import annotations

from tidelog.client.connection import GatewayConnection
from tidelog.client.lookups import describe_topic
from tidelog.wire.messages import (
    Done,
    EndTransaction,
    ListTransactions,
    ListTransactionsAnswer,
    SettleTransaction,
    TransactionEnded,
    TransactionInfo,
)


class TransactionAdmin:
    """Describe and end transactions, whoever has them: ``log.transactions``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def list(self) -> tuple[TransactionInfo, ...]:
        """Every transaction that is not at its end, by application."""
        return (await self._connection.ask(ListTransactions(), ListTransactionsAnswer)).transactions

    async def describe(self, app: str) -> ListTransactionsAnswer:
        """The last transaction of an application, those that it has staged, and the newest batches that it has
        committed; all empty where it is not known, or has been forgotten."""
        return await self._connection.ask(ListTransactions(app), ListTransactionsAnswer)

    async def abort(self, app: str) -> bool:
        """Abort the transaction of an application that is open, whoever has it: that one is told at its next batch,
        or its commit (``TRANSACTION_ABORTED``). False where none is open. What it has staged: ``Log.abort``."""
        for info in (await self.describe(app)).transactions:
            if info.state == "open" and not info.staged:
                request = EndTransaction(app, info.producer_id, info.producer_epoch, False)
                return not (await self._connection.ask(request, TransactionEnded)).committed
        return False

    async def settle(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition, so that readers of what is committed get on: one that is open
        in its log, and that no coordinator has. Its records there become visible (``commit``) or are never seen.
        Raises ``INVALID_TRANSACTION`` where a coordinator has it, ``UNKNOWN_TRANSACTION`` where readers do not wait
        for it. Takes the right to administer the cluster."""
        topic_id = (await describe_topic(self._connection, topic)).topic_id
        await self._connection.ask(SettleTransaction(topic_id, partition, producer_id, epoch, commit), Done)
