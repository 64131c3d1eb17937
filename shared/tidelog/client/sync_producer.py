"""The blocking face of a producer: what ``tidelog.sync`` gives."""

from __future__ import annotations

from collections import deque
from types import TracebackType
from typing import Any, Self

import trio

from tidelog.client import producer as async_producer
from tidelog.client.options import ProducerOptions
from tidelog.client.portal import Portal
from tidelog.client.producer import Ack, DeliveryFailed, Headers
from tidelog.errors import BrokerError, TidelogError

QUEUED_RECORDS = 4096
"""Records that ``submit`` hands over to the background thread at a time, at most."""


class Pending:
    """A record that was accepted and is not acknowledged yet, perhaps."""

    __slots__ = ("_error", "_inner", "_producer")

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._inner: async_producer.Pending | None = None
        self._error: Exception | None = None

    def wait(self) -> Ack:
        """Wait for the acknowledgement. Raises the error that the record failed with (see
        ``tidelog.Pending.result``), or was refused with."""
        if self._inner is not None and self._inner.is_settled:
            return self._inner.result()
        return self._producer._portal.run(self._wait)

    async def _wait(self) -> Ack:
        await self._producer._catch_up()
        if self._error is not None:
            self._producer._refused.pop(self, None)
            raise self._error
        assert self._inner is not None
        return await self._inner.wait()


class Producer:
    """Sends records to one topic; from any thread. Made by ``Log.producer``; use it with ``with``."""

    def __init__(self, portal: Portal, topic: str, options: ProducerOptions | None) -> None:
        self.topic = topic
        self._portal = portal
        self._queue: deque[tuple[Pending, bytes | None, dict[str, Any]]] = deque()
        self._scheduled = False
        self._pumping = False
        self._refused: dict[Pending, Exception] = {}
        self._end: trio.Event
        self._ended: trio.Event
        self._failure: Exception | None = None
        self._inner = portal.run(self._open, options)

    async def _open(self, options: ProducerOptions | None) -> async_producer.Producer:
        self._end, self._ended, self._caught_up = trio.Event(), trio.Event(), trio.Event()
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
        """The task in which the producer lives."""
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
        """Send a record and wait for its acknowledgement. Raises ``BrokerError`` when it failed; ``expected_offset``
        as in ``tidelog.Producer.send``."""
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
        """Accept a record without waiting for its acknowledgement; waits only while too much is unacknowledged.
        A record that is refused (too large, wrong type) says so at ``wait`` or at the end of the producer."""
        pending = Pending(self)
        details = {
            "key": key,
            "headers": headers,
            "partition": partition,
            "timestamp_ms": timestamp_ms,
            "expected_offset": expected_offset,
        }
        self._queue.append((pending, value, {name: x for name, x in details.items() if x is not None}))
        if len(self._queue) >= QUEUED_RECORDS:
            self._portal.run(self._catch_up)
        elif not self._scheduled:
            self._scheduled = True
            self._portal.soon(self._start_pump)
        return pending

    def flush(self) -> None:
        """Wait until everything submitted so far is acknowledged or has failed."""
        self._portal.run(self._flush)

    def close(self) -> None:
        """Flush and end. Raises ``DeliveryFailed`` when records failed that nobody waited for."""
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
            told = first if isinstance(first, TidelogError) else BrokerError(str(first), code="MALFORMED")
            raise DeliveryFailed(count, told) from first

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

    def _start_pump(self) -> None:
        self._scheduled = False
        if self._queue and not self._pumping:
            self._pumping = True
            self._caught_up = trio.Event()
            self._portal.nursery.start_soon(self._pump)

    async def _pump(self) -> None:
        """Hand what is queued to the producer, in order."""
        queue, submit = self._queue, self._inner.submit
        try:
            while queue:
                pending, value, details = queue[0]
                try:
                    pending._inner = await submit(value, **details)
                except (TidelogError, TypeError, ValueError) as error:
                    pending._error = self._refused[pending] = error
                queue.popleft()
        finally:
            self._pumping = False
            self._caught_up.set()

    async def _catch_up(self) -> None:
        self._start_pump()
        if self._pumping:
            await self._caught_up.wait()

    async def _flush(self) -> None:
        await self._catch_up()
        await self._inner.flush()

    async def _close(self) -> None:
        await self._catch_up()
        self._end.set()
        await self._ended.wait()
