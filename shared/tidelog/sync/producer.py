"""The blocking producer, as ``tidelog.sync`` returns it, and the queue by which it passes records to the background
thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable
from types import TracebackType
from typing import Any, Self

import trio

from tidelog.client import producer as async_producer
from tidelog.client.options import ProducerOptions
from tidelog.client.producer import Ack, DeliveryFailed
from tidelog.errors import BrokerError, TidelogError
from tidelog.sync.portal import Portal
from tidelog.types import Headers

QUEUED_RECORDS = 4096
"""Number of queued records from which on ``submit`` waits until the background thread has accepted all."""


class Pending:
    """A record that was queued for a producer, with its acknowledgement or its failure once that is known. Returned
    by ``submit``."""

    __slots__ = ("_error", "_feed", "_inner")

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._inner: async_producer.Pending | None = None
        self._error: Exception | None = None

    def wait(self) -> Ack:
        """Wait until the record is acknowledged or has failed, and return the acknowledgement. Raises ``BrokerError``
        if the record failed, or the error with which the producer refused it."""
        if self._inner is not None and self._inner.is_settled:
            return self._inner.result()
        return self._feed._portal.run(self._wait)

    async def _wait(self) -> Ack:
        """Wait until the record was submitted and is acknowledged or has failed. Returns the acknowledgement or
        raises the error, which then counts as reported."""
        await self._feed._catch_up()
        if self._error is not None:
            self._feed._refused.pop(self, None)
            raise self._error
        assert self._inner is not None
        return await self._inner.wait()


class Feed(ABC):
    """A queue of records between the caller's threads and the background thread, which takes over many records at a
    time and submits them in order. So not every record costs a change of threads."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._tracing = portal.log.tracing
        self._queue: deque[tuple[Pending, tuple[Any, ...], dict[str, Any], Any]] = deque()
        """The queued records, each with its ``Pending``, its arguments, and the caller's trace context if the client
        traces."""
        self._scheduled = False
        self._pumping = False
        self._refused: dict[Pending, Exception] = {}
        """The records that the producer refused, with the errors, until a caller has waited for them."""
        self._caught_up: trio.Event

    @abstractmethod
    async def _accept(self, *record: Any, **details: Any) -> async_producer.Pending:
        """Submit one record to the asynchronous producer or transaction, in the background thread. Raises the error
        with which the record is refused."""

    def _put(self, *record: Any, **details: Any) -> Pending:
        """Queue a record and return its ``Pending``. Waits until the queue is empty once it has ``QUEUED_RECORDS``
        records."""
        pending = Pending(self)
        context = None if self._tracing is None else self._tracing.now()
        self._queue.append((pending, record, {name: x for name, x in details.items() if x is not None}, context))
        if len(self._queue) >= QUEUED_RECORDS:
            self._portal.run(self._catch_up)
        elif not self._scheduled:
            self._scheduled = True
            self._portal.soon(self._start_pump)
        return pending

    # In the background thread:

    def _start_pump(self) -> None:
        """Start the task that submits the queued records, unless it runs already or the queue is empty."""
        self._scheduled = False
        if self._queue and not self._pumping:
            self._pumping = True
            self._caught_up = trio.Event()
            self._portal.nursery.start_soon(self._pump)

    async def _pump(self) -> None:
        """Submit the queued records in order until the queue is empty. The error of a record that is refused is kept
        for its ``Pending``."""
        queue = self._queue
        try:
            while queue:
                pending, record, details, context = queue[0]
                try:
                    accepted = self._accept(*record, **details)
                    pending._inner = await (accepted if context is None else self._accept_in(context, accepted))
                except (TidelogError, TypeError, ValueError) as error:
                    pending._error = self._refused[pending] = error
                queue.popleft()
        finally:
            self._pumping = False
            self._caught_up.set()

    async def _accept_in(self, context: Any, accepted: Awaitable[async_producer.Pending]) -> async_producer.Pending:
        """Submit a record in the trace context of its sender, so that its span begins in that trace."""
        assert self._tracing is not None
        with self._tracing.within(context):
            return await accepted

    async def _catch_up(self) -> None:
        """Wait until all queued records were submitted."""
        self._start_pump()
        if self._pumping:
            await self._caught_up.wait()


