"""``tidelog verify replicas`` against a real cluster, sound and tampered with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import tidelog
import trio
from crc32c import crc32c
from tidelog.batch.format import HEADER, read_header

from .harness import Cluster, running, wait_registered

CHECKED_FROM = 16
"""What the CRC of a batch covers begins here."""


class Result(NamedTuple):
    """What the command came to."""

    exit_code: int
    stdout: str
    output: str


async def verify(cluster: Cluster, *arguments: str) -> Result:
    """Run the command ``tidelog verify replicas``."""
    return await tidelog_command(cluster, "verify", "replicas", *arguments)


async def tidelog_command(cluster: Cluster, *arguments: str) -> Result:
    """A command, as a process of its own: the services of this one write to its output, too."""
    command = [sys.executable, "-m", "tidelog.cli", *arguments, "--gateway", cluster.gateway]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    return Result(done.returncode, done.stdout.decode(), (done.stdout + done.stderr).decode())


async def fill(log: tidelog.Log, topic: str, batches: int) -> None:
    """Batches of a record each."""
    await log.topics.create(topic, replication_factor=3)
    async with log.producer(topic, tidelog.ProducerOptions(max_in_flight=1, linger_s=0)) as producer:
        for number in range(batches):
            await producer.send(b"%d" % number)


async def in_sync(log: tidelog.Log, topic: str) -> None:
    """Until all three replicas are in sync."""
    with trio.fail_after(30):
        while len((await log.topics.describe(topic)).partitions[0].isr) < 3:
            pass


def tamper(folder: Path, topic_id: str, number: int, *, known: bool = False) -> int:
    """Change what no checksum of its own tells: another timestamp in the header of a batch, with the right CRC.
    Returns the batch's base offset. ``known``: the index stays, by which the server trusts the file."""
    [path] = folder.glob(f"{topic_id}-0/*.log")
    data, position = bytearray(path.read_bytes()), 0
    for _ in range(number):
        position += read_header(data, position).batch_length
    header = read_header(data, position)
    end = position + header.batch_length
    HEADER.pack_into(data, position, *header._replace(max_timestamp=header.max_timestamp + 1))
    crc = crc32c(memoryview(data)[position + CHECKED_FROM : end])
    HEADER.pack_into(data, position, *header._replace(max_timestamp=header.max_timestamp + 1, crc32c=crc))
    path.write_bytes(data)
    for derived in [] if known else folder.glob("*/*.index"):
        derived.unlink()
    return header.base_offset


async def test_sound_replicas_have_no_difference(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await fill(log, "orders", 30)
        await fill(log, "bills", 3)
        await in_sync(log, "orders")
        done = await verify(cluster)  # everything, the cluster's own topics too
        assert done.exit_code == 0, done.output
        done = await verify(cluster, "orders", "bills")
        assert "no difference; 2 partitions" in done.output
        done = await verify(cluster, "orders/0", "--json")
        (found,) = json.loads(done.stdout)
        assert (found["topic"], found["partition"], sorted(found["compared"])) == ("orders", 0, ["r1", "r2", "r3"])
        assert found["difference"] is None
        wrong = await verify(cluster, "orders/7")
        assert wrong.exit_code == 1 and "partitions 0 to 0" in wrong.output
        await log.topics.create("empty", replication_factor=3)
        done = await verify(cluster, "empty")
        assert done.exit_code == 0, done.output


async def test_a_planted_difference_that_only_the_hash_chain_shows_is_found_and_located(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await fill(log, "orders", 30)
        topic = await log.topics.describe("orders")
        victim = topic.partitions[0].replicas[-1]
        await cluster.stop(victim)
        offset = tamper(tmp_path / victim, topic.topic_id, 17)
        await wait_registered(cluster, [await cluster.start(victim)])
        await in_sync(log, "orders")
        done = await verify(cluster, "orders", "--json")
        assert done.exit_code == 1
        (found,) = json.loads(done.stdout)
        assert found["difference"]["offset"] == offset
        sides: dict[str, Any] = found["difference"]["sides"]
        chains = {node: side["chain"] for node, side in sides.items()}
        odd = chains.pop(victim)
        assert len(set(chains.values())) == 1 and odd not in chains.values()
        done = await verify(cluster, "orders")
        assert f"orders/0: replicas differ from offset {offset}" in done.output
        assert "1 of 1 partitions differ" in done.output and f"the odd copy is on {victim}" in done.output


async def test_the_odd_copy_is_fetched_again_by_a_scrub_and_doctor_reports_it_until_then(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await fill(log, "orders", 30)
        topic = await log.topics.describe("orders")
        victim, other = topic.partitions[0].replicas[-1], topic.partitions[0].replicas[0]
        await cluster.stop(victim)
        tamper(tmp_path / victim, topic.topic_id, 17)
        await wait_registered(cluster, [await cluster.start(victim)])
        await in_sync(log, "orders")
        done = await tidelog_command(cluster, "servers", "scrub", other, "--json")
        assert done.exit_code == 0 and not json.loads(done.stdout)[other]["running"], done.output
        told = await tidelog_command(cluster, "doctor")
        assert told.exit_code == 1 and f"orders/0: the copy on {victim} is not what" in told.output
        done = await tidelog_command(cluster, "servers", "scrub", victim)
        assert done.exit_code == 0, done.output
        with trio.fail_after(60):
            while (await verify(cluster, "orders")).exit_code:
                pass  # until it is repaired
        assert list((tmp_path / victim).glob(f"{topic.topic_id}-0/*.quarantined"))
        assert (await verify(cluster, "orders", "--quick")).exit_code == 0


async def test_damage_that_is_only_on_the_disk_is_found_by_reading_and_not_by_the_quick_form(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await fill(log, "orders", 200)
        topic = await log.topics.describe("orders")
        victim = topic.partitions[0].replicas[-1]
        await cluster.stop(victim)
        offset = tamper(tmp_path / victim, topic.topic_id, 170, known=True)
        await wait_registered(cluster, [await cluster.start(victim)])
        await in_sync(log, "orders")
        quick = await verify(cluster, "orders", "--quick")
        assert quick.exit_code == 0 and "no difference" in quick.output and "the quick form" in quick.output
        done = await verify(cluster, "orders", "--rate", "0")
        assert done.exit_code == 1 and f"replicas differ from offset {offset}" in done.output, done.output
        assert f"the odd copy is on {victim}" in done.output and "bytes were read from the disks" in done.output


async def test_a_replica_that_is_down_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, tidelog.connect(cluster.gateway) as log:
        await fill(log, "orders", 5)
        await cluster.stop("r3")
        done = await verify(cluster, "orders")
        assert "r3" in done.output
        assert "no difference" in done.output
