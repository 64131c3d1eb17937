"""The workload of ``tidelog verify record``: many concurrent clients, which use everything that the cluster makes
promises about and record it. Each has a connection of its own, and opens a new one again and again.

Writers: idempotent producers that send bursts with acks all; one with acks leader and one with none, which promise
less; appenders, which ask for the end and append there or not at all; applications with transactions that write to
several partitions and move a group on. An application has two processes, which take over from each other. Readers are
in ``workload_readers.py``."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count

import trio

from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.client.producer import Pending
from tidelog.errors import TidelogError
from tidelog.verify.history import identity
from tidelog.verify.history_writer import Recorder, Sending
from tidelog.wire.messages import TopicInfo

Connect = Callable[[int], AbstractAsyncContextManager[Log]]
"""Function that opens the connection of the n-th client."""
DELIVERY_S = 20.0
"""Seconds after which a record without an acknowledgement has failed, with unknown outcome."""
TRANSACTION_S = 15.0
"""Time-out of a transaction in seconds."""
PAUSE_S = 0.2
"""Seconds before a client that failed connects again."""
BURSTS = (1, 1, 2, 5)
"""Numbers of records that a producer sends at a time to one partition; one is drawn for each burst."""
SHARES = (0.1, 0.01)
"""Rates at which the two processes of an application begin transactions, as shares of ``rate``. Each process takes
over from the other."""
GIVEN_UP = 0.2
"""Share of transactions that their application aborts on purpose."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The number of clients of each kind in a recording, and how much they write. If there are three producers or
    more, one has acks leader and one acks none."""

    producers: int = 4
    appenders: int = 2
    applications: int = 1
    consumers: int = 3
    members: int = 3
    rate: float = 50.0
    """Records per second of each writer, approximately."""
    record_bytes: int = 200
    """Length of the longest value in bytes."""


class _GivenUp(Exception):
    """Raised by an application inside its own transaction, to abort the transaction on purpose."""


def app_of(topic: str, number: int) -> str:
    """Return the transactional id of the application with this number (from 0), which is also the name of the group
    whose position its transactions move on."""
    return f"{topic}-app{number + 1}"


class Stage:
    """The state that all clients of one recording share: recorder, topic, settings and counters; and ``stopping``,
    the flag that ends the writers."""

    def __init__(
        self, recorder: Recorder, topic: TopicInfo, starts: dict[int, int], connect: Connect, mix: Mix, seed: int
    ) -> None:
        self.recorder = recorder
        self.topic = topic
        self.starts = starts
        """Partition -> offset at which its history begins."""
        self.connect = connect
        self.mix = mix
        self.seed = seed
        self.counts = Counter[str]()
        """Numbers of operations by result and kind, for display."""
        self.stopping = False
        """Whether the writers should end."""
        self._numbers = count()

    def name(self, partition: int) -> str:
        """Return the name of a partition as histories write it: ``TOPIC/NUMBER``."""
        return f"{self.topic.name}/{partition}"

    def app(self, number: int) -> str:
        """Return the transactional id of the application with this number (from 0), which is also the name of the
        group whose position its transactions move on."""
        return app_of(self.topic.name, number)

    def chance(self, who: str) -> random.Random:
        """Return a new random number generator for one client. Its numbers depend only on the recording's seed and
        the client's name."""
        return random.Random(f"{self.seed} {who}")

    def value(self, rng: random.Random, who: str, partition: int) -> bytes:
        """Return a value for a new record, unique in the recording. Its length is random, at most ``record_bytes``
        unless its text alone is longer."""
        text = f"{who}:{self.name(partition)}:{next(self._numbers)}".encode()
        return text.ljust(rng.randint(0, self.mix.record_bytes), b".")

    async def settle(self, op: Sending, pending: Pending) -> None:
        """Wait for the acknowledgement of a sent record, record the acknowledgement or the error in the history, and
        count the result. No ``TidelogError`` is raised."""
        with suppress(TidelogError), op:
            ack = await pending.wait()
            op.acked(ack.offset, ack.leader_epoch)
        self.counts[op.result] += 1

    async def keep(self, number: int, work: Callable[[Log], Awaitable[None]]) -> None:
        """Run the client function ``work`` with a connection, again and again, each time with a new connection, until
        ``stopping`` is set. Errors of the client only end one run. ``number`` is the client's number for
        ``connect``."""
        while not self.stopping:
            try:
                async with self.connect(number) as log:
                    await work(log)
            except* TidelogError:
                self.counts["connections lost"] += 1
            await trio.sleep(PAUSE_S)


