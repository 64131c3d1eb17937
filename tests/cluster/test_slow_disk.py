"""A whole cluster with a server whose disk syncs late: clients are told to send less, until it is quick again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import tidelog
import trio
from tidelog.client.log import Log
from tidelog.disk import File, RealDisk
from tidelog.types import Buffer

from cluster.harness import Client, Cluster, connected, running

LIMIT = "tidelog_gateway_server_limit_bytes_per_second"


class SlowDisk(RealDisk):
    """A disk on which, while ``slow``, each sync of a segment waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self._arrived = threading.Semaphore(0)
        self._let_through = threading.Semaphore(0)

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return _SlowFile(file, self) if path.endswith(".log") else file

    def wait(self) -> None:
        if self.slow:
            self._arrived.release()
            self._let_through.acquire()

    async def wait_sync(self) -> None:
        """Until a sync waits."""
        with trio.fail_after(30):
            await trio.to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)

    def let_one_through(self) -> None:
        self._let_through.release()

    def be_quick(self) -> None:
        self.slow = False
        self._let_through.release(1000)


class _SlowFile:
    def __init__(self, file: File, disk: SlowDisk) -> None:
        self._file = file
        self._disk = disk

    def size(self) -> int:
        return self._file.size()

    def pread(self, length: int, position: int) -> bytes:
        return self._file.pread(length, position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._file.pwritev(buffers, position)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> None:
        self._disk.wait()
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class Stage:
    """A client of a cluster whose server has a slow disk. The gateway's clock is set forward, so nothing waits."""

    def __init__(self, cluster: Cluster, client: Client, disk: SlowDisk) -> None:
        self.cluster, self.client, self.disk = cluster, client, disk
        self.topic_id = ""

    async def send(self, size: int = 100) -> int:
        """Send a batch, and wait until the gateway has it."""
        id = self.client.send(self.topic_id, b"x" * size)
        await self.client.partition("orders")
        return id

    async def sync_late(self, id: int) -> int:
        """Have the batch whose sync waits synced later than it should be, and the next sync wait in its place.
        Returns for how long the ack asks to pause (ms)."""
        self.cluster.gateways_ahead_s += 1.5
        self.disk.let_one_through()
        ack = await self.client.wait_ack(id)
        assert ack.error is None
        await self.disk.wait_sync()
        return ack.throttle_ms


async def sample(log: Log, name: str) -> float | None:
    """A sample of the gateway's metrics, whatever its labels; None: there is none."""
    page = (await log.metrics()).page
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"{name}{{")), None)


async def test_a_slow_disk_throttles_clients_until_it_is_quick_again(tmp_path: Path) -> None:
    disk = SlowDisk()
    settings = {"g1": {"throttle_target_s": 1.0, "throttle_least_bytes_s": 1024}}
    async with (
        running(tmp_path, replicas=1, settings=settings, disks={"r1": disk}) as cluster,
        tidelog.connect(cluster.gateway) as log,
        connected(cluster) as client,
        connected(cluster) as other,
    ):
        stage = Stage(cluster, client, disk)
        stage.topic_id = await client.create("orders", replication_factor=1)
        try:
            disk.slow = True
            waits = await stage.send()
            await disk.wait_sync()
            for limit in (None, None, None, 1024.0):  # the first found no queue; an interval goes from ack to ack
                next_one = await stage.send()
                assert await stage.sync_late(waits) == 0
                assert await sample(log, LIMIT) == limit
                waits = next_one
            large = await stage.send(5000)
            assert await stage.sync_late(waits) > 1000
            last = await stage.send()
            assert await sample(log, "tidelog_gateway_throttle_holds_total") == 1, "the last one waits at the gateway"
            assert await sample(log, "tidelog_gateway_throttled_acks_total") == 1
        finally:
            disk.be_quick()
        assert (await client.wait_ack(large)).error is None
        with trio.fail_after(60):
            while await sample(log, LIMIT) is not None:
                cluster.gateways_ahead_s += 1.5
                for id in [other.send(stage.topic_id, b"y"), other.send(stage.topic_id, b"z")]:
                    ack = await other.wait_ack(id)
                    assert ack.error is None and not ack.throttle_ms
        assert (await client.wait_ack(last)).error is None
