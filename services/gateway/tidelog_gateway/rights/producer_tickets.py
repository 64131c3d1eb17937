"""The producer ids under which each connection may write (``tidelog.tickets``).

A client presents the ticket of a producer id once per connection. The ticket is verified at once, and the connection
holds the id at that epoch until it ends or releases the id. So a batch costs one look-up, and no batch under an id
that its connection does not hold is forwarded. Below feature level ``TICKETS`` every id is allowed.

A ticket may be newer than the metadata that this gateway has: the level is raised, or the key rotated, and another
gateway heard of it first. Such a ticket is kept, and verified when a batch needs it. Until then batches under the
id are refused with ``UNKNOWN_TICKET_KEY``, which clients retry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.errors import TidelogError, refuse
from tidelog.feature_levels import TICKETS
from tidelog.tickets import refuse_ticket, sign
from tidelog.wire.messages import ProducerTicket, UseProducer

from tidelog_gateway.cluster_view import ClusterView

MAX_PRODUCERS = 1000
"""Most producer ids of one connection; a client releases ids that it no longer needs. The number is below the default
of ``client_max_in_flight``, so that a client that reconnects can present all at once."""


@dataclass(slots=True)
class _ConnectionTickets:
    """The producer ids that one connection holds, and the tickets that its client has presented and that could not be
    verified yet."""

    epochs: dict[int, int] = field(default_factory=dict)
    """By producer id: the epoch at which the connection may write."""
    put_by: dict[int, tuple[str, UseProducer]] = field(default_factory=dict)
    """By producer id: principal and request of a ticket that could not be verified yet."""


class ProducerTickets:
    """The producer ids under which each connection of a gateway may write, by the tickets that its client has
    presented. ``source`` is the number of a connection."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._held: dict[int, _ConnectionTickets] = {}

    def use(self, source: int, principal: str, request: UseProducer) -> ProducerTicket | TidelogError:
        """Verify the ticket of a producer id that a client presents. If it is valid, the connection may write under
        the id at that epoch, and a renewed ticket is returned. Otherwise return the error: ``INVALID_TICKET``,
        ``UNKNOWN_TICKET_KEY`` (the ticket is kept and verified later), or ``OVERLOADED`` (the connection holds too
        many ids). Below feature level ``TICKETS`` the ticket is kept unverified, and an empty one returned.
        ``principal`` is the connection's."""
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
        """Forget that the connection may write under a producer id. Does nothing if it may not."""
        if (held := self._held.get(source)) is not None:
            held.epochs.pop(producer_id, None)
            held.put_by.pop(producer_id, None)

    def on_link_closed(self, source: int) -> None:
        """Forget all producer ids and tickets of a connection that was closed."""
        self._held.pop(source, None)

    def refuse_batch(self, source: int, producer_id: int, epoch: int) -> TidelogError | None:
        """Return the error with which a batch under a producer id and epoch is refused on this connection; None if
        the connection may write under the id at that epoch, or if the cluster's feature level is below ``TICKETS``. A
        ticket that could not be verified before is verified now. ``producer_id`` is not 0."""
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
        """Return a ticket for the request's producer id alone, signed with the newest key."""
        keys = self._cluster.image.ticket_keys
        return ProducerTicket(sign(keys, request.producer_id, 1, request.producer_epoch, principal))
