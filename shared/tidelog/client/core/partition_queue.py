"""The queue of a partition in a producer. ``core/producer.py`` decides what becomes of its batches."""

from __future__ import annotations

from collections import deque

from tidelog.client.core.batch import Batch, TransactionIdentity


class PartitionQueue:
    """The state of one partition in a producer: its open batch, its queue and what is in flight."""

    __slots__ = (
        "draining",
        "in_flight",
        "is_due",
        "look_at",
        "next_sequence",
        "not_before",
        "numbered",
        "open",
        "partition",
        "producer_id",
        "queue",
        "sealed_places",
        "spoiled",
    )

    def __init__(self, partition: int, identity: TransactionIdentity | None) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.queue: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.sealed_places = 0
        """Of the batches in the queue and in flight."""
        self.draining = False
        self.not_before = 0.0
        """Nothing is sent before this time (back-off, or a pause that the gateway asked for)."""
        self.producer_id = 0 if identity is None else identity.producer_id
        self.next_sequence = 0
        self.numbered = 0
        """How many batches got a sequence."""
        self.spoiled = False
        self.is_due = False
        self.look_at: float | None = None
        """Nothing is to be done with it before this time; None: before something happens to it."""

    def seal(self) -> None:
        """Close the open batch, if there is one, and queue it."""
        if self.open is not None:
            self.open.count = len(self.open.records)
            self.sealed_places += self.open.places
            self.queue.append(self.open)
            self.open = None

    def oldest(self) -> Batch | None:
        """The batch whose delivery timeout ends first."""
        if self.in_flight:
            return self.in_flight[0]
        return self.queue[0] if self.queue else self.open
