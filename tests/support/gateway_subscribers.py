"""The subscriptions of a gateway to one partition, with the reads that it sends and the batches that it delivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.sansio.effects import Call, Post
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicState
from tidelog.wire.messages import Delivery, ReadAnswer, Subscribe
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.subscriptions import Effect, Subscriptions
from tidelog_gateway.settings import SubscriptionSettings

NODES = ("r1", "r2", "r3")
SERVERS = tuple(ServerState(node, f"ws://{node}", 1, False) for node in NODES)


def stored(offset: int, count: int = 1, epoch: int = 1, value: bytes = b"x") -> bytes:
    """Return a batch of ``count`` records as the leader stored it at an offset."""
    batch = encode_batch([NewRecord(value, timestamp_ms=1)] * count)
    return stamp_prefix(offset, epoch, read_header(batch).crc32c) + batch[16:]


class Bench:
    """A gateway's subscriptions to one partition; every client has one, with its own number."""

    def __init__(self, **settings: Any) -> None:
        self.cluster = ClusterView()
        self.settings = SubscriptionSettings(**settings)
        self.core = Subscriptions(self.cluster, self.settings)
        self.calls: dict[int, Call] = {}
        self.got: dict[int, list[Delivery]] = {}
        self.epoch = 0
        self.lead("r1")

    def lead(self, node: str | None, now: float = 0.0, epoch: int = 0, **changes: Any) -> None:
        """Change the leader of the partition, in a new leader epoch."""
        self.epoch = epoch or self.epoch + 1
        state = replace(PartitionState(NODES, NODES, node, self.epoch, self.epoch), **changes)
        topic = TopicState("t", "orders", partitions=(state,))
        changed = self.cluster.update(ClusterImage(self.cluster.image.index + 1, "c", SERVERS, (topic,)))
        self.take(self.core.on_metadata(changed, now))

    def take(self, effects: list[Effect]) -> list[Effect]:
        """Sort effects into open reads (``calls``) and deliveries (``got``), and return them."""
        for effect in effects:
            if isinstance(effect, Call):
                self.calls[effect.token] = effect
            elif isinstance(effect, Post):
                assert isinstance(effect.message, Delivery)
                self.got.setdefault(effect.source, []).append(effect.message)
        return effects

    def subscribe(self, client: int, offset: int = 0, credit: int = 100_000, now: float = 0.0, **fields: Any) -> None:
        """Subscribe a client at an offset with some credit."""
        message = Subscribe(client, "t", 0, offset, credit, **fields)
        self.take(self.core.on_subscribe(client, 1, message, now))

    def answer(self, payload: bytes, now: float = 0.0, hw: int = 0) -> None:
        """Answer all open reads with this payload."""
        for token in list(self.calls):
            del self.calls[token]
            self.take(self.core.on_answer(token, ReadAnswer(self.epoch, hw, 0, payload), now))

    def payloads(self, client: int) -> bytes:
        """Return all bytes delivered to a client."""
        return b"".join(bytes(delivery.payload) for delivery in self.got.get(client, []))  # type: ignore[arg-type]
