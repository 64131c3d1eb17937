"""A topic saved, restored and mirrored between real clusters, by the commands and by the procedures of the page."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog
import tidelog
import trio
from click.testing import CliRunner
from tidelog.backup.mirror import Mirror
from tidelog.backup.mirror import MirrorSettings as Mirroring
from tidelog.backup.restore import RestoreSettings, Restoring
from tidelog.backup.store import BackupStore
from tidelog.cli.main import main
from tidelog.client.log import Log
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError
from tidelog.types import Position
from tidelog_replica.config import ReplicaSettings

from cluster.harness import QUICK_GROUPS, Cluster, running

PAGE = Path(__file__).resolve().parents[3] / "docs" / "backup.md"
PROGRAM = [sys.executable, "-m", "tidelog.cli"]
ONE_BY_ONE = ProducerOptions(linger_s=0, max_in_flight=1)


class Result(NamedTuple):
    """What a command came to."""

    exit_code: int
    stdout: str
    stderr: str


async def command(*words: str) -> Result:
    """``tidelog …``; a mirror as a process of its own, since it takes signals."""
    if words[0] == "mirror":
        done = await trio.run_process(PROGRAM + list(words), capture_stdout=True, capture_stderr=True, check=False)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    with structlog.testing.capture_logs():  # the clusters, in this process, print nothing meanwhile
        found = await trio.to_thread.run_sync(lambda: CliRunner().invoke(main, list(words)))
    return Result(found.exit_code, found.stdout, found.stderr)


async def seen(log: Log, topic: str) -> list[tuple[object, ...]]:
    """Everything that a consumer is told of the records, but their leader epochs."""
    found = [
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value, r.headers)
        async for r in log.consume(topic, start="earliest", end="latest")
    ]
    return sorted(found, key=lambda row: row[:2])  # type: ignore[arg-type,return-value]


@pytest.fixture
async def clusters(tmp_path: Path) -> AsyncIterator[tuple[Cluster, Cluster]]:
    """Two, of a server each. The old one deletes and compacts at once what it can."""
    quick = {"settings": ReplicaSettings(shutdown_s=0, groups=QUICK_GROUPS, retention_check_interval_s=0.05)}
    async with (
        running(tmp_path / "old", replicas=1, settings={"r1": quick}) as old,
        running(tmp_path / "new", replicas=1) as new,
    ):
        yield old, new


async def fill(log: Log, topic: str) -> None:
    """Records of producers, of transactions that were committed and aborted, and of no key."""
    async with log.producer(topic, ONE_BY_ONE) as producer:
        for number in range(60):
            key, headers = b"k%d" % (number % 5), {"n": b"%d" % number}
            await producer.send(b"v%d" % number, key=key, headers=headers, partition=number % 2)
    async with log.transaction("billing") as tx:
        for partition in range(2):
            await tx.send(topic, b"paid", key=b"k-paid", partition=partition)
    with pytest.raises(ZeroDivisionError):
        async with log.transaction("billing") as tx:
            for partition in range(2):
                await tx.send(topic, b"never", partition=partition)
            raise ZeroDivisionError
    async with log.producer(topic, ONE_BY_ONE) as producer:
        for partition in range(2):
            await producer.send(None, key=b"k-paid", partition=partition, timestamp_ms=77)


async def made_room(log: Log, topic_id: str) -> int:
    """Until retention has moved the beginning of partition 0, and compaction has taken something out; where it
    begins then."""
    with trio.fail_after(30):
        while True:
            start = (await log.partitions.digest(topic_id, 0, "r1")).log_start
            try:
                _, batches = await log.read_batches(topic_id, 0, Position(-1, start))
            except TidelogError:
                continue  # it has just moved on
            if start and any(header.is_sparse and not header.is_control for header, _ in batches):
                return start


NOBODY = (lambda *_: None, lambda *_: None)
"""Is told of progress."""


def procedure(title: str, old: Cluster, new: Cluster, folder: Path) -> list[list[str]]:
    """The commands of a section of the page, for these clusters."""
    text = PAGE.read_text().partition(f"### {title}")[2]
    block = text.partition("```sh\n")[2].partition("```")[0]
    names = {"ws://old:9292": old.gateway, "ws://new:9292": new.gateway}
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    assert {line[0] for line in lines} == {"tidelog"}
    return [[names.get(word, word.replace("/backups", str(folder))) for word in line[1:]] for line in lines]


async def lone(task: Callable[[], Awaitable[object]]) -> TidelogError:
    """What it is refused with."""
    try:
        with trio.fail_after(30):
            await task()
    except* TidelogError as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        found = error
    assert isinstance(found, TidelogError)
    return found


async def why_not_restored(log: Log, folder: Path, name: str) -> TidelogError:
    store = BackupStore(str(folder))
    return await lone(lambda: Restoring(log, store, store.manifest(), RestoreSettings(name)).run(*NOBODY))


async def has_all(source: Log, target: Log) -> bool:
    try:
        return await target.partitions.find_positions("orders", "latest") == await source.partitions.find_positions(
            "orders", "latest"
        )
    except TidelogError:
        return False  # it is not there yet


async def test_disaster_recovery_as_the_page_has_it(clusters: tuple[Cluster, Cluster], tmp_path: Path) -> None:
    """Of a log of which retention, compaction, and transactions have made what they make."""
    old, new = clusters
    folder = tmp_path / "orders"
    async with tidelog.connect(old.gateway) as source, tidelog.connect(new.gateway) as target:
        shape = {"cleanup": "compact,delete", "segment_max_bytes": 1024, "retention_records": 12}
        topic = await source.topics.create("orders", partitions=2, config=shape)
        await fill(source, "orders")
        start = await made_room(source, topic.topic_id)
        later = {"cleanup": "delete", "retention_records": "-1", "flush_interval_ms": "77"}
        await source.topics.alter("orders", later)
        await source.groups.reset("billing", "orders", {0: start + 3, 1: 1})
        done = await command("backup", "orders", str(folder), "--groups", "--gateway", old.gateway, "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["partitions"][0]["start"] >= start
        wanted = await seen(source, "orders")

        for words in procedure("Disaster recovery", old, new, tmp_path):
            done = await command(*words)
            assert done.exit_code == 0, done.stderr
        assert await seen(target, "orders") == wanted
        assert b"never" not in {row[4] for row in wanted}
        assert [row for row in wanted if row[2] == 77 and row[4] is None]
        assert (await target.topics.describe("orders")).config == topic.config | later
        positions = await target.groups.fetch_offsets("billing", "orders")
        assert {partition: at.offset for partition, at in positions.items()} == {0: start + 3, 1: 1}

        assert (await why_not_restored(target, folder, "orders")).code == "TOPIC_EXISTS"
        victim = sorted(folder.glob("1/*.segment"))[0]
        data = bytearray(victim.read_bytes())
        data[len(data) // 2] ^= 1
        victim.write_bytes(data)
        error = await why_not_restored(target, folder, "again")
        assert (error.code, f"1/{victim.name} is damaged" in error.message) == ("BAD_BACKUP", True)
        victim.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
        again = RestoreSettings("again", resume=True, config={"cleanup": "compact"})
        await Restoring(target, BackupStore(str(folder)), BackupStore(str(folder)).manifest(), again).run(*NOBODY)
        assert await seen(target, "again") == wanted
        assert (await target.topics.describe("again")).config["cleanup"] == "compact"


async def test_moving_to_another_cluster_as_the_page_has_it(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    old, new = clusters
    async with tidelog.connect(old.gateway) as source, tidelog.connect(new.gateway) as target:
        await source.topics.create("orders", partitions=2)
        await fill(source, "orders")
        first, *others = procedure("Move to another cluster", old, new, tmp_path)
        process = await trio.lowlevel.open_process(PROGRAM + first, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        with trio.fail_after(60):
            while not await has_all(source, target):
                await trio.lowlevel.checkpoint()
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        told = b"".join([piece async for piece in process.stdout]).decode()
        assert (await process.wait(), "orders: 70 offsets copied" in told) == (0, True), told

        async with source.producer("orders", ONE_BY_ONE) as producer:
            await producer.send(b"late")
        await source.groups.reset("billing", "orders", {0: 3, 1: 4})
        for words in others:
            done = await command(*words)
            assert done.exit_code == 0, done.stderr
        assert await seen(target, "orders") == await seen(source, "orders")
        assert "billing" in done.stdout
        async with target.producer("orders") as producer:  # the clients have moved
            await producer.send(b"new")

        # what a mirror cannot go on with
        copy = Mirroring("orders", to_end=True)
        error = await lone(lambda: Mirror(source, target, "orders", copy).run())
        assert (error.code, "the source at" in error.message) == ("LOG_TRUNCATED", True), error.message
        for log, value in ((source, b"a"), (target, b"b")):
            await log.topics.create("bills")
            async with log.producer("bills", ONE_BY_ONE) as producer:
                await producer.send(value, timestamp_ms=1 if log is source else 2)
        error = await lone(lambda: Mirror(source, target, "bills", Mirroring("bills", to_end=True)).run())
        assert (error.code, "bills/0 has another batch at offset 0" in error.message) == ("LOG_TRUNCATED", True)


async def test_a_mirror_that_is_killed_copies_every_record_once(tmp_path: Path) -> None:
    """Every record is copied once, though other processes end meanwhile: the leader of the source, that of the
    target, the gateways."""
    async with running(tmp_path / "old", replicas=2) as old, running(tmp_path / "new", replicas=2) as new:  # noqa: SIM117
        async with tidelog.connect(old.gateway) as source, tidelog.connect(new.gateway) as target:
            await source.topics.create("orders", partitions=2, replication_factor=2)
            written = 0

            async def produce(count: int) -> None:
                nonlocal written
                async with source.producer("orders", ProducerOptions(linger_s=0, batch_bytes=200)) as producer:
                    for number in range(written, written + count):
                        await producer.submit(b"%d" % number, key=b"k%d" % (number % 7))
                written += count

            async def until_killed(records: int) -> None:
                """A mirror that ends without any goodbye, in the middle, when it has copied so much."""
                async with trio.open_nursery() as nursery:
                    mirror = Mirror(source, target, "orders", Mirroring("copy"))
                    nursery.start_soon(mirror.run)
                    with trio.fail_after(60):
                        while sum(each.copied for each in mirror.partitions.values()) < records:
                            await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()

            await produce(300)
            await until_killed(1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(until_killed, 200)
                nursery.start_soon(until_killed, 100)  # two at a time
                await produce(300)
            for cluster, log, topic in ((new, target, "copy"), (old, source, "orders")):
                leader = (await log.topics.describe(topic)).partitions[0].leader
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(until_killed, 100)
                    await cluster.stop(leader)
                    await produce(200)
                await cluster.start(leader)
            with trio.fail_after(60):
                await Mirror(source, target, "orders", Mirroring("copy", to_end=True)).run()
            wanted = await seen(source, "orders")
            assert len(wanted) == written == 1000
            assert await seen(target, "copy") == wanted
