"""Topics imported by the command from the mock of librdkafka, which runs everywhere. ``tests/real/kafka`` does the
same with a real Kafka, where it can be had."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tidelog
import trio
from support.kafka.mock import PARTITIONS, mock_kafka
from tidelog.client.log import Log

from cluster.harness import running

RECORDS: list[dict[str, Any]] = [
    {"value": b"one", "key": b"k", "timestamp": 1000, "headers": [("a", b"1"), ("a", b"2")]},
    {"value": None, "key": b"k", "timestamp": 1001},
    {"value": b"", "key": None, "timestamp": 1002},
]


async def command(*words: str) -> tuple[int, str, str]:
    """``tidelog import kafka …``: exit code, stdout and stderr."""
    program = [sys.executable, "-m", "tidelog.cli", "import", "kafka", *words]
    done = await trio.run_process(program, capture_stdout=True, capture_stderr=True, check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def seen(log: Log) -> list[tuple[object, ...]]:
    found = [
        (r.partition, r.offset, r.timestamp_ms, r.key, r.value, r.headers)
        async for r in log.consume("orders", start="earliest", end="latest")
    ]
    return sorted(found, key=lambda row: row[:2])  # type: ignore[arg-type,return-value]


async def test_an_import_copies_verifies_and_continues(tmp_path: Path) -> None:
    with mock_kafka() as kafka:
        kafka.create("orders")
        kafka.produce("orders", 1, RECORDS)
        kafka.commit("billing", "orders", {1: 2})
        async with running(tmp_path, replicas=1) as cluster, tidelog.connect(cluster.gateway) as log:
            await log.topics.create("orders", partitions=PARTITIONS, replication_factor=1)
            words = ("--brokers", kafka.address, "--topic", "orders", "--group", "billing")
            words = (*words, "--gateway", cluster.gateway, "--verify")
            code, said, _ = await command(*words)
            assert code == 0 and "orders: 3 records copied" in said and "4 partitions; 0 behind" in said
            assert "positions of billing" in said and "verified: every record is the same on both sides" in said
            expected: list[tuple[object, ...]] = [
                (1, offset, each["timestamp"], each["key"], each["value"], tuple(each.get("headers", ())))
                for offset, each in enumerate(RECORDS)
            ]
            assert await seen(log) == expected
            assert (await log.groups.fetch_offsets("billing", "orders"))[1].offset == 2
            kafka.produce("orders", 1, RECORDS[:1])
            code, said, _ = await command(*words, "--json")
            done = json.loads(said)
            assert (code, done["records"], done["lag"], done["different"]) == (0, 1, 0, [])
            assert len(await seen(log)) == 4
            async with log.producer("orders") as producer:
                await producer.send(b"foreign", partition=1)
            code, _, said = await command(*words)
            assert code == 1 and "orders/1 ends at offset 5 in Tidelog and at 4 in Kafka" in said
            kafka.produce("orders", 1, RECORDS[:1])
            code, _, said = await command(*words)
            assert code == 1 and "orders/1 has another record at offset 4 than Kafka" in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "name the topics: --topic NAME, or --topic-regex REGEX"),
        (("--topic", "a", "--group", "g", "--no-groups"), "--group and --no-groups exclude each other"),
        (("--topic-regex", "("), "--topic-regex"),
        (("--topic", "a", "--config", "nonsense"), "'nonsense' is not key=value"),
    ],
)
async def test_wrong_usage_is_refused_before_anything_is_asked(words: tuple[str, ...], reason: str) -> None:
    code, _, said = await command("--brokers", "127.0.0.1:1", *words)
    assert code == 2 and reason in said
