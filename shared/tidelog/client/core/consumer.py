"""Core of a consumer: where it reads on, what it skips, how far ahead the gateway may send. Sans-I/O.

Each partition has a *cursor* with two positions (leader epoch, offset). *Received* is the end of what has arrived; a
new subscription begins there. *Taken* is the end of what the application has taken. Both only move forward, batch by
batch, so the order within a partition is the order of the log. A lost link loses and repeats nothing: batches that
have arrived stay, and the next subscription continues behind them. The first batch of a delivery may begin before
the position; the records below the position are skipped. Each subscription has a number, and deliveries of a former
subscription are ignored.

Credit bounds memory: the bytes of a partition that are in flight or wait here never exceed its credit by more than
one delivery. It is never larger than the gateway announces (``credit_bytes`` in ``limits``): the gateway would drop
what is beyond, and a core that counts on it would wait for bytes that never come. No batch of a *paused* partition is
handed out; what has arrived stays, and once the credit is used up nothing more is sent.

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

UNANNOUNCED_CREDIT_BYTES = 8 << 20
"""The credit that a gateway of an earlier release keeps, which announces no limit."""


@dataclass(frozen=True, slots=True)
class Open:
    """Effect: subscribe ``partition`` from ``position`` on under the number ``sub``, with ``credit`` bytes. The shell
    passes a refusal to ``on_subscribed`` and batches to ``on_delivery``."""

    sub: int
    partition: int
    position: Position
    credit: int


@dataclass(frozen=True, slots=True)
class Grant:
    """Effect: allow the gateway to send ``bytes`` more in subscription ``sub``."""

    sub: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StopSubscription:
    """Effect: end subscription ``sub`` at the gateway."""

    sub: int


Effect = Open | Grant | StopSubscription


@dataclass(frozen=True, slots=True)
class Fetched:
    """One batch for the application, with its records from offset ``first`` up to ``end`` (exclusive). A compacted or
    a control batch covers offsets that have no record."""

    partition: int
    header: BatchHeader
    data: memoryview
    first: int
    end: int

    def records(self, topic: str) -> list[Record]:
        """Decode the batch and return its records with offsets from ``first`` up to ``end`` (exclusive); an empty
        list for a control batch. Raises ``UnreadableBatch`` if the batch cannot be decoded."""
        try:
            records = decode_batch(self.data, topic=topic, partition=self.partition)
        except CorruptBatch as error:
            raise self.unreadable(topic, error) from None
        if self.first > self.header.base_offset or self.end < self.header.end_offset:
            return [record for record in records if self.first <= record.offset < self.end]
        return records

    def unreadable(self, topic: str, error: CorruptBatch) -> UnreadableBatch:
        """Return the ``UnreadableBatch`` error for this batch, which failed to decode with ``error``. It names
        partition, offsets and producer, and whether the CRC is wrong, that is, whether the bytes were damaged on the
        way."""
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
"""An entry of the queue for the application: a batch, or the error with which a partition ended."""


class PartitionCursor:
    """The state of one partition that a consumer reads: how far it has received and taken, its subscription, and its
    credit."""

    __slots__ = (
        "before", "done", "end", "failed", "held", "not_before", "owed", "partition", "paused", "received", "sub",
        "taken", "waiting",
    )  # fmt: skip

    def __init__(self, partition: int, start: Position, end: int | None) -> None:
        self.partition = partition
        self.received = start
        self.taken = start
        self.before = start
        """The value of ``taken`` before the last batch was taken."""
        self.end = end
        self.sub: int | None = None
        self.not_before = 0.0
        self.paused = False
        self.held: deque[Item] = deque()
        """Entries that have arrived and wait for the end of a pause."""
        self.failed: TidelogError | None = None
        """The error that ended the partition, once it was raised to the application; None before."""
        self.waiting = 0
        """Bytes that were received and not yet taken."""
        self.owed = 0
        """Bytes that were taken and whose credit was not yet returned."""
        self.done = end is not None and start.offset >= end
        """Whether nothing more is to be received: the requested end is reached, or an error has ended the
        partition."""


class ConsumerCore:
    """The core of one consumer: a cursor for each partition, and the queue of batches that were received and not
    taken. ``starts``: the position to begin at, by partition. ``ends``: the offset to stop before, by partition; a
    partition without one has no end. ``credit``: bytes per partition; less where the gateway announces less.
    ``next_sub`` returns subscription numbers that
    are unique on the link."""

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
        self._wanted_credit = credit
        self._most_credit = UNANNOUNCED_CREDIT_BYTES
        self._backoff_s = backoff_s
        self._next_sub = next_sub
        self._cursors = {p: PartitionCursor(p, starts[p], ends.get(p)) for p in sorted(starts)}
        self._subs: dict[int, PartitionCursor] = {}
        self._queue: deque[tuple[PartitionCursor, Item]] = deque()
        self._up = False

    @property
    def is_finished(self) -> bool:
        """Whether every partition has reached its end without an error and every batch was taken."""
        return self._is_idle and all(cursor.failed is None for cursor in self._cursors.values())

    @property
    def is_dry(self) -> bool:
        """Whether ``take_batch`` returns None now although more batches may arrive, so that the caller has to
        wait."""
        return not self._queue and not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return not self._queue and all(cursor.done and not cursor.held for cursor in self._cursors.values())

    @property
    def partitions(self) -> list[int]:
        """The partitions that are read, including those that have ended or failed."""
        return list(self._cursors)

    @property
    def paused(self) -> list[int]:
        """The partitions of which no batch is returned until ``resume``."""
        return [cursor.partition for cursor in self._cursors.values() if cursor.paused]

    @property
    def waiting(self) -> int:
        """Bytes that were received and that the application has not taken, summed over all partitions."""
        return sum(cursor.waiting for cursor in self._cursors.values())

    @property
    def remaining(self) -> int:
        """The number of offsets that the application has not taken, summed over the partitions with an end."""
        left = (cursor.end - cursor.taken.offset for cursor in self._cursors.values() if cursor.end is not None)
        return sum(max(0, offsets) for offsets in left)

    @property
    def positions(self) -> dict[int, Position]:
        """The position after the last batch that the application has taken, by partition."""
        return {p: cursor.taken for p, cursor in self._cursors.items()}

    def on_link_up(self, limits: Mapping[str, int], now: float) -> list[Effect]:
        """Record that a link is open to a gateway that has announced these limits. Return the effects that subscribe
        every partition on it, each from the end of what has been received."""
        self._up = True
        self._most_credit = limits.get("credit_bytes", UNANNOUNCED_CREDIT_BYTES)
        return self.on_tick(now)

    def on_link_down(self) -> None:
        """Forget all subscriptions, because their link was lost. Batches that have been received stay in the
        queue."""
        self._up = False
        self._subs.clear()
        for cursor in self._cursors.values():
            cursor.sub = None

    def on_tick(self, now: float) -> list[Effect]:
        """Return the effects that subscribe every partition that has no subscription, is not done, and whose back-off
        is over. Returns an empty list without a link."""
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
        """Return the earliest time at which ``on_tick`` can subscribe a partition; None if every partition is
        subscribed or done, or there is no link."""
        if not self._up:
            return None
        waiting = [cursor.not_before for cursor in self._cursors.values() if cursor.sub is None and not cursor.done]
        return min(waiting, default=None)

    def on_subscribed(self, sub: int, error: TidelogError | None, now: float) -> None:
        """Handle the answer to a subscribe request. Nothing changes if ``error`` is None. A retriable error
        subscribes the partition again after a back-off; any other error ends the partition and is queued for the
        application. An unknown subscription is ignored."""
        cursor = self._subs.get(sub)
        if cursor is not None and error is not None:
            self._end(cursor, error, now)

    def on_delivery(self, delivery: Delivery, now: float) -> list[Effect]:
        """Queue the batches of a delivery for the application. If the delivery carries the error that ended the
        subscription, it is handled as by ``on_subscribed``. Records below the partition's position are skipped. A gap
        between batches or an undecodable header ends the partition with an error. Returns the effects that return
        credit, or that stop the subscription of a partition that is done. A delivery of an unknown subscription is
        ignored."""
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
            self._put(cursor, self._with_location(cursor, error))
            cursor.done = True
        if cursor.done:
            return self._stop(cursor)
        return self._give_back(cursor)

    def _receive(self, cursor: PartitionCursor, header: BatchHeader, data: memoryview) -> None:
        """Queue one batch and move the partition's position behind it; a batch below the position only counts as
        credit to return. Raises ``ProtocolError`` if offsets are missing or the leader epoch goes back."""
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
        """Append a batch or an error to the queue, or to the partition's held-back entries while it is paused."""
        if cursor.paused:
            cursor.held.append(item)
        else:
            self._queue.append((cursor, item))

    def take_batch(self) -> Fetched | None:
        """Remove and return the next batch of the queue, in order within its partition; None if the queue is empty.
        Raises the error that ended a partition once everything before it was taken, and again whenever all other
        partitions are done."""
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

    def take_batches(self) -> list[Fetched]:
        """Remove and return the batches at the front of the queue, as ``take_batch`` does one after the other; an
        empty list if there are none. The error that ended a partition stays in the queue, with all behind it."""
        batches = []
        while self._queue and isinstance(self._queue[0][1], Fetched):
            fetched = self.take_batch()
            assert fetched is not None
            batches.append(fetched)
        return batches

    def on_taken(self, partition: int) -> list[Effect]:
        """Return the effects that give credit back to the gateway for batches that ``take_batch`` returned. Returns
        an empty list until that credit is a quarter of the partition's credit."""
        return self._give_back(self._cursors[partition])

    def put_back(self, fetched: Fetched, position: Position) -> None:
        """Put the batch that was taken last from its partition back to the front of the queue, without the records
        below ``position``. Its bytes count as waiting again. If it has no record at or above ``position``, only the
        partition's position is set."""
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
        """Stop a partition before the batch that was taken last from it, because the application cannot use that
        batch. Returns the effects that end its subscription. ``take_batch`` raises ``error`` again when all other
        partitions are done. The partition is read again after ``seek``."""
        cursor = self._cursors[fetched.partition]
        effects = self._forget(cursor)
        cursor.received = cursor.taken = cursor.before
        cursor.failed = error
        cursor.done = True
        return effects

    # --- what the application changes ------------------------------------------------------------------------

    def pause(self, partitions: Iterable[int]) -> None:
        """Hold back the batches of these partitions, both those in the queue and those that arrive, until ``resume``.
        Partitions that are paused already are left alone."""
        for partition in partitions:
            cursor = self._cursors[partition]
            if not cursor.paused:
                cursor.paused = True
                cursor.held = deque(self._drop(cursor))

    def resume(self, partitions: Iterable[int]) -> None:
        """Put the held-back batches of these partitions into the queue, and no longer hold back new ones. Partitions
        that are not paused are left alone."""
        for partition in partitions:
            cursor = self._cursors[partition]
            if cursor.paused:
                cursor.paused = False
                self._queue.extend((cursor, item) for item in cursor.held)
                cursor.held.clear()

    def seek(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Move a partition to this position, also if it has ended or failed, and drop its batches in the queue.
        Returns the effects that end its subscription and begin a new one."""
        cursor = self._cursors[partition]
        effects = self._forget(cursor)
        cursor.received = cursor.taken = position
        cursor.not_before = now
        cursor.failed = None
        cursor.done = cursor.end is not None and position.offset >= cursor.end
        return effects + self.on_tick(now)

    def add(self, partition: int, position: Position, now: float) -> list[Effect]:
        """Read one more partition, from this position on and without an end. Returns the effects that subscribe it,
        if a link is open."""
        assert partition not in self._cursors
        self._cursors[partition] = PartitionCursor(partition, position, None)
        return self.on_tick(now)

    def remove(self, partition: int) -> list[Effect]:
        """Stop reading a partition and drop its batches in the queue. Returns the effects that end its
        subscription."""
        effects = self._forget(self._cursors[partition])
        del self._cursors[partition]
        return effects

    def set_credit(self, credit: int) -> list[Effect]:
        """Set the credit of each partition in bytes; less where the gateway announces less. Returns the effects that
        grant the additional credit; a reduction is held back from later grants."""
        before, self._wanted_credit = self._credit, credit
        more = self._credit - before
        effects: list[Effect] = []
        for cursor in self._cursors.values():
            if cursor.sub is not None:
                cursor.owed += more
                effects += self._give_back(cursor)
        return effects

    def _forget(self, cursor: PartitionCursor) -> list[Effect]:
        """Drop all batches and the credit count of a partition, and return the effects that end its subscription."""
        self._drop(cursor)
        cursor.held.clear()
        cursor.waiting = cursor.owed = 0
        return self._stop(cursor)

    def _drop(self, cursor: PartitionCursor) -> list[Item]:
        """Remove the partition's entries from the queue, and return them in order."""
        dropped = [item for owner, item in self._queue if owner is cursor]
        if dropped:
            self._queue = deque(entry for entry in self._queue if entry[0] is not cursor)
        return dropped

    # --- credit and ends -------------------------------------------------------------------------------------

    @property
    def _credit(self) -> int:
        """The credit of each partition in bytes, as far as the gateway keeps it."""
        return min(self._wanted_credit, self._most_credit)

    def _give_back(self, cursor: PartitionCursor) -> list[Effect]:
        """Return the effect that grants the gateway the credit that is owed. Returns an empty list without a
        subscription, or while less than a quarter of the partition's credit is owed: few messages are needed, and the
        gateway never runs out."""
        if cursor.sub is None or cursor.owed * 4 < self._credit:
            return []
        owed, cursor.owed = cursor.owed, 0
        return [Grant(cursor.sub, owed)]

    def _end(self, cursor: PartitionCursor, error: TidelogError, now: float) -> None:
        """End the subscription after an error. A retriable error subscribes the partition again after a back-off; any
        other error is queued for the application and ends the partition."""
        if cursor.sub is not None:
            self._subs.pop(cursor.sub, None)
            cursor.sub = None
        if error.retriable:
            cursor.not_before = now + max(self._backoff_s, error.pause_s)
        else:
            cursor.done = True
            self._put(cursor, self._with_location(cursor, error))

    def _stop(self, cursor: PartitionCursor) -> list[Effect]:
        """Forget the partition's subscription, and return the effect that ends it at the gateway; an empty list if it
        has none."""
        if cursor.sub is None:
            return []
        sub, cursor.sub = cursor.sub, None
        self._subs.pop(sub, None)
        return [StopSubscription(sub)]

    def close(self) -> list[Effect]:
        """End every partition and drop all batches in the queue. Returns the effects that end the subscriptions."""
        effects: list[Effect] = []
        for cursor in self._cursors.values():
            cursor.done = True
            cursor.failed = None
            effects += self._forget(cursor)
        return effects

    def _with_location(self, cursor: PartitionCursor, error: TidelogError) -> TidelogError:
        return with_location(error, self._topic, cursor.partition, cursor.received.offset)


def with_location(error: TidelogError, topic: str, partition: int, offset: int) -> TidelogError:
    """Return a copy of ``error``, as a ``BrokerError``, whose message and ``detail`` also name the topic, the
    partition and the offset at which it occurred."""
    detail = error.detail | {"topic": topic, "partition": partition, "offset": offset}
    message = f"{topic}/{partition} at offset {offset}: {error.message}"
    return BrokerError(message, code=error.code, unknown_outcome=error.unknown_outcome, **detail)
