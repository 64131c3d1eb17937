"""The queue of a partition in a producer. ``core/producer.py`` decides when its batches are sent and settled."""

from __future__ import annotations

from collections import deque

from tidelog.client.core.batch import Batch, TransactionIdentity


class PartitionQueue:
    """The unsettled batches of one partition in a producer: the open batch, the closed ones that wait to be sent, and
    those in flight. Also holds the partition's producer id and next sequence."""

    __slots__ = (
        "closed",
        "closed_places",
        "draining",
        "in_flight",
        "is_due",
        "next_sequence",
        "not_before",
        "numbered",
        "open",
        "partition",
        "producer_id",
        "spoiled",
        "visit_at",
    )

    def __init__(self, partition: int, identity: TransactionIdentity | None) -> None:
        self.partition = partition
        self.open: Batch | None = None
        self.closed: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        self.closed_places = 0
        """Sum of the places of the batches that are closed or in flight."""
        self.draining = False
        self.not_before = 0.0
        """Time before which nothing is sent, because of a back-off or a pause that the gateway asked for."""
        self.producer_id = 0 if identity is None else identity.producer_id
        self.next_sequence = 0
        self.numbered = 0
        """Number of batches that were given a sequence."""
        self.spoiled = False
        self.is_due = False
        self.visit_at: float | None = None
        """Time before which nothing is to be done for the partition; None if an event must come first."""

    def close_open(self) -> None:
        """Move the open batch to the end of the closed batches, and fix its number of records. Does nothing if no
        batch is open."""
        if self.open is not None:
            self.open.count = len(self.open.records)
            self.closed_places += self.open.places
            self.closed.append(self.open)
            self.open = None

    def oldest(self) -> Batch | None:
        """Return the unsettled batch whose delivery timeout ends first; None if there is none."""
        if self.in_flight:
            return self.in_flight[0]
        return self.closed[0] if self.closed else self.open
