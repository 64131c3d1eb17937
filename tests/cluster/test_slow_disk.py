"""A whole cluster with a server whose disk syncs late: clients are told to send less, until it is quick again."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import tidelog
import trio
from tidelog.client.log import Log
from tidelog.runtime.disk import File, RealDisk
from tidelog.types import Buffer

from cluster.harness import Client, Cluster, connected, running

IN_FLIGHT = "tidelog_gateway_in_flight_batches"
LIMIT = "tidelog_gateway_server_limit_bytes_per_second"
HOLDS = "tidelog_gateway_throttle_holds_total"


class SlowDisk(RealDisk):
    """A disk on which each sync of a segment of the topic ``slow``, if there is one, waits until it is let through.
    Other topics are left out: the controllers write to the timeline whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = ""
        self._arrived = threading.Semaphore(0)
        self._let_through = threading.Semaphore(0)

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return _SlowFile(file, path, self) if path.endswith(".log") else file

    def wait(self, path: str) -> None:
        if self.slow and self.slow in path:
            self._arrived.release()
            self._let_through.acquire()

    async def wait_sync(self) -> None:
        """Until a sync waits."""
        with trio.fail_after(30):
            await trio.to_thread.run_sync(self._arrived.acquire, abandon_on_cancel=True)

    def let_one_through(self) -> None:
        self._let_through.release()

    def be_quick(self) -> None:
        self.slow = ""
        self._let_through.release(1000)


class _SlowFile:
    def __init__(self, file: File, path: str, disk: SlowDisk) -> None:
        self._file = file
        self._path = path
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
        self._disk.wait(self._path)
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class Stage:
    """A client of a cluster whose server has a slow disk. The gateway's clock is set forward, so nothing waits."""

    def __init__(self, cluster: Cluster, log: Log, client: Client, disk: SlowDisk) -> None:
        self.cluster, self.log, self.client, self.disk = cluster, log, client, disk
        self.topic_id = ""

    async def send(self, size: int = 100, *, in_flight: int = 2) -> int:
        """Send a batch, and wait until so many are in flight from the gateway to the server."""
        id = self.client.send(self.topic_id, b"x" * size)
        await wait_sample(self.log, IN_FLIGHT, in_flight)
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
    lines = (await log.cluster.metrics()).page.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith((f"{name} ", f"{name}{{"))), None)


async def wait_sample(log: Log, name: str, value: float | None) -> None:
    """Until a sample of the gateway's metrics has this value. A page that was costly is shown again for a while."""
    with trio.fail_after(30):
        while await sample(log, name) != value:
            pass


async def test_a_slow_disk_throttles_clients_until_it_is_quick_again(tmp_path: Path) -> None:
    disk = SlowDisk()
    settings = {"g1": {"throttle_target_s": 1.0, "throttle_least_bytes_s": 1024}}
    async with (
        running(tmp_path, replicas=1, settings=settings, disks={"r1": disk}) as cluster,
        tidelog.connect(cluster.gateway) as log,
        connected(cluster) as client,
        connected(cluster) as other,
    ):
        stage = Stage(cluster, log, client, disk)
        stage.topic_id = await client.create("orders", replication_factor=1)
        try:
            disk.slow = stage.topic_id
            waits = await stage.send(in_flight=1)
            await disk.wait_sync()
            for limit in (None, None, None, 1024.0):  # the first found no queue; an interval goes from ack to ack
                next_one = await stage.send()
                assert await stage.sync_late(waits) == 0
                await wait_sample(log, LIMIT, limit)
                waits = next_one
            large = await stage.send(20_000)  # 20 s of the limit
            assert await stage.sync_late(waits) > 1000
            last = client.send(stage.topic_id, b"x", timeout_ms=60_000)
            await wait_sample(log, HOLDS, 1)  # it waits at the gateway
            cluster.gateways_ahead_s += 20
            await wait_sample(log, "tidelog_gateway_throttled_acks_total", 1)
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
