"""Many partitions on one replica server: what each costs in memory, descriptors and idle CPU, and how long a start
takes.

    .venv/bin/python deploy/bench/partitions.py [--partitions 10000] [--servers 1] [--records 1]

A cluster of real processes on real disks: one controller, one gateway, ``--servers`` replica servers, which all have
every partition (the replication factor is their number). Into each partition go a few records. Then the first replica
server is stopped in order and started again, and killed and started again. Memory is the resident set from /proc,
idle CPU that of ten seconds in which nobody asks for anything.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import tidelog
import trio
from rich.console import Console
from tidelog.cli.local.local_cluster import LocalCluster, free_base_port

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.processes import cpu_s, end_with_sigterm, require_linux, resident_bytes

CONSOLE = Console(highlight=False, soft_wrap=True)
PER_TOPIC = 1000
"""Most partitions of a topic."""
IDLE_S = 10.0
"""Seconds of each measurement of an idle server."""
OPENED = b'"logs_opened"'
"""The log event with which a server reports the logs that it has opened."""


def descriptors(pid: int) -> int:
    """Return the number of files and sockets that a process has open."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def opened(log: Path, position: int) -> int:
    """Return the number of logs that a server reports as opened in its log file from byte ``position`` on."""
    count = 0
    for line in log.read_bytes()[position:].splitlines():
        if OPENED in line:
            count += int(line.partition(b'"count": ')[2].partition(b",")[0].rstrip(b"}"))
    return count


class Bench:
    """One run of the benchmark on one cluster. The figures are those of the first replica server."""

    def __init__(self, folder: Path, partitions: int, servers: int, records: int) -> None:
        self.cluster = LocalCluster.create(
            folder, controllers=1, replicas=servers, gateways=1, base_port=free_base_port(servers + 2)
        )
        self.partitions = partitions
        self.servers = servers
        self.records = records

    @property
    def _log(self) -> Path:
        return Path(self.cluster.get("r1").log)

    @property
    def _pid(self) -> int:
        return self.cluster.get("r1").pid

    async def run(self) -> None:
        """Start the cluster, do every step, and print the figures as they come."""
        self.cluster.start()
        await self.cluster.wait_ready()
        before = resident_bytes(self._pid)
        began = time.monotonic()
        async with tidelog.connect(self.cluster.gateways()[0]) as log:
            names = [f"t{number}" for number in range(-(-self.partitions // PER_TOPIC))]
            for number, name in enumerate(names):
                count = min(PER_TOPIC, self.partitions - number * PER_TOPIC)
                await log.topics.create(name, partitions=count, replication_factor=self.servers)
            await self._wait_open(0, began)
            await self._print_costs("created", began, before)
            if self.records:
                await self._fill(log, names)
                await self._print_costs("written to", began, before)
        await self._print_idle()
        self.cluster._stop([self.cluster.get("r1")])
        await self._restart("stopped and started", before)
        self.cluster.kill("r1")
        await self._restart("killed and started", before)
        await self._print_idle()

    async def _fill(self, log: tidelog.Log, names: list[str]) -> None:
        for number, name in enumerate(names):
            count = min(PER_TOPIC, self.partitions - number * PER_TOPIC)
            async with log.producer(name) as producer:
                for partition in range(count):
                    for _ in range(self.records):
                        await producer.submit(bytes(100), partition=partition)
                await producer.flush()

    async def _restart(self, what: str, before: int) -> None:
        position, began = self._log.stat().st_size, time.monotonic()
        self.cluster.restart("r1")
        await self._wait_open(position, began)
        await self._print_costs(what, began, before)

    async def _wait_open(self, position: int, began: float) -> None:
        while opened(self._log, position) < self.partitions:
            if time.monotonic() - began > 600:
                raise click.ClickException(f"{opened(self._log, position)} of {self.partitions} are open after 600 s")
            await trio.sleep(0.2)

    async def _print_costs(self, what: str, began: float, before: int) -> None:
        seconds, after = time.monotonic() - began, resident_bytes(self._pid)
        each = (after - before) / self.partitions
        CONSOLE.print(
            f"{what:20} {self.partitions} partitions in {seconds:6.1f} s;"
            f" RSS {before / 1e6:.0f} to {after / 1e6:.0f} MB, {each / 1000:.1f} KB each;"
            f" {descriptors(self._pid)} descriptors; {cpu_s(self._pid):.1f} s of CPU"
        )

    async def _print_idle(self) -> None:
        await trio.sleep(IDLE_S)  # until all that follows a start is over
        before = cpu_s(self._pid)
        await trio.sleep(IDLE_S)
        CONSOLE.print(f"{'idle':20} {(cpu_s(self._pid) - before) / IDLE_S * 100:.1f} % of a core")


@click.command(help=__doc__)
@click.option("--partitions", default=10_000, show_default=True)
@click.option("--servers", default=1, show_default=True)
@click.option("--records", default=1, show_default=True, help="Records written to each partition.")
@click.option("--data", type=click.Path(path_type=Path), help="An empty folder on the disk to be measured.")
def main(partitions: int, servers: int, records: int, data: Path | None) -> None:
    require_linux()
    end_with_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-partitions-")) if data is None else data
    bench = Bench(folder, partitions, servers, records)
    try:
        trio.run(bench.run)
    finally:
        bench.cluster.stop_started()
        if data is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
