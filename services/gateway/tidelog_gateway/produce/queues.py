"""State of the router: a produce queue per client and partition, its queued batches, a window per replica server.

A produce queue holds its batches in the order in which the client sent them: ``waiting`` (sorted by arrival number)
and ``sent`` (by attempt number). Batches leave ``waiting`` from the left only. A queue is in exactly one state:

    idle     no batch waits, or the first one is not checked yet; scheduled when it is checked
    ready    in the router's list of ready queues; the next flush sends from it
    blocked  the window of the leader is full; scheduled by acks
    parked   the partition has no leader, or there is no link to the leader; scheduled by metadata or by the link
    delayed  a try was refused, or the client has used up its share of a slow server; scheduled by time or by metadata
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from tidelog.types import Buffer, NodeId, TopicPartition
from tidelog.wire.messages import ErrorInfo, ProducePart

from tidelog_gateway.limits.server_limits import ServerLimit, Tenant
from tidelog_gateway.settings import RouterSettings


class QueueState(Enum):
    """The state of a produce queue, by what its first waiting batch waits for: nothing to send or a check (``IDLE``),
    the next flush (``READY``), room in the leader's window (``BLOCKED``), a leader or a link to it (``PARKED``), the
    end of a pause (``DELAYED``)."""

    IDLE = 0
    READY = 1
    BLOCKED = 2
    PARKED = 3
    DELAYED = 4


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """One batch of one client, from its arrival until it is acked, fails or is dropped, with the state of its tries.
    Times are in seconds of the shell's clock."""

    queue: ProduceQueue
    arrival: int
    part: ProducePart
    batch: Buffer
    producer_id: int
    """Producer id; 0: the producer is not idempotent."""
    deadline: float
    since: float = 0.0
    bucket: int = 0
    attempt: int = 0
    """Number of the try in flight; 0 while it waits."""
    sent_at: float = 0.0
    """When the try in flight was sent."""
    server: NodeId = ""
    epoch: int = -1
    """Server and leader epoch of the try in flight."""
    doubt: int = -1
    """Last leader epoch in which a try ended with an unknown outcome; -1: no try did."""
    last_error: ErrorInfo | None = None
    is_unchecked: bool = False
    """The body was not checked yet: neither this batch nor those behind it in its queue are sent."""


@dataclass(slots=True, eq=False)
class ProduceQueue:
    """The batches of one client for one partition, in order: those that wait and those in flight. It exists from the
    client's first batch until the client disconnects."""

    source: int
    key: TopicPartition
    tenant: Tenant = "", 0
    """The tenant that the bytes of the batches count for."""
    waiting: deque[QueuedBatch] = field(default_factory=deque)
    sent: dict[int, QueuedBatch] = field(default_factory=dict)
    state: QueueState = QueueState.IDLE
    not_before: float = 0.0
    retry_s: float = 0.0
    unsettled: dict[int, int] = field(default_factory=dict)
    """How many batches of each idempotent producer are waiting or sent."""
    closed: bool = False
    """The client has disconnected: its waiting batches are dropped, and acks of those in flight are discarded."""

    def occupy(self, producer_id: int) -> None:
        """Count one more batch of an idempotent producer that waits or is in flight, for the bound on the producer's
        window. Does nothing for id 0, a producer that is not idempotent."""
        if producer_id:
            self.unsettled[producer_id] = self.unsettled.get(producer_id, 0) + 1

    def release(self, producer_id: int) -> None:
        """Count one batch less of an idempotent producer that waits or is in flight. Does nothing for id 0, a
        producer that is not idempotent."""
        if producer_id:
            self.unsettled[producer_id] -= 1
            if not self.unsettled[producer_id]:
                del self.unsettled[producer_id]

    def is_oldest(self, queued: QueuedBatch) -> bool:
        """Return whether no batch that arrived before ``queued`` waits or is in flight. The caller has taken
        ``queued`` out of the queue."""
        if self.waiting and self.waiting[0].arrival < queued.arrival:
            return False
        return all(other.arrival > queued.arrival for other in self.sent.values())

    def put_back(self, queued: QueuedBatch) -> None:
        """Insert a batch whose try was refused or withdrawn among the waiting batches, in order of arrival. Nothing
        is sent."""
        queued.attempt = 0
        if not self.waiting or queued.arrival > self.waiting[-1].arrival:
            self.waiting.append(queued)
        else:
            bisect.insort(self.waiting, queued, key=lambda e: e.arrival)


@dataclass(slots=True, eq=False)
class ServerWindow:
    """The batches in flight to one replica server, the queues that wait until more may be sent to it, and whether the
    link is open. It exists from the first batch or link to the server until the gateway ends."""

    node: NodeId
    limit: ServerLimit
    limited_at: float = 0.0
    """When the present limit began, in seconds; without a limit the value has no meaning."""
    up: bool = False
    in_flight: dict[int, QueuedBatch] = field(default_factory=dict)
    bytes: int = 0
    """Size of the batches in flight."""
    blocked: deque[ProduceQueue] = field(default_factory=deque)

    def is_full(self, size: int, limits: RouterSettings) -> bool:
        """Return whether another batch of ``size`` bytes would exceed the bounds on bytes or batches in flight."""
        return self.bytes + size > limits.server_max_bytes or len(self.in_flight) >= limits.server_max_batches
