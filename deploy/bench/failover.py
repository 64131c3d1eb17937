"""How long a client is without acks when something fails: many runs of each fault, with the default configuration.

    .venv/bin/python deploy/bench/failover.py [--runs 20] [--case kill-leader] [--json FILE]
    .venv/bin/python deploy/bench/failover.py --healthy 60 [--rate 20000] [--busy 2]
                       # minutes without a fault: nothing may change

    kill-leader        kill -9 of the server that leads the partition
    kill-follower      kill -9 of a server that follows it: it holds the high watermark until it leaves the ISR
    pause-leader       SIGSTOP of the leader's server: its connections stay open, nothing answers
    cut-controllers    the leader's host and the controllers' lose what they send each other
    cut-followers      the leader's host and the followers' do
    cut-from-leader    what the leader's host sends to the followers' is lost, the other way works
    cut-to-leader      what the followers' hosts send to the leader's is lost, the other way works
    kill-controller    kill -9 of the active controller: nobody should notice
    kill-both          kill -9 of the leader's server and of the active controller, at once

Three controllers, three replica servers and a gateway, each on a host (network namespace) of its own: it needs
root. One partition, replication factor 3, acks ``all``; a producer submits records at a steady rate. The gap
of a run is the longest time between two acks that follow each other, from the fault until 3 s later; then all is
healed, and the next run begins when every replica is in sync, ``APART_S`` after the last one: elections that follow
each other faster are damped (decision 30), which is not what is measured here.

``--busy`` starts so many processes that do nothing but use a core, beside the cluster.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import tidelog
import trio
from rich.console import Console
from rich.progress import track
from rich.table import Table
from tidelog.client.log import Log
from tidelog.errors import TidelogError

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench.harness.processes import end_with_sigterm
from chaos.cluster.network_namespaces import HostCluster, enter_own_network

TOPIC = "failover"
RATE = 200
"""Records per second."""
WATCH_S = 3.0
"""Seconds after a fault in which gaps between acks count."""
APART_S = 11.0
"""Least seconds between the beginnings of two runs."""
CONSOLE = Console(highlight=False, soft_wrap=True)


class Acks:
    """A producer that sends at a steady rate, and the times of its acks."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.failed = 0

    async def produce(self, log: Log, rate: float) -> None:
        """Send records at ``rate`` per second until cancelled, and record the time of each ack."""
        async with log.producer(TOPIC) as producer, trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[Any](1_000_000)
            nursery.start_soon(self._collect, receive)
            began = trio.current_time()
            for number in range(sys.maxsize):
                await trio.sleep_until(began + number / rate)
                send.send_nowait(await producer.submit(b"%12d" % number))

    async def _collect(self, receive: trio.MemoryReceiveChannel[Any]) -> None:
        async for pending in receive:
            try:
                await pending.wait()
            except TidelogError:
                self.failed += 1
            else:
                self.times.append(trio.current_time())

    def longest_gap(self, since: float, until: float) -> float:
        """Return the longest time in seconds without an ack between ``since`` and ``until``, counted from the last
        ack before."""
        before = [time for time in self.times if time <= since]
        points = [*before[-1:], *(time for time in self.times if since < time <= until), until]
        return max(later - earlier for earlier, later in itertools.pairwise(points))


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: the longest time without an ack in seconds, and the changes of the partition, in
    words."""

    gap_s: float
    changes: list[str]


class Failover:
    """The runs of all cases on one cluster."""

    def __init__(self, cluster: HostCluster, runs: int, seed: int) -> None:
        self.cluster = cluster
        self.runs = runs
        self.random = random.Random(seed)
        self.acks = Acks()
        self.runs_of: dict[str, list[Run]] = {}

    async def run(self, cases: list[str]) -> None:
        """Do every run of these cases, under load, and keep the results in ``runs_of``."""
        async with self._log() as log, trio.open_nursery() as nursery:
            await log.topics.create(TOPIC, partitions=1, replication_factor=3)
            nursery.start_soon(self.acks.produce, log, RATE)
            for case in cases:
                runs = self.runs_of[case] = []
                for _ in track(range(self.runs), case, console=CONSOLE, transient=True):
                    began = trio.current_time()
                    await self._until_healthy(log)
                    await trio.sleep_until(max(began + APART_S - WATCH_S, trio.current_time() + 1.0))
                    await trio.sleep(self.random.random())
                    runs.append(await self._measure(log, FAULTS[case]))
            nursery.cancel_scope.cancel()

    async def healthy(self, minutes: float, rate: float) -> list[str]:
        """Put the cluster under load for this many minutes without a fault. Returns the changes of the partition and
        of the controllers' term, in words; empty if there were none."""
        async with self._log() as log, trio.open_nursery() as nursery:
            await log.topics.create(TOPIC, partitions=1, replication_factor=3)
            await self._until_healthy(log)
            epoch = await self._epoch(log)
            term = (await log.cluster.quorum()).term
            nursery.start_soon(self.acks.produce, log, rate)
            for _ in track(range(int(minutes * 60)), "healthy", console=CONSOLE, transient=True):
                await trio.sleep(1)
            changes = await self._changes_since(log, epoch)
            if (now := (await log.cluster.quorum()).term) != term:
                changes.append(f"the controllers' term went from {term} to {now}")
            nursery.cancel_scope.cancel()
        return changes

    def _log(self) -> Any:
        return tidelog.connect(self.cluster.gateways(), connect_timeout_s=60, request_timeout_s=60)

    async def _until_healthy(self, log: Log) -> None:
        while True:
            (partition,) = (await log.topics.describe(TOPIC)).partitions
            servers = (await log.cluster.status()).servers
            whole = partition.leader and len(partition.isr) == 3 and not any(server.fenced for server in servers)
            quorum = await log.cluster.quorum()
            if whole and all(controller.match >= quorum.commit_index for controller in quorum.controllers):
                return
            await trio.sleep(0.05)

    async def _measure(self, log: Log, fault: Callable[[HostCluster, str, str], None]) -> Run:
        epoch = await self._epoch(log)
        leader = (await log.topics.describe(TOPIC)).partitions[0].leader
        active = (await log.cluster.quorum()).active
        began = trio.current_time()
        await trio.to_thread.run_sync(fault, self.cluster, leader, active)
        await trio.sleep_until(began + WATCH_S)
        gap = self.acks.longest_gap(began, began + WATCH_S)
        await trio.to_thread.run_sync(self._heal)
        return Run(round(gap, 3), await self._changes_since(log, epoch))

    async def _epoch(self, log: Log) -> int:
        return (await log.partitions.history(TOPIC, 0))[-1].epoch

    async def _changes_since(self, log: Log, epoch: int) -> list[str]:
        """Return the partition's changes after this partition epoch, in words."""
        history = await log.partitions.history(TOPIC, 0)
        return [f"{entry.event}: {entry.cause}" for entry in history if entry.epoch > epoch]

    def _heal(self) -> None:
        self.cluster.heal()
        for process in self.cluster.processes:
            self.cluster.resume(process.id)
        self.cluster.start()


