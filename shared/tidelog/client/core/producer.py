"""Core of a producer for one topic: batching, order, retries and sequences. Sans-I/O.

Each partition has a *partition queue*: an open batch, the closed batches, and the batches in flight.

- **Batching.** A batch is closed when it is full. If no batch of its partition is in flight, an open batch is due at
  once; otherwise it is due when it has lingered. A lone record pays no linger, and a flood fills its batches (Nagle's
  idea). A full batch that cannot be sent because ``max_in_flight`` batches precede it stays open and grows. A slow
  partition thus sends fewer messages, not more bytes: a grown batch takes the places of several.
- **Idempotence** (KIP-98). A batch gets (producer id, base sequence) when it is first sent, and keeps both through
  every retry, on this link or the next. It is encoded once, because the leader recognises a copy only by identical
  bytes (rule 1 of the producer in ``docs/protocol.md``). The leader accepts sequences without a gap only. If a batch
  is not in the log, no later batch of the same id is.
- **Errors.** After an error the partition *drains*: it sends nothing until every batch in flight has its answer. Then
  the remaining batches are sent again, in order, with the same sequences. The order holds with any number in flight.
- **Window.** Leaders remember the last batches of a producer, as many as the gateway announces. No more batches than
  that are numbered from the oldest unsettled one on, so a batch that may be sent again is always remembered.
- **Giving up** a batch (it was refused, or its delivery timeout is over) *spoils* the partition's producer id:
  because of the gap the leader would refuse every later batch. The batches in flight are drained. If the oldest
  remaining batch is refused with ``OUT_OF_ORDER_SEQUENCE`` and everything before it is settled, then it and its
  successors are not in the log, and they are numbered anew under a fresh producer id. This does not hold if a try was
  lost with its link: the next gateway may know only a replaced leader, whose gap proves nothing. Such batches end
  with their delivery timeout. In a topic that may lose records (``lossy``) batches are numbered anew too, but a batch
  of unknown outcome stays so: it may have been in a log that was lost, and may come back with it.
- **Throttling.** An ack may ask for a pause (``throttle_ms``) because the partition's leader is slow. Nothing is sent
  to the partition until the pause is over.
- **Tickets.** A batch that is refused because its producer id was not presented with a valid ticket was not written
  by that try. A batch that no try can have written is numbered anew under a fresh producer id; the others are given
  up.
- **The window** of the connection (``produce_window``) bounds what all its producers have in flight. If it has no
  room for the next batch the producer sends nothing, until an ack makes room.
- **A conditional append** (``expected_offset``) is a batch of one record. If it is refused with ``UNEXPECTED_OFFSET``
  it is given up like any other. A retry of a record that was written is a copy, and is not refused.
- **In a transaction** the producer id and epoch are those of the transaction, and no batch is numbered anew: if one
  batch is given up, the whole transaction fails.
- **Without idempotence** no batch is sent twice, since a retry might write it twice or change the order.

Invariants: every batch settles exactly once. At most ``max_in_flight`` batches of a partition are in flight, and of
an idempotent producer at most the window that the gateway announced. The sequences of one id in one partition have no
gap, and no repeat except copies of the same batch. ``buffered`` is the number of bytes that are not settled.

A producer may have thousands of partitions with unsettled batches, so only events that concern all of them visit all.
A partition is visited when an event concerns it (``_due``), or when its time has come (``_timers``).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from tidelog.batch.format import MAX_RECORDS, Fields
from tidelog.client.core.batch import BATCH_OVERHEAD, Batch, TransactionIdentity
from tidelog.client.core.partition_queue import PartitionQueue
from tidelog.client.core.produce_window import ProduceWindow
from tidelog.client.options import ACKS, ProducerOptions
from tidelog.errors import BrokerError, TidelogError, TimedOut, Unreachable, from_info, pause_s, refuse
from tidelog.types import PRODUCER_WINDOW, Buffer
from tidelog.wire.messages import Produce, ProduceAck, ProducePart

MESSAGE_BYTES = 1 << 20
"""A produce message is complete when it has this many bytes."""
MESSAGE_PARTS = 128
"""A produce message is complete when it has this many batches, so that its header stays small."""
MAX_SEQUENCE = 2**32 - 1
NO_TICKET = "INVALID_TICKET"
"""Error code of a batch whose producer id was not presented with a valid ticket."""
SPOILED_TIMEOUT_S = 1.0
"""Seconds that a gateway may try a batch that is probably behind a gap in the sequences."""


class ProducerCore:
    """The core of one producer: a queue of batches for each partition, and the decisions when a batch is sent,
    retried and given up. ``next_id`` returns the numbers by which acks name batches, unique on the link. A method
    that returns a list of batches returns those that the call settled (acked or failed), in order."""

    def __init__(
        self,
        topic_id: str,
        partitions: int,
        options: ProducerOptions,
        next_id: Callable[[], int],
        max_batch_bytes: int = 1 << 20,
        identity: TransactionIdentity | None = None,
        window: ProduceWindow | None = None,
    ) -> None:
        """``window``: what the connection may have in flight; None: there is no bound."""
        self.topic_id = topic_id
        self.is_blocked = False
        """Whether the last ``take_message`` has left batches that are due, because the window had no room."""
        self._window = window or ProduceWindow()
        self.buffered = 0
        """Bytes of the records that are not settled."""
        self.wants_producer_id = False
        """Whether the shell should request a producer id and pass it to ``on_producer_id``."""
        self.throttled_acks = 0
        """Number of acks that asked for a pause because the partition's leader is slow."""
        self.throttled_s = 0.0
        """Sum of the pauses that acks asked for, over all partitions, in seconds. Pauses of one partition that
        overlap count once."""
        self._options = options
        self._acks = int(ACKS[options.acks])
        self._idempotent = options.is_idempotent
        self._next_id = next_id
        self._max_batch_bytes = max_batch_bytes
        self._batch_bytes = min(options.batch_bytes, max_batch_bytes)
        self._identity = identity
        self._set_window(0)
        self._queues = [PartitionQueue(partition, identity) for partition in range(partitions)]
        self._active: dict[int, PartitionQueue] = {}  # those with an unsettled batch, oldest first
        self._due: deque[PartitionQueue] = deque()  # to be visited by ``take_message``
        self._timers: list[tuple[float, int]] = []  # an entry counts only if it equals the partition's ``visit_at``
        self._unsettled: OrderedDict[Batch, None] = OrderedDict()  # in the order of their deadlines
        self._sent: dict[int, Batch] = {}
        self._last_count = 0  # records of the batch that was settled last
        self._producer_id = 0
        self.producer_ids: set[int] = set()
        """Producer ids that were given to this producer and under which batches may still be sent."""
        self._up = False

    @property
    def is_idle(self) -> bool:
        """Whether every batch is settled, that is, acked or failed."""
        return not self._active

    @property
    def has_single_record(self) -> bool:
        """Whether the record that was just added is the only unsettled one, and the batch that was settled last had
        one record, too. The caller then sends one record at a time, so waiting for more records would be useless."""
        return self._last_count == 1 and len(self._unsettled) == 1

    # --- records come in -------------------------------------------------------------------------------

    def append(self, partition: int, record: Fields, size: int) -> Batch | None:
        """Add a record of ``size`` bytes (``record_size``) to the open batch of its partition, and return that batch.
        Returns None, and adds nothing, if no batch is open or the record does not fit: the caller then calls
        ``open``."""
        queue = self._queues[partition]
        batch = queue.open
        if batch is None or len(batch.records) == MAX_RECORDS:
            return None
        total = batch.size + size
        if total > self._batch_bytes:
            if total > self._most_bytes or queue.closed_places < self._max_in_flight:
                return None
            batch.places = -(-total // self._batch_bytes)
        batch.records.append(record)
        batch.size = total
        self.buffered += size
        return batch

    def open(self, partition: int, record: Fields, size: int, now: float, expected_offset: int = -1) -> Batch:
        """Close the partition's open batch, open another one with this record, and return it. A batch with an
        ``expected_offset`` is closed at once, so that the record stays alone in it. Raises ``BATCH_TOO_LARGE`` if no
        batch of the topic can hold the record."""
        if BATCH_OVERHEAD + size > self._max_batch_bytes:
            raise refuse(
                "BATCH_TOO_LARGE",
                f"a record of {size} bytes does not fit into a batch of max_batch_bytes {self._max_batch_bytes}",
            )
        queue = self._queues[partition]
        queue.close_open()
        batch = queue.open = Batch(partition, now, now + self._options.delivery_timeout_s, expected_offset)
        batch.records.append(record)
        batch.size += size
        self.buffered += batch.size
        self._active[partition] = queue
        self._unsettled[batch] = None
        self._schedule(queue)
        if expected_offset >= 0:
            queue.close_open()
        return batch

    def close_open_batches(self) -> None:
        """Close every open batch, so that all can be sent without lingering (flush)."""
        for queue in self._active.values():
            queue.close_open()
        self._schedule_all()

    # --- batches go out --------------------------------------------------------------------------------

    def take_message(self, now: float) -> Produce | None:
        """Return the next produce message, with as many due batches as fit, and count its batches as in flight.
        Returns None if there is no link or no batch may be sent now; ``is_blocked`` tells whether the window is why.
        The caller sends the message and calls again until the result is None."""
        if not self._up:
            return None
        parts: list[ProducePart] = []
        payload: list[Buffer] = []
        size = 0
        self.is_blocked = False
        while self._timers and self._timers[0][0] <= now:
            self._visit_in_time(*heapq.heappop(self._timers))
        while self._due and self._has_room(size, parts):
            queue = self._due[0]
            batch = self._next_of(queue, now)
            if self.is_blocked:
                break
            if batch is None:
                self._due.popleft()
                queue.is_due = False
                self._postpone(queue, now)
                continue
            data = batch.data(self._options.compression, queue.producer_id, self._identity)
            parts.append(self._part(queue, batch, len(data), now))
            payload.append(data)
            size += len(data)
            if not queue.closed and queue.open is None:  # nothing is left: the next record or ack schedules it
                self._due.popleft()
                queue.is_due = False
        return Produce(tuple(parts), payload) if parts else None

    @staticmethod
    def _has_room(size: int, parts: list[ProducePart]) -> bool:
        return size < MESSAGE_BYTES and len(parts) < MESSAGE_PARTS

    def _is_full(self, queue: PartitionQueue) -> bool:
        """Return whether the next batch of the partition must wait because the batches in flight take all places. The
        window of an idempotent producer begins with the oldest unsettled batch, also if later ones are settled."""
        if not queue.in_flight:
            return False
        following = queue.closed[0] if queue.closed else queue.open
        is_new = following is None or following.base_sequence is None
        if self._idempotent and is_new and queue.numbered - queue.in_flight[0].ordinal >= self._max_in_flight:
            return True
        places = sum(batch.places for batch in queue.in_flight) + (1 if following is None else following.places)
        return places > self._max_in_flight

    def _due_at(self, queue: PartitionQueue, batch: Batch) -> float:
        """Return the time at which the partition's open batch is due: when it was opened, if no batch is in flight or
        the batch is full, else ``linger_s`` later."""
        if not queue.in_flight or batch.size > self._batch_bytes:
            return batch.opened_at
        return batch.opened_at + self._options.linger_s

    def _next_of(self, queue: PartitionQueue, now: float) -> Batch | None:
        """Remove the partition's next batch from its queue, give it a sequence if it has none, and return it. Returns
        None if no batch may be sent now: the partition drains or pauses, its window is full, the open batch still
        lingers, a producer id is needed first, or the connection's window has no room (``is_blocked``)."""
        if queue.draining or now < queue.not_before or self._is_full(queue):
            return None
        following = queue.closed[0] if queue.closed else queue.open
        if following is None or (not queue.closed and now < self._due_at(queue, following)):
            return None
        if not self._window.has_room(following.size):
            self.is_blocked = True
            return None
        if not queue.closed:
            queue.close_open()
        batch = queue.closed[0]
        if self._idempotent and batch.base_sequence is None:
            if not self._ensure_id(queue, batch.count):
                return None
            batch.number(queue.producer_id, queue.next_sequence)
            queue.next_sequence += batch.count
            batch.ordinal, queue.numbered = queue.numbered, queue.numbered + 1
        return queue.closed.popleft()

    def _schedule(self, queue: PartitionQueue) -> None:
        """Have the next ``take_message`` look at the partition, because an event concerns it, and cancel the
        partition's timer."""
        queue.visit_at = None
        if not queue.is_due:
            queue.is_due = True
            self._due.append(queue)

    def _schedule_all(self) -> None:
        for queue in self._active.values():
            self._schedule(queue)

    def _visit_in_time(self, at: float, partition: int) -> None:
        """Schedule the partition because its timer has ended. Does nothing if the timer was cancelled or set anew."""
        if self._queues[partition].visit_at == at:
            self._schedule(self._queues[partition])

    def _postpone(self, queue: PartitionQueue, now: float) -> None:
        """Set a timer for a partition that may send nothing now, if time alone will change that. Otherwise an event
        schedules it."""
        if queue.draining or self._is_full(queue):
            return
        at = queue.not_before if queue.closed or queue.open is not None else now
        if not queue.closed and queue.open is not None:
            at = max(at, self._due_at(queue, queue.open))
        if at > now:
            queue.visit_at = at
            heapq.heappush(self._timers, (at, queue.partition))

    def _ensure_id(self, queue: PartitionQueue, count: int) -> bool:
        """Return whether the partition has a valid producer id for ``count`` more records. If it needs a new one and
        has nothing in flight, it gets the producer's newest id. If there is no fresh id, ``wants_producer_id`` is
        set."""
        if queue.next_sequence + count > MAX_SEQUENCE:
            queue.spoiled = True
        if queue.producer_id and not queue.spoiled:
            return True
        if queue.in_flight or self._identity is not None:
            return False
        if self._producer_id in (0, queue.producer_id):
            self.wants_producer_id = True
            return False
        queue.producer_id = self._producer_id
        queue.next_sequence = 0
        queue.spoiled = False
        return True

    def _part(self, queue: PartitionQueue, batch: Batch, size: int, now: float) -> ProducePart:
        """Count a batch as in flight, and return the entry of a produce message that names it: ids, size in bytes,
        and how long the gateway may try."""
        number = self._next_id()
        self._sent[number] = batch
        batch.answer = None
        queue.in_flight.append(batch)
        limit = SPOILED_TIMEOUT_S if queue.spoiled else self._options.request_timeout_s
        timeout_ms = max(1, round(1000 * min(limit, batch.deadline - now)))
        part = ProducePart(
            number,
            self.topic_id,
            queue.partition,
            self._acks,
            timeout_ms,
            size,
            expected_offset=batch.expected_offset,
            transaction="" if self._identity is None else self._identity.app,
        )
        self._window.add((part,))
        return part

    # --- answers come back -----------------------------------------------------------------------------

    def on_produced(self, acks: Sequence[ProduceAck], now: float) -> list[Batch]:
        """Apply the acks of batches, and return the batches that are settled for good. An ack without an error
        settles its batch as written. After a retriable error of an idempotent producer the partition drains: it sends
        nothing until every batch in flight has its answer, and then sends the remaining batches again. After any
        other error the batch fails. Acks of batches that are settled or unknown are ignored."""
        settled: list[Batch] = []
        for ack in acks:
            batch = self._sent.pop(ack.id, None)
            if batch is None or batch.settled:
                continue
            queue = self._queues[batch.partition]
            error = from_info(ack.error) if ack.error is not None else None
            self._schedule(queue)
            batch.uncertain = batch.uncertain or (error is not None and error.unknown_outcome)
            if error is None:
                batch.offset, batch.leader_epoch, batch.durability = ack.offset, ack.leader_epoch, ack.durability
                if ack.throttle_ms:
                    self._throttle(queue, pause_s(ack.throttle_ms), now)
                queue.in_flight.remove(batch)
                settled.append(self._settle(queue, batch, None))
                self._end_drain(queue, now)
                continue
            batch.answer = error
            if self._idempotent and self._may_pass(batch, error) and now < batch.deadline:
                queue.draining = True
            else:
                settled.append(self._give_up(queue, batch, error))
            self._end_drain(queue, now)
        return settled

    def _throttle(self, queue: PartitionQueue, pause_s: float, now: float) -> None:
        """Let nothing be sent to the partition for ``pause_s`` seconds, because an ack asked for that, and count the
        pause."""
        self.throttled_acks += 1
        self.throttled_s += max(0.0, now + pause_s - max(queue.not_before, now))
        queue.not_before = max(queue.not_before, now + pause_s)

    def _may_pass(self, batch: Batch, error: TidelogError) -> bool:
        """Return whether the batch may be sent again after this error: the error is retriable, or the batch was
        refused for lack of a valid ticket and no try can have written it. In the latter case it is sent under another
        producer id, which a transaction cannot do."""
        if error.code == NO_TICKET:
            return self._identity is None and not batch.uncertain
        return error.retriable

    def _end_drain(self, queue: PartitionQueue, now: float) -> None:
        """End the draining of a partition once every batch in flight has its answer: put the remaining batches back
        to the front of its queue, to be sent again after a pause. If the oldest one met a sequence gap, or had no
        valid ticket, batches that are certainly not in the log lose their sequences, and the partition needs a fresh
        producer id. Does nothing if the partition does not drain or an answer is missing."""
        if not queue.draining or any(batch.answer is None for batch in queue.in_flight):
            return
        queue.draining = False
        if not queue.in_flight:
            return
        head = queue.in_flight[0].answer
        assert head is not None
        queue.not_before = now + max(self._options.backoff_s, head.pause_s)
        queue.closed.extendleft(reversed(queue.in_flight))
        queue.in_flight.clear()
        lossy = "lossy" in head.detail
        gap = head.code == "OUT_OF_ORDER_SEQUENCE" and (lossy or not head.unknown_outcome)
        if gap and self._identity is None and not any(batch.astray for batch in queue.closed):
            for batch in queue.closed:
                batch.number(0, None)
                batch.uncertain = batch.uncertain and lossy
            queue.spoiled = True
        if head.code == NO_TICKET:
            for batch in queue.closed:
                if not batch.uncertain:
                    batch.number(0, None)
            queue.spoiled = True

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: TidelogError) -> Batch:
        """Fail a batch for good with ``error``, remove it from its queue, and return it. ``error.unknown_outcome`` is
        set if the batch may be in the log all the same. If the batch has a sequence, the partition's producer id is
        spoiled: the leader would refuse later batches because of the gap."""
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
            batch.uncertain = batch.uncertain or batch.answer is None
        elif batch in queue.closed:
            queue.closed.remove(batch)
        else:
            queue.open = None
        if batch.base_sequence is not None:
            queue.spoiled = True
            queue.draining = bool(queue.in_flight)
        error.unknown_outcome = batch.uncertain
        return self._settle(queue, batch, error)

    def _settle(self, queue: PartitionQueue, batch: Batch, error: TidelogError | None) -> Batch:
        """Settle a batch: as failed with ``error``, or as acked if that is None. Its bytes no longer count as
        buffered. Returns the batch."""
        queue.closed_places -= batch.places if batch.count else 0
        batch.settle(error)
        self._last_count = batch.count
        self.buffered -= batch.size
        del self._unsettled[batch]
        if queue.oldest() is None:
            self._active.pop(queue.partition, None)
        return batch

    # --- link, ids, time -------------------------------------------------------------------------------

    def on_link_up(self) -> None:
        """Allow sending on a new link. The batches that the last link left unanswered are sent again, in order."""
        self._up = True
        self._schedule_all()

    def on_link_down(self, now: float) -> list[Batch]:
        """Stop sending until the next link. Batches in flight that have no answer may be in the log. An idempotent
        producer queues all batches in flight to be sent again. Without idempotence they fail with ``Unreachable`` and
        unknown outcome, and are returned."""
        self._up = False
        self._sent.clear()
        settled: list[Batch] = []
        for queue in list(self._active.values()):
            queue.draining = False
            for batch in queue.in_flight:
                batch.astray = batch.astray or batch.answer is None
                batch.uncertain = batch.uncertain or batch.astray
            if self._idempotent:
                queue.closed.extendleft(reversed(queue.in_flight))
                queue.in_flight.clear()
            for batch in list(queue.in_flight):
                error = Unreachable("the connection broke before the acknowledgement came")
                settled.append(self._give_up(queue, batch, error))
        return settled

    def _set_window(self, window: int) -> None:
        """Set the number of batches that may be in flight per partition to ``max_in_flight`` of the options; for an
        idempotent producer at most ``window``, or ``PRODUCER_WINDOW`` if the gateway announced none (0)."""
        most = self._options.max_in_flight
        self._max_in_flight = min(most, window or PRODUCER_WINDOW) if self._idempotent else most
        self._most_bytes = min(self._batch_bytes * max(1, self._max_in_flight // 2), self._max_batch_bytes)

    def on_producer_id(self, producer_id: int, window: int = 0) -> list[int]:
        """Use a fresh producer id for partitions that need one, and allow at most ``window`` batches of a partition
        in flight (0: the default). Returns the ids under which no batch will be sent any more."""
        assert producer_id > 0
        self._set_window(window)
        self._producer_id = producer_id
        self.wants_producer_id = False
        self._schedule_all()
        used = {queue.producer_id for queue in self._queues}
        gone = sorted(self.producer_ids - used)
        self.producer_ids = (self.producer_ids & used) | {producer_id}
        return gone

    def on_tick(self, now: float) -> list[Batch]:
        """Fail the batches whose delivery timeout is over, and return them."""
        settled: list[Batch] = []
        while self._unsettled and now >= (batch := next(iter(self._unsettled))).deadline:
            queue = self._queues[batch.partition]
            settled.append(self._give_up(queue, batch, self._timed_out(batch)))
            self._end_drain(queue, now)
            self._schedule(queue)
        return settled

    def _timed_out(self, batch: Batch) -> TidelogError:
        why = f"; last answer: {batch.answer}" if batch.answer is not None else ""
        where = "no connection to a gateway" if not self._up else "no acknowledgement"
        return TimedOut(f"{where} within delivery_timeout_s {self._options.delivery_timeout_s:g}{why}")

    def fail_all(self, error: TidelogError) -> list[Batch]:
        """Fail every unsettled batch with a copy of ``error``, and return these batches. Called when the producer
        ends or its transaction has failed."""
        settled: list[Batch] = []
        for queue in list(self._active.values()):
            while (batch := queue.oldest()) is not None:
                failure = BrokerError(error.message, code=error.code)
                settled.append(self._give_up(queue, batch, failure))
        return settled

    def fail_conditional(self, error: TidelogError) -> list[Batch]:
        """Fail every unsettled batch with an expected offset with a copy of ``error``, and return these batches.
        Called with no link, before one is used whose gateway may ignore the expected offset."""
        batches = [batch for batch in self._unsettled if batch.expected_offset >= 0]
        return [
            self._give_up(self._queues[batch.partition], batch, BrokerError(error.message, code=error.code))
            for batch in batches
        ]

    def deadline(self) -> float | None:
        """Return the time at which ``on_tick`` and ``take_message`` are to be called next (0.0: at once); None if
        only an event can change something."""
        while self._timers and self._queues[self._timers[0][1]].visit_at != self._timers[0][0]:
            heapq.heappop(self._timers)
        times = [next(iter(self._unsettled)).deadline] if self._unsettled else []
        if self._up and self._due and not self.is_blocked:
            times.append(0.0)
        if self._up and self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)
