"""Members, coordinators and gateways are killed at random: the group processes every record at least once, and nobody
commits a partition that another has."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from running import Cluster, until
from tidelog.client.core.partitioner import partition_of
from tidelog.client.log import Log
from tidelog.types import GROUPS

pytestmark = pytest.mark.real

GROUP, TOPIC, PARTITIONS = "billing", "billed", 4
STRIKES = ["member", "coordinator", "gateway"] * 2


class Members:
    """Processes of a group, the dead ones too, and what they wrote."""

    def __init__(self, folder: Path, gateways: list[str]) -> None:
        self._folder = folder
        self._gateways = gateways
        self.running: list[subprocess.Popen[bytes]] = []
        self.files: list[Path] = []

    def start(self) -> None:
        file = self._folder / f"member-{len(self.files)}"
        script = Path(__file__).parent / "programs" / "group_member.py"
        command = [sys.executable, str(script), str(file), GROUP, TOPIC, *self._gateways]
        self.files.append(file)
        self.running.append(subprocess.Popen(command))

    def kill(self, which: subprocess.Popen[bytes]) -> None:
        self.running.remove(which)
        which.kill()
        which.wait()

    def lines(self, kind: str) -> list[tuple[Path, list[int]]]:
        """(who, numbers) of every whole line of that kind."""
        found = []
        for file in self.files:
            text = file.read_text() if file.exists() else ""
            for line in text[: text.rfind("\n") + 1].splitlines():
                first, *numbers = line.split()
                if first == kind:
                    found.append((file, [int(number) for number in numbers]))
        return found

    def processed(self) -> set[tuple[int, int]]:
        return {(partition, offset) for _, (partition, offset) in self.lines("record")}


@contextmanager
def members(folder: Path, gateways: list[str]) -> Iterator[Members]:
    group = Members(folder, gateways)
    try:
        yield group
    finally:
        for process in list(group.running):
            group.kill(process)


async def coordinator(log: Log) -> str:
    partitions = (await log.topics.describe(GROUPS)).partitions
    return partitions[partition_of(GROUP.encode(), len(partitions))].leader


async def strike(kind: str, rng: Random, cluster: Cluster, group: Members, log: Log) -> None:
    """One of them dies, and comes back."""
    match kind:
        case "member":
            group.kill(rng.choice(group.running))
            group.start()
        case "coordinator":
            if leader := await coordinator(log):
                cluster.local.kill(leader)
                cluster.local.restart(leader)
        case "gateway":
            gateway = rng.choice(["g1", "g2"])
            cluster.local.kill(gateway)
            cluster.local.restart(gateway)


@pytest.mark.parametrize("seed", [1])
async def test_members_coordinators_and_gateways_die(failing_cluster: Cluster, tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    acked: set[tuple[int, int]] = set()

    async def write() -> None:
        async with failing_cluster.connect() as own, own.producer(TOPIC) as producer:
            while True:
                for partition in range(PARTITIONS):
                    batch = [await producer.submit(b"bill", partition=partition) for _ in range(5)]
                    acked.update({(partition, (await one.wait()).offset) for one in batch})

    async with failing_cluster.connect() as log:
        await log.topics.create(TOPIC, partitions=PARTITIONS, replication_factor=3, config={"flush": "os"})
        with members(tmp_path, failing_cluster.gateways) as group:
            for _ in range(3):
                group.start()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                for kind in rng.sample(STRIKES, len(STRIKES)):
                    count = len(group.processed())

                    async def more(count: int = count) -> bool:
                        return len(group.processed()) > count + 100

                    await until(more)
                    await strike(kind, rng, failing_cluster, group, log)
                nursery.cancel_scope.cancel()

            async def all_processed() -> bool:
                return group.processed() >= acked

            await until(all_processed)
            commits = group.lines("commit")
    holders: dict[tuple[int, int], Path] = {}
    for who, (generation, partition, _) in commits:
        assert holders.setdefault((generation, partition), who) == who, "two have it in one generation"
    assert {partition for _, partition in holders} == set(range(PARTITIONS))
    assert len({generation for generation, _ in holders}) > 2, "there were rebalances"