def _others(cluster: HostCluster, leader: str) -> list[str]:
    return [process.id for process in cluster.of_role("replica") if process.id != leader]


def _cut(cluster: HostCluster, leader: str, others: list[str]) -> None:
    cluster.cut([leader], others)
    cluster.cut(others, [leader])


FAULTS: dict[str, Callable[[HostCluster, str, str], None]] = {
    "kill-leader": lambda cluster, leader, active: cluster.kill(leader),
    "kill-follower": lambda cluster, leader, active: cluster.kill(_others(cluster, leader)[0]),
    "pause-leader": lambda cluster, leader, active: cluster.pause(leader),
    "cut-controllers": lambda cluster, leader, active: _cut(
        cluster, leader, [process.id for process in cluster.of_role("controller")]
    ),
    "cut-followers": lambda cluster, leader, active: _cut(cluster, leader, _others(cluster, leader)),
    "cut-from-leader": lambda cluster, leader, active: cluster.cut([leader], _others(cluster, leader)),
    "cut-to-leader": lambda cluster, leader, active: cluster.cut(_others(cluster, leader), [leader]),
    "kill-controller": lambda cluster, leader, active: cluster.kill(active),
    "kill-both": lambda cluster, leader, active: cluster.kill(leader, active),
}
"""The faults by name: functions of the cluster, the partition's leader and the active controller."""


@click.command(help=__doc__)
@click.option("--runs", default=20, show_default=True, type=click.IntRange(1), help="Runs of each case.")
@click.option("--case", "cases", multiple=True, type=click.Choice(list(FAULTS)), help="Only these; default: all.")
@click.option("--healthy", type=float, help="Minutes under load without a fault, instead of the cases.")
@click.option("--rate", default=RATE, show_default=True, help="Records per second, with --healthy.")
@click.option("--busy", default=0, show_default=True, help="Processes that only use a core, beside the cluster.")
@click.option("--seed", default=1, show_default=True, help="Seed of the moments at which the faults come.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write every run there.")
def main(
    runs: int,
    cases: tuple[str, ...],
    healthy: float | None,
    rate: float,
    busy: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Run the cases on a new cluster and print how long a client is without acks, or, with ``--healthy``, the changes
    under load without a fault."""
    end_with_sigterm()
    enter_own_network()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-failover-"))
    cluster = HostCluster.create(folder, controllers=3, replicas=3, gateways=1)
    bench = Failover(cluster, runs, seed)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        cluster.start()
        trio.run(cluster.wait_ready)
        if healthy is not None:
            changes = trio.run(bench.healthy, healthy, rate)
            CONSOLE.print(f"{healthy:g} minutes, {len(bench.acks.times)} acks, {bench.acks.failed} failed")
            CONSOLE.print("\n".join(changes) or "no election, no change of the in-sync replicas")
            return
        trio.run(bench.run, list(cases) or list(FAULTS))
    finally:
        for loop in loops:
            loop.kill()
        cluster.stop()
        cluster.drop_hosts()
        shutil.rmtree(folder)
    CONSOLE.print(table(bench.runs_of))
    for case, measured in bench.runs_of.items():
        worst = max(measured, key=lambda run: run.gap_s)
        CONSOLE.print(f"{case}, {worst.gap_s:.2f} s: " + "; ".join(worst.changes))
    CONSOLE.print(f"{len(bench.acks.times)} records acked, {bench.acks.failed} failed")
    if json_file:
        json_file.write_text(json.dumps(bench.runs_of, indent=2, default=asdict) + "\n")


def table(runs_of: dict[str, list[Run]]) -> Table:
    """Return a table with median, 90th and 99th percentile and worst of the gaps of each case."""
    made = Table("case", "runs", "median s", "p90 s", "p99 s", "worst s", title="longest time without an ack")
    for case, measured in runs_of.items():
        ordered = sorted(run.gap_s for run in measured)
        p90, p99 = (ordered[math.ceil(len(ordered) * part) - 1] for part in (0.9, 0.99))
        figures = (statistics.median(ordered), p90, p99, ordered[-1])
        made.add_row(case, str(len(ordered)), *(f"{figure:.2f}" for figure in figures))
    return made


if __name__ == "__main__":
    main()
