"""The workload under faults: producers, conditional writers, transactions, a consumer group and plain consumers. Each
is a client of its own that knows all gateways. It goes on after any error, and records every operation and its
outcome in the history."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random

import tidelog
import trio
from chaos.workload.meter import Meter
from tidelog.batch.format import Record
from tidelog.client.group_consumer import Hooks
from tidelog.client.log import Log
from tidelog.client.options import ConsumerOptions, GroupOptions, ProducerOptions
from tidelog.client.producer import Pending
from tidelog.errors import TidelogError
from tidelog.verify import Recorder, Sending, identity

RECORDS, TRANSFERS, RACES = "records", "transfers", "races"
"""Topics: of plain producers, of transactions, of conditional writers."""
PARTITIONS = {RECORDS: 3, TRANSFERS: 2, RACES: 1}
CONFIG = {"min_insync_replicas": 2, "segment_max_bytes": 1 << 15}
"""Settings of the topics. Segments are small, so that there are soon closed ones to damage."""
GROUP = "readers"
RATES = {"all": 60, "leader": 20, "none": 10}
"""Records per second of the producer of each level of acks."""
LEVELS = {"all": "all", "leader": "leader", "none": "received"}
"""Level of acks -> its name in a history."""
OVERLOAD = 100
"""Factor of the rates under overload."""
WAITING = 20_000
"""Records of a partition whose acks may be awaited at a time."""
DELIVERY_S = 20.0
"""Seconds after which a record has failed."""
LARGEST = 600
"""Most bytes of a value."""

Sent = tuple[Pending, Sending, float]
"""A submitted record, its entry in the history, and the second at which it was sent."""


@dataclass(slots=True)
class Workload:
    """All clients of a run, and the switches that control them."""

    gateways: list[str]
    meter: Meter
    recorder: Recorder
    seed: int
    retention_bytes: int = -1
    """Bytes of each partition that are kept; -1: all."""
    hurry: bool = False
    stopping: bool = False
    busy: set[str] = field(default_factory=set)
    """Names of the clients that have not ended."""

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Log]:
        """Open a client of the cluster that is closed at the end of the block. Waits up to five minutes for a
        gateway."""
        async with tidelog.connect(self.gateways, connect_timeout_s=300, request_timeout_s=DELIVERY_S) as log:
            yield log

    async def create(self) -> None:
        """Create the topics of the workload, and enter their partitions in the history."""
        async with self.client() as log:
            for topic, partitions in PARTITIONS.items():
                config = CONFIG | {"retention_bytes": self.retention_bytes}
                await log.topics.create(topic, partitions=partitions, replication_factor=3, config=config)
                for partition in range(partitions):
                    self.recorder.partition(f"{topic}/{partition}")

    def overload(self, on: bool) -> None:
        """Let producers send as fast as they can (True), or at their usual rates again."""
        self.hurry = on

    async def run(self) -> None:
        """Run all clients until ``stop`` is called. Returns when the writers have settled all that they had begun;
        then the readers are cancelled."""
        async with trio.open_nursery() as reading:
            for number in range(2):
                reading.start_soon(self._again, f"member-{number}", self._member)
            reading.start_soon(self._again, "follower", self._follow)
            async with trio.open_nursery() as writing:
                for acks in RATES:
                    writing.start_soon(self._again, f"producer-{acks}", self._produce)
                for number in range(2):
                    writing.start_soon(self._again, f"racer-{number}", self._race)
                writing.start_soon(self._again, "mover", self._move)
            reading.cancel_scope.cancel()

    def stop(self) -> None:
        """Let no client begin anything new."""
        self.stopping = True

    async def _again(self, name: str, work: Callable[[Log, str], Awaitable[None]]) -> None:
        """Run ``work`` with a new client and under a new name, again and again after each failure, until ``stop``."""
        self.busy.add(name)
        for life in itertools.count():
            if self.stopping:
                break
            try:
                async with self.client() as log:
                    await work(log, f"{name}-{life}")
            except* TidelogError:
                pass  # the meter has counted it
            await trio.sleep(0.2)
        self.busy.remove(name)

    # --- writers -------------------------------------------------------------------------------------------

    async def _produce(self, log: Log, name: str) -> None:
        acks = name.split("-")[1]
        random = Random(f"{self.seed} {name}")
        options = ProducerOptions(acks=acks, delivery_timeout_s=DELIVERY_S)
        lanes = [trio.open_memory_channel[Sent](WAITING) for _ in range(PARTITIONS[RECORDS])]
        async with log.producer(RECORDS, options) as producer, trio.open_nursery() as nursery:
            for _, receive in lanes:
                nursery.start_soon(self._collect, receive, acks)
            for number in itertools.count():
                await trio.sleep(1 / (RATES[acks] * (OVERLOAD if self.hurry else 1)))
                if self.stopping:
                    break
                began = self.meter.now()
                value = f"{name} {number} {random.randbytes(random.randrange(LARGEST // 2)).hex()}".encode()
                partition = number % len(lanes)
                sending = self.recorder.send(
                    name, f"{RECORDS}/{partition}", [identity(value)], level=LEVELS[acks], idempotent=acks != "none"
                )
                pending = await producer.submit(value, partition=partition)
                await lanes[partition][0].send((pending, sending, began))
            for send, _ in lanes:
                send.close()

    async def _collect(self, receive: trio.MemoryReceiveChannel[Sent], acks: str) -> None:
        """Await the acks of one partition, in the order of the sends, and record the outcomes."""
        async for pending, sending, began in receive:
            with suppress(TidelogError), self.meter.operation(f"acks {acks}", began), sending:
                ack = await pending.wait()
                sending.acked(ack.offset, ack.leader_epoch)
                if acks == "all":
                    self.meter.acked(RECORDS, ack.partition)

    async def _race(self, log: Log, name: str) -> None:
        """Append records one at a time, each with the offset that it expects, until ``stop``. Two such writers
        compete for every offset."""
        expected = 0
        async with log.producer(RACES, ProducerOptions(delivery_timeout_s=DELIVERY_S)) as producer:
            for number in itertools.count():
                await trio.sleep(0.1)
                if self.stopping:
                    return
                value = f"{name} {number}".encode()
                sending = self.recorder.send(name, f"{RACES}/0", [identity(value)], expected_offset=expected)
                try:
                    with self.meter.operation("conditional append"), sending:
                        ack = await producer.send(value, partition=0, expected_offset=expected)
                        sending.acked(ack.offset, ack.leader_epoch)
                        self.meter.acked(RACES, 0)
                        expected = ack.offset + 1
                except TidelogError as error:
                    expected = int(error.detail.get("end_offset", expected))

    async def _move(self, log: Log, name: str) -> None:
        """Run transactions over two partitions until ``stop``; the application aborts every eighth."""
        for number in itertools.count():
            await trio.sleep(0.2)
            if self.stopping:
                return
            label = f"{name}-{number}"
            with suppress(TidelogError, _GivenUp), self.meter.operation("transaction"):
                await self._transfer(log, label, gives_up=number % 8 == 7)

    async def _transfer(self, log: Log, label: str, *, gives_up: bool) -> None:
        with self.recorder.transaction(label, "mover") as recorded:
            async with log.transaction("mover") as transaction:
                for partition in range(PARTITIONS[TRANSFERS]):
                    value, place = f"{label}-{partition}".encode(), f"{TRANSFERS}/{partition}"
                    with self.recorder.send(label, place, [value], transaction=label) as sending:
                        ack = await transaction.send(TRANSFERS, value, partition=partition)
                        sending.acked(ack.offset, ack.leader_epoch)
                if gives_up:
                    raise _GivenUp
                recorded.asks()

    # --- readers -------------------------------------------------------------------------------------------

    async def _follow(self, log: Log, name: str) -> None:
        """Read all records from any replica, and record them in the history, for ever."""
        shown = ReaderHistory(self.recorder, name)
        async with log.consume(RECORDS, start="earliest", options=ConsumerOptions(read_from="any")) as consumer:
            while True:
                began = self.recorder.now()
                with self.meter.operation("read"):
                    records = await consumer.next_records()
                shown.record(records, began)

    async def _member(self, log: Log, name: str) -> None:
        """Read as a member of the group and commit after every batch, for ever. Each time that it gets a partition it
        counts as a new reader in the history, since a member that has lost a partition goes on at the group's
        position."""
        options = GroupOptions(session_timeout_s=6.0, auto_commit_s=None)
        readers: dict[int, ReaderHistory] = {}
        lives = itertools.count()

        def assigned(shares: list[tuple[str, int]]) -> None:
            readers.update(
                {partition: ReaderHistory(self.recorder, f"{name}.{next(lives)}") for _, partition in shares}
            )

        async with log.consume(
            [RECORDS], group=GROUP, start="earliest", group_options=options, hooks=Hooks(on_assigned=assigned)
        ) as consumer:
            while True:
                began = self.recorder.now()
                with self.meter.operation("group read"):
                    records = await consumer.next_records()
                readers[records[0].partition].record(records, began, group=GROUP)
                last = records[-1]
                commit = self.recorder.commit(
                    name, GROUP, consumer.generation, {f"{RECORDS}/{last.partition}": last.offset + 1}
                )
                with suppress(TidelogError), self.meter.operation("commit"), commit:
                    await consumer.commit()


class _GivenUp(Exception):
    """Raised in a transaction that the application aborts."""


class ReaderHistory:
    """The part of the history that one reader writes: which records it got, in order."""

    def __init__(self, recorder: Recorder, process: str) -> None:
        self._process = process
        self._recorder = recorder
        self._positions: dict[int, int] = {}

    def record(self, records: list[Record], began: float, group: str = "") -> None:
        """Enter a batch of records of one partition, requested at ``began``, in the history."""
        partition = records[0].partition
        rows = [(r.offset, identity(r.value, r.key, r.headers), r.leader_epoch) for r in records]
        position = self._positions.get(partition, records[0].offset)
        self._positions[partition] = records[-1].offset + 1
        self._recorder.read(self._process, f"{RECORDS}/{partition}", position, rows, began, group=group)
