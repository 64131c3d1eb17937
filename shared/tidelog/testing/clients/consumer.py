"""Simulated consumers, which record everything that they read in the history."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidelog.batch.format import split
from tidelog.errors import CorruptBatch, TidelogError
from tidelog.testing.clients.client import Client
from tidelog.types import PartitionState, TopicPartition
from tidelog.verify.history import Latest, ReadCall
from tidelog.wire.messages import (
    ListOffset,
    OffsetAnswer,
    ReadAnswer,
)
from tidelog.wire.messages import Read as ReadRequest

if TYPE_CHECKING:
    from tidelog.testing.cluster import Cluster


@dataclass(frozen=True, slots=True)
class Freshness:
    """The consistency that a read asks for: everything committed up to ``max_staleness_ms`` before it (``bounded``),
    everything committed before it (``linearizable``), or no promise (``eventual``)."""

    consistency: str = "eventual"
    max_staleness_ms: int = -1

    def since(self, start: float) -> float | None:
        """Return the time up to which acked records must be known to the answer of a read that began at ``start``;
        None for ``eventual``."""
        if self.consistency == "eventual":
            return None
        return start - max(0, self.max_staleness_ms) / 1000


FRESHNESS = (
    Freshness(),
    Freshness(),
    Freshness("linearizable"),
    Freshness("bounded", 0),
    Freshness("bounded", 100),
    Freshness("bounded", 1000),
)


class Consumer(Client):
    """Reads every partition from the start, records what it sees, and sometimes asks for the latest offset."""

    def __init__(
        self, cluster: Cluster, name: str, rng: random.Random, pace: float = 0.1, any_replica: bool = False
    ) -> None:
        super().__init__(cluster, name, rng)
        self.any_replica = any_replica
        self.pace = pace
        self.positions: dict[TopicPartition, tuple[int, int]] = {}
        """The next offset of a partition, and the leader epoch of the record before it."""
        self._highest: dict[TopicPartition, tuple[int, int]] = {}
        """The newest leader epoch that answered, and its HW, by partition."""
        self._latest: dict[TopicPartition, tuple[int, int]] = {}
        """The leader epoch that was asked for the latest offset, and its answer, by partition."""
        self._went_back: dict[TopicPartition, None] = {}
        self._busy: dict[TopicPartition, None] = {}
        self.loop.after(rng.uniform(0.0, 0.2), self._act)

    def _act(self) -> None:
        if self.stopped:
            return
        for key in self.cluster.partitions:
            if key not in self._busy:
                self.read(key)
        self.loop.after(self.rng.expovariate(1 / self.pace), self._act)

    def read(self, key: TopicPartition) -> None:
        """Send one read, or one question for the latest offset, for a partition; does nothing without a leader."""
        state = self.partition(key)
        if state is None or state.leader is None:
            return
        offset, epoch = self.positions.get(key, (0, -1))
        start = self.loop.now
        self._busy[key] = None
        if self.rng.random() < 0.1:
            ask = ListOffset(key.topic_id, key.partition, "latest", leader_epoch=state.leader_epoch)
            self.call(state.leader, ask, 2.0, lambda answer: self._on_latest(key, start, ask.leader_epoch, answer))
            return
        node, freshness = self._choose(state)
        request = ReadRequest(
            key.topic_id,
            key.partition,
            offset,
            epoch,
            state.leader_epoch,
            self.rng.choice((1, 4096)),
            self.rng.choice((0, 200)),
            freshness.consistency,
            freshness.max_staleness_ms,
            node != state.leader,
        )
        self.call(node, request, 2.0, lambda answer: self._on_read(key, node, start, freshness, answer))

    def _choose(self, state: PartitionState) -> tuple[str, Freshness]:
        """Return the server to read from and the consistency to ask for."""
        assert state.leader is not None
        fresh = self.rng.choice(FRESHNESS)
        if not self.any_replica or fresh.consistency == "linearizable":
            return state.leader, fresh
        return self.rng.choice(state.replicas), fresh

    def _on_latest(self, key: TopicPartition, start: float, epoch: int, answer: Any) -> None:
        """Check and record an answer about the latest offset."""
        del self._busy[key]
        if isinstance(answer, OffsetAnswer):
            name = self.cluster.partition_name(key)
            self.cluster.count("latest")
            now = (epoch, answer.offset)
            self.cluster.invariants.on_latest(self, key, self._latest.get(key, (-1, 0)), now)
            self._latest[key] = now
            self.cluster.history.operations.append(
                Latest(self.name, name, answer.offset, start, self.loop.now, linearizable=True)
            )
        else:
            self._on_error(key, answer)

    def _on_error(self, key: TopicPartition, error: Any) -> None:
        """Count an error; after a lost position continue where the invariants allow it."""
        assert isinstance(error, TidelogError), error
        self.cluster.count(f"read {error.code}")
        if error.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
            position = self.positions.get(key, (0, -1))
            offset = self.cluster.invariants.on_lost_position(self, key, position, error)
            self.positions[key] = (offset, -1)
            self._went_back[key] = None

    def _on_read(self, key: TopicPartition, node: str, start: float, freshness: Freshness, answer: Any) -> None:
        """Check and record the batches of an answer and move the position. Drops answers of replaced leaders."""
        del self._busy[key]
        if not isinstance(answer, ReadAnswer):
            self._on_error(key, answer)
            return
        name = self.cluster.partition_name(key)
        known_until = freshness.since(start)
        if known_until is not None:
            self.cluster.count(f"reads {freshness.consistency}")
            latest = Latest(self.name, name, answer.high_watermark, known_until, self.loop.now, linearizable=True)
            self.cluster.history.operations.append(latest)
        before = self._highest.get(key, (-1, 0))
        if answer.leader_epoch < before[0]:
            return  # an answer of a leader that was replaced: a client drops it
        if not self.any_replica:  # another replica may know less
            self.cluster.invariants.on_consumer_hw(self, key, before, answer)
            self._highest[key] = (answer.leader_epoch, answer.high_watermark)
        position, epoch = self.positions.get(key, (0, -1))
        wanted, rows, epochs = position, [], []
        assert not isinstance(answer.payload, list)
        try:
            batches = [(header, batch, self.cluster.rows(batch)) for header, batch in split(answer.payload)]
        except CorruptBatch:
            self.cluster.invariants.on_corrupt_batch(self, key, node)
            return
        for header, batch, records in batches:
            self.cluster.invariants.on_visible(self, key, header, batch)
            epoch = header.leader_epoch
            for place, value in records:
                if place >= wanted:
                    assert value is not None
                    rows.append((place, value))
                    epochs.append(epoch)
        if batches:
            self.positions[key] = (batches[-1][0].end_offset, epoch)  # the last may be one of the cluster's own
        if rows:
            self.cluster.count("rows read", len(rows))
            back = key in self._went_back
            self._went_back.pop(key, None)
            self.cluster.history.operations.append(
                ReadCall(self.name, name, position, tuple(rows), start, self.loop.now, tuple(epochs), back)
            )
