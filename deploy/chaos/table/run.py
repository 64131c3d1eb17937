"""One run with a table: a pipeline writes a topic to a table of Iceberg or Delta in an object store, while its
driver, its workers, replica servers and the store are killed; at the end DuckDB counts what is in the table."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import tidelog
import trio
from chaos.table.count import Counted, count_rows, files_of
from chaos.table.object_store import ObjectStore
from chaos.table.pipeline_process import TOPIC, PipelineProcess, declaration
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions

PARTITIONS = 4
PROCESSES = 5
"""Processes of the cluster."""
FORMATS = ("iceberg", "delta")
BATCHES_PER_KILL = 3
"""Micro-batches for which each kill has records."""
SMALLEST_BATCH = 500
PROGRESS_S = 600.0
"""Seconds that the pipeline may take for one more batch after a fault: Java starts slowly on a busy machine."""
SENDING_S = 3600.0
"""Seconds that a record may take to be acknowledged, over kills of servers."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The parameters of a run."""

    format: str
    records: int
    kills: int
    seed: int


@dataclass(slots=True)
class TableOutcome:
    """What became of a run. ``faults`` has the findings in words; empty if each record is in the table once."""

    kills: dict[str, int] = field(default_factory=dict)
    """Kind -> number of faults that were done."""
    starts: int = 0
    """Starts of the pipeline's driver."""
    batches: int = 0
    seconds: float = 0.0
    counted: Counted = field(default_factory=Counted)
    ended: list[str] = field(default_factory=list)
    """Reasons of ends of the pipeline that no fault of the driver caused."""
    faults: list[str] = field(default_factory=list)


class TableRun:
    """A run on a cluster that is ready. ``say`` prints a line."""

    def __init__(
        self, plan: TablePlan, cluster: LocalCluster, folder: Path, store: ObjectStore, say: Callable[[str], None]
    ) -> None:
        self.outcome = TableOutcome()
        self._plan = plan
        self._cluster = cluster
        self._store = store
        self._say = say
        self._random = Random(plan.seed)
        self._folder = folder / "pipeline"
        self._folder.mkdir()
        batch = max(SMALLEST_BATCH, plan.records // (BATCHES_PER_KILL * max(1, plan.kills)))
        gateways = ",".join(cluster.gateways())

        def declared(trigger: str) -> str:
            return declaration(plan.format, trigger, batch, self._folder, gateways, store.options)

        self._pipeline = PipelineProcess(self._folder, declared)
        self._faults: dict[str, Callable[[], Awaitable[bool]]] = {
            "driver": self._kill_driver,
            "workers": self._kill_workers,
            "replica": self._kill_replica,
            "store": self._kill_store,
            "store-refuses": self._refuse,
            "store-answers-late": self._answer_late,
        }

    async def run(self, log: Log) -> None:
        """Send the records, do the faults, let the pipeline come to its end, and count."""
        began = trio.current_time()
        await log.topics.create(TOPIC, partitions=PARTITIONS, replication_factor=3, config={"flush": "os"})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pipeline.run)
            options = ProducerOptions(delivery_timeout_s=SENDING_S, compression="zstd")
            async with log.producer(TOPIC, options) as producer:
                await self._strikes(producer)
            await self._pipeline.stop()
            nursery.cancel_scope.cancel()
        await self._pipeline.finish()
        outcome = self.outcome
        outcome.seconds = trio.current_time() - began
        program = self._pipeline.program
        outcome.starts, outcome.batches = program.starts, program.batches()
        outcome.ended = [reason for _, reason in program.ended]
        ends = await log.partitions.find_positions(TOPIC, "latest")
        keys = files_of(self._plan.format, self._folder, self._store.options)
        outcome.counted = await trio.to_thread.run_sync(
            count_rows,
            keys,
            self._store.client(),
            self._folder.parent / "counted",
            self._plan.records,
            {partition: at.offset for partition, at in ends.items()},
        )
        outcome.faults += outcome.counted.faults

    async def _strikes(self, producer: tidelog.Producer) -> None:
        """Do all faults, each while a share of the records is sent, and wait until the pipeline goes on after most of
        them; every third is followed by the next at once."""
        kinds = list(self._faults)
        shares = self._plan.kills + 1
        sent = 0
        for number in range(shares):
            end = self._plan.records * (number + 1) // shares
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send, producer, sent, end)
                if number < self._plan.kills:
                    kind = kinds[number % len(kinds)] if number < len(kinds) else self._random.choice(kinds)
                    await self._strike(kind, waits=number % 3 != 2)
            sent = end

    async def _strike(self, kind: str, waits: bool) -> None:
        """Do a fault in the midst of a batch. Raises ``RuntimeError`` if the pipeline does not go on in time."""
        began = trio.current_time()
        with trio.move_on_after(PROGRESS_S) as late:
            done, before = False, 0
            while not done:
                await self._pipeline.program.in_batch()
                before = self._pipeline.program.batches()
                await trio.sleep(self._random.uniform(0.0, 0.5))
                done = await self._faults[kind]()
            self.outcome.kills[kind] = self.outcome.kills.get(kind, 0) + 1
            if waits:
                await self._pipeline.program.goes_on(before)
        if late.cancelled_caught:
            raise RuntimeError(f"after {kind} the pipeline committed no batch within {PROGRESS_S:g} s")
        self._say(
            f"{sum(self.outcome.kills.values()):4} {kind}: {trio.current_time() - began:.1f} s,"
            f" {self._pipeline.program.batches()} batches"
        )

    async def _kill_driver(self) -> bool:
        return self._pipeline.program.kill_driver()

    async def _kill_workers(self) -> bool:
        return self._pipeline.program.kill_workers()

    async def _kill_replica(self) -> bool:
        node = self._random.choice(self._cluster.of_role("replica")).id
        await trio.to_thread.run_sync(self._cluster.kill, node)
        await trio.sleep(self._random.uniform(0.0, 4.0))  # a session lasts 3 s: a new leader, or the same again
        await trio.to_thread.run_sync(self._cluster.restart, node)
        return True

    async def _kill_store(self) -> bool:
        self._store.kill_front()
        await trio.sleep(self._random.uniform(0.1, 3.0))
        await self._store.start_front()
        return True

    async def _refuse(self) -> bool:
        self._store.refuse()
        await trio.sleep(self._random.uniform(0.5, 3.0))
        self._store.be_well()
        return True

    async def _answer_late(self) -> bool:
        self._store.answer_late()
        await trio.sleep(self._random.uniform(0.5, 3.0))
        self._store.be_well()
        return True


