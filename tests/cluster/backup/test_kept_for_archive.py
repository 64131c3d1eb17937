"""A log keeps what its archive, a consumer group, has not read, within a bound; commands say how far that is."""

from __future__ import annotations

import json
from pathlib import Path

import structlog
import tidelog
import trio
from click.testing import CliRunner
from tidelog.cli.explain.retention_waits import kept_in
from tidelog.cli.main import main
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.wire.messages import PartitionInfo
from tidelog_replica.config import ReplicaSettings

from cluster.harness import QUICK_GROUPS, running

QUICK = {"settings": ReplicaSettings(shutdown_s=0, groups=QUICK_GROUPS, retention_check_interval_s=0.05)}
CONFIG = {"segment_max_bytes": "1024", "retention_records": "1", "retention_waits_for": "archive"}
ONE_BY_ONE = ProducerOptions(linger_s=0, max_in_flight=1)


async def command(cluster: str, *words: str) -> str:
    """Run ``tidelog …`` and return what it prints."""
    with structlog.testing.capture_logs():
        found = await trio.to_thread.run_sync(
            lambda: CliRunner().invoke(main, [*words, "--gateway", cluster], catch_exceptions=False)
        )
    return found.stdout


async def partition(log: Log) -> PartitionInfo:
    return (await log.topics.describe("orders", offsets=True)).partitions[0]


async def read(log: Log, count: int) -> None:
    """Let the archive read so many more records, and commit them."""
    async with log.consume("orders", group="archive") as consumer:
        for _ in range(count):
            await consumer.__anext__()
        await consumer.commit()


async def until_kept(log: Log, leader: str) -> None:
    """Wait until the leader has found that it must keep records for the archive."""
    while not kept_in([(await log.cluster.metrics(leader)).page]):
        pass


async def test_retention_keeps_what_the_archive_has_not_read_and_ends_at_the_bound(tmp_path: Path) -> None:
    settings = {"r1": QUICK, "r2": QUICK}
    with trio.fail_after(100):
        async with (
            running(tmp_path, replicas=2, settings=settings) as cluster,
            tidelog.connect(cluster.gateway) as log,
        ):
            await log.topics.create("orders", replication_factor=2, config=CONFIG)
            async with log.producer("orders", ONE_BY_ONE) as producer:
                for _ in range(60):
                    await producer.send(b"x" * 100)
            leader = (await partition(log)).leader
            await until_kept(log, leader)
            assert (await partition(log)).log_start == 0
            words = await command(cluster.gateway, "topics", "describe", "orders")
            assert "orders/0: retention waits for archive, which has no position here" in words

            await read(log, 40)
            while not (start := (await partition(log)).log_start):
                pass
            assert 30 < start <= 40
            words = await command(cluster.gateway, "topics", "describe", "orders")
            assert "retention waits for archive, which has read up to offset 40: 20 records behind" in words

            await log.topics.alter("orders", {"retention_waits_max_bytes": "1"})
            while (start := (await partition(log)).log_start) <= 40:
                pass
            found = json.loads(await command(cluster.gateway, "doctor", "-o", "json"))["findings"]
            said = [one["what"] for one in found if one["what"].startswith("orders/0")]
            assert f"orders/0: offsets 40 to {start - 1} are deleted, and archive has not read them" in said
