"""Simulated producers, which retry as a gateway does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidelog.batch.format import NewRecord, encode_batch
from tidelog.errors import from_info
from tidelog.testing.clients.client import Client
from tidelog.testing.hardware.network import Frame, SimLink
from tidelog.types import Acks, PartitionState, TopicPartition
from tidelog.verify.history import FAILED, OK, UNKNOWN, SendCall
from tidelog.wire.messages import (
    Produce,
    ProduceAck,
    ProducePart,
)

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster

LEVELS = {Acks.ALL: "all", Acks.LEADER: "leader", Acks.NONE: "received"}


@dataclass(slots=True)
class Batch:
    """A send of a producer, until its outcome is known."""

    id: int
    number: int
    values: tuple[bytes, ...]
    data: bytes
    start: float
    deadline: float
    expected_offset: int
    link: SimLink | None = None
    """The link over which it is in flight; None while it waits."""
    result: str = ""
    """The outcome: ``ok``, ``failed`` or ``unknown``; "" before its end."""
    offset: int = -1
    errors: list[str] = field(default_factory=list)
    """The codes of the refused tries."""
    epoch: int = -1
    """The leader epoch of the last try."""
    doubt_epoch: int = -1
    """The leader epoch of the last try that ended without an answer, so that it may have appended the batch; -1 if
    none did."""

    @property
    def doubt(self) -> bool:
        """Whether a try may have appended the batch."""
        return self.doubt_epoch >= 0

    @property
    def failure(self) -> str:
        """The outcome if it ends now without an ack: ``unknown`` if it may have been appended, else ``failed``."""
        return UNKNOWN if self.doubt or self.link is not None else FAILED


@dataclass(slots=True)
class Lane:
    """The state of one partition in a producer: its batches in order, and its producer id and sequence there."""

    key: TopicPartition
    label: str
    producer_id: int
    sequence: int = 0
    number: int = 0
    batches: list[Batch] = field(default_factory=list)
    pause_until: float = 0.0


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The kind of a producer."""

    idempotent: bool = True
    acks: Acks = Acks.ALL
    window: int = 3
    """The batches in flight per partition; one if it is not idempotent (order could not be kept)."""
    patience: float = 5.0
    """The seconds until a send is given up."""
    pace: float = 0.05
    """The mean time in seconds between two sends; 0: it sends only on request."""
    conditional: float = 0.0
    """The share of appends with an ``expected_offset``."""
    value_bytes: int = 20
    first_id: int = 0
    """If not 0, the producer counts its ids from here by itself, for each partition. Two producers with the same
    ``first_id`` have the same ids, as after a restore of old metadata that gives ids a second time."""
    batches_per_id: int = 0
    """If not 0, the producer takes its next id after so many batches to a partition."""