class Producer(Feed):
    """A blocking producer that sends records to one topic, from any thread. Made by ``Log.producer``; use it with
    ``with``, or ``close`` it."""

    def __init__(self, portal: Portal, topic: str, options: ProducerOptions | None) -> None:
        super().__init__(portal)
        self.topic = topic
        self._end: trio.Event
        self._ended: trio.Event
        self._failure: Exception | None = None
        self._inner = portal.run(self._open, options)

    async def _open(self, options: ProducerOptions | None) -> async_producer.Producer:
        """Open the asynchronous producer in a task of its own and return it. Raises the error with which it cannot be
        opened."""
        self._end, self._ended = trio.Event(), trio.Event()
        answer: tuple[async_producer.Producer | None, Exception | None] = await self._portal.nursery.start(
            self._hold, options
        )
        producer, error = answer
        if producer is None:
            assert error is not None
            raise error
        return producer

    async def _hold(
        self,
        options: ProducerOptions | None,
        *,
        task_status: trio.TaskStatus[tuple[async_producer.Producer | None, Exception | None]],
    ) -> None:
        """Open the asynchronous producer, report it (or the error) as started, and keep it open until ``close``. An
        error at its end is kept, and ``close`` raises it."""
        opened = False
        try:
            async with self._portal.log.producer(self.topic, options) as producer:
                opened = True
                task_status.started((producer, None))
                await self._end.wait()
        except TidelogError as error:
            self._failure = error
            if not opened:
                task_status.started((None, error))
        finally:
            self._ended.set()

    def send(
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
        record failed, and the error with which the producer refused it; ``expected_offset`` is as in
        ``tidelog.Producer.send``."""
        return self.submit(
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            expected_offset=expected_offset,
        ).wait()

    def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        expected_offset: int | None = None,
    ) -> Pending:
        """Queue a record and return its ``Pending`` without waiting for the acknowledgement. Waits only while too
        many records are queued or unacknowledged. If the record is refused (too large, wrong type), ``Pending.wait``
        or the end of the producer raises the error."""
        return self._put(
            value,
            key=key,
            headers=headers,
            partition=partition,
            timestamp_ms=timestamp_ms,
            expected_offset=expected_offset,
        )

    @property
    def throttled_acks(self) -> int:
        """Number of acknowledgements that asked this producer to pause because a partition's leader is slow."""
        return self._inner.throttled_acks

    @property
    def throttled_s(self) -> float:
        """Total time in seconds that this producer was asked to pause, summed over all partitions."""
        return self._inner.throttled_s

    def flush(self) -> None:
        """Send all submitted records without lingering, and wait until each is acknowledged or has failed. Does not
        raise failures: ``Pending.wait`` and ``close`` do."""
        self._portal.run(self._flush)

    def close(self) -> None:
        """Send all records, wait until each is acknowledged or has failed, and end the producer. Raises
        ``DeliveryFailed`` if records failed or were refused and no caller got the error. Does nothing in a fork of
        the process that connected."""
        if self._portal.is_foreign:
            return
        self._portal.run(self._close)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._refused:
            first = next(iter(self._refused.values()))
            count = len(self._refused)
            self._refused.clear()
            error = first if isinstance(first, TidelogError) else BrokerError(str(first), code="MALFORMED")
            raise DeliveryFailed(count, error, unknown_outcome=False) from first

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except TidelogError as lost:
            if error is None:
                raise
            error.add_note(str(lost))

    # In the background thread:

    async def _accept(self, *record: Any, **details: Any) -> async_producer.Pending:
        return await self._inner.submit(*record, **details)

    async def _flush(self) -> None:
        await self._catch_up()
        await self._inner.flush()

    async def _close(self) -> None:
        await self._catch_up()
        self._end.set()
        await self._ended.wait()
