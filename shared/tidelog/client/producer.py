"""A producer, as an application sees it. Callers add records to the core, and one task sends the batches that the
core closes."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.batch.format import Fields, RecordHeaders
from tidelog.client.connection import GatewayConnection
from tidelog.client.core.batch import RECORD_OVERHEAD, Batch, TransactionIdentity, record_size
from tidelog.client.core.partitioner import Partitioner
from tidelog.client.core.producer import ProducerCore
from tidelog.client.loop import Loop, WallClock, Work
from tidelog.client.options import ProducerOptions
from tidelog.errors import BrokerError, Closed, ConfigError, TidelogError
from tidelog.types import Headers
from tidelog.wire.capabilities import CONDITIONAL_APPEND, refuse_without
from tidelog.wire.messages import (
    InitProducer,
    Message,
    Metadata,
    MetadataAnswer,
    ProduceAck,
    ProducerId,
    TopicInfo,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from tidelog.tracing import Tracing

CHECKPOINT_EVERY = 256
"""Number of records after which ``submit`` lets other tasks run."""
CLOSED = ("TOPIC_READ_ONLY", "TOPIC_PAUSED")
"""Error codes of a partition that takes no records at present."""
METADATA_PAUSE_S = 5.0
"""Pause between two requests for the metadata while some partition takes no records, in seconds."""
REMEMBERED_FAILURES = 1000
"""Most failed batches that a producer keeps until its end. Of older ones it keeps only the number of records and the
first error. A batch is dropped once the failure of all its records was reported."""


class Ack(NamedTuple):
    """The place of an acknowledged record in the log. ``offset`` is -1 if it is not known, which happens for a retry
    so late that the leader only knows that it has the record. ``leader_epoch`` is that of the leader that appended
    it. With ``acks="none"`` the record may still be lost."""

    partition: int
    offset: int
    leader_epoch: int
    durability: str
    """The durability that was reached: ``received``, ``leader`` or ``all``, then ``/`` and the topic's flush policy,
    as in ``all/fsync``."""
    timestamp_ms: int
    """The record's timestamp, in milliseconds since 1970."""


class DeliveryFailed(TidelogError):
    """The error that the end of a producer raises if records failed and no caller got their errors from ``Pending``.
    ``failed`` is the number of these records. ``code`` is that of the first failure. ``unknown_outcome`` is true if
    any of these records may be in the log."""

    def __init__(self, failed: int, first: TidelogError, unknown_outcome: bool) -> None:
        super().__init__(
            f"{failed} records were not acknowledged; the first: {first.message}",
            code=first.code,
            unknown_outcome=unknown_outcome,
            failed=failed,
        )
        self.failed = failed


class Pending:
    """A record that a producer has accepted, with its acknowledgement or its failure once that is known. Returned by
    ``Producer.submit``."""

    __slots__ = ("_batch", "_index", "_is_reported", "_loop", "_timestamp_ms")

    def __init__(self, batch: Batch, index: int, timestamp_ms: int, loop: Loop) -> None:
        self._loop = loop
        self._batch = batch
        self._index = index
        self._timestamp_ms = timestamp_ms
        self._is_reported = False

    @property
    def partition(self) -> int:
        """The partition that the record goes to."""
        return self._batch.partition

    @property
    def is_settled(self) -> bool:
        """Whether the record is acknowledged or has failed, so that ``result`` does not raise ``RuntimeError``."""
        return self._batch.settled

    async def wait(self) -> Ack:
        """Wait until the record is acknowledged or has failed, and return the acknowledgement. Raises what ``result``
        raises."""
        batch = self._batch
        if not batch.settled:
            if batch.waiter is None:
                batch.waiter = self._loop.event()
            await batch.waiter.wait()
        return self.result()

    def result(self) -> Ack:
        """Return the acknowledgement, without waiting. If the record failed, raises ``BrokerError`` with the code of
        the failure, and counts the failure as reported; ``unknown_outcome`` is true if the record may be in the log
        all the same. Raises ``RuntimeError`` if the outcome is not known yet."""
        batch = self._batch
        if not batch.settled:
            raise RuntimeError("not settled yet: await wait()")
        error = batch.error
        if error is not None:
            batch.reported += not self._is_reported
            self._is_reported = True
            raise BrokerError(
                error.message, code=error.code, unknown_outcome=error.unknown_outcome, **error.detail
            ) from error
        offset = batch.offset + self._index if batch.offset >= 0 else -1
        return Ack(batch.partition, offset, batch.leader_epoch, batch.durability, self._timestamp_ms)


