"""Appends finished batches to a partition, each at its own base offset or not at all.

Every batch is a conditional append. The log therefore has each batch once, in order, even if messages are lost,
repeated or late. A writer that does not know the outcome of its batches asks for the log's end and goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.batch.format import read_header
from tidelog.client.connection import GatewayConnection
from tidelog.client.loop import LoopEvent
from tidelog.errors import TidelogError, TimedOut, Unreachable, from_info
from tidelog.types import Acks, Buffer
from tidelog.wire.capabilities import CONDITIONAL_APPEND, refuse_without
from tidelog.wire.messages import Produce, ProduceAck, ProducePart

REQUEST_TIMEOUT_S = 10.0
"""Seconds that a gateway may try a batch."""
ANSWER_TIMEOUT_S = 15.0
"""Seconds that ``append`` waits for all acks before it raises ``TimedOut``."""
MESSAGE_BATCHES = 200
"""Most batches in one message: its header has space for this many parts."""
MESSAGE_BYTES = 8 << 20
"""Most bytes of a message with several batches. A larger batch gets a message of its own."""


class ConditionalAppender:
    """An appender of encoded batches to one partition, each at its own base offset. Made by ``Log.appender``; one
    task uses it, and calls ``close`` at the end."""

    def __init__(self, connection: GatewayConnection, topic_id: str, partition: int) -> None:
        self._connection = connection
        self._loop = connection.loop
        self._topic_id = topic_id
        self._partition = partition
        self._number, self._next_id = connection.add_producer(self)
        self._waiting: set[int] = set()
        self._error: TidelogError | None = None
        self._settled: LoopEvent = self._loop.event()

    async def append(self, batches: Sequence[Buffer]) -> None:
        """Send consecutive batches and wait until all are committed. Each batch is appended at its own base offset or
        refused. Raises the error that the first failed batch was refused with (``UNEXPECTED_OFFSET``: the log does
        not end where the batch begins), ``UNSUPPORTED`` if the gateway may ignore where it begins, ``Unreachable`` if
        there is no link or it is lost, or ``TimedOut`` after ``ANSWER_TIMEOUT_S``. After an error, batches before the
        failed one may be in the log; batches after it are not."""
        link = await self._connection.wait_up(self._loop.now() + self._connection.request_timeout_s)
        refusal = refuse_without(CONDITIONAL_APPEND, "expected_offset", link.peer)
        if refusal is not None:
            raise refusal
        self._error, self._settled = None, self._loop.event()
        messages = list(self._messages(batches))
        self._waiting = {part.id for message in messages for part in message.parts}
        try:
            for message in messages:
                await self._connection.send_batches(link, message, self._loop.now() + ANSWER_TIMEOUT_S)
            await self._loop.wait(self._settled, self._loop.now() + ANSWER_TIMEOUT_S)
        finally:
            self._waiting = set()
        if self._error is not None:
            raise self._error
        if not self._settled.is_set():
            raise TimedOut("not all batches were acknowledged in time", unknown_outcome=True)

    def _messages(self, batches: Sequence[Buffer]) -> list[Produce]:
        """Return the produce messages for these batches, in order, each with at most ``MESSAGE_BATCHES`` batches and
        ``MESSAGE_BYTES``."""
        messages: list[Produce] = []
        parts: list[ProducePart] = []
        payload: list[Buffer] = []
        size = 0
        for batch in batches:
            if parts and (size + len(batch) > MESSAGE_BYTES or len(parts) == MESSAGE_BATCHES):
                messages.append(Produce(tuple(parts), payload))
                parts, payload, size = [], [], 0
            where = self._topic_id, self._partition, int(Acks.ALL), round(1000 * REQUEST_TIMEOUT_S), len(batch)
            offset = read_header(batch).base_offset
            parts.append(ProducePart(self._next_id(), *where, expected_offset=offset))
            payload.append(batch)
            size += len(batch)
        if parts:
            messages.append(Produce(tuple(parts), payload))
        return messages

    def close(self) -> None:
        """Unregister from the connection, so that no more acks arrive."""
        self._connection.remove_producer(self._number)

    # Called by the connection:

    def on_acks(self, acks: Sequence[ProduceAck]) -> None:
        """Mark the batches that these acks name as answered, and keep the first error. Wakes ``append`` when all
        batches are answered. Called by the connection."""
        for ack in acks:
            if ack.id in self._waiting:
                self._waiting.remove(ack.id)
                if ack.error is not None and self._error is None:
                    self._error = from_info(ack.error)
        if not self._waiting:
            self._settled.set()

    def on_link_up(self) -> None:
        """Do nothing: ``append`` waits for a link by ``GatewayConnection.wait_up``. Called by the connection."""

    def on_link_down(self) -> None:
        """Make ``append`` raise ``Unreachable`` with unknown outcome, if batches have no ack yet. Called by the
        connection."""
        if self._waiting:
            self._error = self._error or Unreachable("the gateway was lost", unknown_outcome=True)
            self._settled.set()
