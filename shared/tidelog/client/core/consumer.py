"""What a consumer decides: where it reads on, what it skips, how far ahead it is sent. Sans-I/O.

Each partition is a *lane* with two positions (leader epoch, offset): *received* up to there, which is where a new
subscription begins, and *taken* by the application. Both only move forward, batch by batch, so order per partition
is the order of the log, and a lost link loses and repeats nothing: batches that wait here stay, the next
subscription continues behind them. The first batch of a delivery may begin before the position; what is below is
skipped. A subscription is known by its number: what arrives for a former one is ignored.

Credit bounds memory: a lane's bytes under way and waiting never exceed its credit by more than one delivery. Of a
lane that is *paused* nothing is handed out; what has arrived stays, and with the credit used up nothing more comes.

A gap between batches, or a leader epoch that goes back, is an error: nothing is ever passed over in silence. So are
``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` (KIP-320): the application decides where to go on (``seek``). Until it
does the lane *failed*: the others go on, and when they are done the error is told again, not an end. The same holds
for a batch that cannot be decoded, unless it is skipped: the lane then stands before that batch (``fail``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tidelog.batch.format import BatchHeader, Record, decode_batch, has_right_crc, split
from tidelog.errors import BrokerError, CorruptBatch, ProtocolError, TidelogError, UnreadableBatch, from_info
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
class StopSubscription:
    """Effect: end a subscription."""

    sub: int


Effect = Open | Grant | StopSubscription


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
        """Decode it. Raises ``UnreadableBatch``."""
        try:
            records = decode_batch(self.data, topic=topic, partition=self.partition)
        except CorruptBatch as error:
            raise self.unreadable(topic, error) from None
        if self.first > self.header.base_offset or self.end < self.header.end_offset:
            return [record for record in records if self.first <= record.offset < self.end]
        return records

    def unreadable(self, topic: str, error: CorruptBatch) -> UnreadableBatch:
        """The error of a batch that does not decode, with its place."""
        header = self.header
        base, last = header.base_offset, header.end_offset - 1
        damaged = not has_right_crc(self.data)
        where = (
            f"{topic}/{self.partition}: the batch at offsets {base} to {last}, of producer id {header.producer_id}"
        )
        how = (
            f"Its bytes were damaged on the way: read again from offset {base}"
            if damaged
            else f"Go on at offset {last + 1}, or have such batches skipped (on_unreadable)"
        )
        return UnreadableBatch(
            f"{where}, cannot be read: {error.message}. {how}",
            topic=topic,
            partition=self.partition,
            offset=base,
            last_offset=last,
            producer_id=header.producer_id,
            damaged=int(damaged),
            place=where,
            why=error.message,
        )


Item = Fetched | TidelogError
"""What waits for the application."""


class PartitionCursor:
    """The state of one partition."""

    __slots__ = (
        "before", "done", "end", "failed", "held", "not_before", "owed", "partition", "paused", "received", "sub",
        "taken", "waiting",
    )  # fmt: skip

    def __init__(self, partition: int, start: Position, end: int | None) -> None:
        self.partition = partition
        self.received = start
        self.taken = start
        self.before = start
        """``taken`` as it was before the last batch was taken."""
        self.end = end
        self.sub: int | None = None
        self.not_before = 0.0
        self.paused = False
        self.held: deque[Item] = deque()
        """What waits for the end of the pause."""
        self.failed: TidelogError | None = None
        """The error that ended it, once the application was told."""
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
        self._lanes = {p: PartitionCursor(p, starts[p], ends.get(p)) for p in sorted(starts)}
        self._subs: dict[int, PartitionCursor] = {}
        self._queue: deque[tuple[PartitionCursor, Item]] = deque()
        self._up = False

    @property
    def is_finished(self) -> bool:
        """Every partition has reached its end and everything was taken."""
        return self._is_idle and all(lane.failed is None for lane in self._lanes.values())

    @property
    def is_dry(self) -> bool:
        """``take`` gives nothing now, but may later: who wants more has to wait."""
        return not self._queue and not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._queue and all(lane.done and not lane.held for lane in self._lanes.values())

    @property
    def partitions(self) -> list[int]:
        """Those that are read."""
        return list(self._lanes)

    @property
    def paused(self) -> list[int]:
        """Those of which nothing is handed out now."""
        return [lane.partition for lane in self._lanes.values() if lane.paused]

    @property
    def waiting(self) -> int:
        """Bytes received that the application has not taken."""
        return sum(lane.waiting for lane in self._lanes.values())

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
            self._put(lane, self._located(lane, error))
            lane.done = True
        if lane.done:
            return self._stop(lane)
        return self._give_back(lane)

    def _receive(self, lane: PartitionCursor, header: BatchHeader, data: memoryview) -> None:
        position = lane.received
        if lane.done or header.end_offset <= position.offset:
            lane.owed += header.size
            return
        if header.base_offset > position.offset:
            raise ProtocolError(f"the gateway passed over offsets {position.offset} to {header.base_offset - 1}")
        if header.leader_epoch < position.leader_epoch:
            raise ProtocolError(f"leader epoch {header.leader_epoch} follows {position.leader_epoch}")
        end = header.end_offset if lane.end is None else min(header.end_offset, lane.end)
        self._put(lane, Fetched(lane.partition, header, data, position.offset, end))
        lane.waiting += header.size
        lane.received = Position(header.leader_epoch, end)
        lane.done = end == lane.end

    def _put(self, lane: PartitionCursor, item: Item) -> None:
        if lane.paused:
            lane.held.append(item)
        else:
            self._queue.append((lane, item))

    def take(self) -> Fetched | None:
        """The next batch, in order per partition; None when nothing waits. Raises the error that ended a partition
        when everything before it was taken, and again when there is nothing else left."""
        if not self._queue:
            if self._is_idle:
                for lane in self._lanes.values():
                    if lane.failed is not None:
                        raise lane.failed
            return None
        lane, item = self._queue.popleft()
        if isinstance(item, TidelogError):
            lane.failed = item
            raise item
        lane.waiting -= item.header.size
        lane.owed += item.header.size
        lane.before = lane.taken
        lane.taken = Position(item.header.leader_epoch, item.end)
        return item

    def on_taken(self, partition: int) -> list[Effect]:
        """What ``take`` gave of this partition was used: room for more."""
        return self._give_back(self._lanes[partition])

    def put_back(self, fetched: Fetched, position: Position) -> None:
        """Of a batch that was taken last of its partition the application has used what is below ``position``, and
        wants the rest later."""
        lane = self._lanes[fetched.partition]
        lane.taken = position
        if position.offset < fetched.end:
            lane.waiting += fetched.header.size
            lane.owed -= fetched.header.size
            rest = replace(fetched, first=max(fetched.first, position.offset))
            if lane.paused:
                lane.held.appendleft(rest)
            else:
                self._queue.appendleft((lane, rest))

    def fail(self, fetched: Fetched, error: TidelogError) -> list[Effect]:
        """The application cannot use the batch that was taken last of its partition, and was told why: the partition
        stands before that batch, and is read no further until ``seek``."""
        lane = self._lanes[fetched.partition]
        effects = self._forget(lane)
        lane.received = lane.taken = lane.before
        lane.failed = error
        lane.done = True
        return effects

    # --- what the application changes ------------------------------------------------------------------------

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand nothing of these out until they are resumed."""
        for partition in partitions:
            lane = self._lanes[partition]
            if not lane.paused:
                lane.paused = True
                lane.held = deque(self._drop(lane))

    def resume(self, partitions: Iterable[int]) -> None:
        """Hand them out again, first what has arrived meanwhile."""
        for partition in partitions:
            lane = self._lanes[partition]
            if lane.paused:
                lane.paused = False
                self._queue.extend((lane, item) for item in lane.held)
                lane.held.clear()

    def seek(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Go on there, also where the partition has ended or failed; what waits is dropped."""
        lane = self._lanes[partition]
        effects = self._forget(lane)
        lane.received = lane.taken = position
        lane.not_before = now
        lane.failed = None
        lane.done = lane.end is not None and position.offset >= lane.end
        return effects + self.on_tick(now)

    def add(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Read another partition, too."""
        assert partition not in self._lanes
        self._lanes[partition] = PartitionCursor(partition, position, None)
        return self.on_tick(now)

    def remove(self, partition: int) -> list[Effect]:
        """Read it no more; what waits of it is dropped."""
        effects = self._forget(self._lanes[partition])
        del self._lanes[partition]
        return effects

    def set_credit(self, credit: int) -> list[Effect]:
        """So many bytes for each partition from now on."""
        more, self._credit = credit - self._credit, credit
        effects: list[Effect] = []
        for lane in self._lanes.values():
            if lane.sub is not None:
                lane.owed += more
                effects += self._give_back(lane)
        return effects

    def _forget(self, lane: PartitionCursor) -> list[Effect]:
        self._drop(lane)
        lane.held.clear()
        lane.waiting = lane.owed = 0
        return self._stop(lane)

    def _drop(self, lane: PartitionCursor) -> list[Item]:
        """Take what waits of it out of the queue."""
        dropped = [item for owner, item in self._queue if owner is lane]
        if dropped:
            self._queue = deque(entry for entry in self._queue if entry[0] is not lane)
        return dropped

    # --- credit and ends -------------------------------------------------------------------------------------

    def _give_back(self, lane: PartitionCursor) -> list[Effect]:
        """Credit goes back in quarters: few messages, and the gateway never runs dry."""
        if lane.sub is None or lane.owed * 4 < self._credit:
            return []
        owed, lane.owed = lane.owed, 0
        return [Grant(lane.sub, owed)]

    def _end(self, lane: PartitionCursor, error: TidelogError, now: float) -> None:
        """The subscription is over: try again, or tell the application."""
        if lane.sub is not None:
            self._subs.pop(lane.sub, None)
            lane.sub = None
        if error.retriable:
            lane.not_before = now + max(self._backoff_s, error.pause_s)
        else:
            lane.done = True
            self._put(lane, self._located(lane, error))

    def _stop(self, lane: PartitionCursor) -> list[Effect]:
        if lane.sub is None:
            return []
        sub, lane.sub = lane.sub, None
        self._subs.pop(sub, None)
        return [StopSubscription(sub)]

    def close(self) -> list[Effect]:
        """The application wants no more."""
        effects: list[Effect] = []
        for lane in self._lanes.values():
            lane.done = True
            lane.failed = None
            effects += self._forget(lane)
        return effects

    def _located(self, lane: PartitionCursor, error: TidelogError) -> TidelogError:
        return located(error, self._topic, lane.partition, lane.received.offset)


def located(error: TidelogError, topic: str, partition: int, offset: int) -> TidelogError:
    """The error with the place where it happened."""
    detail = error.detail | {"topic": topic, "partition": partition, "offset": offset}
    message = f"{topic}/{partition} at offset {offset}: {error.message}"
    return BrokerError(message, code=error.code, unknown_outcome=error.unknown_outcome, **detail)