class Writers:
    """The clients of a recording that write: producers, appenders and applications. They run until ``Stage.stopping``
    is set and their open operations have ended."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._runs = count(1)
        """Numbers for the runs of clients: each run is a process of its own in the history."""

    def start(self, nursery: trio.Nursery, numbers: count[int]) -> None:
        """Start the tasks of all writers in the nursery, without waiting. ``numbers`` gives each client its
        number."""
        mix = self._stage.mix
        for number in range(mix.producers):
            acks = "all"
            if mix.producers >= 3 and number >= mix.producers - 2:
                acks = "leader" if number == mix.producers - 2 else "none"
            self._begin(nursery, numbers, partial(self._produce, f"p{number + 1}", acks))
        for number in range(mix.appenders):
            self._begin(nursery, numbers, partial(self._append, f"a{number + 1}"))
        for number in range(mix.applications):
            app = self._stage.app(number)
            for process, share in enumerate(SHARES, 1):
                work = partial(self._transact, f"x{number + 1}-{process}", app, mix.rate * share)
                self._begin(nursery, numbers, work)

    def _begin(self, nursery: trio.Nursery, numbers: count[int], work: Callable[[Log], Awaitable[None]]) -> None:
        nursery.start_soon(self._stage.keep, next(numbers), work)

    async def _produce(self, who: str, acks: str, log: Log) -> None:
        """Send bursts of records to random partitions with these acks, and record each send, until ``stopping`` is
        set. Raises the error that ended the producer."""
        stage = self._stage
        process = f"{who}.{next(self._runs)}"
        rng = stage.chance(process)
        level = "received" if acks == "none" else acks
        options = ProducerOptions(acks=acks, delivery_timeout_s=DELIVERY_S)
        idempotent = options.is_idempotent
        async with log.producer(stage.topic.name, options) as producer:
            while not stage.stopping:
                await trio.sleep(rng.expovariate(stage.mix.rate * len(BURSTS) / sum(BURSTS)))
                partition = rng.randrange(len(stage.topic.partitions))
                burst = []
                for _ in range(rng.choice(BURSTS)):
                    value = stage.value(rng, process, partition)
                    op = stage.recorder.send(
                        process, stage.name(partition), [identity(value)], level=level, idempotent=idempotent
                    )
                    burst.append((op, await producer.submit(value, partition=partition)))
                for op, pending in burst:
                    await stage.settle(op, pending)

    async def _append(self, who: str, log: Log) -> None:
        """Ask for the end of random partitions, append a record there under the condition that the end has not moved,
        and record both, until ``stopping`` is set. Raises the error that ended the producer."""
        stage = self._stage
        process = f"{who}.{next(self._runs)}"
        rng = stage.chance(process)
        async with log.producer(stage.topic.name, ProducerOptions(delivery_timeout_s=DELIVERY_S)) as producer:
            while not stage.stopping:
                await trio.sleep(rng.expovariate(stage.mix.rate))
                partition = rng.randrange(len(stage.topic.partitions))
                end = await ask_end(stage, log, process, partition)
                value = stage.value(rng, process, partition)
                op = stage.recorder.send(process, stage.name(partition), [identity(value)], expected_offset=end)
                await stage.settle(op, await producer.submit(value, partition=partition, expected_offset=end))

    async def _transact(self, who: str, app: str, pace: float, log: Log) -> None:
        """Run transactions of an application, at about ``pace`` per second, and record them, until ``stopping`` is
        set. Each writes to several partitions and moves the application's group on; some are aborted on purpose.
        Failed transactions are recorded and not raised."""
        stage = self._stage
        rng = stage.chance(f"{who}.{next(self._runs)}")
        while not stage.stopping:
            await trio.sleep(rng.expovariate(pace))
            label = f"{who}.t{next(self._runs)}"
            with suppress(_GivenUp, TidelogError), stage.recorder.transaction(label, app) as recorded:
                async with log.transaction(app, timeout_s=TRANSACTION_S) as tx:
                    position = await ask_position(stage, log, app)
                    recorded.moves_from(position)
                    partitions = range(len(stage.topic.partitions))
                    for partition in sorted(rng.sample(partitions, rng.randint(1, len(partitions)))):
                        value = stage.value(rng, label, partition)
                        with stage.recorder.send(
                            label, stage.name(partition), [identity(value)], transaction=label
                        ) as op:
                            ack = await tx.send(stage.topic.name, value, partition=partition)
                            op.acked(ack.offset, ack.leader_epoch)
                    await tx.commit_offsets(app, {(stage.topic.name, 0): position + 1})
                    if rng.random() < GIVEN_UP:
                        raise _GivenUp
                    recorded.asks()
            stage.counts["transactions"] += 1


async def ask_end(stage: Stage, log: Log, process: str, partition: int) -> int:
    """Ask the leader of a partition for the high watermark, and return it. The answer is recorded as one that must
    cover every acknowledgement before. Raises the client's error."""
    start = stage.recorder.now()
    answer = (await log.partitions.list_offsets(stage.topic, "latest", [partition], isolation="uncommitted"))[
        partition
    ]
    stage.recorder.latest(process, stage.name(partition), answer.offset, start)
    return answer.offset


async def ask_position(stage: Stage, log: Log, app: str) -> int:
    """Look up the committed position of an application's group in partition 0, and return it: the number of its
    transactions that moved the group on. Return 0 if there is none. Raises the client's error."""
    positions = await log.groups.fetch_offsets(app, stage.topic.name)
    return positions[0].offset if 0 in positions else 0
