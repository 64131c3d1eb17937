"""The reading clients of a recording: consumers that follow the log from anywhere, members of a group that come and
go, clients that ask for the latest offset, and one that watches the health of the cluster."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial
from itertools import count

import trio

from tidelog.client.core.consumer import Fetched
from tidelog.client.group_consumer import Hooks
from tidelog.client.log import Log
from tidelog.client.options import ConsumerOptions, GroupOptions
from tidelog.errors import TidelogError
from tidelog.types import Position
from tidelog.verify.history import UNKNOWN, identity
from tidelog.verify.workload import Stage, ask_end
from tidelog.wire.messages import CommitOffsets, GroupPosition, Read, ReadAnswer

MANNERS = (
    ConsumerOptions(),
    ConsumerOptions(read_from="any"),
    ConsumerOptions(read_from="any", consistency="bounded", max_staleness_s=1.0),
    ConsumerOptions(consistency="linearizable"),
)
"""Options of the consumers, which take them in turn."""
PROMISES = (("linearizable", 0.0, False), ("bounded", 0.0, False), ("bounded", 0.5, True), ("bounded", 2.0, True))
"""Kinds of single reads: consistency, bound in seconds, whether any replica may answer. One is drawn for each
read."""
LOST = ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED")
"""Codes of errors which say that a consumer's position is no longer in the log."""
ASK_S = 0.1
"""Mean number of seconds between two requests for the latest offset."""
LOOK_S = 0.5
"""Seconds between two checks of the cluster's state."""
MEMBER_S = 8.0
"""Mean duration of a membership in seconds."""
COMMITS = 0.3
"""Share of the batches of a member after which it commits."""


