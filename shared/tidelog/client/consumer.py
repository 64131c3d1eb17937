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
"""A function that returns the position of a place (``Where``) in each of the given partitions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The partitions and positions that a consumer reads, determined when it is opened. ``starts``: the position to
    begin at, by partition. ``ends``: the offset to stop before, by partition; empty if reading has no end."""

    topic_id: str
    starts: dict[int, Position]
    ends: dict[int, int]
    locate: Locate


class Consumer(RecordStream):
    """An asynchronous iterator over the records of a topic, in order per partition; ``next_records`` returns a whole
    batch at a time. Made by ``Log.consume``. The start positions are looked up at the first record, or by ``async
    with``.

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
        """Return the next batch, not decoded, after waiting for it; control batches too. Returns None when every
        partition has reached its end. Raises ``Closed`` after ``aclose``, ``Unreachable`` if there is no gateway for
        ``request_timeout_s``, and the error that ended a partition."""
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

    async def next_batches(self) -> list[Fetched]:
        """Return all batches that have arrived, not decoded, after waiting for at least one; an empty list when every
        partition has reached its end. Raises what ``next_batch`` raises, after the batches before the failure were
        returned."""
        fetched = await self.next_batch()
        if fetched is None:
            return []
        reader = await self._open()
        batches = [fetched, *reader.core.take_batches()]
        for partition in {batch.partition for batch in batches[1:]}:
            reader.perform(reader.core.on_taken(partition))
        return batches

    @property
    def positions(self) -> dict[int, Position]:
        """Per partition the position after the last record that was returned, with that record's leader epoch; empty
        if the consumer is not open. A later ``consume(start=positions)`` goes on from there."""
        if self._reader is None:
            return {}
        positions = self._reader.core.positions
        if self.last is not None and self.reached is not None:
            positions[self.last.partition] = self.reached
        return positions

    @property
    def buffered_bytes(self) -> int:
        """Bytes of batches that have arrived and were not returned to the application."""
        return 0 if self._reader is None else self._reader.core.waiting

    @property
    def remaining(self) -> int:
        """The number of offsets between what was returned and the requested ends; 0 without an end, or if the
        consumer is not open."""
        return 0 if self._reader is None else self._reader.core.remaining

    @property
    def paused(self) -> list[int]:
        """The partitions of which no records are returned until ``resume``."""
        return [] if self._reader is None else self._reader.core.paused

    async def pause(self, *partitions: int) -> None:
        """Return no records of these partitions (by default: of any) until ``resume``. The other partitions go on.
        Batches that have arrived stay, and more arrive until the credit is used up. The rest of the present batch is
        returned after the pause. Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""
        core = (await self._open()).core
        chosen = self._chosen(core, partitions)
        core.pause(chosen)
        current, reached = self.current, self.reached
        if current is not None and reached is not None and current.partition in chosen:
            core.put_back(current, reached)
            self._begin_batch()

    async def resume(self, *partitions: int) -> None:
        """Return records of these partitions again (by default: of all), and wake a task that waits for records.
        Raises ``UNKNOWN_TOPIC`` for a partition that is not read."""
        core = (await self._open()).core
        core.resume(self._chosen(core, partitions))
        self._wakeup.ring()

    async def seek(self, where: Where, *partitions: int) -> None:
        """Continue reading at the place ``where`` in these partitions. By default these are the partitions that
        ``where`` names, if it is a mapping, else all. Records that were read ahead are dropped; the ends stay. A
        partition that has ended with an error goes on: use ``seek`` after ``OFFSET_OUT_OF_RANGE``, ``LOG_TRUNCATED``
        and ``UnreadableBatch`` (with its ``next_offset``). Raises ``UNKNOWN_TOPIC`` for a partition that is not
        read."""
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
        """Unsubscribe and stop reading for good. A task that waits for records gets ``Closed``."""
        self._closed = True
        if self._reader is not None:
            self._reader.close()

    # --- the work --------------------------------------------------------------------------------------------

    async def _open(self) -> TopicReader:
        """Return the topic reader; the first call looks up the partitions, start and end, and subscribes. Raises
        ``Closed`` after ``aclose``, and the errors of the look-ups."""
        if self._closed:
            raise Closed(f"the consumer of {self.topic} is closed")
        if self._reader is None:
            plan = await self._plan()
            self.topic_id, self._locate = plan.topic_id, plan.locate
            self._reader = TopicReader(
                self._connection, self._wakeup, self.topic, plan.topic_id, self._options, plan.starts, plan.ends
            )
        return self._reader

    def _take_arrived(self) -> Fetched | None:
        """Return the next batch as ``next_batch`` does, if one has arrived; None if the caller has to wait. Other
        tasks do not run meanwhile. Raises the error that ended a partition."""
        reader = self._reader
        if reader is None or reader.core.is_dry:
            return None
        self._begin_batch()
        fetched = reader.core.take_batch()
        if fetched is not None:
            reader.perform(reader.core.on_taken(fetched.partition))
        return fetched

    def _stop_before(self, fetched: Fetched, error: UnreadableBatch) -> None:
        assert self._reader is not None
        self._reader.perform(self._reader.core.fail(fetched, error))

    def _chosen(self, core: ConsumerCore, partitions: tuple[int, ...]) -> list[int]:
        unread = set(partitions) - set(core.partitions)
        if unread:
            raise refuse("UNKNOWN_TOPIC", f"this consumer of {self.topic} does not read partition {min(unread)}")
        return list(partitions) or core.partitions
