"""The transactions that each connection has begun. Ending or fencing a transaction of another connection is audited.

A transaction is a connection's own if it was begun there, or if the connection holds its producer's ticket, as after
a reconnect. Connections are known by their number, ``source``.
"""

from __future__ import annotations

from tidelog.wire.messages import BeginTransaction, EndTransaction, PrepareTransaction, TransactionBegun

from tidelog_gateway.rights.producer_tickets import ProducerTickets

MOST = 1000
"""Most transactions remembered for a connection; beyond this the one that was begun first is forgotten."""


class OwnTransactions:
    """The transactions that each connection has begun, so that a request that ends or fences a transaction of another
    connection can be recognised. ``source`` is the number of a connection. ``tickets``: the producer tickets that the
    connections hold."""

    def __init__(self, tickets: ProducerTickets) -> None:
        self._tickets = tickets
        self._begun: dict[int, dict[tuple[str, str], tuple[int, int]]] = {}
        """By connection, application and name of a staged one: producer id and epoch."""

    def on_link_opened(self, source: int) -> None:
        """Create an empty record of the transactions that a new connection begins."""
        self._begun[source] = {}

    def fences(self, source: int, request: BeginTransaction, answer: TransactionBegun) -> bool:
        """Record that the connection has begun a transaction. Return whether that fenced a transaction of another
        connection: the producer epoch is above 0, and the connection itself held neither this epoch nor the one
        before. The oldest of more than ``MOST`` transactions of a connection is forgotten."""
        mine = self._begun.get(source, {})
        key, (id, epoch) = (request.app, request.staged), (answer.producer_id, answer.producer_epoch)
        before = mine.pop(key, None)
        while len(mine) >= MOST:
            del mine[next(iter(mine))]
        mine[key] = id, epoch
        return epoch > 0 and before not in ((id, epoch), (id, epoch - 1))

    def has(self, source: int, request: EndTransaction | PrepareTransaction) -> bool:
        """Return whether the transaction that ``request`` names is the connection's own: the connection has begun it,
        or holds the ticket of its producer. Always true below feature level ``TICKETS``, where tickets are not
        checked."""
        identity = request.producer_id, request.producer_epoch
        if identity in self._begun.get(source, {}).values():
            return True
        return self._tickets.refuse_batch(source, *identity) is None

    def on_link_closed(self, source: int) -> None:
        """Forget the transactions of a connection that was closed. Raises ``KeyError`` for an unknown connection."""
        del self._begun[source]
