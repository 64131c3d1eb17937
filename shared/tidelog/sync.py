"""The client for programs without trio: the same API, blocking. For scripts, threads and Spark executors.

    with tidelog.sync.connect("ws://127.0.0.1:9292") as log:
        with log.producer("orders") as producer:
            ack = producer.send(b"...", key=b"k")
        for record in log.consume("orders", start="earliest", end="latest"):
            ...

Each connection runs trio in one background thread of its own, so no event loop of the caller is touched and any
number of threads may use it. Ctrl-C ends the waiting call, not the connection.

**Fork.** A connection belongs to the process that opened it. After a fork the child has the memory but not the
thread: using the connection there raises ``Closed``, closing it does nothing (the parent's goes on undisturbed), and
``connect`` in the child opens the child's own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from tidelog.client import consumer as async_consumer
from tidelog.client import log as async_log
from tidelog.client import producer as async_producer
from tidelog.client.core.consumer import Fetched
from tidelog.client.log import DEFAULT_URL, NO_FILES, Where
from tidelog.client.options import ConsumerOptions, ProducerOptions
from tidelog.client.portal import Portal
from tidelog.client.producer import Ack, DeliveryFailed, Headers
from tidelog.errors import BrokerError, TidelogError, TimedOut
from tidelog.records import Record
from tidelog.tls import TlsOptions
from tidelog.types import Position
from tidelog.wire.messages import HistoryEntry, MetadataAnswer, OffsetAnswer, QuorumAnswer, TopicInfo

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
    ) -> Ack:
        """Send a record and wait for its acknowledgement. Raises ``BrokerError`` when it failed."""
        pending = self.submit(value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms)
        return pending.wait()

    def submit(
        self,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Pending:
        """Accept a record without waiting for its acknowledgement; waits only while too much is unacknowledged.
        A record that is refused (too large, wrong type) says so at ``wait`` or at the end of the producer."""
        pending = Pending(self)
        details = {"key": key, "headers": headers, "partition": partition, "timestamp_ms": timestamp_ms}
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


class Consumer:
    """Iterate over it for records. Made by ``Log.consume``; one thread at a time; see ``tidelog.Consumer``."""

    def __init__(self, portal: Portal, inner: async_consumer.Consumer) -> None:
        self.topic = inner.topic
        self._portal = portal
        self._inner = inner
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        record = next(self._records, None)
        if record is None:
            self._records = iter(self.next_records())
            record = next(self._records)  # StopIteration at the end
        self._last = record
        return record

    def next_records(self) -> list[Record]:
        """The records of the next batch; empty at the end."""
        self._last = None
        return self._portal.run(self._inner.next_records)

    def next_batch(self, timeout_s: float = math.inf) -> Fetched | None:
        """The next batch, not decoded; None at the end. Raises ``TimedOut``."""
        self._last = None

        async def next_batch() -> Fetched | None:
            try:
                with trio.fail_after(timeout_s):
                    return await self._inner.next_batch()
            except trio.TooSlowError:
                raise TimedOut(f"{self.topic}: no records within {timeout_s:g} s") from None

        return self._portal.run(next_batch)

    @property
    def topic_id(self) -> str:
        """Which topic of that name it is; known inside ``with``."""
        return self._inner.topic_id

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: where to go on after the last record that was handed out."""
        positions = self._inner.positions
        if self._last is not None:
            positions[self._last.partition] = Position(self._last.leader_epoch, self._last.offset + 1)
        return positions

    def close(self) -> None:
        """Stop reading."""
        if not self._portal.is_foreign:
            self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        self._portal.run(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Log:
    """A connected client; any thread may use it. Made by ``connect``. Its methods are those of ``tidelog.Log``."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal

    def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, object] | None = None,
    ) -> TopicInfo:
        """Create a topic, and wait until its partitions have leaders."""
        create = self._portal.log.create_topic
        return self._portal.run(
            partial(create, name, partitions=partitions, replication_factor=replication_factor, config=config)
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records."""
        self._portal.run(self._portal.log.delete_topic, name)

    def topics(self) -> tuple[TopicInfo, ...]:
        """Every topic."""
        return self._portal.run(self._portal.log.topics)

    def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """One topic."""
        return self._portal.run(partial(self._portal.log.describe, topic, offsets=offsets))

    def history(self, topic: str, partition: int) -> tuple[HistoryEntry, ...]:
        """Every change of a partition that is remembered, with its cause."""
        return self._portal.run(self._portal.log.history, topic, partition)

    def status(self) -> MetadataAnswer:
        """Cluster, servers and topics as the gateway knows them."""
        return self._portal.run(self._portal.log.status)

    def quorum(self) -> QuorumAnswer:
        """The controllers, and which is the active one."""
        return self._portal.run(self._portal.log.quorum)

    def add_controller(self, node: str, url: str) -> None:
        """Take a running controller into the group."""
        self._portal.run(self._portal.log.add_controller, node, url)

    def remove_controller(self, node: str) -> None:
        """Take a controller out of the group."""
        self._portal.run(self._portal.log.remove_controller, node)

    def list_offset(self, topic: str, partition: int, at: str | datetime = "latest") -> OffsetAnswer:
        """The offset at a place of one partition."""
        return self._portal.run(self._portal.log.list_offset, topic, partition, at)

    def list_offsets(
        self, topic: TopicInfo, at: str | datetime, partitions: Iterable[int]
    ) -> dict[int, OffsetAnswer]:
        """``list_offset`` of many partitions at a time."""
        return self._portal.run(self._portal.log.list_offsets, topic, at, tuple(partitions))

    def producer(self, topic: str, options: ProducerOptions | None = None) -> Producer:
        """``with log.producer("orders") as producer``."""
        return Producer(self._portal, topic, options)

    def consume(
        self,
        topic: str,
        *,
        start: Where = "latest",
        end: Where | None = None,
        partitions: Iterable[int] | None = None,
        options: ConsumerOptions | None = None,
        **reading: Any,
    ) -> Consumer:
        """``for record in log.consume("orders", start="earliest", end="latest")``; ``reading``: ``read_from``,
        ``consistency``, ``max_staleness_s``; see ``tidelog.Log.consume``."""
        inner = self._portal.log.consume(
            topic, start=start, end=end, partitions=partitions, options=options, **reading
        )
        return Consumer(self._portal, inner)

    def close(self) -> None:
        """Close the connection. Close producers first: what they have not sent is given up."""
        self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def connect(
    urls: str | Iterable[str] = DEFAULT_URL,
    *,
    connect_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
    tls: TlsOptions = NO_FILES,
) -> Log:
    """Connect to any of the gateways; see ``tidelog.connect``. Use it with ``with``, or ``close`` it."""
    given: dict[str, Any] = {"connect_timeout_s": connect_timeout_s, "request_timeout_s": request_timeout_s}
    return Log(Portal(lambda: async_log.connect(urls, tls=tls, **given)))