class Producer(Client):
    """Sends batches to all partitions, in order per partition, again and again until a deadline.

    A partition of an idempotent producer whose send ends unknown or refused continues with a new producer id: its old
    sequence cannot be continued. The history treats it as another process. The same happens if the oldest send
    certainly stands behind a gap, as a gateway does it: no try can close the gap, since the batches before were acked
    and are lost, and no try of an earlier leader epoch is or will be in the log, unless the topic may lose records.
    """

    def __init__(self, cluster: Cluster, name: str, rng: random.Random, options: ProducerOptions) -> None:
        super().__init__(cluster, name, rng)
        self.options = options
        self._lanes: dict[TopicPartition, Lane] = {}
        self._batches: dict[int, tuple[Lane, Batch]] = {}
        self._batch_id = 0
        self._values = 0
        self._own_ids: dict[TopicPartition, int] = {}
        """The number of ids used, by partition, if the producer counts them itself."""
        if options.pace:
            self.loop.after(rng.uniform(0.0, 0.2), self._act)

    def _act(self) -> None:
        if not self.stopped:
            keys = self.cluster.partitions
            if keys:
                self.produce(keys[self.rng.randrange(len(keys))])
            self.loop.after(self.rng.expovariate(1 / self.options.pace), self._act)

    @property
    def idle(self) -> bool:
        """Whether no send is in progress."""
        return not self._batches

    def _lane(self, key: TopicPartition) -> Lane:
        lane = self._lanes.get(key)
        if lane is None or (self._is_used_up(lane) and not lane.batches):
            producer_id = self._new_id(key) if self.options.idempotent else 0
            self._values += 1
            lane = Lane(key, f"{self.name}.{self._values}", producer_id)
            self._lanes[key] = lane
        return lane

    def _is_used_up(self, lane: Lane) -> bool:
        return 0 < self.options.batches_per_id <= lane.number

    def _new_id(self, key: TopicPartition) -> int:
        if not self.options.first_id:
            return self.cluster.new_producer_id()
        used = self._own_ids.get(key, 0)
        self._own_ids[key] = used + 1
        return self.options.first_id + used

    def produce(self, key: TopicPartition, *given: bytes, expected: int = -1) -> Batch | None:
        """Queue a batch of the given values, or of random ones, and return it; None if the window is full.
        ``expected``: the only offset at which it may be appended."""
        lane = self._lane(key)
        if self._is_used_up(lane) or len(lane.batches) >= (self.options.window if self.options.idempotent else 1):
            return None
        name = self.cluster.partition_name(key)
        values = list(given)
        for _ in range(0 if given else self.rng.choice((1, 1, 2, 3))):
            self._values += 1
            values.append(f"{self.name}:{name}:{self._values}".encode().ljust(self.options.value_bytes, b"."))
        records = [NewRecord(value, None, round(self.loop.now * 1000)) for value in values]
        data = encode_batch(records, producer_id=lane.producer_id, producer_epoch=0, base_sequence=lane.sequence)
        if self.options.conditional and self.rng.random() < self.options.conditional:
            expected = self.cluster.invariants.committed_end(key)
        self._batch_id += 1
        now = self.loop.now
        batch = Batch(self._batch_id, lane.number, tuple(values), data, now, now + self.options.patience, expected)
        lane.number += 1
        lane.sequence += len(values)
        lane.batches.append(batch)
        self._batches[batch.id] = (lane, batch)
        self.loop.at(batch.deadline, lambda: self.give_up(batch.id))
        self._pump(lane)
        return batch

    def _pump(self, lane: Lane) -> None:
        """Send the batches that are not in flight, in order. After a failed try it waits until nothing is in flight,
        so that batches never overtake each other."""
        now = self.loop.now
        if now < lane.pause_until or self._lanes.get(lane.key) is not lane:
            return
        waiting = [batch for batch in lane.batches if batch.link is None]
        if not waiting:
            return
        in_flight = [batch for batch in lane.batches if batch.link is not None]
        if in_flight and in_flight[-1].number > waiting[0].number:
            return
        state = self.cluster_view(lane.key)
        if state is None or state.leader is None:
            self._pause(lane)
            return
        link = self.link_to(state.leader)
        if any(batch.link is not link for batch in in_flight):
            return
        for batch in waiting:
            batch.link, batch.epoch = link, state.leader_epoch
            part = ProducePart(
                batch.id,
                lane.key.topic_id,
                lane.key.partition,
                int(self.options.acks),
                max(1, round((batch.deadline - now) * 1000)),
                len(batch.data),
                state.leader_epoch,
                batch.expected_offset,
            )
            link.send(self, Frame("post", None, Produce((part,), batch.data)))

    def cluster_view(self, key: TopicPartition) -> PartitionState | None:
        """Return the state of a partition on which this producer acts."""
        return self.partition(key)

    def _pause(self, lane: Lane) -> None:
        """Wait a short random time before the next try of a partition."""
        wait = self.rng.uniform(0.02, 0.2)
        lane.pause_until = self.loop.now + wait
        self.loop.after(wait + 1e-6, lambda: self._pump(lane))

    def on_ack(self, link: SimLink, ack: ProduceAck) -> None:
        found = self._batches.get(ack.id)
        if found is None or found[1].link is not link:
            return
        lane, batch = found
        if ack.error is None:
            self._end(lane, batch, OK, ack.offset, ack.leader_epoch)
            self._pump(lane)
            return
        error = from_info(ack.error)
        batch.link = None
        batch.errors.append(error.code)
        self.cluster.count(f"produce {error.code}")
        if error.code == "OUT_OF_ORDER_SEQUENCE":
            if not error.unknown_outcome and batch is lane.batches[0]:
                self.cluster.count("gaps that no try can close")
                if batch.doubt_epoch < batch.epoch and "lossy" not in error.detail:
                    batch.doubt_epoch = -1
                self._abandon(lane)
                return
        elif error.unknown_outcome:
            batch.doubt_epoch = batch.epoch
        if error.retriable and (self.options.idempotent or not batch.doubt):
            self._pause(lane)
        else:
            self._abandon(lane)

    def on_lost(self, link: SimLink) -> None:
        for lane in list(self._lanes.values()):
            hit = [batch for batch in lane.batches if batch.link is link]
            for batch in hit:
                batch.link, batch.doubt_epoch = None, batch.epoch
            if hit:
                if self.options.idempotent:
                    self._pause(lane)
                else:
                    self._abandon(lane)

    def give_up(self, number: int) -> None:
        """End a batch whose deadline has passed, and those behind it."""
        found = self._batches.get(number)
        if found is not None:
            self._abandon(found[0])

    def _abandon(self, lane: Lane) -> None:
        """End all batches of a partition without an ack, each as failed or unknown, and drop its state."""
        for batch in list(lane.batches):
            self._end(lane, batch, batch.failure, -1)
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    def _end(self, lane: Lane, batch: Batch, result: str, offset: int, epoch: int = -1) -> None:
        """Remove a batch, check its ack if it has one, and add the send to the history."""
        lane.batches.remove(batch)
        del self._batches[batch.id]
        batch.result, batch.offset = result, offset
        self.cluster.count(f"send {result}")
        if result == OK:
            self.cluster.invariants.on_ack(lane.key, offset, epoch, batch.values, self.options.acks)
        self.cluster.history.operations.append(
            SendCall(
                lane.label,
                self.cluster.partition_name(lane.key),
                batch.number,
                batch.values,
                batch.start,
                self.loop.now,
                result,
                offset,
                LEVELS[self.options.acks],
                self.options.idempotent,
                batch.expected_offset,
                epoch,
            )
        )
