"""A backup in an object store that speaks S3: written, added to, broken off, checked, and restored from there."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import tidelog
import trio
from support.s3_server import S3Server, s3_server
from tidelog.client.log import Log

from cluster.harness import running
from cluster.operating import HEAL_S

from .test_backup import PROGRAM, Result, command, fill, seen

WHERE = "s3://backups/orders"
FILES = "/backups/orders/"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def store(s3: S3Server) -> S3Server:
    """With the empty bucket ``backups``."""
    s3.gate = lambda request: True
    s3.empty_bucket("backups")
    s3.requests.clear()
    return s3


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[str]:
    async with running(tmp_path / "cluster", replicas=1) as cluster:
        yield cluster.gateway


async def tool(store: S3Server, *words: str, gateway: str = "", **more: str) -> Result:
    """``tidelog …``, told of the store by its environment alone."""
    environment = store.environment | ({"TIDELOG_GATEWAY": gateway} if gateway else {}) | more
    done = await trio.run_process(
        PROGRAM + list(words), env=environment, capture_stdout=True, capture_stderr=True, check=False
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@asynccontextmanager
async def started(store: S3Server, *words: str, gateway: str = "") -> AsyncIterator[trio.Process]:
    """A process that is told as much; it does not outlive the block."""
    environment = store.environment | {"TIDELOG_GATEWAY": gateway}
    process = await trio.lowlevel.open_process(list(words), env=environment)
    try:
        yield process
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


async def reached(event: threading.Event) -> None:
    """Until a request has come to the gate."""
    with trio.fail_after(HEAL_S):
        await trio.to_thread.run_sync(event.wait, abandon_on_cancel=True)


async def ok(store: S3Server, *words: str, gateway: str = "") -> str:
    """Run a command in this process, and demand that it succeeds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, text in store.environment.items():
            patch.setenv(name, text)
        done = await command(*words, *(["--gateway", gateway] if gateway else []))
    assert done.exit_code == 0, done.stderr
    return done.stdout


async def produce(log: Log, partitions: int) -> None:
    """A record for each."""
    async with log.producer("orders") as producer:
        for partition in range(partitions):
            await producer.send(b"%d" % partition, partition=partition)


async def test_a_topic_goes_to_a_bucket_and_comes_back(store: S3Server, gateway: str) -> None:
    async with tidelog.connect(gateway) as log:
        await log.topics.create("orders", partitions=2)
        await fill(log, "orders")
        await log.groups.reset("billing", "orders", {0: 3, 1: 1})
        done = await tool(store, "backup", "orders", WHERE, "--groups", "--json", gateway=gateway)
        assert (done.exit_code, done.stderr) == (0, "")
        told = json.loads(done.stdout)
        assert (told["added"]["offsets"], told["added"]["segments"]) == (70, 2)
        assert store.written()[-1] == f"{FILES}manifest.json"

        store.requests.clear()
        told = json.loads(await ok(store, "backup", "orders", WHERE, "--json", gateway=gateway))
        assert told["added"]["segments"] == 0
        assert store.written() == [f"{FILES}manifest.json"]
        await fill(log, "orders")
        told = json.loads(await ok(store, "backup", "orders", f"{WHERE}/", "--json", gateway=gateway))
        assert (told["added"]["offsets"], told["offsets"]) == (70, 140)

        listed = json.loads(await ok(store, "backup", "--list", WHERE, "--json"))
        assert (listed["offsets"], listed["groups"]) == (140, {"billing": {"0": 3, "1": 1}})
        assert "4 files are sound" in await ok(store, "backup", "--check", WHERE)
        await ok(store, "restore", WHERE, "copy", "--groups", gateway=gateway)
        assert await seen(log, "copy") == await seen(log, "orders")
        assert (await log.groups.fetch_offsets("billing", "copy"))[0].offset == 3

    [victim] = [name for name in store.objects("backups") if "/1/" in name and "-00000000000000000035." in name]
    store.damage("backups", victim)  # as somebody who may write there
    found = await tool(store, "backup", "--check", WHERE)
    assert (found.exit_code, "1 of 4 files are not as they were" in found.stdout) == (1, True)
    assert f"{victim.removeprefix('orders/')} is damaged at offset" in found.stdout


