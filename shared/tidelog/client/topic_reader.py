"""Reads the partitions of topics that a consumer core asks for.

A ``TopicReader`` connects a consumer core to a connection, and subscribes to what the core asks for. Every kind of
consumer that reads forwards has one for each topic. ``Readers`` holds those of a group's member, whose partitions
come and go.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

from tidelog.client.connection import GatewayConnection
from tidelog.client.core.consumer import ConsumerCore, Effect, Fetched, Grant, Open, StopSubscription
from tidelog.client.loop import Loop
from tidelog.client.options import ConsumerOptions
from tidelog.errors import TidelogError
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import Credit, Delivery, Message, Subscribe


class ReaderWakeup:
    """Wakes the one task that waits for records."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._event = loop.event()

    def ring(self) -> None:
        """Wake the task."""
        self._event.set()

    async def wait(self, connection: GatewayConnection, readers: Collection[TopicReader]) -> None:
        """Wait for a wakeup, or until a reader has something due, and do that. Raises ``Unreachable`` if there was no
        gateway for the request timeout."""
        self._event = self._loop.event()
        deadlines = [at for reader in readers if (at := reader.core.deadline()) is not None]
        if connection.link is None:
            deadlines.append(connection.down_since + connection.request_timeout_s)
        await self._loop.wait(self._event, min(deadlines, default=math.inf))
        now = self._loop.now()
        if connection.link is None and now >= connection.down_since + connection.request_timeout_s:
            raise connection.unreachable()
        for reader in readers:
            reader.perform(reader.core.on_tick(now))


class TopicReader:
    """Reads some partitions of one topic."""

    def __init__(
        self,
        connection: GatewayConnection,
        wakeup: ReaderWakeup,
        topic: str,
        topic_id: str,
        options: ConsumerOptions,
        starts: Mapping[int, Position],
        ends: Mapping[int, int],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._connection = connection
        self._wakeup = wakeup
        self._options = options
        credit = options.credit(len(starts))
        self.core = ConsumerCore(topic, starts, ends, credit, options.backoff_s, lambda: connection.add_sub(self))
        connection.add_consumer(self)
        if connection.link is not None:
            self.on_link_up()

    def close(self) -> None:
        """Stop reading for good."""
        self.perform(self.core.close())
        self._wakeup.ring()

    def on_link_up(self) -> None:
        """Handle a new link (called by the connection)."""
        self.perform(self.core.on_link_up(self._connection.loop.now()))
        self._wakeup.ring()

    def on_link_down(self) -> None:
        """Handle the loss of the link (called by the connection)."""
        self.core.on_link_down()
        self._wakeup.ring()

    def on_delivery(self, delivery: Delivery) -> None:
        """Handle batches (called by the connection)."""
        self.perform(self.core.on_delivery(delivery, self._connection.loop.now()))
        self._wakeup.ring()

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects of the core."""
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
                        options.isolation,
                    )
                    link.start_call(request, self._connection.request_timeout_s, self._answered(sub))
                case Grant(sub, size) if link is not None:
                    link.post(Credit(sub, size))
                case StopSubscription(sub):
                    self._connection.stop_sub(sub)

    def _answered(self, sub: int) -> Callable[[Message | TidelogError], None]:
        def done(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError):
                self.core.on_subscribed(sub, answer, self._connection.loop.now())
                self._wakeup.ring()

        return done


class Readers:
    """The readers of a group's member, one for each topic. ``wakeup`` is rung when something has arrived."""

    def __init__(self, connection: GatewayConnection, wakeup: ReaderWakeup, options: ConsumerOptions) -> None:
        self._connection = connection
        self._wakeup = wakeup
        self._options = options
        self._readers: dict[str, TopicReader] = {}
        self._turns: deque[str] = deque()
        self._paused: dict[TopicPartition, None] = {}

    @property
    def all(self) -> Collection[TopicReader]:
        """The readers, one for each topic."""
        return self._readers.values()

    def take_batch(self) -> tuple[TopicPartition, Fetched, TopicReader] | None:
        """Return the next batch, of each topic in turn. It counts as handed out after ``on_taken``."""
        for _ in range(len(self._turns)):
            topic_id = self._turns[0]
            self._turns.rotate(-1)
            reader = self._readers[topic_id]
            try:
                fetched = reader.core.take_batch()
            except TidelogError as error:
                if error.code != "UNKNOWN_TOPIC":  # deleted: its partitions are about to be taken away
                    raise
                continue
            if fetched is not None:
                reader.perform(reader.core.on_taken(fetched.partition))
                return TopicPartition(topic_id, fetched.partition), fetched, reader
        return None

    def put_back(self, key: TopicPartition, fetched: Fetched, position: Position) -> None:
        """Put back the rest of the batch that was taken last."""
        self._readers[key.topic_id].core.put_back(fetched, position)

    def fail(self, key: TopicPartition, fetched: Fetched, error: TidelogError) -> None:
        """Stop a partition at the batch that was taken last, because it cannot be used, until ``seek``."""
        reader = self._readers[key.topic_id]
        reader.perform(reader.core.fail(fetched, error))

    def read(self, key: TopicPartition, topic: str, position: Position, shared_by: int) -> None:
        """Read this partition from a position on. ``shared_by`` partitions share the bytes that may wait here."""
        reader = self._readers.get(key.topic_id)
        if reader is None:
            reader = TopicReader(self._connection, self._wakeup, topic, key.topic_id, self._options, {}, {})
            self._readers[key.topic_id] = reader
            self._turns.append(key.topic_id)
        self.share_credit(shared_by)
        reader.perform(reader.core.add(key.partition, position, self._connection.loop.now()))
        if key in self._paused:
            reader.core.pause([key.partition])
        self._wakeup.ring()

    def stop(self, key: TopicPartition) -> None:
        """Hand out no more of a partition, and forget that it was paused."""
        self._paused.pop(key, None)
        reader = self._reading(key)
        if reader is not None:
            reader.perform(reader.core.remove(key.partition))

    def share_credit(self, partitions: int) -> None:
        """Share the bytes that may wait here among this many partitions."""
        credit = self._options.credit(partitions)
        for reader in self.all:
            reader.perform(reader.core.set_credit(credit))

    def close(self) -> None:
        """Stop all readers for good."""
        for reader in self.all:
            reader.close()

    # --- what the application changes ------------------------------------------------------------------------

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions."""
        return list(self._paused)

    def pause(self, keys: Iterable[TopicPartition]) -> None:
        """Hand out no records of these partitions, which need not be read yet, until they are resumed."""
        for key in keys:
            self._paused[key] = None
            if (reader := self._reading(key)) is not None:
                reader.core.pause([key.partition])

    def resume(self, keys: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again."""
        for key in keys:
            self._paused.pop(key, None)
            if (reader := self._reading(key)) is not None:
                reader.core.resume([key.partition])
        self._wakeup.ring()

    def seek(self, key: TopicPartition, position: Position) -> None:
        """Go on at a position, if the partition is read already."""
        if (reader := self._reading(key)) is not None:
            reader.perform(reader.core.seek(key.partition, position, self._connection.loop.now()))
        self._wakeup.ring()

    def _reading(self, key: TopicPartition) -> TopicReader | None:
        reader = self._readers.get(key.topic_id)
        return reader if reader is not None and key.partition in reader.core.partitions else None