class Producer:
    """A producer that sends records to one topic, until the end of its ``async with`` block. Made by
    ``Log.producer``. Any number of tasks may use it."""

    def __init__(
        self,
        connection: GatewayConnection,
        topic: TopicInfo,
        options: ProducerOptions,
        wall_ms: WallClock,
        identity: TransactionIdentity | None = None,
    ) -> None:
        self.topic = topic.name
        self.options = options
        self._connection = connection
        self._loop = connection.loop
        self._wall_ms = wall_ms
        self._number, next_id = connection.add_producer(self)
        limit = int(topic.config.get("max_batch_bytes", 1 << 20))
        self._core = ProducerCore(
            *(topic.topic_id, len(topic.partitions), options, next_id, limit, identity), connection.window
        )
        self._identity = identity
        self._partitions = len(topic.partitions)
        self._partitioner = Partitioner(self._partitions, start=wall_ms())
        self._partitioner.close(_closed_of(topic))
        self._asking_metadata = False
        self._ask_metadata_at = self._loop.now() + METADATA_PAUSE_S
        """Loop time at which the metadata are next requested, if some partitions take no records then."""
        self._wake = self._loop.event()
        self._sleeps_until = math.inf
        """When the sending task wakes up by itself (the loop's time); a batch with an earlier deadline wakes it."""
        self._room = self._loop.event()
        self._quiet = self._loop.event()
        self._closed = False
        self._asking = False
        self._ask_after = -math.inf
        self._count = 0
        self._failed: list[Batch] = []
        self._forgotten = 0
        self._first_error: TidelogError | None = None
        self._forgot_unknown = False
        """Whether the outcome of a record that was forgotten is unknown."""

    # --- for applications ----------------------------------------------------------------------------------

    async def send(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expected_offset: int | None = None,
    ) -> Ack:
        """Send a record, wait until it is acknowledged, and return the acknowledgement. Raises ``BrokerError`` if the
        record failed (see ``Pending.result``), and what ``submit`` raises.

        With ``expected_offset`` the record is appended at that offset or not at all. If several writers expect the
        same offset one wins, and the others are refused with ``UNEXPECTED_OFFSET``; ``detail["end_offset"]`` is the
        log's end. A partition or a key must be given.
        """
        pending = await self.submit(
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            expected_offset=expected_offset,
        )
        return await pending.wait()

    async def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expected_offset: int | None = None,
    ) -> Pending:
        """Put a record into the open batch of its partition and return its ``Pending`` at once, without waiting for
        the acknowledgement. Waits only while ``buffer_bytes`` are unacknowledged, and every 256 records to let other
        tasks run. Raises ``BATCH_TOO_LARGE`` if no batch can hold the record, ``Closed`` if the producer has ended,
        ``TypeError`` for a key, value or header that is not bytes, and ``ValueError`` for a partition, timestamp or
        expected offset that is impossible."""
        core = self._core
        if self._closed or core.buffered >= self.options.buffer_bytes:
            await self._wait_room()
        self._count += 1
        if self._count % CHECKPOINT_EVERY == 0:
            await self._loop.checkpoint()
        if timestamp_ms is None:
            timestamp_ms = self._wall_ms()
        elif timestamp_ms < 0:
            raise ValueError("timestamp_ms is milliseconds since 1970, not negative")
        if value.__class__ is not bytes:
            value = _bytes(value)
        if expected_offset is not None:
            self._check_condition(expected_offset, key, partition)
        elif key is None and partition is None and not headers and value is not None:  # the common case
            size = RECORD_OVERHEAD + len(value)
            record: Fields = (value, None, timestamp_ms, ())
            batch = core.append(self._partitioner.sticky, record, size) or self._add(record, size, None)
            return Pending(batch, (batch.count or len(batch.records)) - 1, timestamp_ms, self._loop)
        key, pairs = _bytes(key), _pairs(headers) if headers else ()
        size = record_size(value, key, pairs)
        batch = self._add((value, key, timestamp_ms, pairs), size, partition, expected_offset)
        return Pending(batch, (batch.count or len(batch.records)) - 1, timestamp_ms, self._loop)

    async def flush(self) -> None:
        """Send all records without lingering, and wait until every record is acknowledged or has failed, also those
        that other tasks submit meanwhile. Does not raise failures: ``Pending`` and the end of the producer do."""
        while not self._core.is_idle:
            self._core.close_open_batches()
            self._wake.set()
            await self._quiet.wait()
        await self._loop.checkpoint()

    @property
    def throttled_acks(self) -> int:
        """Number of acknowledgements that asked this producer to pause because a partition's leader is slow."""
        return self._core.throttled_acks

    @property
    def throttled_s(self) -> float:
        """Total time in seconds that this producer was asked to pause, summed over all partitions."""
        return self._core.throttled_s

    # --- the work --------------------------------------------------------------------------------------------

    def _check_condition(self, expected_offset: int, key: bytes | None, partition: int | None) -> None:
        """Raise ``ValueError`` if a record with this ``expected_offset`` cannot be sent: the offset is negative, no
        partition can be derived, or the producer gets no acks. Raises ``UNSUPPORTED`` if the gateway may ignore the
        offset."""
        if expected_offset < 0:
            raise ValueError(f"expected_offset is not negative: {expected_offset}")
        if key is None and partition is None and self._partitions > 1:
            raise ValueError("expected_offset is of one partition: name it, or a key")
        if self.options.acks == "none":
            raise ValueError("with acks none nobody would know whether expected_offset was right")
        refusal = self._refuse_condition()
        if refusal is not None:
            raise refusal

    def _refuse_condition(self) -> TidelogError | None:
        """Return ``UNSUPPORTED`` if a link is open to a gateway that may ignore ``expected_offset``; else None."""
        link = self._connection.link
        return None if link is None else refuse_without(CONDITIONAL_APPEND, "expected_offset", link.peer)

    def _add(self, record: Fields, size: int, partition: int | None, expected_offset: int | None = None) -> Batch:
        """Add a record to the open batch of its partition and return that batch. If no batch is open or the record
        does not fit, a new batch is opened, which may be sent at once; a record without key and partition first moves
        on to the next partition and tries the open batch there. A record with ``expected_offset`` always gets a new
        batch to itself. Raises ``ValueError`` for a partition that the topic does not have, and ``BATCH_TOO_LARGE``
        if no batch can hold the record."""
        core, partitioner = self._core, self._partitioner
        sticky = partition is None and record[1] is None
        if partition is None:
            partition = partitioner.sticky if record[1] is None else partitioner.of_key(record[1])
        elif not 0 <= partition < self._partitions:
            raise ValueError(f"{self.topic} has partitions 0 to {self._partitions - 1}, not {partition}")
        if expected_offset is not None:
            return self._open(partition, record, size, expected_offset)
        batch = core.append(partition, record, size)
        if batch is None and sticky:
            partitioner.move_on()
            partition = partitioner.sticky
            batch = core.append(partition, record, size)
        return batch or self._open(partition, record, size)

    def _open(self, partition: int, record: Fields, size: int, expected_offset: int = -1) -> Batch:
        """Open a batch with this record in a partition and return it. If the record is the only one that is not
        acknowledged it is sent at once, else the sending task is woken."""
        batch = self._core.open(partition, record, size, self._loop.now(), expected_offset)
        self._quiet = self._loop.event() if self._quiet.is_set() else self._quiet
        if not self._send_at_once() or batch.deadline < self._sleeps_until:
            self._wake.set()
        return batch

    def _send_at_once(self) -> bool:
        """Send a record that is alone, without the sending task, if that is possible. Returns whether it was sent."""
        link = self._connection.link
        if link is None or not self._core.has_single_record or not link.has_space:
            return False
        message = self._core.take_message(self._loop.now())
        if message is not None:
            link.send_now(message)
        return message is not None

    async def _wait_room(self) -> None:
        """Wait until fewer than ``buffer_bytes`` are unacknowledged. Raises ``Closed`` if the producer has ended."""
        while not self._closed and self._core.buffered >= self.options.buffer_bytes:
            if self._room.is_set():
                self._room = self._loop.event()
            await self._room.wait()
        if self._closed:
            raise Closed(f"the producer of {self.topic} is closed")

    async def _run(self) -> None:
        """Send the batches that are due, and request producer ids and metadata when they are needed. Never returns:
        it is the producer's task, which is cancelled at the end."""
        core = self._core
        while True:
            self._wake = self._loop.event()
            now = self._loop.now()
            self._on_settled(core.on_tick(now))
            link = self._connection.link
            message = core.take_message(now) if link is not None else None
            if message is not None:
                assert link is not None
                try:
                    await link.send(message)
                except TidelogError as error:
                    self._connection.error = error  # the connection sees the loss, too, and calls ``on_link_down``
                continue
            deadline = core.deadline()
            if core.wants_producer_id and link is not None and not self._asking:
                if now >= self._ask_after:
                    self._asking = True
                    link.start_call(InitProducer(), self.options.request_timeout_s, self._on_producer_id)
                    continue
                deadline = self._ask_after if deadline is None else min(deadline, self._ask_after)
            if self._partitioner.closed and link is not None and not self._asking_metadata:
                if now >= self._ask_metadata_at:
                    self._asking_metadata = True
                    link.start_call(Metadata((self.topic,)), self.options.request_timeout_s, self._on_metadata)
                    continue
                deadline = self._ask_metadata_at if deadline is None else min(deadline, self._ask_metadata_at)
            if core.is_blocked:
                self._connection.window.wait(self._wake.set)
            self._sleeps_until = math.inf if deadline is None else deadline
            await self._loop.wait(self._wake, self._sleeps_until)

    def _on_metadata(self, answer: Message | TidelogError) -> None:
        """Replace the set of partitions that accept no records by that of this metadata answer, and let the metadata
        be requested again after ``METADATA_PAUSE_S``. An error leaves the set as it is."""
        self._asking_metadata, self._ask_metadata_at = False, self._loop.now() + METADATA_PAUSE_S
        self._wake.set()
        if isinstance(answer, MetadataAnswer) and answer.topics:
            self._partitioner.close(p for p in _closed_of(answer.topics[0]) if p < self._partitions)

    def _on_producer_id(self, answer: Message | TidelogError) -> None:
        """Give the core a fresh producer id, present its ticket to the gateway, and release the ids that are no
        longer used. After an error the request is repeated after a back-off; an error that is not retriable fails
        every unsettled batch."""
        self._asking = False
        self._wake.set()
        if isinstance(answer, ProducerId):
            if self._closed and self._core.is_idle:
                return  # the producer has ended
            for id in self._core.on_producer_id(answer.producer_id, answer.window):
                self._connection.release_producer(id, 0)
            self._connection.use_producer(answer.producer_id, 0, answer.ticket)
        elif isinstance(answer, TidelogError):
            self._ask_after = self._loop.now() + self.options.backoff_s
            if not answer.retriable:
                self._on_settled(self._core.fail_all(answer))

    def on_acks(self, acks: Sequence[ProduceAck]) -> None:
        """Settle the batches that these acks name, wake their waiters, and let the sending task go on if it has
        something to do. Called by the connection."""
        self._on_settled(self._core.on_produced(acks, self._loop.now()))
        if not self._core.is_idle or self._partitioner.closed:
            self._wake.set()

    def on_link_up(self) -> None:
        """Let the core send on the new link, beginning with the batches that the last link left unacknowledged, and
        wake the sending task. Batches with an expected offset fail if the gateway may ignore it. Called by the
        connection."""
        refusal = self._refuse_condition()
        if refusal is not None:
            self._on_settled(self._core.fail_conditional(refusal))
        self._core.on_link_up()
        self._wake.set()

    def on_link_down(self) -> None:
        """Record that the batches in flight get no answer on the link that was lost. They are sent again on the next
        link; without idempotence they fail with unknown outcome. Called by the connection."""
        self._on_settled(self._core.on_link_down(self._loop.now()))
        self._wake.set()

    def _on_settled(self, settled: list[Batch]) -> None:
        """Wake the tasks that wait for these settled batches, for space in the buffer, or for ``flush``. Failed
        batches are remembered for the end of the producer, and a partition that refused records as read-only or
        paused is avoided for records without a key. In a transaction one failure makes every unsettled batch fail."""
        if not settled:
            return
        error = next((batch.error for batch in settled if batch.error is not None), None)
        if error is not None and self._identity is not None:
            settled = settled + self._core.fail_all(error)
        for batch in settled:
            if batch.waiter is not None:
                batch.waiter.set()
            if batch.error is not None:
                self._remember(batch)
                if batch.error.code in CLOSED:
                    self._partitioner.close({*self._partitioner.closed, batch.partition})
        if self._core.buffered < self.options.buffer_bytes:
            self._room.set()
        if self._core.is_idle:
            self._quiet.set()

    def _remember(self, batch: Batch) -> None:
        """Keep a failed batch for the end of the producer, and drop batches whose failures were all reported. Beyond
        ``REMEMBERED_FAILURES`` only the number of records and the first error of the oldest batch are kept."""
        self._failed = [failed for failed in self._failed if failed.reported < failed.count]
        self._failed.append(batch)
        if len(self._failed) > REMEMBERED_FAILURES:
            oldest = self._failed.pop(0)
            self._forgotten += oldest.count - oldest.reported
            self._forgot_unknown |= oldest.error is not None and oldest.error.unknown_outcome
            self._first_error = self._first_error or oldest.error

    def failure(self) -> DeliveryFailed | None:
        """Return a ``DeliveryFailed`` error for all failures that no ``Pending`` has reported to a caller; None if
        there are none."""
        unreported = [batch for batch in self._failed if batch.reported < batch.count]
        count = self._forgotten + sum(batch.count - batch.reported for batch in unreported)
        first = self._first_error or (unreported[0].error if unreported else None)
        if first is None:
            return None
        errors = [batch.error for batch in unreported]
        unknown = self._forgot_unknown or any(error is not None and error.unknown_outcome for error in errors)
        return DeliveryFailed(count, first, unknown)

    def begin(self, start: Callable[[Work], None]) -> None:
        """Start the sending task with ``start``, and allow sending if a link is open. ``open_producer`` and
        transactions call this once; applications do not."""
        start(self._run)
        if self._connection.link is not None:
            self.on_link_up()

    def abandon(self) -> None:
        """End the producer: stop receiving acks, fail every unsettled batch with ``Closed``, wake the tasks that wait
        to submit, and release the producer ids."""
        self._closed = True
        self._room.set()
        self._connection.remove_producer(self._number)
        self._on_settled(self._core.fail_all(Closed("the producer was closed before the acknowledgement came")))
        for id in self._core.producer_ids:
            self._connection.release_producer(id, 0)


