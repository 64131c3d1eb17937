"""Reads the partitions of topics that a consumer core asks for.

A ``TopicReader`` connects a consumer core to a connection: it performs the core's effects and passes deliveries to
it. A ``Consumer`` has one. ``Readers`` has one per topic for a member of a group, whose partitions come and go.
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
    """The event on which the task of one consumer waits for records. Its topic readers set the event when batches or
    errors have arrived."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._event = loop.event()

    def ring(self) -> None:
        """Wake the task that is in ``wait``. Has no effect if no task waits, because ``wait`` begins with a new
        event."""
        self._event.set()

    async def wait(self, connection: GatewayConnection, readers: Collection[TopicReader]) -> None:
        """Wait until ``ring`` is called or the next deadline of a reader has passed, then have every reader subscribe
        the partitions that are due. Raises ``Unreachable`` if the client has had no link to a gateway for its request
        timeout."""
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
    """The subscriptions of one consumer to partitions of one topic: it performs what its ``ConsumerCore`` decides,
    over the client's connection. It registers with the connection when it is made, and subscribes at once if a link
    is open."""

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
        """End all subscriptions for good, drop the batches that wait, and wake the consumer's task."""
        self.perform(self.core.close())
        self._wakeup.ring()

    def on_link_up(self) -> None:
        """Subscribe every partition on a link that was just opened, and wake the consumer's task. Called by the
        connection."""
        self.perform(self.core.on_link_up(self._connection.limits, self._connection.loop.now()))
        self._wakeup.ring()

    def on_link_down(self) -> None:
        """Forget the subscriptions of the link that was lost, and wake the consumer's task. Batches that have arrived
        stay. Called by the connection."""
        self.core.on_link_down()
        self._wakeup.ring()

    def on_delivery(self, delivery: Delivery) -> None:
        """Pass a delivery of one subscription to the core, perform the effects that it returns (such as grants of
        credit), and wake the consumer's task. Called by the connection."""
        self.perform(self.core.on_delivery(delivery, self._connection.loop.now()))
        self._wakeup.ring()

    def perform(self, effects: list[Effect]) -> None:
        """Perform the effects of the core in order: send subscribe requests, grants of credit and unsubscribe
        requests. Without a link, subscribe requests and grants are dropped, because the core subscribes again on the
        next link."""
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
        """Return the callback for the answer to a subscribe request: an error is passed to the core, and the
        consumer's task is woken."""

        def done(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError):
                self.core.on_subscribed(sub, answer, self._connection.loop.now())
                self._wakeup.ring()

        return done


class Readers:
    """The topic readers of a member of a group, one for each topic, made when the first partition of the topic is
    assigned. Each rings ``wakeup`` when a batch has arrived."""

    def __init__(self, connection: GatewayConnection, wakeup: ReaderWakeup, options: ConsumerOptions) -> None:
        self._connection = connection
        self._wakeup = wakeup
        self._options = options
        self._readers: dict[str, TopicReader] = {}
        self._turns: deque[str] = deque()
        self._paused: dict[TopicPartition, None] = {}

    @property
    def all(self) -> Collection[TopicReader]:
        """All topic readers, one for each topic of which a partition was ever read."""
        return self._readers.values()

    def take_batch(self) -> tuple[TopicPartition, Fetched, TopicReader] | None:
        """Remove the next batch that has arrived and return (its partition, the batch, its topic reader). The topics
        take turns. Returns None if no batch is ready. The credit for the batch is returned to the gateway. Raises the
        error that a partition ended with; ``UNKNOWN_TOPIC`` of a deleted topic is ignored, since its partitions are
        revoked soon."""
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
        """Put back the records at or above ``position`` of the batch that was taken last from this partition, so that
        they are returned before later batches of the partition."""
        self._readers[key.topic_id].core.put_back(fetched, position)

    def fail(self, key: TopicPartition, fetched: Fetched, error: TidelogError) -> None:
        """Stop a partition before the batch that was taken last from it, because its records cannot be used. No more
        of the partition is read until ``seek``."""
        reader = self._readers[key.topic_id]
        reader.perform(reader.core.fail(fetched, error))

    def read(self, key: TopicPartition, topic: str, position: Position, shared_by: int) -> None:
        """Begin to read this partition at a position, and wake the consumer's task. Makes the topic's reader if there
        is none yet. ``shared_by``: the number of partitions among which ``buffer_bytes`` are divided. A partition
        that was paused before stays paused."""
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
        """Stop reading a partition: unsubscribe, drop its batches that wait, and forget that it was paused. Does
        nothing if the partition is not read."""
        self._paused.pop(key, None)
        reader = self._reading(key)
        if reader is not None:
            reader.perform(reader.core.remove(key.partition))

    def share_credit(self, partitions: int) -> None:
        """Divide ``buffer_bytes`` among this many partitions, and grant the gateway the new credit of each."""
        credit = self._options.credit(partitions)
        for reader in self.all:
            reader.perform(reader.core.set_credit(credit))

    def close(self) -> None:
        """Stop all topic readers for good."""
        for reader in self.all:
            reader.close()

    # --- what the application changes ------------------------------------------------------------------------

    @property
    def paused(self) -> list[TopicPartition]:
        """The paused partitions, in the order in which they were paused, including those that are not read yet."""
        return list(self._paused)

    def pause(self, keys: Iterable[TopicPartition]) -> None:
        """Return no batch of these partitions until ``resume``. A partition that is not read yet is paused when its
        reading begins."""
        for key in keys:
            self._paused[key] = None
            if (reader := self._reading(key)) is not None:
                reader.core.pause([key.partition])

    def resume(self, keys: Iterable[TopicPartition]) -> None:
        """Return batches of these partitions again, first those that arrived during the pause, and wake the
        consumer's task."""
        for key in keys:
            self._paused.pop(key, None)
            if (reader := self._reading(key)) is not None:
                reader.core.resume([key.partition])
        self._wakeup.ring()

    def seek(self, key: TopicPartition, position: Position) -> None:
        """Move a partition to this position, drop its batches that wait, and wake the consumer's task. A partition
        that is not read yet is left alone."""
        if (reader := self._reading(key)) is not None:
            reader.perform(reader.core.seek(key.partition, position, self._connection.loop.now()))
        self._wakeup.ring()

    def _reading(self, key: TopicPartition) -> TopicReader | None:
        reader = self._readers.get(key.topic_id)
        return reader if reader is not None and key.partition in reader.core.partitions else None
