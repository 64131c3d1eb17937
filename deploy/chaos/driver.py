"""One run: start the workload, do the faults when they are due, heal everything, and judge the result."""

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
from chaos.verdict.drained_logs import drain
from chaos.verdict.exactly_once import Copied, judge
from chaos.workload.clients import PARTITIONS, RACES, RECORDS, Workload
from chaos.workload.meter import Meter
from chaos.workload.spark_copy import COPIES, PLACES, Copier
from tidelog.errors import TidelogError

SETTLE_S = 60.0
"""Seconds that damage may take to be found and repaired, and that open operations may take to be settled."""
ENDING_S = 120.0
"""Seconds that clients may take to end, and that reading the logs may take."""
SPARK_S = 240.0
"""Seconds that the Spark query may take for its first batch, and for its last."""
LATE_S = 15.0
"""Seconds after the last fault was due at which waiting faults are dropped."""
AFTER_S = 2.0
"""Seconds after healing in which a time without service still counts for the fault."""
SAMPLE_S = 2.0
"""Pause in seconds between two samples of the resources of all processes."""
WARM_ACKS = 30
"""Number of acknowledgements that every partition must have before faults begin."""


@dataclass(slots=True)
class Struck:
    """The record of one fault that was done, or could not be. Times in seconds since the start of the run."""

    fault: str
    target: str = ""
    began: float = 0.0
    ended: float = 0.0
    """Time at which the fault was undone."""
    healed: float = 0.0
    """Time at which what it had damaged was whole again."""
    gap_s: float = 0.0
    """Longest time in which some partition acknowledged nothing."""
    note: str = ""
    """The reason why the fault was not done, or failed; "" if it was done."""


@dataclass(slots=True)
class Outcome:
    """The result of a whole run. ``faults`` has the findings in words; empty if every promise was kept."""

    meter: Meter
    strikes: list[Struck] = field(default_factory=list)
    ended: list[tuple[float, str, str]] = field(default_factory=list)
    """(second, process, last line of its log) of the processes that ended although no fault ended them."""
    comparison: Comparison = field(default_factory=Comparison)
    copied: Copied | None = None
    """The result of the Spark query; None if the run had none."""
    checked: dict[str, int] = field(default_factory=dict)
    """Number of operations that the checker was given, by kind."""
    faults: list[str] = field(default_factory=list)
    usages: dict[str, Usage] = field(default_factory=dict)
    seconds: float = 0.0


class Drive:
    """The driver of one run, on a cluster that is ready. It fills ``outcome`` and calls ``on_strike`` after each
    fault."""

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
        """Create the topics, run workload, supervisor and faults, heal everything, and compare the results; all
        findings are in ``outcome``. ``one_by_one``: each fault begins when the cluster is whole after the one before.
        Raises ``RuntimeError`` if the cluster takes no records at the start."""
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
        """Wait until the Spark query, if there is one, has committed a batch. Raises ``RuntimeError`` after
        ``SPARK_S`` seconds."""
        if self.copier:
            with trio.move_on_after(SPARK_S):
                program = self.copier.program
                await program.goes_on(program.batches())
                return
            raise RuntimeError(f"Spark committed no batch within {SPARK_S:g} s: see its log")

    async def _copied(self, stage: Stage, copier: Copier) -> Copied:
        """End the Spark query and compare what it wrote with what it read. Failures and a time-out are added to the
        findings."""
        copied = Copied()
        with trio.move_on_after(SPARK_S) as judged:
            await copier.finish()
            try:
                await judge(stage.log, COPIES, PLACES, copied)
            except TidelogError as error:
                self._found(f"the copies of the Spark query could not be compared: {error}")
        if judged.cancelled_caught:
            self._found(f"the Spark query did not come to its end within {SPARK_S:g} s")
        copied.batches, copied.starts = copier.program.batches(), copier.program.starts
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
        """Set the longest time without service of each fault that was done."""
        for struck in self.outcome.strikes:
            if not struck.note:
                struck.gap_s = self.workload.meter.longest_gap(struck.began, struck.healed + AFTER_S)

    def _found(self, text: str) -> None:
        self.outcome.faults.append(text)

    async def _warm(self) -> None:
        """Wait until every partition has acknowledged ``WARM_ACKS`` records more than now."""
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
        """Return True as soon as every partition has acknowledged ``WARM_ACKS`` records more; False after
        ``SETTLE_S`` seconds."""
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
                self.workload.recorder.add_note(f"{fault.name} {target}")
                async with fault.begin(stage, target, random):
                    await trio.sleep(strike.hold_s)
                    struck.ended = now()
                struck.healed = now()
                if fault.spoils and not await stage.wait_whole():
                    self._found(f"{fault.name} of {target} was not repaired in time")
                struck.healed = now()
                self.workload.recorder.add_note(f"{fault.name} {target} is over")
        except (Unfit, Unhealed, OSError, RuntimeError, SubprocessError, TidelogError) as reason:
            struck.note = str(reason)
            if not isinstance(reason, Unfit):
                self._found(f"{fault.name} of {struck.target}: {reason}")
            struck.began = struck.began or now()
            struck.ended = struck.ended or now()
            struck.healed = now()
        self.on_strike(struck)

    async def _compare(self, stage: Stage) -> None:
        """Compare the logs of all replicas on their disks: repeatedly while a scrubber may still repair damage, then
        once more with all replica servers killed. Only the last comparison counts."""
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