async def _send(producer: tidelog.Producer, begin: int, end: int) -> None:
    """Send these numbers, in turn to each partition, and wait until all are acknowledged."""
    for number in range(begin, end):
        await producer.submit(b"%d" % number, partition=number % PARTITIONS)
    await producer.flush()


def run_table(plan: TablePlan, say: Callable[[str], None], keep: Path | None = None) -> TableOutcome:
    """Run the plan on a new cluster in a temporary folder, and return the outcome. If something was found, the logs
    of all processes are copied to ``keep``. Cluster, store and folder are removed in any case."""
    folder = Path(tempfile.mkdtemp(prefix="tidelog-chaos-table-"))
    port = free_base_port(PROCESSES + 2)
    cluster = LocalCluster.create(folder / "cluster", controllers=1, replicas=3, gateways=1, base_port=port)
    store = ObjectStore(folder / "store", port + PROCESSES)
    run = TableRun(plan, cluster, folder, store, say)
    try:
        cluster.start()
        trio.run(_conduct, run, cluster, store)
    except (Exception, ExceptionGroup) as error:  # what was done until then is shown all the same
        run.outcome.faults.append(f"the run broke off: {error!r}")
    finally:
        cluster.stop()
        store.close()
        if run.outcome.faults and keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for log in (*folder.glob("cluster/*/log"), *folder.glob("*/log")):
                shutil.copy(log, keep / f"{log.parent.name}.log")
        shutil.rmtree(folder)
    return run.outcome


async def _conduct(run: TableRun, cluster: LocalCluster, store: ObjectStore) -> None:
    await store.start()
    await cluster.wait_ready()
    async with tidelog.connect(cluster.gateways(), request_timeout_s=120.0) as log:
        await run.run(log)
