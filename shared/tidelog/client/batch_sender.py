"""Sends batches that the caller has encoded and numbered, one at a time per partition, each until it is acked or has
failed for good. Used by writers whose batches must be identical in a second attempt by another process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog.client.connection import GatewayConnection
from tidelog.client.loop import LoopEvent
from tidelog.errors import TidelogError, TimedOut, from_info, pause_s
from tidelog.types import Acks
from tidelog.wire.messages import Produce, ProduceAck, ProducePart

REQUEST_TIMEOUT_S = 10.0
"""Seconds that a gateway may try one batch before it is sent again."""
BACKOFF_S = 0.1
"""Shortest pause in seconds before a batch is sent again."""


@dataclass
class _Try:
    """One transmission of a batch. ``event`` is set with the ack, or without one if the link is lost."""

    event: LoopEvent
    ack: ProduceAck | None = None


class BatchSender:
    """A sender of batches that the caller has encoded and numbered. Made by ``Log.sender``; the caller ends it with
    ``close``. Any number of tasks may send at a time, each to partitions of its own."""

    def __init__(self, connection: GatewayConnection, acks: Acks, transaction: str) -> None:
        self._connection = connection
        self._transaction = transaction
        self._loop = connection.loop
        self._acks = int(acks)
        self._number, self._next_id = connection.add_producer(self)
        self._tries: dict[int, _Try] = {}
        self._not_before: dict[tuple[str, int], float] = {}
        """Loop time before which nothing should be sent to a partition, as its last ack asked, by (topic id,
        partition)."""

    async def send(self, topic_id: str, partition: int, batch: bytes, timeout_s: float) -> None:
        """Send a batch, as often as needed, and return when it is acked. Each try sends identical bytes, and a batch
        that the log already has is acked, too. Raises the error of the last try if it is not retriable or
        ``timeout_s`` seconds are over: the refusal, ``Unreachable`` or ``TimedOut``. If ``unknown_outcome`` of the
        error is set, the batch may be in the log."""
        deadline = self._loop.now() + timeout_s
        await self._pause(topic_id, partition, deadline)
        uncertain = False
        while True:
            error = await self._try(topic_id, partition, batch, deadline)
            if error is None:
                return
            uncertain = error.unknown_outcome = uncertain or error.unknown_outcome
            wait_s = max(BACKOFF_S, error.pause_s)
            if not error.retriable or self._loop.now() + wait_s >= deadline:
                raise error
            await self._loop.sleep(wait_s)

    async def _pause(self, topic_id: str, partition: int, deadline: float) -> None:
        """Wait for the pause that the last ack of the partition asked for, but leave at least ``REQUEST_TIMEOUT_S``
        before the deadline for sending."""
        until = self._not_before.pop((topic_id, partition), 0.0)
        left_s = min(until, deadline - REQUEST_TIMEOUT_S) - self._loop.now()
        if left_s > 0:
            await self._loop.sleep(left_s)

    async def _try(self, topic_id: str, partition: int, batch: bytes, deadline: float) -> TidelogError | None:
        """Send a batch once and wait for its ack, for at most ``REQUEST_TIMEOUT_S``. Returns None if it was acked,
        else the error."""
        try:
            link = await self._connection.wait_up(deadline)
        except TidelogError as error:
            return error
        number, tried = self._next_id(), _Try(self._loop.event())
        until = min(deadline, self._loop.now() + REQUEST_TIMEOUT_S)
        timeout_ms = max(1, round(1000 * (until - self._loop.now())))
        of = self._transaction
        part = ProducePart(number, topic_id, partition, self._acks, timeout_ms, len(batch), transaction=of)
        self._tries[number] = tried
        try:
            await self._connection.send_batches(link, Produce((part,), batch), until)
            await self._loop.wait(tried.event, until)
        except TidelogError as error:
            return error
        finally:
            del self._tries[number]
        if tried.ack is None:
            return TimedOut("no acknowledgement came", unknown_outcome=True)
        if tried.ack.throttle_ms:
            self._not_before[topic_id, partition] = self._loop.now() + pause_s(tried.ack.throttle_ms)
        return None if tried.ack.error is None else from_info(tried.ack.error)

    def close(self) -> None:
        """Unregister from the connection. Calls of ``send`` that are under way get no ack any more and time out."""
        self._connection.remove_producer(self._number)

    # Called by the connection:

    def on_acks(self, acks: Sequence[ProduceAck]) -> None:
        """Pass each ack to the try that waits for it, and wake that try. Acks of ended tries are ignored. Called by
        the connection."""
        for ack in acks:
            if (tried := self._tries.get(ack.id)) is not None:
                tried.ack = ack
                tried.event.set()

    def on_link_up(self) -> None:
        """Do nothing: sends wait for a link by ``GatewayConnection.wait_up``. Called by the connection."""

    def on_link_down(self) -> None:
        """Wake all tries on the link that was lost: they end without an ack, and ``send`` repeats them until its
        deadline. Called by the connection."""
        for tried in self._tries.values():
            tried.event.set()
