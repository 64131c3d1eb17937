"""Applications that use the real client and record what they sent and received."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

import tidelog
from tidelog.errors import TidelogError
from tidelog.testing.shells.services import GATEWAY_URL
from tidelog.testing.shells.streams import NODE
from tidelog.types import Position
from tidelog.verify.history import FAILED, OK, UNKNOWN, OperationHistory, ReadCall, SendCall

TOPIC = "t"
PAUSE_S = 0.2


@asynccontextmanager
async def connected() -> AsyncIterator[tidelog.Log]:
    """Yield a client, as soon as a gateway answers."""
    while True:
        try:
            async with tidelog.connect(GATEWAY_URL) as log:
                yield log
                return
        except TidelogError:
            await trio.sleep(PAUSE_S)


async def create_topic(partitions: int, config: dict[str, object]) -> None:
    """Create the topic, with retries until it exists."""
    NODE.set("admin")
    while True:
        try:
            async with tidelog.connect(GATEWAY_URL) as log:
                topics = await log.topics.list()
                if not any(topic.name == TOPIC for topic in topics):
                    await log.topics.create(TOPIC, partitions=partitions, replication_factor=3, config=config)
                return
        except TidelogError:
            await trio.sleep(PAUSE_S)


class Sender:
    """Sends one record after the other until ``stopped``, each with a deadline, and records each send."""

    def __init__(self, name: str, history: OperationHistory, rng: random.Random, partitions: int) -> None:
        self.name = name
        self.stopped = False
        self.done = trio.Event()
        self._history = history
        self._rng = rng
        self._partitions = partitions
        self._sent = 0
        self._lives = 0

    async def run(self) -> None:
        """Send until stopped. Each failed send is followed by a new producer, since the failed one may still be
        appended."""
        NODE.set(self.name)
        options = tidelog.ProducerOptions(delivery_timeout_s=6.0, request_timeout_s=2.0)
        while not self.stopped:
            self._lives += 1
            self._sent += 1
            try:
                async with tidelog.connect(GATEWAY_URL) as log, log.producer(TOPIC, options) as producer:
                    while not self.stopped and await self._send(producer):
                        self._sent += 1
            except TidelogError:
                await trio.sleep(PAUSE_S)
        self.done.set()

    async def _send(self, producer: tidelog.Producer) -> bool:
        """Send one record, add it to the history and return whether it was acked."""
        await trio.sleep(self._rng.expovariate(1 / 0.05))
        partition = self._rng.randrange(self._partitions)
        value = f"{self.name}:{TOPIC}/{partition}:{self._sent}".encode()
        start, result, offset, epoch = trio.current_time(), UNKNOWN, -1, -1
        try:
            ack = await producer.send(value, partition=partition)
        except TidelogError as error:
            result = UNKNOWN if error.unknown_outcome else FAILED
        else:
            result, offset, epoch = OK, ack.offset, ack.leader_epoch
        self._history.operations.append(
            SendCall(
                f"{self.name}.{self._lives}",
                f"{TOPIC}/{partition}",
                self._sent,
                (value,),
                start,
                trio.current_time(),
                result,
                offset,
                epoch=epoch,
            )
        )
        return result == OK


class Receiver:
    """Consumes everything from the start, with a new connection after each error, and records each read."""

    def __init__(
        self, name: str, history: OperationHistory, partitions: int, options: tidelog.ConsumerOptions
    ) -> None:
        self.name = name
        self.positions = dict.fromkeys(range(partitions), 0)
        self._epochs = dict.fromkeys(range(partitions), -1)
        self._history = history
        self._options = options

    async def run(self) -> None:
        """Read the topic until cancelled."""
        NODE.set(self.name)
        while True:
            start = {p: Position(self._epochs[p], offset) for p, offset in self.positions.items()}
            try:
                async with tidelog.connect(GATEWAY_URL) as log:
                    async for record in log.consume(TOPIC, start=start, options=self._options):
                        self._saw(record)
            except TidelogError as error:
                assert error.code not in ("LOG_TRUNCATED", "OFFSET_OUT_OF_RANGE"), error
                await trio.sleep(PAUSE_S)

    def _saw(self, record: tidelog.Record) -> None:
        """Add a received record to the history and move the position."""
        now, partition = trio.current_time(), record.partition
        assert record.value is not None
        self._history.operations.append(
            ReadCall(
                self.name,
                f"{TOPIC}/{partition}",
                self.positions[partition],
                ((record.offset, record.value),),
                now,
                now,
                (record.leader_epoch,),
            )
        )
        self.positions[partition] = record.offset + 1
        self._epochs[partition] = record.leader_epoch


async def drain(history: OperationHistory) -> None:
    """Read the whole topic with a new consumer and store the records as the final log of the history; repeats until a
    read succeeds."""
    NODE.set("drain")
    while True:
        final: dict[str, list[tuple[int, bytes]]] = {}
        try:
            async with tidelog.connect(GATEWAY_URL) as log:
                async for record in log.consume(TOPIC, start="earliest", end="latest"):
                    assert record.value is not None
                    final.setdefault(f"{TOPIC}/{record.partition}", []).append((record.offset, record.value))
        except TidelogError:
            await trio.sleep(PAUSE_S)
            continue
        history.final = final
        return