class TracedProducer(Producer):
    """A producer that makes a tracing span for each record, from ``submit`` until the record is acknowledged or has
    failed."""

    def __init__(self, tracing: Tracing, *how: Any) -> None:
        self._tracing = tracing
        self._spans: dict[Batch, list[tuple[int, Span]]] = {}
        """The spans of the records in each unsettled batch, each with the record's index in the batch."""
        super().__init__(*how)

    async def submit(self, value: bytes | None, *, headers: Headers | None = None, **details: Any) -> Pending:
        """Begin a span, put its context into the record's headers, and submit the record; returns its ``Pending``. If
        ``Producer.submit`` raises, the span ends with the error."""
        span, pairs = self._tracing.begin_send(self.topic, headers or ())
        try:
            pending = await super().submit(value, headers=pairs, **details)
        except BaseException as error:
            self._tracing.end_send(span, error)
            raise
        self._spans.setdefault(pending._batch, []).append((pending._index, span))
        return pending

    def _on_settled(self, settled: list[Batch]) -> None:
        """Wake waiting tasks and remember failures, as ``Producer._on_settled`` does, then end the spans of all
        records in settled batches, with their place or their error."""
        super()._on_settled(settled)
        for batch in [batch for batch in self._spans if batch.settled]:
            for index, span in self._spans.pop(batch):
                self._tracing.end_send(
                    span,
                    batch.error,
                    partition=batch.partition,
                    durability=batch.durability if batch.error is None else None,
                    offset=batch.offset + index if batch.offset >= 0 else -1,
                    leader_epoch=batch.leader_epoch,
                )


