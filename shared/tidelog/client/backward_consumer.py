"""A consumer that reads backwards, as an application sees it: an asynchronous iterator, newest records first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tidelog.batch.format import Record
from tidelog.client.connection import GatewayConnection
from tidelog.client.consumer import Plan
from tidelog.client.core.backward_consumer import BackwardCore, WindowRead
from tidelog.client.core.consumer import Fetched
from tidelog.client.options import ConsumerOptions
from tidelog.client.record_stream import RecordStream
from tidelog.errors import Closed, TidelogError, UnreadableBatch
from tidelog.types import Position
from tidelog.wire.messages import Read, ReadAnswer


class BackwardConsumer(RecordStream):
    """An asynchronous iterator over the records of a topic, the newest first in each partition. The iteration ends at
    the lower bound that was requested, or at the log's start, and never waits for new records. Made by
    ``Log.consume(reverse=True)``.

    All partitions are read at the same time, each time at most ``partition_bytes`` of each, or one batch if that is
    larger.
    """

    def __init__(
        self, connection: GatewayConnection, topic: str, options: ConsumerOptions, plan: Callable[[], Awaitable[Plan]]
    ) -> None:
        super().__init__(topic, options.on_unreadable)
        self._connection = connection
        self._options = options
        self._plan = plan
        self._core: BackwardCore | None = None
        self._closed = False

    async def next_records(self) -> list[Record]:
        """Return the records of the next batch, the newest first, after reading the batch if needed; an empty list at
        the end. Raises what ``next_batch`` raises, and ``UnreadableBatch``."""
        return (await super().next_records())[::-1]

    async def next_batch(self) -> Fetched | None:
        """Return the next batch, not decoded: its records from ``first`` to ``end`` (exclusive) are in ascending
        order. Returns None when every partition was read down to its lower bound. Raises ``Closed`` after ``aclose``,
        the error that ended a partition, and a retriable error that has lasted for the request timeout; after the
        latter the call may be repeated."""
        core = await self._open()
        await self._connection.loop.checkpoint()
        self._begin_batch()
        while (fetched := core.take_batch()) is None:
            if core.is_finished:
                return None
            await self._read_windows(core)
        return fetched

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the offset of the last record that was returned, as a ``Position``; empty if the consumer is
        not open. A later backward read that starts there continues below that record."""
        if self._core is None:
            return {}
        positions = self._core.positions
        if self.last is not None:
            positions[self.last.partition] = Position(-1, self.last.offset)
        return positions

    async def aclose(self) -> None:
        """Stop reading for good. Later calls that read raise ``Closed``."""
        self._closed = True

    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        assert self._core is not None
        self._core.fail(fetched, error)

    async def _open(self) -> BackwardCore:
        """Return the core; the first call looks up the partitions, start and lower bound. Raises ``Closed`` after
        ``aclose``, and the errors of the look-ups."""
        if self._closed:
            raise Closed(f"the consumer of {self.topic} is closed")
        if self._core is None:
            plan = await self._plan()
            self.topic_id = plan.topic_id
            exact = bool(plan.ends)
            bounds = plan.ends
            if not exact:
                found = await plan.locate("earliest", list(plan.starts))
                bounds = {p: position.offset for p, position in found.items()}
            room = self._options.credit(len(plan.starts))
            self._core = BackwardCore(self.topic, plan.starts, bounds, exact, room)
        return self._core

    async def _read_windows(self, core: BackwardCore) -> None:
        """Send all reads that the core wants, concurrently, and pass the outcomes to the core. Raises a retriable
        error that has lasted for the request timeout; the call may then be repeated."""
        errors: list[TidelogError] = []

        async def one(read: WindowRead) -> None:
            options = self._options
            request = Read(
                self.topic_id,
                read.partition,
                read.offset,
                read.last_epoch,
                max_bytes=read.max_bytes,
                consistency=options.consistency,
                max_staleness_ms=options.max_staleness_ms,
                any_replica=options.read_from == "any",
                isolation=options.isolation,
            )
            try:
                answer = await self._connection.call(request)
                assert isinstance(answer, ReadAnswer) and not isinstance(answer.payload, list)
                core.on_batches(read, answer.payload)
            except TidelogError as error:
                if error.retriable:
                    errors.append(error)
                else:
                    core.on_error(read, error)

        await self._connection.loop.gather(partial(one, read) for read in core.next_reads())
        if errors:
            raise errors[0]
