"""What the router keeps: a *lane* per client and partition, an *entry* per batch, a *pipe* per replica server.

A lane holds its batches in the order in which the client sent them: ``waiting`` (sorted by arrival number) and
``sent`` (by attempt number). Batches leave ``waiting`` from the left only. A lane is in exactly one place:

    idle     nothing waits, or what waits is not checked yet; woken when it is
    ready    in the router's ready queue, looked at by the next flush
    blocked  its leader's window is full; woken by acks
    parked   no leader, or no link to it; woken by metadata or by the link
    delayed  a try was refused, or the client has used up its share of a slow server; woken by time or by metadata
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
    """Where a lane is; see the module."""

    IDLE = 0
    READY = 1
    BLOCKED = 2
    PARKED = 3
    DELAYED = 4


@dataclass(slots=True, eq=False)
class QueuedBatch:
    """One batch of one client, from its arrival to its ack."""

    queue: ProduceQueue
    arrival: int
    part: ProducePart
    batch: Buffer
    producer_id: int
    """0: the producer is not idempotent."""
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
    """Last leader epoch in which a try ended without a word on whether it was written; -1: none did."""
    repeated: bool = False
    """The gateway itself has sent it, or will send it, more than once."""
    last_error: ErrorInfo | None = None
    is_unchecked: bool = False
    """Its body was not looked at yet: neither it nor what is behind it in its lane is sent."""


@dataclass(slots=True, eq=False)
class ProduceQueue:
    """The batches of one client for one partition."""

    source: int
    key: TopicPartition
    tenant: Tenant = "", 0
    """Whose bytes its batches are."""
    waiting: deque[QueuedBatch] = field(default_factory=deque)
    sent: dict[int, QueuedBatch] = field(default_factory=dict)
    state: QueueState = QueueState.IDLE
    not_before: float = 0.0
    retry_s: float = 0.0
    unsettled: dict[int, int] = field(default_factory=dict)
    """How many batches of each idempotent producer are waiting or sent."""
    closed: bool = False
    """The client is gone: nothing of it is sent any more, nobody hears of what is in flight."""

    def occupy(self, producer_id: int) -> None:
        """A batch of that producer came: it has a place in the producer's window until it is settled."""
        if producer_id:
            self.unsettled[producer_id] = self.unsettled.get(producer_id, 0) + 1

    def release(self, producer_id: int) -> None:
        """A batch of that producer is settled."""
        if producer_id:
            self.unsettled[producer_id] -= 1
            if not self.unsettled[producer_id]:
                del self.unsettled[producer_id]

    def is_oldest(self, queued: QueuedBatch) -> bool:
        """Nothing that came before it is unsettled. It is not in the lane itself at the moment."""
        if self.waiting and self.waiting[0].arrival < queued.arrival:
            return False
        return all(other.arrival > queued.arrival for other in self.sent.values())

    def put_back(self, queued: QueuedBatch) -> None:
        """A try was refused or withdrawn: the batch waits again, in its old place among the others."""
        queued.attempt = 0
        queued.repeated = True
        if not self.waiting or queued.arrival > self.waiting[-1].arrival:
            self.waiting.append(queued)
        else:
            bisect.insort(self.waiting, queued, key=lambda e: e.arrival)


@dataclass(slots=True, eq=False)
class ServerWindow:
    """The link to one replica server, as the router sees it."""

    node: NodeId
    limit: ServerLimit
    limited_at: float = 0.0
    """When the limit began, while there is one."""
    up: bool = False
    in_flight: dict[int, QueuedBatch] = field(default_factory=dict)
    bytes: int = 0
    """Of the batches in flight."""
    blocked: deque[ProduceQueue] = field(default_factory=deque)

    def is_full(self, size: int, limits: RouterSettings) -> bool:
        """A batch of ``size`` bytes more would be too much."""
        return self.bytes + size > limits.server_max_bytes or len(self.in_flight) >= limits.server_max_batches
