"""The trio face of a consumer: an asynchronous iterator over the records of a topic."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Self

import trio

from tidelog.client.connection import Connection
from tidelog.client.core.consumer import ConsumerCore, Effect, Fetched, Grant, Open, Stop
from tidelog.client.options import ConsumerOptions
from tidelog.errors import Closed, TidelogError
from tidelog.records import Record
from tidelog.types import Position
from tidelog.wire.messages import Credit, Delivery, Message, Subscribe


class Plan:
    """Where a consumer reads: found out when it is opened."""

    __slots__ = ("ends", "starts", "topic_id")

    def __init__(self, topic_id: str, starts: dict[int, Position], ends: dict[int, int]) -> None:
        self.topic_id = topic_id
        self.starts = starts
        self.ends = ends


class Consumer:
    """Iterate over it for records, in order per partition; ``next_records`` gives a whole batch at a time. The places
    to start are looked up at the first record, or by ``async with``. Made by ``Log.consume``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next, without loss or repetition;
    after ``request_timeout_s`` without one it raises ``Unreachable``. An offset that is not in the log any more is
    an error, never a silent jump. An iteration may simply be left: a consumer that nobody holds is unsubscribed.
    """

    def __init__(
        self, connection: Connection, topic: str, options: ConsumerOptions, plan: Callable[[], Awaitable[Plan]]
    ) -> None:
        self.topic = topic
        self._connection = connection
        self._options = options
        self._plan = plan
        self._core: ConsumerCore | None = None
        self.topic_id = ""
        """Known when the consumer is open."""
        self._news = trio.Event()
        self._records: Iterator[Record] = iter(())
        self._last: Record | None = None
        self._rest: tuple[int, Position, int] | None = None
        self._closed = False

    # --- for applications ----------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """The next record. Raises ``StopAsyncIteration`` at the end, if one was asked for."""
        record = next(self._records, None)
        if record is None:
            records = await self.next_records()
            if not records:
                raise StopAsyncIteration
            self._records = iter(records)
            record = next(self._records)
        self._last = record
        return record

    async def next_records(self) -> list[Record]:
        """The records of the next batch; empty at the end. Do not mix with iteration in the middle of a batch."""
        while (fetched := await self.next_batch()) is not None:
            records = fetched.records(self.topic)
            if records:
                return records
        return []

    async def next_batch(self) -> Fetched | None:
        """The next batch as it came, not decoded (control batches too); None at the end."""
        core = self._core or await self._open()
        await trio.lowlevel.checkpoint()
        self._last = None
        while (fetched := core.take()) is None:
            if self._closed:
                raise Closed(f"the consumer of {self.topic} is closed")
            if core.is_finished:
                return None
            await self._wait(core)
        self._perform(core.on_taken(fetched.partition))
        return fetched

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition: the leader epoch of the last record that was handed out, and the offset after it. What a
        later ``consume(start=positions)`` goes on from."""
        if self._core is None:
            return {}
        positions = self._core.positions
        if self._last is not None:
            positions[self._last.partition] = Position(self._last.leader_epoch, self._last.offset + 1)
        return positions

    async def aclose(self) -> None:
        """Stop reading."""
        self._closed = True
        if self._core is not None:
            self._perform(self._core.close())
        self._news.set()
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        if self._core is None:
            await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        if self._core is not None:
            self._perform(self._core.close())

    # --- the work --------------------------------------------------------------------------------------------

    async def _open(self) -> ConsumerCore:
        if self._closed:
            raise Closed(f"the consumer of {self.topic} is closed")
        plan = await self._plan()
        self.topic_id = plan.topic_id
        credit = self._options.credit(len(plan.starts))
        core = self._core = ConsumerCore(
            self.topic,
            plan.starts,
            plan.ends,
            credit,
            self._options.backoff_s,
            lambda: self._connection.add_sub(self),
        )
        self._connection.add_consumer(self)
        if self._connection.link is not None:
            self.on_link_up()
        return core

    async def _wait(self, core: ConsumerCore) -> None:
        """Until there is news, or it is time to subscribe again."""
        connection = self._connection
        self._news = trio.Event()
        deadline = core.deadline()
        if connection.link is None:
            deadline = connection.down_since + connection.request_timeout_s
        with trio.CancelScope(deadline=math.inf if deadline is None else deadline):
            await self._news.wait()
        now = trio.current_time()
        if connection.link is None and now >= connection.down_since + connection.request_timeout_s:
            raise connection.unreachable()
        self._perform(core.on_tick(now))

    def on_link_up(self) -> None:
        """A gateway is there (called by the connection)."""
        if self._core is not None and not self._closed:
            self._perform(self._core.on_link_up(trio.current_time()))
            self._news.set()

    def on_link_down(self) -> None:
        """The gateway is gone (called by the connection)."""
        if self._core is not None:
            self._core.on_link_down()
            self._news.set()

    def on_delivery(self, delivery: Delivery) -> None:
        """Batches arrived (called by the connection)."""
        assert self._core is not None
        self._perform(self._core.on_delivery(delivery, trio.current_time()))
        self._news.set()

    def _perform(self, effects: list[Effect]) -> None:
        link = self._connection.link
        for effect in effects:
            match effect:
                case Open(sub, partition, position, credit) if link is not None:
                    epoch, offset = position
                    options = self._options
                    request = Subscribe(
                        sub,
                        self.topic_id,
                        partition,
                        offset,
                        credit,
                        epoch,
                        options.read_from,
                        options.consistency,
                        options.max_staleness_ms,
                    )
                    link.start_call(request, self._connection.request_timeout_s, self._answered(sub))
                case Grant(sub, size) if link is not None:
                    link.post(Credit(sub, size))
                case Stop(sub):
                    self._connection.stop_sub(sub)

    def _answered(self, sub: int) -> Callable[[Message | TidelogError], None]:
        def done(answer: Message | TidelogError) -> None:
            assert self._core is not None
            if isinstance(answer, TidelogError):
                self._core.on_subscribed(sub, answer, trio.current_time())
                self._news.set()

        return done
