"""Administration of any application's transactions: ``Log.transactions``."""

from __future__ import annotations

from tidelog.client.admin.old_names import keep_old_call
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


@keep_old_call("transactions")
class TransactionAdmin:
    """The methods that list, abort and settle the transactions of any application; each ``Log`` has them as
    ``log.transactions``."""

    def __init__(self, connection: GatewayConnection) -> None:
        self._connection = connection

    async def list(self) -> tuple[TransactionInfo, ...]:
        """Return every transaction that has not ended, ordered by application (transactional id)."""
        return (await self._connection.ask(ListTransactions(), ListTransactionsAnswer)).transactions

    async def describe(self, app: str) -> ListTransactionsAnswer:
        """Return the last transaction of an application, the transactions that it has staged, and the newest batches
        that it has committed. All are empty if the application is not known, or has been forgotten."""
        return await self._connection.ask(ListTransactions(app), ListTransactionsAnswer)

    async def of_producer(self, producer_id: int) -> tuple[TransactionInfo, ...]:
        """Return the transactions of a producer id that the coordinators keep, also ended ones. Requires the right to
        describe the cluster."""
        found = await self._connection.ask(ListTransactions(producer_id=producer_id), ListTransactionsAnswer)
        return tuple(one for one in found.transactions if one.producer_id == producer_id)

    async def abort(self, app: str) -> bool:
        """Abort the open transaction of an application, and return True; its process gets ``TRANSACTION_ABORTED`` at
        its next batch or commit. Returns False if no transaction is open or it was committed meanwhile. Staged
        transactions are not touched; ``Log.abort`` drops them."""
        for info in (await self.describe(app)).transactions:
            if info.state == "open" and not info.staged:
                request = EndTransaction(app, info.producer_id, info.producer_epoch, False)
                return not (await self._connection.ask(request, TransactionEnded)).committed
        return False

    async def settle(self, topic: str, partition: int, producer_id: int, epoch: int, *, commit: bool) -> None:
        """End a hanging transaction in one partition, so that readers of committed records no longer wait for it. A
        transaction hangs if it is open in the partition's log and no coordinator has it. With ``commit`` its records
        in the partition become visible, else they never do. Raises ``INVALID_TRANSACTION`` if a coordinator has the
        transaction, ``UNKNOWN_TRANSACTION`` if readers do not wait for it. Requires the right to administer the
        cluster."""
        topic_id = (await describe_topic(self._connection, topic)).topic_id
        await self._connection.ask(SettleTransaction(topic_id, partition, producer_id, epoch, commit), Done)
