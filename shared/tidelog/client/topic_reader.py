"""A consumer core on its connection: it subscribes what the core says. Consumers of every kind that read forwards
stand on these, one for each topic."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from tidelog.client.connection import Connection
from tidelog.client.core.consumer import ConsumerCore, Effect, Grant, Open, Stop
from tidelog.client.loop import Loop
from tidelog.client.options import ConsumerOptions
from tidelog.errors import TidelogError
from tidelog.types import Position
from tidelog.wire.messages import Credit, Delivery, Message, Subscribe


class Wakeup:
    """Wakes the one task that waits for records."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._event = loop.event()

    def ring(self) -> None:
        """There is news."""
        self._event.set()

    async def wait(self, connection: Connection, readers: Collection[TopicReader]) -> None:
        """Until there is news, or something is due; that is done then. Raises ``Unreachable`` where there was no
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
        connection: Connection,
        bell: Wakeup,
        topic: str,
        topic_id: str,
        options: ConsumerOptions,
        starts: Mapping[int, Position],
        ends: Mapping[int, int],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self._connection = connection
        self._bell = bell
        self._options = options
        credit = options.credit(len(starts))
        self.core = ConsumerCore(topic, starts, ends, credit, options.backoff_s, lambda: connection.add_sub(self))
        connection.add_consumer(self)
        if connection.link is not None:
            self.on_link_up()

    def close(self) -> None:
        """Stop reading for good."""
        self.perform(self.core.close())
        self._bell.ring()

    def on_link_up(self) -> None:
        """A gateway is there (called by the connection)."""
        self.perform(self.core.on_link_up(self._connection.loop.now()))
        self._bell.ring()

    def on_link_down(self) -> None:
        """The gateway is gone (called by the connection)."""
        self.core.on_link_down()
        self._bell.ring()

    def on_delivery(self, delivery: Delivery) -> None:
        """Batches arrived (called by the connection)."""
        self.perform(self.core.on_delivery(delivery, self._connection.loop.now()))
        self._bell.ring()

    def perform(self, effects: list[Effect]) -> None:
        """What the core wants to be done."""
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
                case Stop(sub):
                    self._connection.stop_sub(sub)

    def _answered(self, sub: int) -> Callable[[Message | TidelogError], None]:
        def done(answer: Message | TidelogError) -> None:
            if isinstance(answer, TidelogError):
                self.core.on_subscribed(sub, answer, self._connection.loop.now())
                self._bell.ring()

        return done