def make_producer(
    connection: GatewayConnection,
    topic: TopicInfo,
    options: ProducerOptions,
    wall_ms: WallClock,
    identity: TransactionIdentity | None = None,
) -> Producer:
    """Return a producer for a topic that is not sending yet: a ``TracedProducer`` if the connection was opened with
    ``tracing``, else a ``Producer``. ``identity``: the transaction that its batches belong to; None for none."""
    if connection.tracing is None:
        return Producer(connection, topic, options, wall_ms, identity)
    return TracedProducer(connection.tracing, connection, topic, options, wall_ms, identity)


@asynccontextmanager
async def open_producer(
    connection: GatewayConnection, topic: TopicInfo, options: ProducerOptions, wall_ms: WallClock
) -> AsyncIterator[Producer]:
    """Open a producer and run its sending task during the block. The end of the block waits until every record is
    acknowledged or has failed, then raises ``DeliveryFailed`` for failures that no caller got; if the block raised,
    its exception is raised with that failure as a note. If the block is cancelled, unacknowledged records fail at
    once. Raises ``ConfigError`` if the topic has no partitions."""
    if not topic.partitions:
        raise ConfigError(f"{topic.name} has no partitions")
    failure: Exception | None = None
    producer = make_producer(connection, topic, options, wall_ms)
    try:
        async with connection.loop.tasks() as start:
            producer.begin(start)
            try:
                yield producer
            except Exception as error:
                failure = error
            producer._closed = True
            await producer.flush()
    finally:
        producer.abandon()
    lost = producer.failure()
    if failure is not None:
        if lost is not None:
            failure.add_note(str(lost))
        raise failure
    if lost is not None:
        raise lost


def _closed_of(topic: TopicInfo) -> list[int]:
    """Return the partitions of a topic that take no records at present, because they are read-only or paused; an
    empty list if all take records."""
    return [partition.partition for partition in topic.partitions if partition.read_only or partition.paused]


def _bytes(data: bytes | None) -> bytes | None:
    """Return a key or value as ``bytes``, or None for None. Raises ``TypeError`` if it is no bytes-like object."""
    if data.__class__ is bytes or data is None:
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"keys and values are bytes or None, not {type(data).__name__}")


def _pairs(headers: Headers) -> RecordHeaders:
    """Return headers as a tuple of (name, value). Raises ``TypeError`` unless names are texts and values are
    bytes."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for pair in pairs:
        if tuple(map(type, pair)) != (str, bytes):
            raise TypeError("headers map texts to bytes")
    return tuple((name, value) for name, value in pairs)
