"""Core of a consumer: where it reads on, what it skips, how far ahead the gateway may send. Sans-I/O.

Each partition has a *cursor* with two positions (leader epoch, offset). *Received* is the end of what has arrived; a
new subscription begins there. *Taken* is the end of what the application has taken. Both only move forward, batch by
batch, so the order within a partition is the order of the log. A lost link loses and repeats nothing: batches that
have arrived stay, and the next subscription continues behind them. The first batch of a delivery may begin before
the position; the records below the position are skipped. Each subscription has a number, and deliveries of a former
subscription are ignored.

Credit bounds memory: the bytes of a partition that are in flight or wait here never exceed its credit by more than
one delivery. No batch of a *paused* partition is handed out; what has arrived stays, and once the credit is used up
nothing more is sent.

A gap between batches, or a leader epoch that goes back, is an error: no record is ever passed over in silence. So are
``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED`` (KIP-320), after which the application decides where to go on
(``seek``). Until it does, the partition has *failed*. The other partitions go on; when they are done the error is
raised again instead of the end of the stream. A batch that cannot be decoded is handled the same way unless it is
skipped: the partition stands before that batch (``fail``).
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
    """Effect: subscribe. The outcome comes back by ``on_subscribed``."""

    sub: int
    partition: int
    position: Position
    credit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Effect: return credit to the gateway."""

    sub: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StopSubscription:
    """Effect: end a subscription."""

    sub: int


Effect = Open | Grant | StopSubscription


@dataclass(frozen=True, slots=True)
class Fetched:
    """One batch for the application: its records with offsets from ``first`` up to ``end``. A compacted or a control
    batch covers offsets that have no record."""

    partition: int
    header: BatchHeader
    data: memoryview
    first: int
    end: int

    def records(self, topic: str) -> list[Record]:
        """Decode the records. Raises ``UnreadableBatch``."""
        try:
            records = decode_batch(self.data, topic=topic, partition=self.partition)
        except CorruptBatch as error:
            raise self.unreadable(topic, error) from None
        if self.first > self.header.base_offset or self.end < self.header.end_offset:
            return [record for record in records if self.first <= record.offset < self.end]
        return records

    def unreadable(self, topic: str, error: CorruptBatch) -> UnreadableBatch:
        """Return the error for a batch that does not decode, with its partition and offsets."""
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
"""An entry of the queue for the application."""


class PartitionCursor:
    """The state of one partition that a consumer reads."""

    __slots__ = (
        "before", "done", "end", "failed", "held", "not_before", "owed", "partition", "paused", "received", "sub",
        "taken", "waiting",
    )  # fmt: skip

    def __init__(self, partition: int, start: Position, end: int | None) -> None:
        self.partition = partition
        self.received = start
        self.taken = start
        self.before = start
        """``taken`` before the last batch was taken."""
        self.end = end
        self.sub: int | None = None
        self.not_before = 0.0
        self.paused = False
        self.held: deque[Item] = deque()
        """Entries that wait for the end of a pause."""
        self.failed: TidelogError | None = None
        """The error that ended the partition, once it was raised to the application."""
        self.waiting = 0
        """Bytes received and not yet taken."""
        self.owed = 0
        """Bytes taken whose credit was not yet returned."""
        self.done = end is not None and start.offset >= end
        """Whether reading has ended: at the requested end, or with an error at the end of the queue."""


