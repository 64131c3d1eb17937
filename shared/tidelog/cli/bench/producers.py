"""Measurements with producers: as fast as they can, at a rate, or one record at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import trio

from tidelog.cli.bench.measurement import BenchTarget, Load, SendSchedule, print_step, progress_bar
from tidelog.cli.bench.report import ReportRow
from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from tidelog.client.producer import Pending, Producer

ACKNOWLEDGED = "from handing a record over to its acknowledgement"
"""Description of the delay that these measurements take."""


class AckLatencies:
    """The records that one producer has sent to one partition and whose acknowledgements are awaited, in order. The
    outcome and the delay of each are counted in a row of the report."""

    def __init__(self, row: ReportRow) -> None:
        self._row = row
        self._waiting: deque[tuple[Pending, float]] = deque()
        self._news = trio.Event()
        self._closed = False

    def add(self, pending: Pending, at: float) -> None:
        """Add a record that was sent. ``at`` is the time, in seconds of trio's clock, from which its delay is
        counted."""
        self._waiting.append((pending, at))
        self._news.set()

    def close(self) -> None:
        """Announce that no more records are added. ``settle`` then returns when the last record has its outcome."""
        self._closed = True
        self._news.set()

    async def settle(self) -> None:
        """Wait for the outcome of each record in turn, and count it in the row: as failed, or as acknowledged with
        its delay. Returns after ``close``, when no record is left."""
        row = self._row
        while self._waiting or not self._closed:
            if not self._waiting:
                self._news = trio.Event()
                await self._news.wait()
                continue
            pending, at = self._waiting.popleft()
            try:
                await pending.wait()
            except TidelogError as error:
                row.failed += 1
                row.first_error = row.first_error or str(error)
            else:
                row.records += 1
                row.delays.add(trio.current_time() - at)


async def send_all(producer: Producer, values: Iterator[bytes], schedule: SendSchedule, row: ReportRow) -> None:
    """Send ``values`` with one producer, each when ``schedule`` says that it is due, and count outcomes and delays in
    ``row``. Returns when the schedule has ended and every record is acknowledged or has failed."""
    queues: dict[int, AckLatencies] = {}
    async with trio.open_nursery() as nursery:
        while (at := schedule.next_time()) is not None:
            if at > trio.current_time():
                await trio.sleep_until(at)
            pending = await producer.submit(next(values))
            if (queue := queues.get(pending.partition)) is None:
                queue = queues[pending.partition] = AckLatencies(row)
                nursery.start_soon(queue.settle)
            queue.add(pending, at)
        await producer.flush()
        for queue in queues.values():
            queue.close()


async def drive(producers: list[Producer], load: Load, row: ReportRow, what: str) -> None:
    """Send one load with all producers at the same time, and fill in ``row`` with the result. Shows a progress bar
    with the text ``what`` on stderr. Returns when every record is acknowledged or has failed."""
    values = load.values()
    schedule = SendSchedule(load)
    async with progress_bar(what, schedule.share), trio.open_nursery() as nursery:
        for producer in producers:
            nursery.start_soon(send_all, producer, values, schedule, row)
    row.seconds = trio.current_time() - schedule.began
    row.bytes = row.records * load.record_bytes


@asynccontextmanager
async def open_producers(target: BenchTarget, topic: str, load: Load, count: int) -> AsyncIterator[list[Producer]]:
    """Return a context manager that opens ``count`` producers for a topic, each on a connection of its own, and
    yields them. They are closed at the end."""
    async with AsyncExitStack() as stack:
        producers = []
        for number in range(count):
            log = await stack.enter_async_context(target.connect(number))
            partitions = len((await log.topics.describe(topic)).partitions)
            producers.append(await stack.enter_async_context(log.producer(topic, load.options(partitions))))
        yield producers


async def produce(target: BenchTarget, topic: str, load: Load, count: int, warm_up_s: float) -> ReportRow:
    """Measure ``count`` producers that send the load together, and return the row of the report. Before that, they
    send for ``warm_up_s`` seconds, which are not counted."""
    row = ReportRow(f"{count} producer{'s' * (count > 1)}, acks {load.acks}", ACKNOWLEDGED)
    async with open_producers(target, topic, load, count) as producers:
        if warm_up_s:
            print_step(f"warm-up of {warm_up_s:g} s, not counted")
            await drive(producers, load.lasting(warm_up_s), ReportRow("", ""), "warm-up")
        await drive(producers, load, row, "produce")
    return row


async def one_by_one(target: BenchTarget, topic: str, load: Load, warm_up: int) -> ReportRow:
    """Measure the latency of single records: each is sent when the one before is acknowledged. Returns the row of the
    report. The first ``warm_up`` records are not counted."""
    row = ReportRow(f"acks {load.acks}", ACKNOWLEDGED)
    values = load.values()
    async with open_producers(target, topic, load, 1) as (producer,):
        for _ in range(warm_up):
            await producer.send(next(values))
        schedule = SendSchedule(load)
        async with progress_bar(row.case, schedule.share):
            while (at := schedule.next_time()) is not None:
                try:
                    await producer.send(next(values))
                except TidelogError as error:
                    row.failed += 1
                    row.first_error = row.first_error or str(error)
                else:
                    row.records += 1
                    row.delays.add(trio.current_time() - at)
        row.seconds = trio.current_time() - schedule.began
        row.bytes = row.records * load.record_bytes
    return row
