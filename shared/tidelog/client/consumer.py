"""The face of a consumer: an asynchronous iterator over the records of a topic."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from tidelog.client.connection import Connection
from tidelog.client.core.consumer import ConsumerCore, Effect, Fetched, Grant, Open, Stop
from tidelog.client.options import ConsumerOptions
from tidelog.client.stream import RecordStream
from tidelog.errors import Closed, TidelogError, refuse
from tidelog.types import Position
from tidelog.wire.messages import Credit, Delivery, Message, Subscribe

Where = str | int | datetime | Mapping[int, int | Position]
"""A place in every partition: ``earliest``, ``latest``, an offset, a time (the first record at or after it), or
partition -> offset or ``Position``."""

Locate = Callable[[Where, list[int]], Awaitable[dict[int, Position]]]
"""Finds a place of these partitions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a consumer reads: found out when it is opened."""

    topic_id: str
    starts: dict[int, Position]
    ends: dict[int, int]
    locate: Locate


class Consumer(RecordStream):
    """Iterate over it for records, in order per partition; ``next_records`` gives a whole batch at a time. The places
    to start are looked up at the first record, or by ``async with``. Made by ``Log.consume``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next, without loss or repetition;
    after ``request_timeout_s`` without one it raises ``Unreachable``. An offset that is not in the log any more is
    an error, never a silent jump. An iteration may simply be left: a consumer that nobody holds is unsubscribed.
    """

    def __init__(
        self, connection: Connection, topic: str, options: ConsumerOptions, plan: Callable[[], Awaitable[Plan]]
    ) -> None:
        super().__init__(topic)
        self._connection = connection
        self._options = options
        self._plan = plan
        self._core: ConsumerCore | None = None
        self._locate: Locate | None = None
        self._news = connection.loop.event()
        self._closed = False

    # --- for applications ----------------------------------------------------------------------------------

    async def next_batch(self) -> Fetched | None:
        """The next batch as it came, not decoded (control batches too); None at the end."""
        core = await self._open()
        await self._connection.loop.checkpoint()
        self._begin_batch()
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
        if self.last is not None and self.reached is not None:
            positions[self.last.partition] = self.reached
        return positions

    @property
    def buffered_bytes(self) -> int:
        """What has arrived and was not handed out."""
        return 0 if self._core is None else self._core.waiting

    @property
    def paused(self) -> list[int]:
        """Partitions of which nothing is handed out now."""
        return [] if self._core is None else self._core.paused

    async def pause(self, *partitions: int) -> None:
        """Hand nothing of these partitions out until they are resumed, none named: of any. The others go on; what has
        arrived stays, within the credit. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""
        core = await self._open()
        chosen = self._chosen(core, partitions)
        core.pause(chosen)
        current, reached = self.current, self.reached
        if current is not None and reached is not None and current.partition in chosen:
            core.put_back(current, reached)
            self._begin_batch()

    async def resume(self, *partitions: int) -> None:
        """Hand these partitions out again, none named: all."""
        core = await self._open()
        core.resume(self._chosen(core, partitions))
        self._news.set()

    async def seek(self, where: Where, *partitions: int) -> None:
        """Go on there: with these partitions; none named: with those that ``where`` names, or all. What was read
        ahead is dropped. Also the way on after ``OFFSET_OUT_OF_RANGE`` and ``LOG_TRUNCATED``. Ends stay."""
        core = await self._open()
        assert self._locate is not None
        named = partitions or (tuple(where) if isinstance(where, Mapping) else ())
        found = await self._locate(where, self._chosen(core, named))
        for partition, position in found.items():
            if self.last is not None and self.last.partition == partition:
                self._begin_batch()
            self._perform(core.seek(partition, position, self._connection.loop.now()))
        self._news.set()

    async def aclose(self) -> None:
        """Stop reading."""
        self._closed = True
        if self._core is not None:
            self._perform(self._core.close())
        self._news.set()

    # --- the work --------------------------------------------------------------------------------------------

    async def _open(self) -> ConsumerCore:
        if self._closed:
            raise Closed(f"the consumer of {self.topic} is closed")
        if self._core is not None:
            return self._core
        plan = await self._plan()
        self.topic_id, self._locate = plan.topic_id, plan.locate
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

    def _chosen(self, core: ConsumerCore, partitions: tuple[int, ...]) -> list[int]:
        unread = set(partitions) - set(core.partitions)
        if unread:
            raise refuse("UNKNOWN_TOPIC", f"this consumer of {self.topic} does not read partition {min(unread)}")
        return list(partitions) or core.partitions

    async def _wait(self, core: ConsumerCore) -> None:
        """Until there is news, or it is time to subscribe again."""
        connection = self._connection
        self._news = connection.loop.event()
        deadline = core.deadline()
        if connection.link is None:
            deadline = connection.down_since + connection.request_timeout_s
        await connection.loop.wait(self._news, math.inf if deadline is None else deadline)
        now = connection.loop.now()
        if connection.link is None and now >= connection.down_since + connection.request_timeout_s:
            raise connection.unreachable()
        self._perform(core.on_tick(now))

    def on_link_up(self) -> None:
        """A gateway is there (called by the connection)."""
        if self._core is not None and not self._closed:
            self._perform(self._core.on_link_up(self._connection.loop.now()))
            self._news.set()

    def on_link_down(self) -> None:
        """The gateway is gone (called by the connection)."""
        if self._core is not None:
            self._core.on_link_down()
            self._news.set()

    def on_delivery(self, delivery: Delivery) -> None:
        """Batches arrived (called by the connection)."""
        assert self._core is not None
        self._perform(self._core.on_delivery(delivery, self._connection.loop.now()))
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
                self._core.on_subscribed(sub, answer, self._connection.loop.now())
                self._news.set()

        return done