class ConsumerCore:
    """The cursors of one consumer. ``starts``: partition -> position to begin at. ``ends``: partition -> offset to
    stop at, if any. ``next_sub`` returns subscription numbers that are unique on the link."""

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
        self._cursors = {p: PartitionCursor(p, starts[p], ends.get(p)) for p in sorted(starts)}
        self._subs: dict[int, PartitionCursor] = {}
        self._queue: deque[tuple[PartitionCursor, Item]] = deque()
        self._up = False

    @property
    def is_finished(self) -> bool:
        """Whether every partition has reached its end and every batch was taken."""
        return self._is_idle and all(cursor.failed is None for cursor in self._cursors.values())

    @property
    def is_dry(self) -> bool:
        """Whether ``take_batch`` returns None now although more may arrive: the caller has to wait."""
        return not self._queue and not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._queue and all(cursor.done and not cursor.held for cursor in self._cursors.values())

    @property
    def partitions(self) -> list[int]:
        """The partitions that are read."""
        return list(self._cursors)

    @property
    def paused(self) -> list[int]:
        """The paused partitions."""
        return [cursor.partition for cursor in self._cursors.values() if cursor.paused]

    @property
    def waiting(self) -> int:
        """Bytes received that the application has not taken."""
        return sum(cursor.waiting for cursor in self._cursors.values())

    @property
    def positions(self) -> dict[int, Position]:
        """The end of what the application has taken, by partition."""
        return {p: cursor.taken for p, cursor in self._cursors.items()}

    def on_link_up(self, now: float) -> list[Effect]:
        """Subscribe every partition on a new link, from where the last subscription ended."""
        self._up = True
        return self.on_tick(now)

    def on_link_down(self) -> None:
        """Forget the subscriptions of a link that was lost."""
        self._up = False
        self._subs.clear()
        for cursor in self._cursors.values():
            cursor.sub = None

    def on_tick(self, now: float) -> list[Effect]:
        """Subscribe the partitions that should be subscribed and are not."""
        effects: list[Effect] = []
        if not self._up:
            return effects
        for cursor in self._cursors.values():
            if cursor.sub is None and not cursor.done and now >= cursor.not_before:
                sub = cursor.sub = self._next_sub()
                self._subs[sub] = cursor
                cursor.owed = 0
                credit = max(0, self._credit - cursor.waiting)
                effects.append(Open(sub, cursor.partition, cursor.received, credit))
        return effects

    def deadline(self) -> float | None:
        """Return when ``on_tick`` should be called next."""
        if not self._up:
            return None
        waiting = [cursor.not_before for cursor in self._cursors.values() if cursor.sub is None and not cursor.done]
        return min(waiting, default=None)

    def on_subscribed(self, sub: int, error: TidelogError | None, now: float) -> None:
        """Handle the gateway's answer to a subscribe."""
        cursor = self._subs.get(sub)
        if cursor is not None and error is not None:
            self._end(cursor, error, now)

    def on_delivery(self, delivery: Delivery, now: float) -> list[Effect]:
        """Handle batches, or the end, of a subscription. A subscription that is not known is stopped."""
        cursor = self._subs.get(delivery.sub)
        if cursor is None:
            return []
        if delivery.error is not None:
            self._end(cursor, from_info(delivery.error), now)
            return []
        payload = delivery.payload
        assert not isinstance(payload, list)
        try:
            for header, data in split(payload):
                self._receive(cursor, header, data)
        except TidelogError as error:
            self._put(cursor, self._located(cursor, error))
            cursor.done = True
        if cursor.done:
            return self._stop(cursor)
        return self._give_back(cursor)

    def _receive(self, cursor: PartitionCursor, header: BatchHeader, data: memoryview) -> None:
        position = cursor.received
        if cursor.done or header.end_offset <= position.offset:
            cursor.owed += header.size
            return
        if header.base_offset > position.offset:
            raise ProtocolError(f"the gateway passed over offsets {position.offset} to {header.base_offset - 1}")
        if header.leader_epoch < position.leader_epoch:
            raise ProtocolError(f"leader epoch {header.leader_epoch} follows {position.leader_epoch}")
        end = header.end_offset if cursor.end is None else min(header.end_offset, cursor.end)
        self._put(cursor, Fetched(cursor.partition, header, data, position.offset, end))
        cursor.waiting += header.size
        cursor.received = Position(header.leader_epoch, end)
        cursor.done = end == cursor.end

    def _put(self, cursor: PartitionCursor, item: Item) -> None:
        if cursor.paused:
            cursor.held.append(item)
        else:
            self._queue.append((cursor, item))

    def take_batch(self) -> Fetched | None:
        """Return the next batch, in order within its partition; None if no batch is ready. Raises the error that
        ended a partition after everything before it was taken, and again when no other partition has anything
        left."""
        if not self._queue:
            if self._is_idle:
                for cursor in self._cursors.values():
                    if cursor.failed is not None:
                        raise cursor.failed
            return None
        cursor, item = self._queue.popleft()
        if isinstance(item, TidelogError):
            cursor.failed = item
            raise item
        cursor.waiting -= item.header.size
        cursor.owed += item.header.size
        cursor.before = cursor.taken
        cursor.taken = Position(item.header.leader_epoch, item.end)
        return item

    def on_taken(self, partition: int) -> list[Effect]:
        """Return credit for a batch of this partition that ``take_batch`` returned and the application has used."""
        return self._give_back(self._cursors[partition])

    def put_back(self, fetched: Fetched, position: Position) -> None:
        """Put back the part at or above ``position`` of the batch that was taken last from its partition."""
        cursor = self._cursors[fetched.partition]
        cursor.taken = position
        if position.offset < fetched.end:
            cursor.waiting += fetched.header.size
            cursor.owed -= fetched.header.size
            rest = replace(fetched, first=max(fetched.first, position.offset))
            if cursor.paused:
                cursor.held.appendleft(rest)
            else:
                self._queue.appendleft((cursor, rest))

    def fail(self, fetched: Fetched, error: TidelogError) -> list[Effect]:
        """Stop a partition before the batch that was taken last from it, because the application cannot use the
        batch. The application has seen the error. The partition is read again after ``seek``."""
        cursor = self._cursors[fetched.partition]
        effects = self._forget(cursor)
        cursor.received = cursor.taken = cursor.before
        cursor.failed = error
        cursor.done = True
        return effects

    # --- what the application changes ------------------------------------------------------------------------

    def pause(self, partitions: Iterable[int]) -> None:
        """Hand out no batch of these partitions until they are resumed."""
        for partition in partitions:
            cursor = self._cursors[partition]
            if not cursor.paused:
                cursor.paused = True
                cursor.held = deque(self._drop(cursor))

    def resume(self, partitions: Iterable[int]) -> None:
        """Hand out batches of these partitions again, first those that arrived during the pause."""
        for partition in partitions:
            cursor = self._cursors[partition]
            if cursor.paused:
                cursor.paused = False
                self._queue.extend((cursor, item) for item in cursor.held)
                cursor.held.clear()

    def seek(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Go on at this position, also if the partition has ended or failed. Batches that wait are dropped."""
        cursor = self._cursors[partition]
        effects = self._forget(cursor)
        cursor.received = cursor.taken = position
        cursor.not_before = now
        cursor.failed = None
        cursor.done = cursor.end is not None and position.offset >= cursor.end
        return effects + self.on_tick(now)

    def add(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Read one more partition."""
        assert partition not in self._cursors
        self._cursors[partition] = PartitionCursor(partition, position, None)
        return self.on_tick(now)

    def remove(self, partition: int) -> list[Effect]:
        """Stop reading a partition. Its batches that wait are dropped."""
        effects = self._forget(self._cursors[partition])
        del self._cursors[partition]
        return effects

    def set_credit(self, credit: int) -> list[Effect]:
        """Set the credit of each partition in bytes."""
        more, self._credit = credit - self._credit, credit
        effects: list[Effect] = []
        for cursor in self._cursors.values():
            if cursor.sub is not None:
                cursor.owed += more
                effects += self._give_back(cursor)
        return effects

    def _forget(self, cursor: PartitionCursor) -> list[Effect]:
        self._drop(cursor)
        cursor.held.clear()
        cursor.waiting = cursor.owed = 0
        return self._stop(cursor)

    def _drop(self, cursor: PartitionCursor) -> list[Item]:
        """Remove the partition's batches from the queue."""
        dropped = [item for owner, item in self._queue if owner is cursor]
        if dropped:
            self._queue = deque(entry for entry in self._queue if entry[0] is not cursor)
        return dropped

    # --- credit and ends -------------------------------------------------------------------------------------

    def _give_back(self, cursor: PartitionCursor) -> list[Effect]:
        """Return credit in quarters: few messages are needed, and the gateway never runs out."""
        if cursor.sub is None or cursor.owed * 4 < self._credit:
            return []
        owed, cursor.owed = cursor.owed, 0
        return [Grant(cursor.sub, owed)]

    def _end(self, cursor: PartitionCursor, error: TidelogError, now: float) -> None:
        """End the subscription: subscribe again later, or queue the error for the application."""
        if cursor.sub is not None:
            self._subs.pop(cursor.sub, None)
            cursor.sub = None
        if error.retriable:
            cursor.not_before = now + max(self._backoff_s, error.pause_s)
        else:
            cursor.done = True
            self._put(cursor, self._located(cursor, error))

    def _stop(self, cursor: PartitionCursor) -> list[Effect]:
        if cursor.sub is None:
            return []
        sub, cursor.sub = cursor.sub, None
        self._subs.pop(sub, None)
        return [StopSubscription(sub)]

    def close(self) -> list[Effect]:
        """Stop all subscriptions."""
        effects: list[Effect] = []
        for cursor in self._cursors.values():
            cursor.done = True
            cursor.failed = None
            effects += self._forget(cursor)
        return effects

    def _located(self, cursor: PartitionCursor, error: TidelogError) -> TidelogError:
        return located(error, self._topic, cursor.partition, cursor.received.offset)


def located(error: TidelogError, topic: str, partition: int, offset: int) -> TidelogError:
    """Return the error with topic, partition and offset added."""
    detail = error.detail | {"topic": topic, "partition": partition, "offset": offset}
    message = f"{topic}/{partition} at offset {offset}: {error.message}"
    return BrokerError(message, code=error.code, unknown_outcome=error.unknown_outcome, **detail)
