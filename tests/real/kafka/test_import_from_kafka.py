"""Topics of a real Kafka, imported into a real cluster by the command."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from broker import MISSING, PASSWORD, Kafka, running_broker
from running import HEAL_S, Cluster, until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tidelog.client.log import Log

pytestmark = [pytest.mark.real, pytest.mark.skipif(bool(MISSING), reason=MISSING)]
KILLED = """
import os, signal, sys
from tidelog.backup.partition_writer import PartitionWriter
from tidelog.cli.main import main

put, calls = PartitionWriter.put, []

async def put_or_die(*arguments):
    calls.append(arguments)
    if len(calls) == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    await put(*arguments)

PartitionWriter.put = put_or_die
main(sys.argv[1:])
"""
"""The command, killed by ``kill -9`` while it copies: when it is to append for the sixth time."""


def arguments(kafka: Kafka, topic: str, *more: str) -> list[str]:
    return ["import", "kafka", "--brokers", kafka.address, "--topic", topic, *more]


def imported(cluster: Cluster, kafka: Kafka, topic: str, *more: str) -> Any:
    """What the command says, as JSON."""
    return json.loads(cluster.ok(*arguments(kafka, topic, "--json", *more)))


def refusal(cluster: Cluster, kafka: Kafka, topic: str, *more: str) -> str:
    """What it prints when it fails."""
    done = cluster.tidelog(*arguments(kafka, topic, *more))
    assert done.returncode == 1
    return done.stderr.decode()


async def seen(cluster: Cluster, topic: str) -> list[tuple[Any, ...]]:
    """Everything that a consumer is told of the records."""
    async with cluster.connect() as log:
        found = [
            (r.partition, r.offset, r.key, r.value, r.headers)
            async for r in log.consume(topic, start="earliest", end="latest")
        ]
    return sorted(found, key=lambda row: row[:2])


async def end(log: Log, topic: str, partition: int = 0) -> int:
    """Where a partition ends; 0 if there is none."""
    described = [each for each in await log.topics.list() if each.name == topic]
    if not described or len(described[0].partitions) <= partition:
        return 0
    return (await log.partitions.list_offsets(described[0], "latest", [partition]))[partition].offset


def numbered(count: int, size: int = 1) -> list[dict[str, Any]]:
    return [{"key": b"%d" % number, "value": b"%d" % number * size} for number in range(count)]


@asynccontextmanager
async def following(cluster: Cluster, *arguments: str) -> AsyncIterator[trio.Process]:
    """The command as a process, which is killed at the end if it still runs."""
    command = [sys.executable, "-m", "tidelog.cli", *arguments, "--gateway", cluster.gateways[0]]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            await pipe.aclose()


async def test_a_topic_with_everything_is_the_same_afterwards(cluster: Cluster, kafka: Kafka) -> None:
    """Transactions, deleted records, tombstones, keys without a value and headers; and every offset."""
    kafka.create("everything", 2, retention_ms=-1, compression_type="lz4")
    kafka.produce("everything", 0, numbered(5))
    kafka.delete_records("everything", 0, 3)
    producer = kafka.transaction("billing")
    for outcome in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for partition in (0, 1):
            producer.produce("everything", outcome.__name__, b"k", partition)
        producer.flush()
        outcome()
    kafka.produce("everything", 0, [{"key": None, "value": None, "headers": [("a", b"1"), ("a", b"")]}])
    kafka.commit("billing", "everything", {0: 9, 1: 1})
    producer.begin_transaction()
    producer.produce("everything", b"open", partition=1)
    producer.flush()
    [plan] = json.loads(cluster.ok(*arguments(kafka, "everything", "--json", "--dry-run")))
    assert (plan["exists"], plan["partitions"], plan["groups"], plan["offsets"]) == (False, 2, ["billing"], 11)
    assert plan["without_counterpart"] == {"compression.type": "lz4"}
    assert b"everything" not in cluster.ok("topics", "list")
    done = imported(cluster, kafka, "everything", "--verify")
    expected = [
        (0, 3, b"3", b"3", ()),
        (0, 4, b"4", b"4", ()),
        (0, 5, b"k", b"commit_transaction", ()),
        (0, 9, None, None, (("a", b"1"), ("a", b""))),
        (1, 0, b"k", b"commit_transaction", ()),
    ]
    assert await seen(cluster, "everything") == expected
    assert (done["records"], done["lag"], done["different"]) == (5, 0, [])
    assert [each["records"] for each in done["verified"]] == [4, 1]
    async with cluster.connect() as log:
        assert (await log.topics.describe("everything")).config["retention_ms"] == "-1"
        positions = await log.groups.fetch_offsets("billing", "everything")
        assert {partition: at.offset for partition, at in positions.items()} == {0: 9, 1: 1}
    producer.commit_transaction()
    done = imported(cluster, kafka, "everything", "--verify")
    assert (done["records"], done["different"], done["partitions"][1]["end"]) == (1, [], 6)
    assert await seen(cluster, "everything") == [*expected, (1, 4, None, b"open", ())]


async def test_a_compacted_topic_keeps_its_gaps_and_times_of_the_broker_are_kept(
    cluster: Cluster, kafka: Kafka
) -> None:
    settings = {"cleanup_policy": "compact", "segment_ms": 100, "min_cleanable_dirty_ratio": 0.01}
    kafka.create("compacted", 1, message_timestamp_type="LogAppendTime", **settings)
    kafka.produce("compacted", 0, [{"key": b"k%d" % (n % 3), "value": b"%d" % n, "timestamp": 7} for n in range(30)])
    kafka.produce("compacted", 0, [{"key": b"k0", "value": None}])

    def has_gaps(found: list[int]) -> bool:
        kafka.produce("compacted", 0, [{"key": b"more", "value": b"x"}])  # so that the segment is closed
        return len(found) < found[-1] - 10

    offsets = await trio.to_thread.run_sync(kafka.offsets, "compacted", 0, has_gaps)
    done = imported(cluster, kafka, "compacted", "--verify")
    assert done["different"] == [] and done["lag"] == 0
    async with cluster.connect() as log:
        topic = await log.topics.describe("compacted")
        found = [r async for r in log.consume("compacted", start="earliest", end="latest")]
    assert topic.config["cleanup"] == "compact"
    assert {r.offset for r in found} - set(range(offsets[-1], 10**6)) <= set(offsets)
    assert min(r.timestamp_ms for r in found) > 10**12


async def test_a_run_that_is_killed_is_continued_by_the_next(cluster: Cluster, kafka: Kafka) -> None:
    kafka.create("killed", 2)
    for partition in (0, 1):
        await trio.to_thread.run_sync(kafka.produce, "killed", partition, numbered(60_000, 100))
    command = [sys.executable, "-c", KILLED, *arguments(kafka, "killed", "--gateway", cluster.gateways[0])]
    killed = await trio.run_process(command, check=False)
    assert killed.returncode == -signal.SIGKILL
    done = imported(cluster, kafka, "killed", "--verify")
    assert 0 < done["records"] < 120_000
    assert [each["records"] for each in done["verified"]] == [60_000, 60_000] and done["different"] == []


async def test_it_follows_new_records_partitions_and_topics_until_it_is_interrupted(
    cluster: Cluster, kafka: Kafka
) -> None:
    kafka.create("followed-1", 1)
    kafka.produce("followed-1", 0, numbered(3))
    matching = ("--topic-regex", "followed-.*", "--follow", "--json", "--every", "0.2", "--group", "moving")
    async with cluster.connect() as log, following(cluster, *arguments(kafka, "followed-1", *matching)) as process:

        async def holds(topic: str, partition: int, count: int) -> None:
            async def has_it() -> bool:
                return await end(log, topic, partition) == count

            await until(has_it)

        await holds("followed-1", 0, 3)
        kafka.produce("followed-1", 0, numbered(2))
        await holds("followed-1", 0, 5)
        kafka.create("followed-2", 1)
        kafka.grow("followed-1", 2)
        kafka.produce("followed-1", 1, numbered(4))
        kafka.produce("followed-2", 0, numbered(6))
        kafka.commit("moving", "followed-1", {0: 4})
        await holds("followed-1", 1, 4)
        await holds("followed-2", 0, 6)

        async def has_moved() -> bool:
            return bool(await log.groups.fetch_offsets("moving", "followed-1"))

        await until(has_moved)
        assert process.stdout is not None and process.stderr is not None
        reported = b""
        with trio.fail_after(HEAL_S):
            while b"15 records copied, 0.0 MB; 0 behind\n" not in reported:
                reported += await process.stderr.receive_some()
            process.send_signal(signal.SIGINT)
            said = json.loads(b"".join([part async for part in process.stdout]))
            assert await process.wait() == 0
        assert (said["records"], said["lag"], said["groups"]) == (15, 0, {"followed-1": {"moving": ""}})
        assert (await log.groups.fetch_offsets("moving", "followed-1"))[0].offset == 4


async def test_a_broker_that_is_down_for_a_while_is_waited_for(cluster: Cluster, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack, cluster.connect() as log:
        with running_broker(tmp_path) as kafka:
            kafka.create("away", 1)
            kafka.produce("away", 0, numbered(3))
            words = arguments(kafka, "away", "--follow", "--every", "0.2")
            process = await stack.enter_async_context(following(cluster, *words))

            async def has(count: int) -> bool:
                return await end(log, "away") == count

            await until(partial(has, 3))
        assert process.stderr is not None
        reported = b""
        with trio.fail_after(HEAL_S):
            while b"waits: Kafka: " not in reported:
                reported += await process.stderr.receive_some()
        with running_broker(tmp_path, int(kafka.address.rpartition(":")[2])) as kafka:
            kafka.produce("away", 0, numbered(2))
            await until(partial(has, 5))


async def test_what_kafka_deleted_before_it_was_copied_ends_it_unless_skip_lost(
    cluster: Cluster, kafka: Kafka
) -> None:
    kafka.create("lost", 1)
    kafka.produce("lost", 0, numbered(3))
    imported(cluster, kafka, "lost")
    kafka.produce("lost", 0, numbered(5))
    kafka.delete_records("lost", 0, 6)
    assert "lost/0 ends at offset 3 in Tidelog, and Kafka's begins at 6" in refusal(cluster, kafka, "lost")
    done = imported(cluster, kafka, "lost", "--skip-lost", "--verify")
    assert (done["records"], done["different"]) == (2, [])
    assert [row[1] for row in await seen(cluster, "lost")] == [0, 1, 2, 6, 7]


def test_a_topic_that_was_made_anew_is_not_mixed_with_its_copy(cluster: Cluster, kafka: Kafka) -> None:
    kafka.create("anew", 1)
    kafka.produce("anew", 0, numbered(3))
    imported(cluster, kafka, "anew")
    kafka.delete("anew")
    kafka.create("anew", 1)
    assert "anew/0 ends at offset 3 in Tidelog and at 0 in Kafka" in refusal(cluster, kafka, "anew")
    kafka.produce("anew", 0, numbered(5)[::-1])
    assert "anew/0 has another record at offset 2 than Kafka" in refusal(cluster, kafka, "anew")


def test_wrong_replicas_and_properties_say_what_to_do(cluster: Cluster, kafka: Kafka, tmp_path: Path) -> None:
    kafka.create("refused", 1)
    said = refusal(cluster, kafka, "refused", "--replication-factor", "9")
    assert "--replication-factor sets another number" in said
    properties = tmp_path / "kafka.properties"
    properties.write_text("# comment\n\nsecurity.protocol = PLAINTEXT\nnonsense\n")
    done = cluster.tidelog(*arguments(kafka, "refused", "--properties", str(properties)))
    assert (done.returncode, b"line 4: not KEY=VALUE" in done.stderr) == (2, True)


def test_a_broker_that_wants_tls_and_a_password_gets_them_from_the_properties(
    cluster: Cluster, kafka: Kafka, tmp_path: Path
) -> None:
    kafka.create("guarded", 1)
    kafka.produce("guarded", 0, numbered(3))
    properties = tmp_path / "kafka.properties"

    def run(password: str) -> subprocess.CompletedProcess[bytes]:
        lines = (
            "security.protocol=SASL_SSL",
            f"ssl.ca.location={kafka.ca}",
            "sasl.mechanism=PLAIN",
            "sasl.username=tidelog",
            "# the user",
        )
        properties.write_text("\n".join([*lines, f"sasl.password={password}"]))
        words = ("--brokers", kafka.guarded, "--topic", "guarded", "--properties", str(properties), "--json")
        return cluster.tidelog("import", "kafka", *words)

    assert json.loads(run(PASSWORD).stdout)["records"] == 3
    wrong = run("wrong")
    assert (wrong.returncode, b"uthentication failed" in wrong.stderr) == (1, True)
    none = cluster.tidelog("import", "kafka", "--brokers", kafka.guarded, "--topic", "guarded")
    assert (none.returncode, b"does the listener need TLS or a password" in none.stderr) == (1, True)