async def test_a_run_that_is_killed_is_gone_on_with(store: S3Server, gateway: str) -> None:
    """While it writes the files of four partitions, which then are not there; those of three others are."""
    async with tidelog.connect(gateway) as log:
        await log.topics.create("orders", partitions=8)
        await produce(log, 8)
        come, killed, four = itertools.count(1), threading.Event(), threading.Event()

        def gate(request: str) -> bool:
            if not request.endswith(".segment"):
                return True
            number = next(come)
            if number > 3:
                if number == 7:
                    four.set()
                killed.wait()
            return number <= 3

        store.gate = gate
        try:
            async with started(store, *PROGRAM, "backup", "orders", WHERE, gateway=gateway):
                await reached(four)
        finally:
            killed.set()
        store.gate = lambda request: True
        *there, unfinished = store.objects("backups")
        assert (len(there), unfinished) == (3, "orders/unfinished.json")
        found = await tool(store, "backup", "--list", WHERE)
        assert f"{WHERE} has no finished backup: 'tidelog backup' goes on where it ended" in found.stderr

        store.requests.clear()
        assert "saved 5 offsets" in await ok(store, "backup", "orders", WHERE, gateway=gateway)
        assert not {f"/backups/{name}" for name in there} & set(store.written())
        assert "orders/unfinished.json" not in store.objects("backups")
        assert "8 files are sound" in await ok(store, "backup", "--check", WHERE)
        await ok(store, "restore", WHERE, "copy", gateway=gateway)
        assert await seen(log, "copy") == await seen(log, "orders")


async def test_a_store_that_fails_for_a_while_is_waited_out(store: S3Server, gateway: str) -> None:
    """As one does that is asked too much."""
    async with tidelog.connect(gateway) as log:
        await log.topics.create("orders", partitions=3)
        await produce(log, 3)
        refused: list[str] = []

        def gate(request: str) -> bool:
            if request.startswith("PUT ") and len(refused) < 2:
                refused.append(request)
                return False
            return True

        store.gate = gate
        assert "saved 3 offsets" in await ok(store, "backup", "orders", WHERE, gateway=gateway)
        assert len(refused) == 2
        found = await tool(store, "backup", "orders", "s3://nosuch/orders", gateway=gateway)
        assert (found.exit_code, "The specified bucket does not exist" in found.stderr) == (1, True), found.stderr


async def test_a_file_of_many_parts_is_there_whole_or_not_at_all(store: S3Server) -> None:
    """The largest files are sent in parts (s3fs: from 100 MiB on)."""
    last, go_on = threading.Event(), threading.Event()

    def gate(request: str) -> bool:
        if "partNumber=3" in request:
            last.set()
            go_on.wait()
        return True

    store.gate = gate
    write = f"BackupStore('{WHERE}').write('0/big', bytes({101 << 20}))"
    program = f"from tidelog.backup.store import BackupStore; {write}"
    async with started(store, sys.executable, "-c", program) as process:
        try:
            await reached(last)
            assert store.objects("backups") == []
        finally:
            go_on.set()
        with trio.fail_after(HEAL_S):
            assert await process.wait() == 0
    assert store.objects("backups") == ["orders/0/big"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
        ({"AWS_ACCESS_KEY_ID": "", "AWS_EC2_METADATA_DISABLED": "true"}, "Unable to locate credentials"),
    ],
)
async def test_the_command_names_the_reason_why_it_cannot_use_the_bucket(
    store: S3Server, more: dict[str, str], words: str
) -> None:
    found = await tool(store, "backup", "--list", WHERE, **more)
    assert found.exit_code == 1
    assert words in found.stderr
    assert "Traceback" not in found.stderr
