"""A load that goes on while processes fail, and the judgement over it: every acked record is on every replica, once,
at its offset, in the same bytes, and the consumer saw each once."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import tidelog
import trio
from running import HEAL_S, Cluster, in_sync, until
from tidelog.cli.demo.check import check, digest, read_replica
from tidelog.client.log import Log
from tidelog.client.producer import Pending, Producer

PARTITIONS = 3
INTERVAL_S = 0.01
"""Between two records of a partition."""
Place = tuple[int, int]
"""Partition and offset."""


class Load:
    """Records of one topic, on their way in and out. ``log`` is a client for the test itself."""

    def __init__(self, cluster: Cluster, log: Log, topic: str, topic_id: str) -> None:
        self.cluster = cluster
        self.log = log
        self.topic = topic
        self.topic_id = topic_id
        self.acked: dict[Place, bytes] = {}
        self.consumed: dict[Place, bytes] = {}
        self.faults: list[str] = []
        self.ack_times: dict[int, list[float]] = {partition: [] for partition in range(PARTITIONS)}
        self._stopping = False
        self._news = trio.Event()
        self._fault_at = 0.0

    # --- what tests ask and wait for ---------------------------------------------------------------------

    async def more(self, count: int = 50) -> None:
        """Wait for so many more acks in every partition."""
        wanted = {partition: len(times) + count for partition, times in self.ack_times.items()}
        await self._wait(lambda: all(len(self.ack_times[p]) >= n for p, n in wanted.items()))

    async def leader(self, partition: int = 0) -> str:
        """The leader of a partition."""
        return (await self.log.topics.describe(self.topic)).partitions[partition].leader

    def begin_fault(self) -> None:
        """From now on the longest gap is measured."""
        self._fault_at = trio.current_time()

    def longest_gap(self) -> float:
        """The longest time without an ack in a partition since the fault, in seconds."""
        times = [[t for t in times if t >= self._fault_at - 0.5] for times in self.ack_times.values()]
        return max(b - a for partition in times for a, b in itertools.pairwise(partition))

    async def heal(self) -> None:
        """Wait until every replica is in sync and the load goes on."""
        await until(lambda: in_sync(self.log, self.topic))
        await self.more()

    def judge(self) -> None:
        """At rest, compare what was acked, what was consumed and what every replica's files hold."""
        folders = {
            server: {p: data / f"{self.topic_id}-{p}" for p in range(PARTITIONS)}
            for server, data in self.cluster.replica_folders().items()
        }
        self.faults += check(self.acked, folders, self.consumed).faults
        assert self.faults == [], self.faults
        for partition in range(PARTITIONS):
            files = [
                b"".join(f.read_bytes() for f in sorted(own[partition].glob("*.log"))) for own in folders.values()
            ]
            assert files[0] == files[1] == files[2], f"partition {partition}: the replicas' files differ"
            stored = read_replica(folders["r1"][partition])
            assert len(set(stored.values())) == len(stored), f"partition {partition} holds a record twice"
            for what, seen in (("acked", self.acked), ("consumed", self.consumed)):
                mine = {offset: record for (p, offset), record in seen.items() if p == partition}
                assert stored == mine, f"partition {partition}: what is stored is not what was {what}"

    # --- the work ----------------------------------------------------------------------------------------

    async def _wait(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(HEAL_S):
            while not holds():
                await self._news.wait()

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    async def run_producer(self, task_status: trio.TaskStatus[None]) -> None:
        """Send at an even pace until ``stop``; ends when everything is settled."""
        options = tidelog.ProducerOptions(delivery_timeout_s=2 * HEAL_S)
        async with self.cluster.connect() as log, log.producer(self.topic, options) as producer:
            task_status.started()
            async with trio.open_nursery() as nursery:
                for partition in range(PARTITIONS):
                    send, receive = trio.open_memory_channel[tuple[Pending, bytes]](1_000_000)
                    nursery.start_soon(self._send, producer, partition, send)
                    nursery.start_soon(self._collect, partition, receive)

    async def _send(
        self, producer: Producer, partition: int, lane: trio.MemorySendChannel[tuple[Pending, bytes]]
    ) -> None:
        began = trio.current_time()
        with lane:
            for number in itertools.count():
                await trio.sleep_until(began + number * INTERVAL_S)
                if self._stopping:
                    return
                value = b"%d-%d %s" % (partition, number, b"x" * (number % 200))
                lane.send_nowait((await producer.submit(value, partition=partition), digest(None, value)))

    async def _collect(self, partition: int, lane: trio.MemoryReceiveChannel[tuple[Pending, bytes]]) -> None:
        last = -1
        async for pending, wanted in lane:
            ack = await pending.wait()
            if ack.offset <= last:
                self.faults.append(f"partition {partition}: offset {ack.offset} was acked after {last}")
            last = ack.offset
            self.acked[partition, ack.offset] = wanted
            self.ack_times[partition].append(trio.current_time())
            self._tell()

    async def run_consumer(self) -> None:
        """Follow from the first record on, for ever."""
        ends = dict.fromkeys(range(PARTITIONS), 0)
        async with self.cluster.connect() as log:
            async for record in log.consume(self.topic, start="earliest"):
                if record.offset != ends[record.partition]:
                    self.faults.append(
                        f"partition {record.partition}: consumed {record.offset} instead of {ends[record.partition]}"
                    )
                ends[record.partition] = record.offset + 1
                self.consumed[record.partition, record.offset] = digest(record.key, record.value)
                self._tell()

    def stop(self) -> None:
        """Send no more."""
        self._stopping = True

    async def wait_consumed(self) -> None:
        """Until the consumer has seen what was acked."""
        await self._wait(lambda: self.consumed.keys() >= self.acked.keys())


@asynccontextmanager
async def flowing(cluster: Cluster, topic: str) -> AsyncIterator[Load]:
    """A new topic under load. At the end of the block the load ends, and is judged."""
    async with cluster.connect() as log:
        made = await log.topics.create(topic, partitions=PARTITIONS, replication_factor=3)
        load = Load(cluster, log, topic, made.topic_id)
        async with trio.open_nursery() as consuming:
            consuming.start_soon(load.run_consumer)
            async with trio.open_nursery() as producing:
                await producing.start(load.run_producer)
                await load.more()
                yield load
                load.stop()
            await load.wait_consumed()
            consuming.cancel_scope.cancel()
        load.judge()
