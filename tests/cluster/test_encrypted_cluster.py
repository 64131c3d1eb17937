"""A real cluster whose replica servers encrypt: killed, with changed, wrong and no keys; mixed, and switched off."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import tidelog
import trio
from tidelog.errors import ConfigError

from .harness import Cluster, running, wait_registered
from .test_verify import in_sync, verify

SECRET = b"the moon is made of green cheese"
SERVERS = ("r1", "r2", "r3")


def encoded(name: str) -> str:
    """A key of that name, as it is configured."""
    return f"{name}:{base64.b64encode(name.encode().ljust(32, b'.')).decode()}"


def give(cluster: Cluster, folder: Path, *names: str) -> None:
    """These keys to all replica servers from their next start on, the current one first; none takes them away."""
    path = folder / "keys"
    path.write_text("\n".join(map(encoded, names)))
    for node in SERVERS:
        cluster.settings[node] = {"encryption_key_file": str(path)} if names else {}


def contents(cluster: Cluster, folder: Path) -> dict[str, bytes]:
    """All files of replica servers in the folder but locks. None of these servers runs, since their threads delete
    files, such as old producer snapshots."""
    paths = [path for path in folder.rglob("*") if path.is_file() and {*SERVERS} & {*path.parts}]
    assert not cluster.running & {part for path in paths for part in path.parts}
    return {str(path): path.read_bytes() for path in paths if path.name != "lock"}


def readable(cluster: Cluster, folder: Path) -> list[str]:
    """Files in which a record is to be read."""
    return [path for path, data in contents(cluster, folder).items() if SECRET in data]


def refuses(event: Mapping[str, Any]) -> bool:
    """A server does not open a log: the controller's event of that name, that nobody leads, gives no reason."""
    return event["event"] == "partition_offline" and "reason" in event


async def stop(cluster: Cluster) -> None:
    """All replica servers are killed."""
    for node in SERVERS:
        await cluster.stop(node)


async def start(cluster: Cluster) -> None:
    """All replica servers are started, and known to the gateway."""
    await wait_registered(cluster, [await cluster.start(node) for node in SERVERS])


async def write(log: tidelog.Log, topic: str, batches: int) -> None:
    """Batches of one record each."""
    async with log.producer(topic, tidelog.ProducerOptions(max_in_flight=1, linger_s=0)) as producer:
        for _ in range(batches):
            await producer.send(SECRET)


async def values(log: tidelog.Log, topic: str) -> list[bytes | None]:
    """Read the values of all records of a topic."""
    with trio.fail_after(30):
        return [record.value async for record in log.consume(topic, start="earliest", end="latest")]


async def test_it_is_killed_and_its_keys_are_changed_and_nothing_is_readable_on_its_disks(tmp_path: Path) -> None:
    async with running(tmp_path, replicas=0) as cluster, tidelog.connect(cluster.gateway) as log:
        give(cluster, tmp_path, "old")
        await start(cluster)
        await log.topics.create("orders", replication_factor=3, config={"segment_max_bytes": "2000"})
        await write(log, "orders", 30)
        await stop(cluster)
        assert readable(cluster, tmp_path) == []
        give(cluster, tmp_path, "new", "old")
        await start(cluster)
        await write(log, "orders", 10)
        give(cluster, tmp_path, "new")  # by now nothing needs the old one
        await stop(cluster)
        await start(cluster)
        assert await values(log, "orders") == [SECRET] * 40
        await in_sync(log, "orders")
        done = await verify(cluster, "orders")
        assert done.exit_code == 0, done.output
        await stop(cluster)
        assert readable(cluster, tmp_path) == []

        before = contents(cluster, tmp_path / "r3")
        give(cluster, tmp_path, "wrong")
        with pytest.raises(ConfigError, match=r"keys are missing or do not fit: new \(\d+ segments\)"):
            await cluster.start("r3")
        assert contents(cluster, tmp_path / "r3") == before


async def test_encryption_is_switched_on_where_there_is_data_and_off_again(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await log.topics.create("orders", replication_factor=3, config={"segment_max_bytes": "2000"})
        await write(log, "orders", 10)
        await stop(cluster)
        clear = set(readable(cluster, tmp_path))
        assert len(clear) >= 3
        give(cluster, tmp_path, "k")
        await start(cluster)
        await write(log, "orders", 40)
        assert await values(log, "orders") == [SECRET] * 50
        await in_sync(log, "orders")

        give(cluster, tmp_path)
        await stop(cluster)
        assert set(readable(cluster, tmp_path)) == clear, "what was written before, or in a segment that had begun"
        sealed = {path: data for path, data in contents(cluster, tmp_path).items() if data.startswith(b"TLK1")}
        with structlog.testing.capture_logs() as events, trio.fail_after(30):
            await start(cluster)
            while len(told := [each["reason"] for each in events if refuses(each)]) < 3:
                await log.topics.describe("orders")
        assert all("the segment is encrypted with key 'k', which is unknown" in reason for reason in told)
        await stop(cluster)
        now = contents(cluster, tmp_path)
        assert {path: now[path] for path in sealed} == sealed
        assert not [path for path in now if path.endswith((".repair", ".quarantined"))]
        give(cluster, tmp_path, "k")
        await start(cluster)
        assert await values(log, "orders") == [SECRET] * 50
