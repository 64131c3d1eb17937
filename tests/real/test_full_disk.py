"""A replica server whose disk is really full: it starts, serves reads, refuses records, and comes out of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import Cluster, running_cluster, until
from tidelog.cli.local.local_cluster import LocalCluster
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.errors import BrokerError

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system, which takes root"),
]

VALUE = bytes(10_000)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster whose only replica server has a disk of 16 MiB, 1 MiB of which it reserves."""
    data = tmp_path / "cluster" / "r1" / "data"

    def prepare(local: LocalCluster) -> None:
        data.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", data]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
        with (data.parent / "config.toml").open("a") as config:
            config.write("[settings]\nreserve_bytes = 1048576\n")

    try:
        with running_cluster(tmp_path / "cluster", replicas=1, prepare=prepare) as cluster:
            yield cluster
    finally:
        subprocess.run(["umount", data], check=False, capture_output=True)


async def sent(log: Log) -> str:
    """What became of a record: ``taken``, or the error."""
    try:
        async with log.producer("t", ProducerOptions(delivery_timeout_s=1.0)) as producer:
            await producer.send(VALUE)
    except BrokerError as error:
        return str(error)
    return "taken"


async def refused(log: Log) -> bool:
    """Whether a record is refused because the disk is full."""
    return "DISK_FULL" in await sent(log)


async def taken(log: Log) -> bool:
    """Whether it is taken."""
    return await sent(log) == "taken"


def fill(data: Path, free: int) -> None:
    """Others write until this much is free."""
    found = os.statvfs(data)
    with (data / "of-others").open("ab") as others:
        os.posix_fallocate(others.fileno(), others.tell(), found.f_bavail * found.f_frsize - free)


async def test_D6_a_server_starts_on_a_full_disk_and_takes_records_again_when_there_is_room(small: Cluster) -> None:
    data = small.folder / "r1" / "data"
    async with small.connect() as log:
        await log.topics.create("t", replication_factor=1, config={"segment_max_bytes": 1 << 20})
        async with log.producer("t") as producer:
            for _ in range(900):
                await producer.submit(VALUE)
        assert (data / "reserve").stat().st_size == 1 << 20
        small.local.kill("r1")
        fill(data, 0)
        small.local.restart("r1")
        await until(lambda: refused(log))
        assert not (data / "reserve").exists()
        values = [record.value async for record in log.consume("t", start="earliest", end="latest")]
        assert set(values) == {VALUE} and len(values) >= 900

        await log.topics.alter("t", {"retention_bytes": 2 << 20})
        await until(lambda: taken(log))
        assert (await log.partitions.list_offset("t", 0, "earliest")).offset > 0
        assert (data / "reserve").stat().st_size == 1 << 20

        fill(data, 512 << 10)
        await until(lambda: refused(log))
        assert (await log.partitions.list_offset("t", 0, "latest")).offset > 900
    assert small.local.get("r1").is_alive(), "it has not ended by itself"
