"""The invariants that clients observe: acks that hold (R4), committed batches (R7), ends that never go back (R5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidelog.batch.format import BatchHeader
from tidelog.testing.invariants.deep import DeepChecks
from tidelog.testing.invariants.ghost import Committed, Digest
from tidelog.types import Acks, TopicPartition


class ClientInvariants(DeepChecks):
    """The checks that the simulated clients call."""

    _batches: dict[tuple[TopicPartition, int, int], Digest]
    """The digest of the log up to a batch, by partition, leader epoch and base offset of the batch."""

    def _of(self, key: TopicPartition) -> Committed:
        """Return what leaders have committed of a partition; empty at first."""
        found = self._committed.get(key)
        if found is None:
            found = self._committed[key] = Committed()
        return found

    def on_ack(self, key: TopicPartition, offset: int, epoch: int, values: Sequence[bytes], acks: Acks) -> None:
        """Check that records acked with acks=all are committed or in an allowed loss (R4)."""
        end = offset + len(values)
        if acks == Acks.ALL:
            self._demand(
                end <= self._of(key).end or self._of(key).covered(epoch, offset),
                f"R4 {key.partition}: acked up to {end}, but only {self._of(key).end} is committed",
            )
            self.cluster.count("records acked all", len(values))

    def on_visible(self, client: Any, key: TopicPartition, header: BatchHeader, batch: memoryview) -> None:
        """Check that a batch delivered to a consumer was committed (R7)."""
        committed = self._of(key)
        digest = self._batches.get((key, header.leader_epoch, header.base_offset))
        self._demand(
            digest is not None and (committed.at.get(header.end_offset) == digest or digest in committed.lost),
            f"R7 {client.name} saw {key.partition} {header.base_offset} to {header.end_offset} of leader epoch"
            f" {header.leader_epoch}, which is not committed",
        )

    def on_corrupt_batch(self, client: Any, key: TopicPartition, node: str) -> None:
        """Check that a batch with a wrong checksum comes from a server whose disk has rotted."""
        self.cluster.count("corrupt batches read")
        rotten = node in self.cluster.faults.rotten
        self._demand(rotten, f"R7 {client.name} {key.partition}: {node} served a corrupt batch")

    def on_consumer_hw(self, client: Any, key: TopicPartition, before: tuple[int, int], answer: Any) -> None:
        """Check that the HW sent to a consumer never goes back, whichever replica leads (R5). A new leader sends -1
        until it knows the end."""
        now = (answer.leader_epoch, answer.high_watermark)
        self._demand(
            now[1] < 0 or now[1] >= before[1] or self._of(key).excused(before, now),
            f"R5 {client.name} {key.partition}: HW {answer.high_watermark} of leader epoch {answer.leader_epoch}"
            f" after {before[1]}",
        )

    def on_latest(self, client: Any, key: TopicPartition, before: tuple[int, int], after: tuple[int, int]) -> None:
        """Check that the latest offset answered to a client never goes back, whichever replica leads (R5). Both ends
        are (leader epoch of the answer, offset)."""
        self._demand(
            after[1] >= before[1] or self._of(key).excused(before, after),
            f"R5 {client.name} {key.partition}: latest {after} after {before}",
        )

    def on_lost_position(self, client: Any, key: TopicPartition, position: tuple[int, int], error: Any) -> int:
        """Check that the position of a consumer is refused only where its records were deleted by retention or could
        be lost (R7), and return the offset at which it continues."""
        offset, epoch = position
        committed = self._of(key)
        if error.code == "OFFSET_OUT_OF_RANGE" and offset < int(error.detail["log_start"]) <= committed.start:
            self.cluster.count("positions overtaken by retention")
            return int(error.detail["log_start"])
        if error.code == "OFFSET_OUT_OF_RANGE" and any(loss.start < offset for loss in committed.losses):
            return int(error.detail["high_watermark"])  # it had no record before it that names an epoch
        excused = error.code == "LOG_TRUNCATED" and committed.covered(epoch, offset - 1)
        self._demand(excused, f"R7 {client.name} {key.partition}: position {position} is answered {error}")
        return int(error.detail["end_offset"])
