"""One run: a cluster, a workload, faults when their time comes, healing, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from subprocess import SubprocessError

import trio
from chaos.cluster.cluster import ChaosCluster
from chaos.cluster.supervisor import Stage, Unfit, Unhealed
from chaos.faults import FAULTS
from chaos.report.resources import Usage, sample_processes
from chaos.schedule import Strike
from chaos.verdict.compare_disks import Comparison, compare
from chaos.verdict.exactly_once import Copied, judge
from chaos.verdict.final_reads import drain
from chaos.workload.clients import PARTITIONS, RACES, RECORDS, Workload
from chaos.workload.meter import Meter
from chaos.workload.spark_copy import COPIES, PLACES, Copier
from tidelog.errors import TidelogError

SETTLE_S = 60.0
"""How long what was damaged may take to be found and repaired, and what was begun to be settled."""
ENDING_S = 120.0
"""How long clients may take to come to their end, and the logs to be read."""
SPARK_S = 240.0
"""How long the Spark query may take for its first batch, and for its last."""
LATE_S = 15.0
"""A fault whose turn has not come so long after the last was due does not come any more."""
AFTER_S = 2.0
"""The time without service is looked for until so long after healing."""
SAMPLE_S = 2.0
"""Pause between two looks at what the processes take."""
WARM_ACKS = 30
"""Faults begin when every partition has acknowledged so much."""


@dataclass(slots=True)
class Struck:
    """What became of a strike. Times since the start, in seconds."""

    fault: str
    target: str = ""
    began: float = 0.0
    ended: float = 0.0
    """When healing began."""
    healed: float = 0.0
    """When what it had damaged was whole again."""
    gap_s: float = 0.0
    """The longest time in which some partition acknowledged nothing."""
    note: str = ""
    """Why nothing came of it."""


@dataclass(slots=True)
class Outcome:
    """A whole run. ``faults`` says what is wrong; empty: every promise was kept."""

    meter: Meter
    strikes: list[Struck] = field(default_factory=list)
    ended: list[tuple[float, str, str]] = field(default_factory=list)
    """Processes that ended unasked: when, which, the last line of the log."""
    comparison: Comparison = field(default_factory=Comparison)
    copied: Copied | None = None
    """What the Spark query did, where there was one."""
    checked: dict[str, int] = field(default_factory=dict)
    """What the checker was given, by kind."""
    faults: list[str] = field(default_factory=list)
    usages: dict[str, Usage] = field(default_factory=dict)
    seconds: float = 0.0


class Drive:
    """Runs on a cluster that is ready."""

    def __init__(
        self,
        cluster: ChaosCluster,
        workload: Workload,
        copier: Copier | None,
        outcome: Outcome,
        on_strike: Callable[[Struck], None],
    ) -> None:
        self.cluster = cluster
        self.on_strike = on_strike
        self.workload = workload
        self.copier = copier
        self.outcome = outcome

    async def run(self, strikes: Sequence[Strike], *, one_by_one: bool = False) -> None:
        """Until everything is healed and judged. ``one_by_one``: each when the one before is healed and forgotten."""
        await self.workload.create()
        async with self.workload.client() as log, trio.open_nursery() as nursery:
            stage = Stage(self.cluster, log, RECORDS, self.workload.overload, self.copier)
            if self.copier:
                await self.copier.create(log)
                nursery.start_soon(self.copier.run)
            nursery.start_soon(stage.supervise)
            nursery.start_soon(self._sample, stage)
            await self._under_load(stage, strikes, one_by_one)
            nursery.cancel_scope.cancel()
        ended = sorted([*stage.ended, *(self.copier.ended if self.copier else [])])
        self.outcome.ended = [(at - self.workload.meter.began, node, line) for at, node, line in ended]
        self.outcome.seconds = self.workload.meter.now()

    async def _under_load(self, stage: Stage, strikes: Sequence[Strike], one_by_one: bool) -> None:
        async with trio.open_nursery() as nursery:
            settled = trio.Event()
            nursery.start_soon(self._work, settled)
            if not await self._goes_on():
                raise RuntimeError(f"the cluster took no records within {SETTLE_S:g} s: see its logs")
            await self._copies_flow()
            if one_by_one:
                for strike in strikes:
                    await self._strike(stage, strike)
                    await stage.wait_whole()
            else:
                await self._mixed(stage, strikes)
            if not await stage.wait_whole():
                self._found("the replicas were not in sync again in time after everything was healed")
            if not await self._goes_on():
                self._found(f"healed and in sync, the cluster did not serve every partition within {SETTLE_S:g} s")
            self._measure()
            self.workload.stop()
            with trio.move_on_after(ENDING_S):
                await settled.wait()
            if not settled.is_set():
                self._found(
                    f"clients that did not end within {ENDING_S:g} s: {', '.join(sorted(self.workload.busy))}"
                )
            nursery.cancel_scope.cancel()
        if not await stage.wait_whole():
            self._found("the replicas were not in sync in the end")
        if self.copier:
            self.outcome.copied = await self._copied(stage, self.copier)
        with trio.move_on_after(ENDING_S) as drained:
            try:
                await drain(stage.log, self.workload.recorder)
            except TidelogError as error:
                self._found(f"the logs could not be read to their ends: {error}")
        if drained.cancelled_caught:
            self._found(f"the logs could not be read to their ends within {ENDING_S:g} s")
        await self._compare(stage)

    async def _copies_flow(self) -> None:
        """The Spark query, where there is one, has started and copies."""
        if self.copier:
            with trio.move_on_after(SPARK_S):
                await self.copier.goes_on()
                return
            raise RuntimeError(f"Spark committed no batch within {SPARK_S:g} s: see its log")

    async def _copied(self, stage: Stage, copier: Copier) -> Copied:
        """The Spark query comes to its end, and what it wrote is compared with what it read."""
        copied = Copied()
        with trio.move_on_after(SPARK_S) as judged:
            await copier.finish()
            try:
                await judge(stage.log, COPIES, PLACES, copied)
            except TidelogError as error:
                self._found(f"the copies of the Spark query could not be compared: {error}")
        if judged.cancelled_caught:
            self._found(f"the Spark query did not come to its end within {SPARK_S:g} s")
        copied.batches, copied.starts = copier.batches(), copier.starts
        self.outcome.faults += copied.faults
        return copied

    async def _work(self, settled: trio.Event) -> None:
        await self.workload.run()
        settled.set()

    async def _mixed(self, stage: Stage, strikes: Sequence[Strike]) -> None:
        began = trio.current_time()
        last = began + max((strike.at for strike in strikes), default=0.0) + LATE_S
        async with trio.open_nursery() as striking:
            for strike in strikes:
                await trio.sleep_until(began + strike.at)
                striking.start_soon(self._strike, stage, strike, last)

    def _measure(self) -> None:
        """The times without service."""
        for struck in self.outcome.strikes:
            if not struck.note:
                struck.gap_s = self.workload.meter.longest_gap(struck.began, struck.healed + AFTER_S)

    def _found(self, text: str) -> None:
        self.outcome.faults.append(text)

    async def _warm(self) -> None:
        """Until every partition has acknowledged ``WARM_ACKS`` records more."""
        wanted = {
            (topic, p): self._acks(topic, p) + WARM_ACKS
            for topic in (RECORDS, RACES)
            for p in range(PARTITIONS[topic])
        }
        while any(self._acks(*place) < count for place, count in wanted.items()):  # noqa: ASYNC110 (is only waited for)
            await trio.sleep(0.1)

    def _acks(self, topic: str, partition: int) -> int:
        return len(self.workload.meter.acks.get((topic, partition), ()))

    async def _goes_on(self) -> bool:
        """The cluster serves; False when it does not for ``SETTLE_S``."""
        with trio.move_on_after(SETTLE_S):
            await self._warm()
            return True
        return False

    async def _sample(self, stage: Stage) -> None:
        while True:
            await stage.do(sample_processes, self.cluster, self.workload.meter.now(), self.outcome.usages)
            await trio.sleep(SAMPLE_S)

    async def _strike(self, stage: Stage, strike: Strike, until: float = math.inf) -> None:
        fault, random = FAULTS[strike.fault], Random(strike.seed)
        struck = Struck(fault.name)
        self.outcome.strikes.append(struck)
        now = self.workload.meter.now
        try:
            target = await fault.target(stage, random)
            async with stage.claims.holding(*fault.claims(target), until=until):
                struck.target, struck.began = target, now()
                self.workload.recorder.note(f"{fault.name} {target}")
                async with fault.begin(stage, target, random):
                    await trio.sleep(strike.hold_s)
                    struck.ended = now()
                struck.healed = now()
                if fault.spoils and not await stage.wait_whole():
                    self._found(f"{fault.name} of {target} was not repaired in time")
                struck.healed = now()
                self.workload.recorder.note(f"{fault.name} {target} is over")
        except (Unfit, Unhealed, OSError, RuntimeError, SubprocessError, TidelogError) as reason:
            struck.note = str(reason)
            if not isinstance(reason, Unfit):
                self._found(f"{fault.name} of {struck.target}: {reason}")
            struck.began = struck.began or now()
            struck.ended = struck.ended or now()
            struck.healed = now()
        self.on_strike(struck)

    async def _compare(self, stage: Stage) -> None:
        """Looked at again while a scrubber may still find and repair what was damaged; then with all servers dead."""
        known = PARTITIONS | ({COPIES: len(PLACES)} if self.copier else {})
        topics = {t.topic_id: (t.name, known[t.name]) for t in await stage.log.topics.list() if t.name in known}
        with trio.move_on_after(SETTLE_S):
            while (await trio.to_thread.run_sync(self._compared, topics)).faults:  # noqa: ASYNC110 (on disks)
                await trio.sleep(1.0)
        replicas = stage.nodes("replica")
        await stage.kill(*replicas)
        self.outcome.comparison = await trio.to_thread.run_sync(self._compared, topics)
        self.outcome.faults += self.outcome.comparison.faults

    def _compared(self, topics: dict[str, tuple[str, int]]) -> Comparison:
        found = Comparison()
        for topic_id, (name, partitions) in topics.items():
            for partition in range(partitions):
                folders = {
                    process.id: self._folder(process.id, f"{topic_id}-{partition}")
                    for process in self.cluster.of_role("replica")
                }
                compare(f"{name}/{partition}", folders, found)
        return found

    def _folder(self, node: str, name: str) -> Path:
        return self.cluster.data(node) / name
