"""A consumer, as an application sees it: an asynchronous iterator over the records of a topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from tidelog.client.connection import GatewayConnection
from tidelog.client.core.consumer import ConsumerCore, Fetched
from tidelog.client.lookups import Where
from tidelog.client.options import ConsumerOptions
from tidelog.client.record_stream import RecordStream
from tidelog.client.topic_reader import ReaderWakeup, TopicReader
from tidelog.errors import Closed, UnreadableBatch, refuse
from tidelog.types import Position

Locate = Callable[[Where, list[int]], Awaitable[dict[int, Position]]]
"""Finds the positions of a place in these partitions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a consumer reads, determined when it is opened."""

    topic_id: str
    starts: dict[int, Position]
    ends: dict[int, int]
    locate: Locate


class Consumer(RecordStream):
    """Iterate over it for records, in order per partition; ``next_records`` returns a whole batch at a time. The
    start positions are looked up at the first record, or by ``async with``. Made by ``Log.consume``.

    It reads ahead within its credit. When the gateway is lost it goes on at the next one, without loss or repetition;
    after ``request_timeout_s`` without a gateway it raises ``Unreachable``. An offset that is no longer in the log is
    an error, never a silent jump. An iteration may simply be abandoned: a consumer without references is
    unsubscribed.
    """

    def __init__(
        self, connection: GatewayConnection, topic: str, options: ConsumerOptions, plan: Callable[[], Awaitable[Plan]]
    ) -> None:
        super().__init__(topic, options.on_unreadable)
        self._connection = connection
        self._options = options
        self._plan = plan
        self._reader: TopicReader | None = None
        self._wakeup = ReaderWakeup(connection.loop)
        self._locate: Locate | None = None
        self._closed = False

    # --- for applications ----------------------------------------------------------------------------------

    async def next_batch(self) -> Fetched | None:
        """Return the next batch, not decoded (control batches too); None at the end."""
        reader = await self._open()
        if not reader.core.is_dry:
            await self._connection.loop.checkpoint()
        self._begin_batch()
        while (fetched := reader.core.take_batch()) is None:
            if self._closed:
                raise Closed(f"the consumer of {self.topic} is closed")
            if reader.core.is_finished:
                return None
            await self._wakeup.wait(self._connection, (reader,))
        reader.perform(reader.core.on_taken(fetched.partition))
        return fetched

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the leader epoch of the last record that was handed out, and the offset after it. A later
        ``consume(start=positions)`` goes on from there."""
        if self._reader is None:
            return {}
        positions = self._reader.core.positions
        if self.last is not None and self.reached is not None:
            positions[self.last.partition] = self.reached
        return positions

    @property
    def buffered_bytes(self) -> int:
        """Bytes that have arrived and were not handed out."""
        return 0 if self._reader is None else self._reader.core.waiting

    @property
    def paused(self) -> list[int]:
        """The paused partitions: none of their records is handed out."""
        return [] if self._reader is None else self._reader.core.paused

    async def pause(self, *partitions: int) -> None:
        """Hand out no records of these partitions (by default: of any) until they are resumed. The others go on, and
        what has arrived stays, within the credit. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""
        core = (await self._open()).core
        chosen = self._chosen(core, partitions)
        core.pause(chosen)
        current, reached = self.current, self.reached
        if current is not None and reached is not None and current.partition in chosen:
            core.put_back(current, reached)
            self._begin_batch()

    async def resume(self, *partitions: int) -> None:
        """Hand out records of these partitions again (by default: of all)."""
        core = (await self._open()).core
        core.resume(self._chosen(core, partitions))
        self._wakeup.ring()

    async def seek(self, where: Where, *partitions: int) -> None:
        """Go on at this place in these partitions; by default, in those that ``where`` names, or in all. Records that
        were read ahead are dropped. Use it also to go on after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED`` and
        ``UnreadableBatch`` (with its ``next_offset``). The ends stay."""
        reader = await self._open()
        assert self._locate is not None
        named = partitions or (tuple(where) if isinstance(where, Mapping) else ())
        found = await self._locate(where, self._chosen(reader.core, named))
        for partition, position in found.items():
            if self.last is not None and self.last.partition == partition:
                self._begin_batch()
            reader.perform(reader.core.seek(partition, position, self._connection.loop.now()))
        self._wakeup.ring()

    async def aclose(self) -> None:
        """Stop reading for good."""
        self._closed = True
        if self._reader is not None:
            self._reader.close()

    # --- the work --------------------------------------------------------------------------------------------

    async def _open(self) -> TopicReader:
        if self._closed:
            raise Closed(f"the consumer of {self.topic} is closed")
        if self._reader is None:
            plan = await self._plan()
            self.topic_id, self._locate = plan.topic_id, plan.locate
            self._reader = TopicReader(
                self._connection, self._wakeup, self.topic, plan.topic_id, self._options, plan.starts, plan.ends
            )
        return self._reader

    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        assert self._reader is not None
        self._reader.perform(self._reader.core.fail(fetched, error))

    def _chosen(self, core: ConsumerCore, partitions: tuple[int, ...]) -> list[int]:
        unread = set(partitions) - set(core.partitions)
        if unread:
            raise refuse("UNKNOWN_TOPIC", f"this consumer of {self.topic} does not read partition {min(unread)}")
        return list(partitions) or core.partitions
