"""Measurements with consumers: several that read a topic from the beginning, or a thousand that wait for new
records."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from secrets import token_bytes

import trio

from tidelog.batch.format import Record
from tidelog.cli.bench.measurement import BenchTarget, Load, SendSchedule, print_step, progress_bar
from tidelog.cli.bench.producers import ACKNOWLEDGED, drive, open_producers, send_all
from tidelog.cli.bench.report import Delays, ReportRow
from tidelog.types import Position

STAMP = struct.Struct(">16sd")
"""Beginning of a value: the run's random id, and the time at which the record was handed to the producer."""
ARRIVE_S = 30.0
"""Seconds for which records that are still in flight may take to reach the subscribers."""
OPENING = 20
"""Number of connections that are opened at a time."""


async def fill(target: BenchTarget, topic: str, load: Load) -> None:
    """Write the records of a load to the topic, so that consumers have something to read. Prints on stderr what it
    does; nothing is measured. Records that fail are not reported."""
    print_step(f"writing {load.most:,.0f} records to be read, not counted; they will come from the page cache")
    async with open_producers(target, topic, load, 1) as producers:
        await drive(producers, load, ReportRow("", ACKNOWLEDGED), "write")


async def consume(target: BenchTarget, topic: str, load: Load, count: int) -> ReportRow:
    """Measure ``count`` consumers that read the topic at the same time, each on a connection of its own. Each reads
    from the beginning to the present end of the committed records, or to the end of the load. Returns the row of the
    report; its delays are the times from the start to each consumer's first record."""
    row = ReportRow(f"{count} consumer{'s' * (count > 1)}", "from the start to a consumer's first record")
    go = trio.Event()

    async def read(number: int, task_status: trio.TaskStatus[None]) -> None:
        records = size = 0
        async with target.connect(number) as log, log.consume(topic, start="earliest", end="latest") as consumer:
            task_status.started()
            await go.wait()
            while batch := await consumer.next_records():
                if not records:
                    row.delays.add(trio.current_time() - began)
                values = sum(len(record.value or b"") for record in batch)
                records, size = records + len(batch), size + values
                row.records, row.bytes = row.records + len(batch), row.bytes + values
                if records >= (load.records or records + 1) or size >= (load.total_bytes or size + 1):
                    return

    async with target.connect() as log:
        partitions = (await log.topics.describe(topic, offsets=True)).partitions
    total = max(1, count * sum(p.high_watermark - p.log_start for p in partitions))
    async with progress_bar("consume", lambda: row.records / total), trio.open_nursery() as nursery:
        for number in range(count):
            await nursery.start(read, number)
        began = trio.current_time()
        if load.seconds is not None:
            nursery.cancel_scope.deadline = began + load.seconds
        go.set()
    row.seconds = trio.current_time() - began
    return row


class Audience:
    """The subscribers of a topic in a fan-out measurement, each on a connection of its own. ``got`` counts the
    records of this run by subscriber, and ``delays`` has the delay of each."""

    def __init__(self, count: int) -> None:
        self.run = token_bytes(16)
        self.got = [0] * count
        self.delays = Delays()
        self._wanted: int | None = None
        self._all = trio.Event()

    def count_record(self, number: int, record: Record) -> None:
        """Count a record that reached the subscriber ``number``, and its delay from the time that the record's value
        begins with. Records of another run, or too short for that time, are ignored."""
        value = record.value or b""
        if len(value) < STAMP.size:
            return
        run, at = STAMP.unpack_from(value)
        if run == self.run:
            self.got[number] += 1
            self.delays.add(trio.current_time() - at)
            self._check()

    async def wait_all(self, records: int) -> None:
        """Wait until all subscribers together have received ``records`` times their number, but not longer than
        ``ARRIVE_S`` seconds. Returns in either case."""
        self._wanted = records
        self._check()
        with trio.move_on_after(ARRIVE_S):
            await self._all.wait()

    def _check(self) -> None:
        """Wake ``wait_all`` if enough records have arrived."""
        if self._wanted is not None and self.delays.count >= self._wanted * len(self.got):
            self._all.set()

    async def open(self, nursery: trio.Nursery, target: BenchTarget, topic: str) -> None:
        """Connect all subscribers, ``OPENING`` at a time, to read from the present end of the topic. Returns when all
        are connected. They go on to read in ``nursery`` until it is cancelled."""
        async with target.connect() as log:
            start = await log.partitions.find_positions(topic, "latest")
        limiter = trio.CapacityLimiter(OPENING)

        async def open_one(number: int) -> None:
            async with limiter:
                await nursery.start(self._subscribe, target, topic, start, number)

        async with trio.open_nursery() as opening:
            for number in range(len(self.got)):
                opening.start_soon(open_one, number)

    async def _subscribe(
        self,
        target: BenchTarget,
        topic: str,
        start: Mapping[int, Position],
        number: int,
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Subscribe on a connection of its own, report that to the nursery, and count every record until
        cancelled."""
        async with target.connect(number) as log, log.consume(topic, start=start) as consumer:
            task_status.started()
            async for record in consumer:
                self.count_record(number, record)


def stamped(values: Iterator[bytes], run: bytes) -> Iterator[bytes]:
    """Yield each value with its beginning replaced by the run's id and the present time, as ``count_record`` reads
    them."""
    for value in values:
        yield STAMP.pack(run, trio.current_time()) + value[STAMP.size :]


async def fanout(
    target: BenchTarget, topic: str, load: Load, subscribers: int, idle: int, warm_up_s: float
) -> ReportRow:
    """Measure how one producer's records reach ``subscribers`` subscribers, while ``idle`` further ones subscribe to
    a topic without records. Records of the first ``warm_up_s`` seconds are not counted. Returns the row of the
    report; records that did not arrive count as failed."""
    row = ReportRow(
        f"{subscribers} subscribers, {idle} idle", "from handing a record to the producer to a subscriber that has it"
    )
    sent = ReportRow("", ACKNOWLEDGED)
    active = Audience(subscribers)
    async with AsyncExitStack() as stack:
        idle_topic = await stack.enter_async_context(target.own_topic("idle", 1)) if idle else ""
        (producer,) = await stack.enter_async_context(open_producers(target, topic, load, 1))
        nursery = await stack.enter_async_context(trio.open_nursery())
        print_step(f"opening {subscribers:,} subscribers and {idle:,} idle ones")
        if idle:
            await Audience(idle).open(nursery, target, idle_topic)
        await active.open(nursery, target, topic)
        if warm_up_s:
            print_step(f"warm-up of {warm_up_s:g} s, not counted")
            warm = load.lasting(warm_up_s)
            await send_all(producer, warm.values(), SendSchedule(warm), ReportRow("", ""))
        schedule = SendSchedule(load)
        async with progress_bar("fan-out", schedule.share):
            await send_all(producer, stamped(load.values(), active.run), schedule, sent)
            await active.wait_all(sent.records)
        row.seconds = trio.current_time() - schedule.began
        nursery.cancel_scope.cancel()
    row.delays, row.records = active.delays, sum(active.got)
    row.bytes = row.records * load.record_bytes
    missing = sum(max(0, sent.records - got) for got in active.got)
    row.failed, row.first_error = sent.failed + missing, sent.first_error
    acks = sent.delays.as_json()
    row.more = {
        "sent": sent.records,
        "each_got": {"least": min(active.got), "most": max(active.got), "missing": missing},
        "acknowledged_ms": {name: acks[name] for name in ("p50", "p99", "max")},
    }
    return row
