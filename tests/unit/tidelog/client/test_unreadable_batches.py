"""Batches with a right CRC that no reader can decode, as an old log may hold them: the errors of consumers of every
kind, the positions at which they stop, and the offsets that skipping passes over. Tests ``client/consumer.py``,
``spark/read/task.py`` and ``cli/records/consume.py``."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
import tidelog
import tidelog.sync
import trio
import zstandard
from click.testing import CliRunner
from support.fake_gateway import FakeCluster, Partition
from support.gateway_thread import served
from support.group_topics import BY_HAND, keys, offsets
from tidelog.batch.format import HEADER_BYTES, NewRecord, encode_batch, read_header, seal_batch
from tidelog.cli.main import main
from tidelog.errors import ConfigError, TidelogError, UnreadableBatch
from tidelog.types import Position

PRODUCER = 17


def numbered(first: int, count: int) -> bytes:
    return encode_batch([NewRecord(b"%d" % n, None, 1000 * n) for n in range(first, first + count)])


def garbage(producer_id: int = PRODUCER) -> bytes:
    """Return a batch of three records with a right CRC whose body is no CBOR map."""
    header = read_header(encode_batch([NewRecord(b"." * 10, None, 3000)] * 3, producer_id=producer_id))
    header = header._replace(body_length=20, first_timestamp=2500, max_timestamp=3500)
    return seal_batch(header, b"\xff" * 20)


def lying(count: int = 3) -> bytes:
    """Return a batch whose header counts one record more than its body has."""
    batch = encode_batch([NewRecord(b"value", None, 3000)] * (count - 1), producer_id=PRODUCER)
    return seal_batch(read_header(batch)._replace(record_count=count), batch[HEADER_BYTES:])


def overlong(count: int = 3) -> bytes:
    """Return a batch whose zstd frame decompresses to more than its header declares."""
    batch = encode_batch([NewRecord(b"value", None, 3000)] * count, producer_id=PRODUCER)
    stored = zstandard.ZstdCompressor(write_content_size=False).compress(batch[HEADER_BYTES:] + b".")
    return seal_batch(read_header(batch)._replace(attributes=1), stored)


def plant(log: Partition, unreadable: bytes, epoch: int = 4) -> None:
    """Append batches at offsets 0 to 9, of which 3 to 5 are the unreadable one and the others can be read."""
    for batch in (numbered(0, 3), unreadable, numbered(6, 2), numbered(8, 2)):
        log.append(batch, epoch)


@asynccontextmanager
async def planted(unreadable: bytes, partitions: int = 1) -> AsyncIterator[tuple[FakeCluster, tidelog.Log]]:
    cluster = FakeCluster()
    cluster.add_topic("orders", partitions)
    for partition in range(partitions):
        plant(cluster.log("orders", partition), unreadable)
    with trio.fail_after(30):
        async with cluster.gateways(1) as urls, tidelog.connect(urls) as log:
            yield cluster, log


@pytest.mark.parametrize("unreadable", [garbage(), lying(), overlong()], ids=["garbage", "count", "zstd"])
async def test_a_consumer_gets_the_place_of_an_unreadable_batch_and_stays_until_it_seeks(unreadable: bytes) -> None:
    async with planted(unreadable) as (_, log), log.consume("orders", start=0, end="latest") as consumer:
        assert [(await consumer.__anext__()).offset for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(UnreadableBatch) as raised:
                await consumer.__anext__()
            error = raised.value
            assert (error.topic, error.partition, error.base_offset, error.last_offset) == ("orders", 0, 3, 5)
            assert (error.producer_id, error.code, error.is_damaged) == (PRODUCER, "CORRUPT_BATCH", False)
            assert "orders/0: the batch at offsets 3 to 5, of producer id 17," in error.message
            assert "Go on at offset 6" in error.message
            assert consumer.positions == {0: Position(4, 3)}, "it stands before the batch"
        await consumer.seek({error.partition: error.next_offset})
        assert [record.offset async for record in consumer] == [6, 7, 8, 9]


async def test_the_other_partitions_go_on_before_the_error_is_raised_again() -> None:
    async with planted(garbage(), 2) as (cluster, log):
        cluster.log("orders", 1).batches[1:2] = []
        cluster.log("orders", 1).batches[1:] = []
        cluster.log("orders", 1).end = 3
        seen, errors = [], 0
        async with log.consume("orders", start=0, end="latest") as consumer:
            while errors < 2:
                try:
                    record = await consumer.__anext__()
                    seen.append((record.partition, record.offset))
                except UnreadableBatch as error:
                    errors += 1
                    assert error.partition == 0
        assert sorted(seen) == [(partition, offset) for partition in range(2) for offset in range(3)]


async def test_skipping_passes_over_exactly_that_batch_counts_it_and_logs_the_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with planted(garbage()) as (_, log):
        consumer = log.consume("orders", start=0, end="latest", on_unreadable="skip")
        assert [record.offset async for record in consumer] == [0, 1, 2, 6, 7, 8, 9]
        assert (consumer.skipped_batches, consumer.skipped_offsets) == (1, 3)
        assert consumer.positions == {0: Position(4, 10)}
    (entry,) = [entry for entry in caplog.records if entry.name == "tidelog.client"]
    assert entry.levelname == "WARNING" and "orders/0: the batch at offsets 3 to 5" in entry.getMessage()


async def test_only_the_offsets_that_were_to_be_read_count_as_skipped() -> None:
    async with planted(garbage()) as (_, log):
        consumer = log.consume("orders", start=4, end=7, on_unreadable="skip")
        assert [record.offset async for record in consumer] == [6]
        assert (consumer.skipped_batches, consumer.skipped_offsets) == (1, 2)


async def test_a_batch_with_a_wrong_crc_is_never_skipped() -> None:
    """Its bytes are not those that were acknowledged: another read may get them whole."""
    async with planted(numbered(3, 3)) as (cluster, log):
        batch = bytearray(cluster.log("orders").batches[1])
        batch[-1] ^= 1
        cluster.log("orders").batches[1] = bytes(batch)
        consumer = log.consume("orders", start=3, end="latest", on_unreadable="skip")
        with pytest.raises(UnreadableBatch, match="read again from offset 3") as raised:
            await consumer.__anext__()
        assert raised.value.is_damaged and consumer.positions == {0: Position(-1, 3)}
        batch[-1] ^= 1
        cluster.log("orders").batches[1] = bytes(batch)
        await consumer.seek(3)
        assert [record.offset async for record in consumer] == [3, 4, 5, 6, 7, 8, 9]
        assert consumer.skipped_batches == 0


async def test_backwards_it_is_the_same() -> None:
    async with planted(garbage()) as (_, log):
        consumer = log.consume("orders", reverse=True)
        assert [(await consumer.__anext__()).offset for _ in range(4)] == [9, 8, 7, 6]
        for _ in range(2):
            with pytest.raises(UnreadableBatch) as raised:
                await consumer.__anext__()
            assert consumer.positions == {0: Position(-1, 6)}
        rest = log.consume("orders", start={0: raised.value.base_offset}, reverse=True)
        assert [record.offset async for record in rest] == [2, 1, 0]
        skipping = log.consume("orders", reverse=True, on_unreadable="skip")
        assert [record.offset async for record in skipping] == [9, 8, 7, 6, 2, 1, 0]
        assert (skipping.skipped_batches, skipping.skipped_offsets) == (1, 3)


async def test_the_group_stays_before_the_batch_until_a_member_goes_on_behind_it() -> None:
    async with planted(garbage()) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1") as member:
            assert [(await member.__anext__()).offset for _ in range(3)] == [0, 1, 2]
            with pytest.raises(UnreadableBatch) as raised:
                await member.__anext__()
            assert member.positions == {("orders", 0): Position(4, 3)}
            await member.commit()
            assert offsets(cluster) == {0: 3}
        assert offsets(cluster) == {0: 3}, "what is committed at the end is before the batch, too"
        async with log.consume("orders", group="g", instance="i1") as member:
            with pytest.raises(UnreadableBatch):
                await member.__anext__()
            await member.seek({("orders", 0): raised.value.next_offset})
            assert [(await member.__anext__()).offset for _ in range(4)] == [6, 7, 8, 9]
            await member.commit()
        assert offsets(cluster) == {0: 10}


async def test_skipping_moves_the_groups_position_behind_the_batch_and_no_further() -> None:
    async with planted(garbage()) as (cluster, log):
        cluster.group.give("i1", keys(cluster, 0))
        options = BY_HAND
        member = log.consume("orders", group="g", instance="i1", on_unreadable="skip", group_options=options)
        async with member:
            assert [record.offset for record in await member.next_records()] == [0, 1, 2]
            await member.commit()
            assert offsets(cluster) == {0: 3}
            assert (await member.__anext__()).offset == 6
            assert (member.skipped_batches, member.skipped_offsets) == (1, 3)
            await member.commit()
            assert offsets(cluster) == {0: 7}


async def test_a_batch_that_is_skipped_at_the_end_of_the_log_is_committed_as_finished() -> None:
    async with planted(garbage()) as (cluster, log):
        del cluster.log("orders").batches[2:]
        cluster.log("orders").end = 6
        cluster.group.give("i1", keys(cluster, 0))
        async with log.consume("orders", group="g", instance="i1", on_unreadable="skip") as member:
            with trio.move_on_after(0.2):
                while True:
                    await member.__anext__()
            assert member.skipped_batches == 1
        assert offsets(cluster) == {0: 6}


async def test_a_time_within_such_a_batch_is_found_as_its_first_offset() -> None:
    async with planted(garbage()) as (_, log):
        consumer = log.consume("orders", start=datetime.fromtimestamp(3, UTC))
        with pytest.raises(UnreadableBatch):
            await consumer.__anext__()


async def test_raw_batches_are_delivered_and_raise_when_they_are_decoded() -> None:
    async with planted(garbage()) as (_, log), log.consume("orders", start=3, on_unreadable="skip") as consumer:
        fetched = await consumer.next_batch()
        assert fetched is not None and fetched.header.base_offset == 3
        with pytest.raises(UnreadableBatch):
            fetched.records("orders")
        assert consumer.skipped_batches == 0


async def test_the_policy_has_two_values() -> None:
    async with planted(garbage()) as (_, log):
        with pytest.raises(ConfigError, match="on_unreadable must be raise or skip, not 'ignore'"):
            log.consume("orders", on_unreadable="ignore")


def test_the_error_survives_a_process() -> None:
    """Executors and worker processes hand errors on in pickles."""
    error = UnreadableBatch("no", topic="orders", partition=1, offset=3, last_offset=5, producer_id=2, damaged=0)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.detail, copy.message) == (error.code, error.detail, error.message)
    assert isinstance(copy, TidelogError)


def test_the_blocking_client_and_the_command_do_the_same() -> None:
    with served() as (cluster, url):
        plant(cluster.log("orders"), garbage())
        with tidelog.sync.connect(url) as log, log.consume("orders", start=0, end="latest") as consumer:
            assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
            with pytest.raises(UnreadableBatch) as raised:
                next(consumer)
            assert consumer.positions == {0: Position(4, 3)}
            consumer.seek({0: raised.value.next_offset})
            assert [record.offset for record in consumer] == [6, 7, 8, 9]
            skipping = log.consume("orders", start=0, end="latest", on_unreadable="skip")
            assert [record.offset for record in skipping] == [0, 1, 2, 6, 7, 8, 9]
            assert (skipping.skipped_batches, skipping.skipped_offsets) == (1, 3)
        command = ["consume", "orders", "--from", "earliest", "--to-end", "--gateway", url]
        done = CliRunner().invoke(main, command)
        assert (done.exit_code, done.stdout.split()) == (1, ["0", "1", "2"])
        assert "[CORRUPT_BATCH] orders/0: the batch at offsets 3 to 5, of producer id 17," in done.stderr
        assert "--on-unreadable skip" in done.stderr
        done = CliRunner().invoke(main, [*command, "--on-unreadable", "skip"])
        assert (done.exit_code, done.stdout.split()) == (0, ["0", "1", "2", "6", "7", "8", "9"])
        assert "skipped 3 offsets in 1 batches that cannot be decoded" in done.stderr
