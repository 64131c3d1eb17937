"""What a consumer decides: where it reads on, what it skips, how far ahead it is sent. Sans-I/O.

Each partition is a *lane* with two positions (leader epoch, offset): *received* up to there, which is where a new
subscription begins, and *taken* by the application. Both only move forward, batch by batch, so order per partition
is the order of the log, and a lost link loses and repeats nothing: batches that wait here stay, the next
subscription continues behind them. The first batch of a delivery may begin before the position; what is below is
skipped. A subscription is known by its number: what arrives for a former one is ignored.

Credit bounds memory: a lane's bytes under way and waiting never exceed its credit by more than one delivery.
A gap between batches, or a leader epoch that goes back, is an error: nothing is ever passed over in silence. So are
``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` (KIP-320): the application decides where to go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidelog.errors import BrokerError, ProtocolError, TidelogError, from_info
from tidelog.records import BatchHeader, Record, decode_batch, split
from tidelog.types import Position
from tidelog.wire.messages import Delivery


@dataclass(frozen=True, slots=True)
class Open:
    """Effect: subscribe; the outcome comes back by ``on_subscribed``."""

    sub: int
    partition: int
    position: Position
    credit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Effect: give credit back."""

    sub: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Effect: end a subscription."""

    sub: int


Effect = Open | Grant | Stop


@dataclass(frozen=True, slots=True)
class Fetched:
    """One batch for the application: its records from ``first`` up to ``end`` (offsets). A compacted or a control
    batch covers offsets that have no record."""

    partition: int
    header: BatchHeader
    data: memoryview
    first: int
    end: int

    def records(self, topic: str) -> list[Record]:
        """Decode it. Raises ``CorruptBatch``."""
        records = decode_batch(self.data, topic=topic, partition=self.partition)
        if self.first > self.header.base_offset or self.end < self.header.end_offset:
            return [record for record in records if self.first <= record.offset < self.end]
        return records


class Lane:
    """The state of one partition."""

    __slots__ = ("done", "end", "not_before", "owed", "partition", "received", "sub", "taken", "waiting")

    def __init__(self, partition: int, start: Position, end: int | None) -> None:
        self.partition = partition
        self.received = start
        self.taken = start
        self.end = end
        self.sub: int | None = None
        self.not_before = 0.0
        self.waiting = 0
        """Bytes received and not taken."""
        self.owed = 0
        """Bytes taken whose credit was not given back yet."""
        self.done = end is not None and start.offset >= end
        """Nothing more is wanted: the end is reached, or an error stands at the end of the queue."""


class ConsumerCore:
    """All lanes of one consumer. ``starts``: partition -> where to begin; ``ends``: partition -> where to stop (an
    offset), if anywhere. ``next_sub`` gives subscription numbers, unique on the link."""

    def __init__(
        self,
        topic: str,
        starts: Mapping[int, Position],
        ends: Mapping[int, int],
        credit: int,
        backoff_s: float,
        next_sub: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._credit = credit
        self._backoff_s = backoff_s
        self._next_sub = next_sub
        self._lanes = {p: Lane(p, starts[p], ends.get(p)) for p in sorted(starts)}
        self._subs: dict[int, Lane] = {}
        self._queue: deque[Fetched | TidelogError] = deque()
        self._up = False

    @property
    def is_finished(self) -> bool:
        """Every partition has reached its end and everything was taken."""
        return not self._queue and all(lane.done for lane in self._lanes.values())

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: what the application has taken ends here."""
        return {p: lane.taken for p, lane in self._lanes.items()}

    def on_link_up(self, now: float) -> list[Effect]:
        """There is a link to a gateway: subscribe where the last one ended."""
        self._up = True
        return self.on_tick(now)

    def on_link_down(self) -> None:
        """The link and its subscriptions are gone."""
        self._up = False
        self._subs.clear()
        for lane in self._lanes.values():
            lane.sub = None

    def on_tick(self, now: float) -> list[Effect]:
        """Subscribe what should be and is not."""
        effects: list[Effect] = []
        if not self._up:
            return effects
        for lane in self._lanes.values():
            if lane.sub is None and not lane.done and now >= lane.not_before:
                sub = lane.sub = self._next_sub()
                self._subs[sub] = lane
                lane.owed = 0
                credit = max(0, self._credit - lane.waiting)
                effects.append(Open(sub, lane.partition, lane.received, credit))
        return effects

    def deadline(self) -> float | None:
        """When ``on_tick`` should be called next."""
        if not self._up:
            return None
        waiting = [lane.not_before for lane in self._lanes.values() if lane.sub is None and not lane.done]
        return min(waiting, default=None)

    def on_subscribed(self, sub: int, error: TidelogError | None, now: float) -> None:
        """The gateway answered a subscribe."""
        lane = self._subs.get(sub)
        if lane is not None and error is not None:
            self._end(lane, error, now)

    def on_delivery(self, delivery: Delivery, now: float) -> list[Effect]:
        """Batches, or the end, of a subscription. Unknown subscriptions are told to stop."""
        lane = self._subs.get(delivery.sub)
        if lane is None:
            return []
        if delivery.error is not None:
            self._end(lane, from_info(delivery.error), now)
            return []
        payload = delivery.payload
        assert not isinstance(payload, list)
        try:
            for header, data in split(payload):
                self._receive(lane, header, data)
        except TidelogError as error:
            self._queue.append(self._located(lane, error))
            lane.done = True
        if lane.done:
            return self._stop(lane)
        return self._give_back(lane)

    def _receive(self, lane: Lane, header: BatchHeader, data: memoryview) -> None:
        position = lane.received
        if lane.done or header.end_offset <= position.offset:
            lane.owed += header.size
            return
        if header.base_offset > position.offset:
            raise ProtocolError(f"the gateway passed over offsets {position.offset} to {header.base_offset - 1}")
        if header.leader_epoch < position.leader_epoch:
            raise ProtocolError(f"leader epoch {header.leader_epoch} follows {position.leader_epoch}")
        end = header.end_offset if lane.end is None else min(header.end_offset, lane.end)
        self._queue.append(Fetched(lane.partition, header, data, position.offset, end))
        lane.waiting += header.size
        lane.received = Position(header.leader_epoch, end)
        lane.done = end == lane.end

    def take(self) -> Fetched | None:
        """The next batch, in order per partition; None when nothing waits. Raises the error that ended a partition
        when everything before it was taken."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, TidelogError):
            raise item
        lane = self._lanes[item.partition]
        lane.waiting -= item.header.size
        lane.owed += item.header.size
        lane.taken = Position(item.header.leader_epoch, item.end)
        return item

    def on_taken(self, partition: int) -> list[Effect]:
        """What ``take`` gave of this partition was used: room for more."""
        return self._give_back(self._lanes[partition])

    def _give_back(self, lane: Lane) -> list[Effect]:
        """Credit goes back in quarters: few messages, and the gateway never runs dry."""
        if lane.sub is None or lane.owed * 4 < self._credit:
            return []
        owed, lane.owed = lane.owed, 0
        return [Grant(lane.sub, owed)]

    def _end(self, lane: Lane, error: TidelogError, now: float) -> None:
        """The subscription is over: try again, or tell the application."""
        if lane.sub is not None:
            self._subs.pop(lane.sub, None)
            lane.sub = None
        if error.retriable:
            lane.not_before = now + self._backoff_s
        else:
            lane.done = True
            self._queue.append(self._located(lane, error))

    def _stop(self, lane: Lane) -> list[Effect]:
        if lane.sub is None:
            return []
        sub, lane.sub = lane.sub, None
        self._subs.pop(sub, None)
        return [Stop(sub)]

    def close(self) -> list[Effect]:
        """The application wants no more."""
        effects: list[Effect] = []
        for lane in self._lanes.values():
            lane.done = True
            effects += self._stop(lane)
        self._queue.clear()
        return effects

    def _located(self, lane: Lane, error: TidelogError) -> TidelogError:
        """The error with the place where it happened."""
        detail = error.detail | {"topic": self._topic, "partition": lane.partition, "offset": lane.received.offset}
        message = f"{self._topic}/{lane.partition} at offset {lane.received.offset}: {error.message}"
        return BrokerError(message, code=error.code, unknown_outcome=error.unknown_outcome, **detail)
