"""Under which producer ids each connection may write (``tidelog.tickets``).

A client presents the ticket of a producer id once per connection. It is verified there and then, and the connection
holds the id at that epoch until it ends or releases the id. So a batch costs one look-up, and no batch under an id
that its connection does not hold is forwarded. Below feature level ``TICKETS`` every id is allowed.

A ticket may be newer than the metadata that this gateway has: the level is raised, or the key rotated, and another
gateway heard of it first. Such a ticket is put by, and verified when a batch needs it. Until then batches under the
id are refused with ``UNKNOWN_TICKET_KEY``, which passes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TICKETS
from tidelog.tickets import refuse_ticket, sign
from tidelog.wire.messages import ProducerTicket, UseProducer

from tidelog_gateway.cluster_view import ClusterView

MAX_PRODUCERS = 1000
"""Producer ids of one connection. A client releases an id that it needs no more. No more than
``client_max_in_flight`` by default, so that a client can present all at once when it has connected again."""


@dataclass(slots=True)
class _ConnectionTickets:
    """What one connection has presented."""

    epochs: dict[int, int] = field(default_factory=dict)
    """By producer id: the epoch under which it may write."""
    put_by: dict[int, tuple[str, UseProducer]] = field(default_factory=dict)
    """By producer id: principal and request whose ticket could not be verified yet."""


class ProducerTickets:
    """Connections are known by their number, ``source``."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._held: dict[int, _ConnectionTickets] = {}

    def use(self, source: int, principal: str, request: UseProducer) -> ProducerTicket | TidelogError:
        """A client presents a ticket; ``principal`` is the connection's. An id that the connection holds already is
        held at the new epoch from now on. Or ``INVALID_TICKET``, ``UNKNOWN_TICKET_KEY``, ``OVERLOADED``."""
        held = self._held.setdefault(source, _ConnectionTickets())
        id, image = request.producer_id, self._cluster.image
        if id not in held.epochs and id not in held.put_by and len(held.epochs) + len(held.put_by) >= MAX_PRODUCERS:
            text = f"this connection holds {MAX_PRODUCERS} producer ids: release some (release_producer)"
            return refuse("OVERLOADED", text)
        if image.level < TICKETS:
            held.put_by[id] = principal, request
            return ProducerTicket()
        refusal = refuse_ticket(image.ticket_keys, request.ticket, id, request.producer_epoch, principal)
        if refusal is None:
            held.epochs[id] = request.producer_epoch
            held.put_by.pop(id, None)
            return self._renewed(request, principal)
        if refusal.code == "UNKNOWN_TICKET_KEY":
            held.put_by[id] = principal, request
        return refusal

    def release(self, source: int, producer_id: int) -> None:
        """The client writes nothing more under this id on this connection."""
        if (held := self._held.get(source)) is not None:
            held.epochs.pop(producer_id, None)
            held.put_by.pop(producer_id, None)

    def on_link_closed(self, source: int) -> None:
        """The connection is gone."""
        self._held.pop(source, None)

    def refuse_batch(self, source: int, producer_id: int, epoch: int) -> TidelogError | None:
        """Why a batch under that id at that epoch is refused; None if it may be written. ``producer_id`` is not 0."""
        held = self._held.get(source)
        if held is not None and held.epochs.get(producer_id) == epoch:
            return None
        if self._cluster.image.level < TICKETS:
            return None
        if held is not None and (waiting := held.put_by.get(producer_id)) is not None:
            principal, request = waiting
            answer = self.use(source, principal, request)
            if isinstance(answer, TidelogError):
                return answer
            if request.producer_epoch == epoch:
                return None
        text = (
            f"producer id {producer_id} at epoch {epoch} was not presented on this connection: nothing was written."
            f" Since feature level {TICKETS} a producer presents the ticket that it got with its id (use_producer);"
            " a client of release 0.1 cannot, and must be upgraded"
        )
        return refuse("INVALID_TICKET", text)

    def _renewed(self, request: UseProducer, principal: str) -> ProducerTicket:
        """A ticket for this id alone, by the newest key."""
        keys = self._cluster.image.ticket_keys
        return ProducerTicket(sign(keys, request.producer_id, 1, request.producer_epoch, principal))
