"""What a producer decides: batching, order, retries and sequences, for one topic. Sans-I/O.

Each partition is a *lane*: an open batch, a queue of sealed ones, and those in flight, in that order of age.

- **Batching.** A batch is sealed when it is full. An open batch is due at once while nothing of its lane is in
  flight, else when it has lingered: a lone record pays no linger, a flood fills its batches (Nagle's idea). A full
  batch that could not be sent, since ``max_in_flight`` are before it, stays open and grows: who is behind gets fewer
  messages, and not more bytes, since it takes the places of several then.
- **Idempotence** (KIP-98). A batch gets (producer id, base sequence) when it is first sent and keeps them through
  every retry, on this link or the next. It is encoded once, since the leader calls it a copy only if the bytes are
  the same (rule 1 of the producer in ``docs/protocol.md``). The leader accepts a sequence only
  without a gap. So whatever follows a batch that is not in the log cannot be in the log either, under the same id.
- **Errors.** After an error the lane *drains*: it sends nothing until each batch in flight has its answer. Then what
  remains goes again, in order, with the same sequences. So nothing overtakes, with any number in flight.
- **Window.** Leaders remember the last batches of a producer, as many as the gateway announces. From the oldest batch
  that is not settled on, no more than these are numbered: a batch that may be sent again is always remembered.
- **Giving up** a batch (refused, or its delivery timeout is over) *spoils* the lane's producer id: the gap would
  refuse everything behind it. What is in flight is drained; when the oldest remaining batch comes back
  ``OUT_OF_ORDER_SEQUENCE`` and everything before it is settled, neither it nor what follows is in the log: those
  are numbered anew under a fresh producer id. Not where a try was lost with its link: the next gateway may know
  only a leader that was replaced, and its gap proves nothing. Such batches end with their delivery timeout. In a
  topic that may lose records (``lossy``) they are numbered anew too, but a batch whose fate was in doubt stays so: it
  may have been in a log that is lost, and may come back with it.
- **Throttling.** An ack may ask for a pause (``throttle_ms``) because the partition's leader is slow. The lane sends
  nothing until the pause is over.
- **Tickets.** A batch that is refused since its producer id was not presented with a valid ticket was not written
  by that try. What no try can have written is numbered anew under a fresh producer id; the rest is given up.
- **A conditional append** (``expected_offset``) is a batch of one record. Refused with ``UNEXPECTED_OFFSET`` it is
  given up like any other; a retry of one that was written is a copy, and never refused for what it wrote itself.
- **In a transaction** producer id and epoch are the transaction's, and nothing is numbered anew: who is given up is
  given up with all of it.
- **Without idempotence** nothing is tried twice here: it might write twice or change the order.

Invariants: a lane's batches settle exactly once; at most ``max_in_flight`` of a lane are in flight, and of an
idempotent producer at most the window that the gateway announced, which is what leaders remember; sequences of
one id in one lane have no gap and no repeat except copies of the same batch; ``buffered`` is the bytes not settled.

A producer may have thousands of lanes with something in them, so only what happens to all looks at all: a lane is
looked at when something happened to it (``_due``), or its time has come (``_timers``).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

from tidelog.batch.format import MAX_RECORDS, Fields
from tidelog.client.core.batch import BATCH_OVERHEAD, Batch, TransactionIdentity
from tidelog.client.core.partition_queue import PartitionQueue
from tidelog.client.options import ACKS, ProducerOptions
from tidelog.errors import BrokerError, TidelogError, TimedOut, Unreachable, from_info, pause_s, refuse
from tidelog.types import PRODUCER_WINDOW, Buffer
from tidelog.wire.messages import Produce, ProduceAck, ProducePart

MESSAGE_BYTES = 1 << 20
"""A produce message is closed when it has this much,"""
MESSAGE_PARTS = 128
"""or so many batches: its header stays small."""
MAX_SEQUENCE = 2**32 - 1
NO_TICKET = "INVALID_TICKET"
"""What a batch is refused with whose producer id was not presented with a valid ticket."""
SPOILED_TIMEOUT_S = 1.0
"""How long a gateway may try what is probably behind a gap."""


class ProducerCore:
    """All lanes of one producer. ``next_id`` gives the numbers by which acks name batches, unique on the link.

    Methods that return batches return those that were settled by the call, in order.
    """

    def __init__(
        self,
        topic_id: str,
        partitions: int,
        options: ProducerOptions,
        next_id: Callable[[], int],
        max_batch_bytes: int = 1 << 20,
        identity: TransactionIdentity | None = None,
    ) -> None:
        self.topic_id = topic_id
        self.buffered = 0
        """Bytes of records that are not settled."""
        self.wants_producer_id = False
        """The shell should ask for a producer id and bring it to ``on_producer_id``."""
        self.throttled_acks = 0
        """Acks that asked for a pause because the partition's leader is slow."""
        self.throttled_s = 0.0
        """Sum of these pauses over all partitions, in seconds. Pauses of one partition that overlap count once."""
        self._options = options
        self._acks = int(ACKS[options.acks])
        self._idempotent = options.is_idempotent
        self._next_id = next_id
        self._max_batch_bytes = max_batch_bytes
        self._batch_bytes = min(options.batch_bytes, max_batch_bytes)
        self._identity = identity
        self._set_window(0)
        self._lanes = [PartitionQueue(partition, identity) for partition in range(partitions)]
        self._active: dict[int, PartitionQueue] = {}  # lanes with anything unsettled, oldest first
        self._due: deque[PartitionQueue] = deque()  # lanes that ``take`` is to look at
        self._timers: list[tuple[float, int]] = []  # times at which partitions are due; only ``look_at`` is true
        self._unsettled: OrderedDict[Batch, None] = OrderedDict()  # by delivery timeout: all have the same
        self._sent: dict[int, Batch] = {}
        self._producer_id = 0
        self.producer_ids: set[int] = set()
        """Those that were given for this producer, and that batches may be sent under."""
        self._up = False

    @property
    def is_idle(self) -> bool:
        """Everything is settled."""
        return not self._active

    # --- records come in -------------------------------------------------------------------------------

    def append(self, partition: int, record: Fields, size: int) -> Batch | None:
        """Add a record of ``record_size`` to its partition's open batch; None when there is none with room."""
        lane = self._lanes[partition]
        batch = lane.open
        if batch is None or len(batch.records) == MAX_RECORDS:
            return None
        total = batch.size + size
        if total > self._batch_bytes:
            if total > self._most_bytes or lane.sealed_places < self._max_in_flight:
                return None
            batch.places = -(-total // self._batch_bytes)
        batch.records.append(record)
        batch.size = total
        self.buffered += size
        return batch

    def open(self, partition: int, record: Fields, size: int, now: float, expected_offset: int = -1) -> Batch:
        """Seal the partition's open batch and begin another with this record; with ``expected_offset`` it stays alone
        in it. Raises ``BATCH_TOO_LARGE`` for a record that no batch of the topic can hold."""
        if BATCH_OVERHEAD + size > self._max_batch_bytes:
            raise refuse(
                "BATCH_TOO_LARGE",
                f"a record of {size} bytes does not fit into a batch of max_batch_bytes {self._max_batch_bytes}",
            )
        lane = self._lanes[partition]
        lane.seal()
        batch = lane.open = Batch(partition, now, now + self._options.delivery_timeout_s, expected_offset)
        batch.records.append(record)
        batch.size += size
        self.buffered += batch.size
        self._active[partition] = lane
        self._unsettled[batch] = None
        self._look(lane)
        if expected_offset >= 0:
            lane.seal()
        return batch

    def seal_all(self) -> None:
        """Nothing lingers any more: every open batch is due (flush)."""
        for lane in self._active.values():
            lane.seal()
        self._look_at_all()

    # --- batches go out --------------------------------------------------------------------------------

    def take(self, now: float) -> Produce | None:
        """The next message to send, if anything is due and may be sent. Call until it returns None."""
        if not self._up:
            return None
        parts: list[ProducePart] = []
        payload: list[Buffer] = []
        size = 0
        while self._timers and self._timers[0][0] <= now:
            self._look_in_time(*heapq.heappop(self._timers))
        while self._due and self._has_room(size, parts):
            lane = self._due[0]
            batch = self._next_of(lane, now)
            if batch is None:
                self._due.popleft()
                lane.is_due = False
                self._wait(lane, now)
                continue
            data = batch.data(self._options.compression, lane.producer_id, self._identity)
            parts.append(self._part(lane, batch, len(data), now))
            payload.append(data)
            size += len(data)
        return Produce(tuple(parts), payload) if parts else None

    @staticmethod
    def _has_room(size: int, parts: list[ProducePart]) -> bool:
        return size < MESSAGE_BYTES and len(parts) < MESSAGE_PARTS

    def _is_full(self, lane: PartitionQueue) -> bool:
        """What is on its way leaves the next batch no place. The window of an idempotent producer begins with the
        oldest batch that is not settled, also where others behind it are settled."""
        if not lane.in_flight:
            return False
        following = lane.queue[0] if lane.queue else lane.open
        is_new = following is None or following.base_sequence is None
        if self._idempotent and is_new and lane.numbered - lane.in_flight[0].ordinal >= self._max_in_flight:
            return True
        places = sum(batch.places for batch in lane.in_flight) + (1 if following is None else following.places)
        return places > self._max_in_flight

    def _due_at(self, lane: PartitionQueue, batch: Batch) -> float:
        """When its open batch is to be sent: at once when it is alone or full."""
        if not lane.in_flight or batch.size > self._batch_bytes:
            return batch.opened_at
        return batch.opened_at + self._options.linger_s

    def _next_of(self, lane: PartitionQueue, now: float) -> Batch | None:
        """Take the lane's next batch if it may be sent, and number it."""
        if lane.draining or now < lane.not_before or self._is_full(lane):
            return None
        if not lane.queue:
            if lane.open is None or now < self._due_at(lane, lane.open):
                return None
            lane.seal()
        batch = lane.queue[0]
        if self._idempotent and batch.base_sequence is None:
            if not self._has_id(lane, batch.count):
                return None
            batch.number(lane.producer_id, lane.next_sequence)
            lane.next_sequence += batch.count
            batch.ordinal, lane.numbered = lane.numbered, lane.numbered + 1
        return lane.queue.popleft()

    def _look(self, lane: PartitionQueue) -> None:
        """Something happened to the lane: the next ``take`` looks at it."""
        lane.look_at = None
        if not lane.is_due:
            lane.is_due = True
            self._due.append(lane)

    def _look_at_all(self) -> None:
        for lane in self._active.values():
            self._look(lane)

    def _look_in_time(self, at: float, partition: int) -> None:
        if self._lanes[partition].look_at == at:
            self._look(self._lanes[partition])

    def _wait(self, lane: PartitionQueue, now: float) -> None:
        """Nothing of the lane may be sent now. What time alone changes is looked at again in time."""
        if lane.draining or self._is_full(lane):
            return
        at = lane.not_before if lane.queue or lane.open is not None else now
        if not lane.queue and lane.open is not None:
            at = max(at, self._due_at(lane, lane.open))
        if at > now:
            lane.look_at = at
            heapq.heappush(self._timers, (at, lane.partition))

    def _has_id(self, lane: PartitionQueue, count: int) -> bool:
        """Give the lane a producer id if it needs one and may change it now."""
        if lane.next_sequence + count > MAX_SEQUENCE:
            lane.spoiled = True
        if lane.producer_id and not lane.spoiled:
            return True
        if lane.in_flight or self._identity is not None:
            return False
        if self._producer_id in (0, lane.producer_id):
            self.wants_producer_id = True
            return False
        lane.producer_id = self._producer_id
        lane.next_sequence = 0
        lane.spoiled = False
        return True

    def _part(self, lane: PartitionQueue, batch: Batch, size: int, now: float) -> ProducePart:
        number = self._next_id()
        self._sent[number] = batch
        batch.answer = None
        lane.in_flight.append(batch)
        limit = SPOILED_TIMEOUT_S if lane.spoiled else self._options.request_timeout_s
        timeout_ms = max(1, round(1000 * min(limit, batch.deadline - now)))
        return ProducePart(
            number,
            self.topic_id,
            lane.partition,
            self._acks,
            timeout_ms,
            size,
            expected_offset=batch.expected_offset,
            transaction="" if self._identity is None else self._identity.app,
        )

    # --- answers come back -----------------------------------------------------------------------------

    def on_produced(self, acks: Sequence[ProduceAck], now: float) -> list[Batch]:
        """Acks arrived; those for batches that are settled already, or unknown, are ignored."""
        settled: list[Batch] = []
        for ack in acks:
            batch = self._sent.pop(ack.id, None)
            if batch is None or batch.settled:
                continue
            lane = self._lanes[batch.partition]
            error = from_info(ack.error) if ack.error is not None else None
            self._look(lane)
            batch.uncertain = batch.uncertain or (error is not None and error.unknown_outcome)
            if error is None:
                batch.offset, batch.leader_epoch, batch.durability = ack.offset, ack.leader_epoch, ack.durability
                if ack.throttle_ms:
                    self._throttle(lane, pause_s(ack.throttle_ms), now)
                lane.in_flight.remove(batch)
                settled.append(self._settle(lane, batch, None))
                self._end_drain(lane, now)
                continue
            batch.answer = error
            if self._idempotent and self._may_pass(batch, error) and now < batch.deadline:
                lane.draining = True
            else:
                settled.append(self._give_up(lane, batch, error))
            self._end_drain(lane, now)
        return settled

    def _throttle(self, lane: PartitionQueue, pause_s: float, now: float) -> None:
        """The gateway asks to send nothing for the partition for so long."""
        self.throttled_acks += 1
        self.throttled_s += max(0.0, now + pause_s - max(lane.not_before, now))
        lane.not_before = max(lane.not_before, now + pause_s)

    def _may_pass(self, batch: Batch, error: TidelogError) -> bool:
        """Whether it is worth sending the batch again. A batch that was not written for lack of a ticket can be sent
        under another producer id, unless an earlier try may have been written."""
        if error.code == NO_TICKET:
            return self._identity is None and not batch.uncertain
        return error.retriable

    def _end_drain(self, lane: PartitionQueue, now: float) -> None:
        """Every batch in flight has its answer: put what remains back to the front of the queue."""
        if not lane.draining or any(batch.answer is None for batch in lane.in_flight):
            return
        lane.draining = False
        if not lane.in_flight:
            return
        head = lane.in_flight[0].answer
        assert head is not None
        lane.not_before = now + max(self._options.backoff_s, head.pause_s)
        lane.queue.extendleft(reversed(lane.in_flight))
        lane.in_flight.clear()
        lossy = "lossy" in head.detail
        gap = head.code == "OUT_OF_ORDER_SEQUENCE" and (lossy or not head.unknown_outcome)
        if gap and self._identity is None and not any(batch.astray for batch in lane.queue):
            for batch in lane.queue:
                batch.number(0, None)
                batch.uncertain = batch.uncertain and lossy
            lane.spoiled = True
        if head.code == NO_TICKET:
            for batch in lane.queue:
                if not batch.uncertain:
                    batch.number(0, None)
            lane.spoiled = True

    def _give_up(self, lane: PartitionQueue, batch: Batch, error: TidelogError) -> Batch:
        """The batch has failed for good; ``error`` says whether it may be in the log all the same."""
        if batch in lane.in_flight:
            lane.in_flight.remove(batch)
            batch.uncertain = batch.uncertain or batch.answer is None
        elif batch in lane.queue:
            lane.queue.remove(batch)
        else:
            lane.open = None
        if batch.base_sequence is not None:
            lane.spoiled = True
            lane.draining = bool(lane.in_flight)
        error.unknown_outcome = batch.uncertain
        return self._settle(lane, batch, error)

    def _settle(self, lane: PartitionQueue, batch: Batch, error: TidelogError | None) -> Batch:
        lane.sealed_places -= batch.places if batch.count else 0
        batch.settle(error)
        self.buffered -= batch.size
        del self._unsettled[batch]
        if lane.oldest() is None:
            self._active.pop(lane.partition, None)
        return batch

    # --- link, ids, time -------------------------------------------------------------------------------

    def on_link_up(self) -> None:
        """There is a link to a gateway: what was unacknowledged on the last one goes again, in order."""
        self._up = True
        self._look_at_all()

    def on_link_down(self, now: float) -> list[Batch]:
        """The link is gone and its answers with it. Batches that are not idempotent fail: outcome unknown."""
        self._up = False
        self._sent.clear()
        settled: list[Batch] = []
        for lane in list(self._active.values()):
            lane.draining = False
            for batch in lane.in_flight:
                batch.astray = batch.astray or batch.answer is None
                batch.uncertain = batch.uncertain or batch.astray
            if self._idempotent:
                lane.queue.extendleft(reversed(lane.in_flight))
                lane.in_flight.clear()
            for batch in list(lane.in_flight):
                error = Unreachable("the connection broke before the acknowledgement came")
                settled.append(self._give_up(lane, batch, error))
        return settled

    def _set_window(self, window: int) -> None:
        """Keep to the window of an idempotent producer; 0: the gateway did not announce one."""
        most = self._options.max_in_flight
        self._max_in_flight = min(most, window or PRODUCER_WINDOW) if self._idempotent else most
        self._most_bytes = min(self._batch_bytes * max(1, self._max_in_flight // 2), self._max_batch_bytes)

    def on_producer_id(self, producer_id: int, window: int = 0) -> list[int]:
        """A producer id that nobody has used, and how many batches may be in flight under it on one partition.
        Returns the ids that no batch will be sent under any more."""
        assert producer_id > 0
        self._set_window(window)
        self._producer_id = producer_id
        self.wants_producer_id = False
        self._look_at_all()
        used = {lane.producer_id for lane in self._lanes}
        gone = sorted(self.producer_ids - used)
        self.producer_ids = (self.producer_ids & used) | {producer_id}
        return gone

    def on_tick(self, now: float) -> list[Batch]:
        """Give up what is past its delivery timeout."""
        settled: list[Batch] = []
        while self._unsettled and now >= (batch := next(iter(self._unsettled))).deadline:
            lane = self._lanes[batch.partition]
            settled.append(self._give_up(lane, batch, self._timed_out(batch)))
            self._end_drain(lane, now)
            self._look(lane)
        return settled

    def _timed_out(self, batch: Batch) -> TidelogError:
        why = f"; last answer: {batch.answer}" if batch.answer is not None else ""
        where = "no connection to a gateway" if not self._up else "no acknowledgement"
        return TimedOut(f"{where} within delivery_timeout_s {self._options.delivery_timeout_s:g}{why}")

    def fail_all(self, error: TidelogError) -> list[Batch]:
        """The producer ends now: everything unsettled fails."""
        settled: list[Batch] = []
        for lane in list(self._active.values()):
            while (batch := lane.oldest()) is not None:
                told = BrokerError(error.message, code=error.code)
                settled.append(self._give_up(lane, batch, told))
        return settled

    def deadline(self) -> float | None:
        """When ``on_tick`` and ``take`` should be called next; later than the ``now`` of the last calls."""
        while self._timers and self._lanes[self._timers[0][1]].look_at != self._timers[0][0]:
            heapq.heappop(self._timers)
        times = [next(iter(self._unsettled)).deadline] if self._unsettled else []
        if self._up and self._due:
            times.append(0.0)
        if self._up and self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)
