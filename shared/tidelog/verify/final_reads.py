"""The end of a recording: fresh consumers read the log, replicas are compared, and the groups' positions and the
losses that the topic's settings allowed are looked up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count

import trio

from tidelog.client.log import Log
from tidelog.client.options import ConsumerOptions
from tidelog.errors import TidelogError
from tidelog.verify.history import Row, identity
from tidelog.verify.history_writer import Recorder
from tidelog.verify.workload import PAUSE_S, Connect
from tidelog.wire.messages import TopicInfo

PATIENCE_S = 60.0
"""Seconds for which each step is repeated while it fails."""
ROWS_AT_ONCE = 1000
"""Number of records after which a drain writes a line."""
DRAINS = (
    ("drain 1", "uncommitted", ConsumerOptions(isolation="uncommitted")),
    ("drain 2", "committed", ConsumerOptions(read_from="any")),
)
"""The two fresh consumers (name, isolation, options) that read the log at the end: one reads everything that takes
offsets, from leaders; the other reads committed records, from any replica."""


class Ending:
    """The last part of a recording. After the clients have stopped, it looks up the end state of the cluster and
    writes it to the recorder. Each step opens connections of its own, and is repeated for at most ``patience_s``
    seconds while it fails."""

    def __init__(self, recorder: Recorder, topic: str, connect: Connect, patience_s: float = PATIENCE_S) -> None:
        self._recorder = recorder
        self._topic = topic
        self._connect = connect
        self._patience_s = patience_s
        self._attempts = count(1)

    async def run(self, groups: Iterable[str] = (), applications: Iterable[str] = ()) -> list[str]:
        """Do all steps in order: wait for the transactions of ``applications``, record their positions and those of
        ``groups``, read the log twice, record possible losses, and compare the replicas. Return a text for each step
        that could not be done, which is also written as a note; an empty list if all were done. No ``TidelogError``
        is raised."""
        apps = tuple(applications)
        undone: list[str] = []

        async def step(what: str, work: Callable[[Log], Awaitable[None]]) -> None:
            if (error := await self._insist(work)) is not None:
                undone.append(f"{what}: {error}")
                self._recorder.add_note(undone[-1])

        await step("transactions did not come to an end", partial(self._settle, apps))
        for app in apps:
            await step(f"the position of {app} is not known", partial(self._moved, app))
        for group in groups:
            await step(f"the position of {group} is not known", partial(self._group, group))
        for name, isolation, options in DRAINS:
            await step(f"{name} did not come to the end", partial(self._drain, name, isolation, options))
        await step("what may be lost is not known", self._losses)
        await step("replicas were not compared", self._compare)
        return undone

    async def _insist(self, work: Callable[[Log], Awaitable[None]]) -> TidelogError | None:
        """Do a step over a new connection, and repeat it while it fails with a ``TidelogError``. Return None when the
        step is done, or its error when ``patience_s`` is over."""
        deadline = trio.current_time() + self._patience_s
        while True:
            failed: list[TidelogError] = []
            try:
                async with self._connect(0) as log:
                    await work(log)
            except* TidelogError as errors:
                failed += [error for error in _leaves(errors) if isinstance(error, TidelogError)]
            if not failed:
                return None
            if trio.current_time() > deadline:
                return failed[0]
            await trio.sleep(PAUSE_S)

    async def _settle(self, apps: tuple[str, ...], log: Log) -> None:
        """Wait until all transactions of these applications have ended, which time-outs ensure."""
        while any(one.app in apps for one in await log.transactions.list()):  # noqa: ASYNC110 (another process ends them)
            await trio.sleep(PAUSE_S)

    async def _moved(self, app: str, log: Log) -> None:
        """Look up and record the position of the group that an application's transactions move on; 0 if it has
        none."""
        positions = await log.groups.fetch_offsets(app, self._topic)
        self._recorder.moved(app, positions[0].offset if 0 in positions else 0)

    async def _group(self, group: str, log: Log) -> None:
        """Look up and record the committed positions of a group in the topic. Partitions without a position are left
        out. Raises ``TidelogError``."""
        for partition, at in (await log.groups.fetch_offsets(group, self._topic)).items():
            self._recorder.group_at(group, f"{self._topic}/{partition}", at.offset)

    async def _drain(self, name: str, isolation: str, options: ConsumerOptions, log: Log) -> None:
        """Read the whole log with a fresh consumer, up to its present end, and record the records and the offsets of
        control batches."""
        process = f"{name}.{next(self._attempts)}"
        topic = await log.topics.describe(self._topic)
        every = range(len(topic.partitions))
        starts = {
            p: answer.offset for p, answer in (await log.partitions.list_offsets(topic, "earliest", every)).items()
        }
        waiting: dict[int, tuple[list[Row], list[int]]] = {partition: ([], []) for partition in every}

        def write(partition: int) -> None:
            self._recorder.drain(process, f"{self._topic}/{partition}", *waiting[partition])
            waiting[partition] = [], []

        async with log.consume(self._topic, start=starts, end="latest", options=options) as consumer:
            while (fetched := await consumer.next_batch()) is not None:
                rows, control = waiting[fetched.partition]
                if fetched.header.is_control:
                    control += range(fetched.first, fetched.end)
                for record in fetched.records(self._topic):
                    rows.append((record.offset, identity(record.value, record.key, record.headers)))
                if len(rows) >= ROWS_AT_ONCE:
                    write(fetched.partition)
        for partition in every:
            write(partition)
            self._recorder.drained(process, f"{self._topic}/{partition}", starts[partition], isolation)

    async def _losses(self, log: Log) -> None:
        """Record which records the topic's settings allowed to be lost. A leader of an unclean election, and any
        leader under the commit rule ``leader``, begins where its own log ends, so records of earlier leader epochs
        from there on may be gone."""
        topic = await log.topics.describe(self._topic)
        every = range(len(topic.partitions))
        lossy = topic.config["commit_rule"] == "leader"
        for partition, changes in (await log.partitions.histories(topic, every)).items():
            epochs = {e.leader_epoch for e in changes if e.leader and (lossy or e.cause == "unclean_election")}
            if not epochs:
                continue
            held = await log.partitions.digest(topic.topic_id, partition, topic.partitions[partition].leader)
            for epoch in sorted(epochs):
                start = min((one.start for one in held.epochs if one.epoch >= epoch), default=held.log_end)
                self._recorder.loss(f"{self._topic}/{partition}", epoch, start)

    async def _compare(self, log: Log) -> None:
        """Compare the live replicas of each partition by their hash chains, and record the results."""
        topic = await log.topics.describe(self._topic)
        live = {server.node for server in (await log.cluster.status()).servers if not server.fenced}
        for partition in range(len(topic.partitions)):
            await self._compare_one(log, topic, partition, live)

    async def _compare_one(self, log: Log, topic: TopicInfo, partition: int, live: set[str]) -> None:
        """Compare the live replicas of one partition. Record the result, with the first difference if there is one,
        and a note for each replica that could not be compared."""
        result = await log.partitions.compare_replicas(topic, partition, live)
        place, difference = f"{self._topic}/{partition}", result.difference
        for node, why in result.unasked.items():
            self._recorder.add_note(f"{place} on {node} was not compared: {why}")
        if difference is None:
            self._recorder.replicas(place, result.compared, result.end)
            return
        text = ", ".join(f"{node} has {side.chain} at {side.end}" for node, side in difference.sides.items())
        self._recorder.replicas(place, result.compared, result.end, difference.offset, text)


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the single errors in an exception group and in the groups within it; for a single error, a list with
    it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]
