"""Imports from the mock of librdkafka into a topic in memory: what is there afterwards, and what they refuse."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
import trio
from support.kafka.mock import PARTITIONS, MockKafka, mock_kafka
from support.saved_topics import CopiedTopic, batch, records_of
from tidelog.backup.kafka import importer as importer_module
from tidelog.backup.kafka.batches import ImportFailed
from tidelog.backup.kafka.cluster import KafkaCluster, Wanted
from tidelog.backup.kafka.comparison import KafkaComparison
from tidelog.backup.kafka.importer import ImportSettings, KafkaImport
from tidelog.backup.kafka.reader import NullHeaders
from tidelog.backup.partition_writer import first_error
from tidelog.batch.format import decode_batch
from tidelog.errors import ConfigError, TidelogError

EVERYTHING: list[dict[str, Any]] = [
    {"value": b"v", "key": b"k", "timestamp": 1000},
    {"value": None, "key": b"tombstone", "timestamp": 1001},
    {"value": b"", "key": None, "timestamp": 1002},
    {"value": b"h", "key": b"", "timestamp": 999, "headers": [("a", b"1"), ("a", b"2"), ("b", b""), ("ä", b"3")]},
]


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    with mock_kafka() as running:
        running.create("orders")
        yield running


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer_module, "RETRY_S", 0.0)


def target(**more: Any) -> CopiedTopic:
    """A topic with as many partitions, which an import would find."""
    topic = CopiedTopic(**more)
    topic.exists, topic.logs, topic.starts = True, [[] for _ in range(PARTITIONS)], [0] * PARTITIONS
    return topic


def an_import(kafka: MockKafka, log: Any, null_headers: NullHeaders = "refuse", **wishes: Any) -> KafkaImport:
    settings = ImportSettings(Wanted(["orders"]), group_names=["billing"], **wishes)
    return KafkaImport(KafkaCluster(kafka.address, null_headers=null_headers), log, settings)


async def refusal(run: KafkaImport) -> TidelogError:
    """What the run ends with."""
    try:
        await run.run()
    except* TidelogError as group:
        found = first_error(group)
    return found


def numbered(*numbers: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number, "key": b"k", "timestamp": 1000 + number} for number in numbers]


async def test_everything_of_a_record_and_the_positions_of_a_group_are_copied(kafka: MockKafka) -> None:
    kafka.produce("orders", 2, EVERYTHING)
    kafka.produce("orders", 0, numbered(1, 2, 3))
    kafka.commit("billing", "orders", {0: 2, 2: 4})
    log = target()
    run = an_import(kafka, log)
    await run.run()
    found = [
        (r.offset, r.value, r.key, r.timestamp_ms, r.headers) for data in log.logs[2] for r in decode_batch(data)
    ]
    assert found == [
        (offset, each["value"], each["key"], each["timestamp"], tuple(each.get("headers", ())))
        for offset, each in enumerate(EVERYTHING)
    ]
    assert records_of(log)[:3] == [(0, 0, b"1"), (0, 1, b"2"), (0, 2, b"3")]
    assert log.groups_at == {"billing": {0: 2, 2: 4}} and run.groups == {"orders": {"billing": ""}}
    assert {key[1]: (each.records, each.lag) for key, each in run.partitions.items()} == {
        0: (3, 0),
        1: (0, 0),
        2: (4, 0),
        3: (0, 0),
    }


@pytest.mark.parametrize("seed", range(4))
async def test_every_record_is_there_once_whatever_is_lost_on_the_way(kafka: MockKafka, seed: int) -> None:
    """Acks, batches, the run itself; and two of them at a time."""
    chance = Random(seed)
    scopes: list[trio.CancelScope] = []

    def unlucky() -> bool:
        if scopes and chance.random() < 0.1:
            chance.choice(scopes).cancel()
        return chance.random() < 0.1

    log = target(unlucky=unlucky)
    sent: list[tuple[int, int, bytes]] = []

    async def killed() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await an_import(kafka, log).run()

    for round in range(3):
        for partition in range(PARTITIONS):
            first = sum(row[0] == partition for row in sent)
            count = chance.randrange(40)
            kafka.produce("orders", partition, numbered(*range(count)))
            sent += [(partition, first + number, b"%d" % number) for number in range(count)]
        scopes.clear()
        async with trio.open_nursery() as nursery:
            for _ in range(1 + round % 2):
                nursery.start_soon(killed)
        assert set(records_of(log)) <= set(sent) and len(records_of(log)) == len(set(records_of(log)))
    scopes.clear()
    await an_import(kafka, log).run()
    assert records_of(log) == sorted(sent)


async def test_a_copy_that_has_what_kafka_has_not_ends_the_run(kafka: MockKafka) -> None:
    kafka.produce("orders", 0, numbered(1, 2, 3))
    log = target()
    for value in (b"1", b"2", b"4"):
        log.append(batch(value))
    error = await refusal(an_import(kafka, log))
    assert "orders/0 has another record at offset 2 than Kafka" in error.message
    log.append(batch(b"5"))
    error = await refusal(an_import(kafka, log))
    assert "orders/0 ends at offset 4 in Tidelog and at 3 in Kafka" in error.message
    assert isinstance(error, ImportFailed)


async def test_a_copy_with_more_partitions_is_none(kafka: MockKafka) -> None:
    log = target()
    await log.grow("orders", PARTITIONS + 1)
    assert "orders has 5 partitions in Tidelog, 4 in Kafka" in (await refusal(an_import(kafka, log))).message


@pytest.mark.parametrize(("choice", "headers"), [("empty", (("a", b""), ("b", b"1"))), ("drop", (("b", b"1"),))])
async def test_headers_without_a_value_are_refused_or_changed_on_request(
    kafka: MockKafka, choice: NullHeaders, headers: object
) -> None:
    kafka.produce("orders", 1, [*numbered(1), {"value": b"v", "headers": [("a", None), ("b", b"1")]}])
    log = target()
    error = await refusal(an_import(kafka, log))
    assert "orders/1, offset 1: the header 'a' has no value (null)" in error.message
    await an_import(kafka, log, choice).run()
    assert [r.headers for data in log.logs[1] for r in decode_batch(data)][1] == headers


async def test_a_record_that_does_not_fit_is_named_with_the_setting(kafka: MockKafka) -> None:
    kafka.produce("orders", 3, [*numbered(1), {"value": bytes(3000)}])
    log = target()
    log.config = {"max_batch_bytes": "2000"}
    error = await refusal(an_import(kafka, log))
    assert "orders/3, offset 1: the record takes 3" in error.message
    assert "max_batch_bytes of orders is 2000: 'tidelog topics configure orders max_batch_bytes=3" in error.message
    await an_import(kafka, log, compression="zstd").run()
    assert [offset for _, offset, _ in records_of(log)] == [0, 1]


async def test_the_comparison_finds_what_is_other(kafka: MockKafka) -> None:
    kafka.produce("orders", 0, numbered(1, 2, 3))
    kafka.produce("orders", 1, EVERYTHING)
    log = target()
    run = an_import(kafka, log)
    await run.run()

    async def compared() -> KafkaComparison:
        comparison = KafkaComparison(run.kafka, log, run.topics)  # type: ignore[arg-type]
        await comparison.run(list(run.partitions.values()), lambda _: None)
        return comparison

    same = await compared()
    assert not same.differences and [each.records for each in same.partitions.values()] == [3, 4, 0, 0]
    assert all(len(set(each.checksums)) == 1 for each in same.partitions.values())
    log.logs[0] = []
    for value in (b"1", b"x", b"3"):
        log.append(batch(value))
    [different] = (await compared()).differences
    assert (different.name, different.differs_at, len(set(different.checksums))) == ("orders/0", 0, 2)


async def test_what_kafka_does_not_have_is_named(kafka: MockKafka) -> None:
    run = KafkaImport(KafkaCluster(kafka.address), target(), ImportSettings(Wanted(["nothing"])))  # type: ignore[arg-type]
    assert "Kafka has no topic nothing, or hides it; it shows: orders" in (await refusal(run)).message
    run = KafkaImport(KafkaCluster(kafka.address), target(), ImportSettings(Wanted(regex="no.*")))  # type: ignore[arg-type]
    assert "no topic of Kafka matches --topic-regex no.*" in (await refusal(run)).message


async def test_a_broker_that_is_not_there_and_settings_that_are_none_are_refused() -> None:
    run = KafkaImport(KafkaCluster("127.0.0.1:1"), target(), ImportSettings(Wanted(["orders"])))  # type: ignore[arg-type]
    with trio.fail_after(60):
        error = await refusal(run)
    assert "no broker of Kafka answers at 127.0.0.1:1" in error.message and "Connection refused" in error.message
    with pytest.raises(ConfigError, match="No such configuration property"):
        KafkaCluster("127.0.0.1:1", {"nonsense": "1"})
    with pytest.raises(ConfigError, match=r"group\.id is set by the import itself"):
        KafkaCluster("127.0.0.1:1", {"group.id": "mine"})


def test_without_the_extra_it_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.admin", None)
    with pytest.raises(ConfigError, match=r"pip install 'tidelog\[kafka\]'"):
        KafkaCluster("127.0.0.1:1")