class Watchers:
    """The clients of a recording that read: consumers, members of a group, one that asks for the newest offset, and
    one that watches the cluster's health. They run until they are cancelled."""

    def __init__(self, stage: Stage, group: str) -> None:
        self._stage = stage
        self._group = group
        self._runs = count(1)
        """Numbers for the runs of clients: each run is a process of its own in the history."""
        self._positions: dict[str, dict[int, Position]] = {}
        self._start_over: set[tuple[str, int]] = set()
        """Consumers and partitions whose next read does not continue at the position before."""
        self.healthy_since: float | None = None
        """When the present healthy span began, in seconds of the recorder; None if the cluster is not healthy."""

    def start(self, nursery: trio.Nursery, numbers: count[int]) -> None:
        """Start the tasks of all readers in the nursery, without waiting. ``numbers`` gives each client its
        number."""
        keep, mix = self._stage.keep, self._stage.mix
        for number in range(mix.consumers):
            nursery.start_soon(
                keep, next(numbers), partial(self._consume, f"c{number + 1}", MANNERS[number % len(MANNERS)])
            )
        for number in range(mix.members):
            nursery.start_soon(keep, next(numbers), partial(self._join, f"m{number + 1}"))
        nursery.start_soon(keep, next(numbers), self._ask)
        nursery.start_soon(keep, next(numbers), self._look)

    # --- consumers -----------------------------------------------------------------------------------------------

    async def _consume(self, who: str, manner: ConsumerOptions, log: Log) -> None:
        """Follow the log as the consumer ``who`` and record every batch, without end. A later call with the same name
        continues at the consumer's position; if that position is lost, it starts over at the log start. Raises the
        error that ended the consumer."""
        stage = self._stage
        beginning = {partition: Position(-1, offset) for partition, offset in stage.starts.items()}
        positions = self._positions.setdefault(who, beginning)
        try:
            async with log.consume(stage.topic.name, start=dict(positions), options=manner) as consumer:
                while True:
                    start = stage.recorder.now()
                    fetched = await consumer.next_batch()
                    assert fetched is not None
                    self._saw(who, positions[fetched.partition].offset, fetched, start)
                    positions[fetched.partition] = Position(fetched.header.leader_epoch, fetched.end)
        except TidelogError as error:
            if error.code in LOST:
                stage.recorder.add_note(f"{who} has lost its position and starts over: {error}")
                found = await log.partitions.list_offsets(stage.topic, "earliest", sorted(positions))
                positions |= {partition: Position(-1, answer.offset) for partition, answer in found.items()}
                self._start_over |= {(who, partition) for partition in positions}
            raise

    def _saw(self, who: str, position: int, fetched: Fetched, start: float, group: str = "") -> None:
        """Record the records of a fetched batch as shown to reader ``who``, which wanted ``position``, and record
        which offsets of the batch have no record. Records from before the recording are left out."""
        stage, partition = self._stage, fetched.partition
        place, begins = stage.name(partition), stage.starts[partition]
        records = fetched.records(stage.topic.name)
        rows = [
            (record.offset, identity(record.value, record.key, record.headers), record.leader_epoch)
            for record in records
            if record.offset >= begins
        ]
        if (
            fetched.header.is_control or fetched.header.is_transactional
        ):  # aborted records are not shown, only their offsets
            shown = {record.offset for record in records}
            stage.recorder.control(place, [o for o in range(fetched.first, fetched.end) if o not in shown])
        if rows:
            over = (who, partition) in self._start_over
            self._start_over.discard((who, partition))
            stage.recorder.read(who, place, max(position, begins), rows, start, group=group, start_over=over)
            stage.counts["read"] += len(rows)

    # --- a group -------------------------------------------------------------------------------------------------

    async def _join(self, who: str, log: Log) -> None:
        """Be a member of the group for a random time: read, record the batches, and commit some of them. From each
        assignment of a partition on the member counts as a new reader in the history. Raises the error that ended the
        member."""
        stage = self._stage
        rng = stage.chance(f"{who}.{next(self._runs)}")
        readers: dict[int, str] = {}

        def assigned(shares: list[tuple[str, int]]) -> None:
            readers.update({partition: f"{who}.{next(self._runs)}" for _, partition in shares})

        options = GroupOptions(session_timeout_s=6.0, rebalance_timeout_s=10.0, auto_commit_s=None)
        with trio.move_on_after(rng.expovariate(1 / MEMBER_S)):
            async with log.consume(
                stage.topic.name, group=self._group, group_options=options, hooks=Hooks(on_assigned=assigned)
            ) as consumer:
                while True:
                    start = stage.recorder.now()
                    fetched = await consumer.next_batch()
                    self._saw(readers[fetched.partition], fetched.first, fetched, start, self._group)
                    if rng.random() < COMMITS:
                        await self._commit(log, consumer.member, consumer.generation, fetched)

    async def _commit(self, log: Log, member: str, generation: int, fetched: Fetched) -> None:
        """Commit the end of a batch in exactly this generation, and record the commit with its result. A single
        request is sent, because the history could not tell the retries of ``GroupConsumer.commit`` apart. Raises the
        error only if the outcome is unknown."""
        stage = self._stage
        at = GroupPosition(stage.topic.topic_id, fetched.partition, fetched.end, fetched.header.leader_epoch)
        op = stage.recorder.commit(member, self._group, generation, {stage.name(fetched.partition): fetched.end})
        try:
            with op:
                await log._connection.call(CommitOffsets(self._group, (at,), member, generation), again=False)
        except TidelogError:
            if op.result == UNKNOWN:
                raise  # another member takes over, so a late commit of this one is fenced
        stage.counts["commits"] += 1

    # --- what is newest ------------------------------------------------------------------------------------------

    async def _ask(self, log: Log) -> None:
        """Ask for the newest offset of random partitions, in one of several ways, and record the answers, without
        end. Failed requests are ignored."""
        stage = self._stage
        rng = stage.chance(f"asker.{next(self._runs)}")
        while True:
            await trio.sleep(rng.expovariate(1 / ASK_S))
            partition = rng.randrange(len(stage.topic.partitions))
            with suppress(TidelogError):
                if rng.random() < 0.3:
                    await ask_end(stage, log, "asker", partition)
                else:
                    await self._read_newest(log, partition, *rng.choice(PROMISES))

    async def _read_newest(self, log: Log, partition: int, consistency: str, bound_s: float, anyone: bool) -> None:
        """Send one read request with this consistency, and record the high watermark of the answer, which consumers
        do not show. Raises the client's error."""
        stage = self._stage
        request = Read(
            stage.topic.topic_id,
            partition,
            stage.starts[partition],
            max_bytes=1,
            consistency=consistency,
            max_staleness_ms=round(bound_s * 1000) if consistency == "bounded" else -1,
            any_replica=anyone,
            isolation="uncommitted",
        )
        start = stage.recorder.now()
        answer = await log._connection.call(request)
        assert isinstance(answer, ReadAnswer)
        if answer.high_watermark >= 0:
            who = f"asker, {consistency} {bound_s:g} s" if consistency == "bounded" else f"asker, {consistency}"
            stage.recorder.latest(who, stage.name(partition), answer.high_watermark, start - bound_s)

    # --- is it well? ---------------------------------------------------------------------------------------------

    async def _look(self, log: Log) -> None:
        """Check the cluster's health every ``LOOK_S`` seconds, and record the spans in which every partition has a
        leader and enough in-sync replicas. If a check takes too long, the span ends at the check before, and the
        function returns."""
        stage = self._stage
        seen = math.nan
        try:
            while True:
                now = stage.recorder.now()
                with trio.fail_after(2 * LOOK_S):
                    topic = await log.topics.describe(stage.topic.name)
                least = int(topic.config["min_insync_replicas"])
                if all(one.leader and len(one.isr) >= least for one in topic.partitions):
                    self.healthy_since = now if self.healthy_since is None else self.healthy_since
                    seen = stage.recorder.now()
                else:
                    self._not_well(seen)
                await trio.sleep(LOOK_S)
        except trio.TooSlowError:
            stage.counts["looks without an answer"] += 1
        finally:
            self._not_well(seen)

    def _not_well(self, until: float) -> None:
        """End the present healthy span at the time ``until``, and record it. Records nothing if there is none."""
        if self.healthy_since is not None and until > self.healthy_since:
            self._stage.recorder.healthy(self.healthy_since, until)
        self.healthy_since = None
