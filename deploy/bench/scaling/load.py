"""The parts that the cases of ``run.py`` share: the cluster that they run on, the records that they send, and the
measurement of their cost."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import tidelog
import trio
from bench import replicas, throughput
from bench.harness.processes import resident_mb
from bench.scaling.report import Panel, Table
from tidelog.cli.local.local_cluster import LocalCluster

PATIENT_S = 300.0
"""Seconds that a request or a record may take."""
PATIENT = tidelog.ProducerOptions(delivery_timeout_s=PATIENT_S)
STEP = 500
"""Partitions that are created at a time."""
ROLES = ("client", "gateway", "replicas")


@dataclass(frozen=True, slots=True)
class Run:
    """The parameters of a case, and its cluster."""

    cluster: LocalCluster
    seconds: float
    """Seconds for which each load lasts."""
    quick: bool
    tables: list[Table] = field(default_factory=list)
    """Tables that are reported even if a larger size fails."""

    def some(self, sizes: Iterable[int]) -> list[int]:
        """Return all sizes, or, in the short form, only the first ones."""
        chosen = list(sizes)
        return chosen[: max(2, len(chosen) // 2)] if self.quick else chosen

    def connect(self) -> AbstractAsyncContextManager[tidelog.Log]:
        """Return a client of the cluster, as a context manager."""
        return tidelog.connect(self.cluster.gateways(), request_timeout_s=PATIENT_S)

    async def create(self, topic: str, partitions: int, **config: str) -> None:
        """Create a topic with three replicas and these settings, besides those that all cases have. Its partitions
        are added in steps, so that no process is busy for so long that others give it up. Returns when all are known
        and the last one takes records."""
        async with self.connect() as log:
            config = {"flush": "os", "max_batch_bytes": str(11 << 20)} | config
            there = 0
            while there < partitions:
                before, there = there, min(there + STEP, partitions)
                if before:
                    await log.topics.grow(topic, there)
                else:
                    await log.topics.create(topic, partitions=there, replication_factor=3, config=config)
                await replicas.until(partial(self._knows, log, topic, there))
                async with log.producer(
                    topic, PATIENT
                ) as producer:  # until the last one's replicas have all opened it
                    await producer.send(b"", partition=there - 1)

    async def _knows(self, log: tidelog.Log, topic: str, partitions: int) -> bool:
        return len((await log.topics.describe(topic)).partitions) == partitions

    def memory(self) -> dict[str, float]:
        """Return the resident memory of each process, in MB."""
        return {process.id: resident_mb(process.pid) for process in self.cluster.processes}

    def kernel_s(self) -> float:
        """Return the CPU time, in seconds, that all replica servers have spent in the kernel since their start."""
        ticks = 0
        for process in self.cluster.processes:
            if process.id.startswith("r"):
                ticks += int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def free_gb() -> float:
    """Return the memory of the machine that nothing uses, not even the page cache, in GB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemFree:")) * 1024 / 1e9


async def counter(cluster: LocalCluster, name: str) -> float:
    """Return the value of one of the gateway's metrics. Fails if there is none of that name."""
    url = cluster.gateways()[0].replace("ws:", "http:") + "/metrics"
    page = (await trio.to_thread.run_sync(lambda: urlopen(url).read())).decode()
    found = re.search(rf"^tidelog_gateway_{name} (\S+)$", page, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


class Load:
    """The measurement of a load between ``begin`` and ``end``: its rate and its CPU cost."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    async def begin(self) -> None:
        """Begin the measurement now."""
        self._batches, self._bytes = await self._sent()
        self._cpu, self._began = throughput.Cpu(self._cluster), trio.current_time()

    async def _sent(self) -> tuple[float, float]:
        batches, size = [await counter(self._cluster, f"produced_{what}_total") for what in ("batches", "bytes")]
        return batches, size

    async def end(self, records: int, size: int, clients: tuple[float, float] | None = None) -> dict[str, float]:
        """End the measurement of ``records`` records of ``size`` bytes, and return the columns of a row. ``clients``:
        seconds and CPU seconds of clients in other processes, which take the place of this process's."""
        seconds = trio.current_time() - self._began
        used = {name: cores * seconds for name, cores in self._cpu.stop().items()}
        if clients is not None:
            seconds, used["client"] = clients
        by_role = {
            "client": used["client"],
            "gateway": used["g1"],
            "replicas": sum(cpu_s for name, cpu_s in used.items() if name.startswith("r")),
        }
        batches, sent = await self._sent()
        row = {
            "records/s": records / seconds,
            "MB/s": records * size / seconds / 1e6,
            "batch, KiB": (sent - self._bytes) / max(1.0, batches - self._batches) / 1024,
        }
        for role in ROLES:
            row[f"{role}, ms"] = by_role[role] * 1e6 / records
        return row | {"CPU, ms": sum(by_role.values()) * 1e6 / records}


LOAD_COLUMNS = {"records/s": 0, "MB/s": 1, "batch, KiB": 1, **{f"{role}, ms": 2 for role in ROLES}, "CPU, ms": 2}
"""The columns of a load, with decimals. CPU is for 1000 records: of each role, and of all."""
LOAD_PANELS = (
    Panel("records/s", ("records/s",)),
    Panel("CPU ms for 1000 records", tuple(f"{role}, ms" for role in ROLES)),
)


async def send(
    producer: tidelog.Producer,
    value: bytes,
    seconds: float,
    window: int,
    partitions: int = 0,
    most: int = sys.maxsize,
) -> int:
    """Send records as fast as acks allow for this many seconds, or until ``most`` are sent, at most ``window`` of
    them without an ack. Wait for all acks, and return the number of records. ``partitions``: send to this many
    partitions in turn; 0: the producer chooses. Raises the error of a record that failed."""
    waiting: deque[tidelog.Pending] = deque()
    until = trio.current_time() + seconds
    for number in range(most + 1):
        if number == most or trio.current_time() >= until:
            break
        place = number % partitions if partitions else None
        waiting.append(await producer.submit(value, partition=place))
        if len(waiting) > window:
            await waiting.popleft().wait()
    await producer.flush()
    for pending in waiting:
        pending.result()
    return number
