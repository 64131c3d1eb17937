"""Subscriptions: batches pushed to clients from a position, as long as they have given credit.

Theory. A subscription is a position (last epoch, offset), a credit in bytes and at most one read in flight at the
partition's leader, or at another replica (below). The read long-polls; its answer is delivered, moves the position
behind the last batch and uses up credit; with credit left the next read goes out at once. A single batch larger than
the credit is delivered all the same and leaves a debt, so that a small window is slow, never stuck.

- With ``read_from`` ``any`` a copy of the partition serves it (``spread.py``), the leader when there is none. It
  stays there until the copy fails it, by whatever error: the leader is asked at once, and for ``leader_stay_s``,
  since only its errors are final. The client's HW never goes back with such a change. A ``bounded`` subscription is
  asked again at least every ``max_staleness_ms``, so that no silent copy holds it up for longer.
- A retriable error, a lost link, or a leader that lags behind the metadata: asked again after a growing pause, and
  at once when the partition's leader changes. The position does not move, so nothing is skipped or repeated.
- ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``, ``UNKNOWN_TOPIC`` and every other final error end the subscription with
  a delivery that carries it: where to go on is the client's decision (KIP-320), never a silent reset.
- A slow client stalls only itself: it gives no credit. Credit is cut to ``credit_max_bytes``, so that no client can
  make the gateway hold more for it; since credit comes back with what the client consumes, cutting never stalls it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tidelog.counting import count
from tidelog.effects import Answer, Call, Post
from tidelog.errors import TidelogError, refuse
from tidelog.records import read_header
from tidelog.types import NodeId, PartitionState, TopicPartition
from tidelog.wire.messages import Credit, Delivery, Done, Message, Read, ReadAnswer, Subscribe, Unsubscribe

from tidelog_gateway.core.cluster import ClusterMap
from tidelog_gateway.core.counts import DeliveryCounts
from tidelog_gateway.core.settings import SubscriptionSettings
from tidelog_gateway.core.spread import Spread

BOUNDED_MIN_WAIT_MS = 250
"""However close the bound is, an idle subscription is not asked again more often."""

Effect = Answer | Call | Post


@dataclass(slots=True, eq=False)
class _Subscription:
    """One subscription. ``token`` names the read in flight, 0: none."""

    source: int
    sub: int
    key: TopicPartition
    offset: int
    last_epoch: int
    credit: int
    any_replica: bool
    consistency: str
    max_staleness_ms: int
    copy: NodeId | None = None
    """The replica other than the leader that serves it."""
    leader_until: float = -inf
    high_watermark: int = -1
    """The highest that the client was told."""
    token: int = 0
    asked: float = 0.0
    max_wait_s: float = 0.0
    not_before: float = 0.0
    retry_s: float = 0.0
    ended: bool = False


class Subscriptions:
    """All subscriptions of a gateway. Times are seconds of the shell's clock."""

    def __init__(self, cluster: ClusterMap, settings: SubscriptionSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._open: dict[int, dict[int, _Subscription]] = {}
        self._by_partition: dict[TopicPartition, dict[_Subscription, None]] = {}
        self._reads: dict[int, _Subscription] = {}
        self._delayed: list[tuple[float, int, _Subscription]] = []
        self._tokens = 0
        self._spread = Spread(cluster)
        self.counts = DeliveryCounts()

    @property
    def open_count(self) -> int:
        """Subscriptions that are open."""
        return sum(map(len, self._open.values()))

    def topics_of(self, source: int) -> set[str]:
        """Ids of the topics that a client reads."""
        return {one.key.topic_id for one in self._open.get(source, {}).values()}

    # --- the client -----------------------------------------------------------------------------------------

    def on_subscribe(self, source: int, id: int, message: Subscribe, now: float) -> list[Effect]:
        """Open a subscription and begin to read."""
        subscriptions = self._open.setdefault(source, {})
        if message.sub in subscriptions:
            return [Answer(source, id, refuse("MALFORMED", f"subscription {message.sub} is open already"))]
        if len(subscriptions) >= self._settings.client_max_subscriptions:
            return [Answer(source, id, refuse("OVERLOADED", f"{len(subscriptions)} subscriptions are open"))]
        key = TopicPartition(message.topic_id, message.partition)
        if self._cluster.state(*key) is None:
            return [Answer(source, id, refuse("UNKNOWN_TOPIC", f"no partition {key.topic_id}/{key.partition}"))]
        fault = _fault(message)
        if fault is not None:
            return [Answer(source, id, refuse("MALFORMED", fault))]
        credit = min(message.credit, self._settings.credit_max_bytes)
        one = _Subscription(
            source,
            message.sub,
            key,
            message.offset,
            message.last_epoch,
            credit,
            message.read_from == "any" and message.consistency != "linearizable",
            message.consistency,
            message.max_staleness_ms,
        )
        subscriptions[message.sub] = one
        self._by_partition.setdefault(key, {})[one] = None
        return [Answer(source, id, Done()), *self._read(one, now)]

    def on_credit(self, source: int, message: Credit, now: float) -> list[Effect]:
        """The client has room for more. Credit for a subscription that ended meanwhile is ignored."""
        one = self._open.get(source, {}).get(message.sub)
        if one is None:
            return []
        one.credit = min(one.credit + message.bytes, self._settings.credit_max_bytes)
        return self._read(one, now)

    def on_unsubscribe(self, source: int, id: int, message: Unsubscribe) -> list[Effect]:
        """Nothing is delivered after the answer; a subscription that is not there is closed already."""
        one = self._open.get(source, {}).get(message.sub)
        if one is not None:
            self._close(one)
        return [Answer(source, id, Done())]

    def on_link_closed(self, source: int) -> None:
        """A client is gone."""
        for one in list(self._open.get(source, {}).values()):
            self._close(one)
        self._open.pop(source, None)

    # --- the leaders ----------------------------------------------------------------------------------------

    def on_answer(self, token: int, answer: Message | TidelogError, now: float) -> list[Effect]:
        """A read ended. Answers of reads that were given up are ignored."""
        one = self._reads.pop(token, None)
        if one is None:
            return []
        one.token = 0
        if isinstance(answer, TidelogError) and one.copy is not None:
            self._leave_copy(one)
            one.leader_until = now + self._settings.leader_stay_s
            return self._read(one, now)
        if isinstance(answer, TidelogError):
            if not (answer.retriable or self._cluster.knows_better(*one.key, answer.code)):
                return self._end(one, answer)
            count(self.counts.retries, answer.code)
            return self._delay(one, now)
        assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
        one.retry_s = 0.0
        size = len(answer.payload)
        if not size:
            early = now - one.asked < one.max_wait_s / 2
            return self._delay(one, now) if early else self._read(one, now)
        try:
            self._move(one, memoryview(answer.payload))
        except TidelogError as error:
            return self._end(one, error)
        self.counts.deliveries += 1
        self.counts.bytes += size
        one.credit -= size
        one.high_watermark = max(one.high_watermark, answer.high_watermark)
        delivery = Delivery(one.sub, high_watermark=one.high_watermark, payload=answer.payload)
        return [Post(one.source, delivery), *self._read(one, now)]

    def on_metadata(self, changed: Iterable[TopicPartition], now: float) -> list[Effect]:
        """These partitions have another leader or leader epoch, or were deleted: ask again, there, now."""
        effects: list[Effect] = []
        for key in changed:
            for one in list(self._by_partition.get(key, {})):
                if one.token:
                    del self._reads[one.token]
                    one.token = 0
                one.not_before = now
                one.retry_s = 0.0
                effects.extend(self._read(one, now))
        return effects

    # --- time -----------------------------------------------------------------------------------------------

    def on_tick(self, now: float) -> list[Effect]:
        """Ask again where a pause is over."""
        effects: list[Effect] = []
        while self._delayed and self._delayed[0][0] <= now:
            one = heapq.heappop(self._delayed)[2]
            effects.extend(self._read(one, now))
        return effects

    def deadline(self) -> float | None:
        """When ``on_tick`` is to be called."""
        return self._delayed[0][0] if self._delayed else None

    # --- one subscription -----------------------------------------------------------------------------------

    def _read(self, one: _Subscription, now: float) -> list[Effect]:
        """Send the next read, if there is anything to wait for it."""
        if one.ended or one.token or one.credit <= 0 or now < one.not_before:
            return []
        state = self._cluster.state(*one.key)
        if state is None:
            return self._end(one, refuse("UNKNOWN_TOPIC", f"topic {one.key.topic_id} was deleted"))
        if state.leader is None:
            return []  # the next leader wakes it
        self._tokens += 1
        one.token = self._tokens
        one.asked = now
        self._reads[one.token] = one
        settings = self._settings
        max_wait_ms = settings.read_max_wait_ms
        if one.consistency == "bounded":
            max_wait_ms = min(max_wait_ms, max(one.max_staleness_ms, BOUNDED_MIN_WAIT_MS))
        server = self._server(one, state, now) or state.leader
        request = Read(
            one.key.topic_id,
            one.key.partition,
            one.offset,
            last_epoch=one.last_epoch,
            leader_epoch=state.leader_epoch,
            max_bytes=min(one.credit, settings.read_max_bytes),
            max_wait_ms=max_wait_ms,
            consistency=one.consistency,
            max_staleness_ms=one.max_staleness_ms,
            any_replica=server != state.leader,
        )
        one.max_wait_s = max_wait_ms / 1000
        return [Call(server, one.token, request, one.max_wait_s + settings.read_grace_s)]

    def _server(self, one: _Subscription, state: PartitionState, now: float) -> NodeId | None:
        """The copy that serves it now, if one does."""
        if one.copy is not None and not self._spread.is_fit(one.copy, state):
            self._leave_copy(one)
        if one.copy is None and one.any_replica and now >= one.leader_until:
            one.copy = self._spread.take(state)
        return one.copy

    def _leave_copy(self, one: _Subscription) -> None:
        if one.copy is not None:
            self._spread.release(one.copy)
            one.copy = None

    def _delay(self, one: _Subscription, now: float) -> list[Effect]:
        one.retry_s = min(max(one.retry_s * 2, self._settings.retry_first_s), self._settings.retry_max_s)
        one.not_before = now + one.retry_s
        self._tokens += 1
        heapq.heappush(self._delayed, (one.not_before, self._tokens, one))
        return []

    def _move(self, one: _Subscription, payload: memoryview) -> None:
        """The position behind the last batch. Raises ``CorruptBatch`` where the answer is no sequence of batches."""
        position = 0
        while position < len(payload):
            header = read_header(payload, position)
            self.counts.records += header.record_count
            position += header.batch_length
        one.offset = header.end_offset
        one.last_epoch = header.leader_epoch

    def _end(self, one: _Subscription, error: TidelogError) -> list[Effect]:
        self._close(one)
        count(self.counts.ended, error.code)
        return [Post(one.source, Delivery(one.sub, error=error.to_info()))]

    def _close(self, one: _Subscription) -> None:
        one.ended = True
        self._leave_copy(one)
        if one.token:
            del self._reads[one.token]
            one.token = 0
        del self._open[one.source][one.sub]
        siblings = self._by_partition[one.key]
        del siblings[one]
        if not siblings:
            del self._by_partition[one.key]


def _fault(message: Subscribe) -> str | None:
    """What the subscription asks for and cannot have."""
    if message.read_from not in ("leader", "any"):
        return f"read_from is leader or any, not {message.read_from!r}"
    if message.consistency not in ("eventual", "bounded", "linearizable"):
        return f"consistency is eventual, bounded or linearizable, not {message.consistency!r}"
    if (message.consistency == "bounded") != (message.max_staleness_ms >= 0):
        return "max_staleness_ms belongs to bounded subscriptions, and to each of them"
    return None
