"""The trio client against a gateway in memory: nothing is lost, doubled or disordered when links break. Tests
``client/connection.py``, ``client/producer.py`` and ``client/consumer.py``."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import tidelog
import trio
from support.fake_gateway import FakeCluster
from tidelog.batch.format import read_header
from tidelog.client.connection import RETRY_S, GatewayConnection
from tidelog.client.loop import LoopEvent
from tidelog.client.trio_loop import TrioLoop
from tidelog.errors import Closed, ConfigError, TidelogError, TimedOut, Unreachable, refuse
from tidelog.net.link import Link
from tidelog.net.websocket.transport import WebSocketTransport
from tidelog.types import Position
from tidelog.wire.capabilities import OF_GATEWAYS
from tidelog.wire.messages import CopyRead, Digest, ListOffset, Message, Metadata, Subscribe, Unsubscribe


@asynccontextmanager
async def connected(
    gateways: int = 1, partitions: int = 1, **limits: int
) -> AsyncIterator[tuple[FakeCluster, tidelog.Log]]:
    cluster = FakeCluster()
    cluster.limits = limits
    cluster.add_topic("orders", partitions)
    with trio.fail_after(30):
        async with cluster.gateways(gateways) as urls, tidelog.connect(urls) as log:
            yield cluster, log


def values(cluster: FakeCluster, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.log("orders", partition).records()]


async def test_a_sent_record_is_acknowledged_with_its_place() -> None:
    async with connected() as (cluster, log), log.producer("orders") as producer:
        await producer.send(b"a")
        ack = await producer.send(b"b", key=b"k", headers={"trace": b"1"}, timestamp_ms=77)
        assert ack == (0, 1, 4, "all/os", 77)
        record = cluster.log("orders").records()[1]
        assert (record.value, record.key, record.headers, record.timestamp_ms) == (b"b", b"k", (("trace", b"1"),), 77)


async def test_submit_does_not_wait_and_batches() -> None:
    async with connected() as (cluster, log):
        async with log.producer("orders") as producer:
            pending = [await producer.submit(b"%d" % n) for n in range(5000)]
            await producer.flush()
            assert [(await p.wait()).offset for p in pending] == list(range(5000))
        assert values(cluster) == [b"%d" % n for n in range(5000)]
        assert len(cluster.log("orders").batches) < 100


async def test_a_record_that_follows_a_single_one_is_sent_before_submit_returns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with connected() as (cluster, log), log.producer("orders") as producer:
        await producer.send(b"a")
        sent: list[Message] = []
        link = producer._connection.link
        assert isinstance(link, Link)
        send_now = link.send_now

        def record(message: Message) -> None:
            sent.append(message)
            send_now(message)

        monkeypatch.setattr(link, "send_now", record)
        pending = [await producer.submit(b"b")]
        assert len(sent) == 1
        pending += [await producer.submit(value) for value in (b"c", b"d")]
        assert len(sent) == 1, "these wait for the acknowledgement or for more"
        assert [(await one.wait()).offset for one in pending] == [1, 2, 3]
        await producer.submit(b"e")
        assert len(sent) == 2, "the last batch had two records, so more may be expected"
        await producer.flush()
        assert values(cluster) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_single_record_that_is_sent_while_the_sending_task_sleeps_has_a_delivery_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = tidelog.ProducerOptions(acks="leader", idempotent=False, delivery_timeout_s=0.05)
    async with connected() as (cluster, log), log.producer("orders", options) as producer:
        sleeps, wait = trio.Event(), producer._loop.wait

        async def record(event: LoopEvent, deadline: float = math.inf) -> None:
            if event is producer._wake and deadline == math.inf:
                sleeps.set()
            await wait(event, deadline)

        monkeypatch.setattr(producer._loop, "wait", record)
        await producer.send(b"a")
        await sleeps.wait()  # the task has woken up for the timeout of the first record, and sleeps without an end
        cluster.lose_acks = 1
        with pytest.raises(TidelogError, match="REQUEST_TIMED_OUT"):
            await producer.send(b"b")


async def test_the_end_of_a_producer_waits_for_every_ack() -> None:
    async with connected() as (cluster, log):
        async with log.producer("orders") as producer:
            for n in range(100):
                await producer.submit(b"%d" % n)
        assert len(values(cluster)) == 100


async def test_closing_a_producer_reports_failures_that_nobody_awaited() -> None:
    async with connected() as (cluster, log):
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad")]
        with pytest.raises(tidelog.DeliveryFailed, match="2 records were not acknowledged; the first: bad") as caught:
            async with log.producer("orders") as producer:
                await producer.submit(b"a")
                await producer.submit(b"b")
        assert caught.value.failed == 2
        assert caught.value.code == "CORRUPT_BATCH"
        assert not caught.value.unknown_outcome


@pytest.mark.parametrize("remembered", [1, 1000])
async def test_of_many_failures_one_unknown_outcome_makes_that_of_all_unknown(
    remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.client.producer.REMEMBERED_FAILURES", remembered)
    async with connected(partitions=3) as (cluster, log):
        unknown = refuse("UNVERIFIED_SEQUENCE", "it cannot be compared", unknown_outcome=True)
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad"), unknown, refuse("CORRUPT_BATCH", "bad")]
        with pytest.raises(tidelog.DeliveryFailed, match="3 records were not acknowledged; the first: bad") as caught:
            async with log.producer("orders") as producer:
                for partition in range(3):
                    await producer.submit(b"a", partition=partition)
        assert caught.value.code == "CORRUPT_BATCH"
        assert caught.value.unknown_outcome


async def test_without_a_key_partitions_that_are_read_only_or_paused_are_not_chosen() -> None:
    async with connected(partitions=4) as (cluster, log):
        topic = cluster.topics["orders"]
        flags: dict[int, dict[str, bool]] = {1: {"read_only": True}, 2: {"paused": True}}
        parts = tuple(replace(p, **flags.get(p.partition, {})) for p in topic.partitions)
        cluster.topics["orders"] = replace(topic, partitions=parts)
        async with log.producer("orders") as producer:
            assert {(await producer.send(b"v")).partition for _ in range(8)} == {0, 3}
            assert (await producer.send(b"v", partition=1)).partition == 1, "who names it wants it"


@pytest.mark.parametrize("code", ["TOPIC_READ_ONLY", "TOPIC_PAUSED"])
async def test_a_partition_that_becomes_read_only_is_passed_over_until_the_metadata_say_otherwise(code: str) -> None:
    plain = tidelog.ProducerOptions(acks="leader", idempotent=False)
    async with connected(partitions=3) as (cluster, log), log.producer("orders", plain) as producer:
        cluster.refusals = [refuse(code, "not now")]
        pending = await producer.submit(b"v")
        with pytest.raises(TidelogError, match="not now"):
            await pending.wait()
        assert pending.partition not in {(await producer.send(b"v")).partition for _ in range(6)}
        producer._ask_metadata_at = 0.0
        while producer._partitioner.closed:
            await producer.send(b"v")
        assert pending.partition in {(await producer.send(b"v")).partition for _ in range(6)}


async def test_a_failure_that_send_raised_is_not_reported_again() -> None:
    async with connected() as (cluster, log):
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad")]
        async with log.producer("orders") as producer:
            with pytest.raises(TidelogError, match="CORRUPT_BATCH"):
                await producer.send(b"a")
            await producer.send(b"b")
        assert values(cluster) == [b"b"]


async def test_an_error_in_the_block_is_raised_with_a_note_of_lost_records() -> None:
    async with connected() as (cluster, log):
        cluster.refusals = [refuse("CORRUPT_BATCH", "bad")]
        with pytest.raises(ZeroDivisionError) as caught:
            async with log.producer("orders") as producer:
                await producer.submit(b"a")
                raise ZeroDivisionError
        assert "1 records were not acknowledged" in caught.value.__notes__[0]


async def test_keys_choose_partitions_as_kafka_does_and_explicit_ones_win() -> None:
    async with connected(partitions=7) as (_, log), log.producer("orders") as producer:
        assert (await producer.send(b"", key=b"21")).partition == (-973932308 & 0x7FFFFFFF) % 7
        assert (await producer.send(b"", key=b"21", partition=5)).partition == 5
        with pytest.raises(ValueError, match="partitions 0 to 6, not 7"):
            await producer.send(b"", partition=7)


async def test_values_are_bytes() -> None:
    async with connected() as (_, log), log.producer("orders") as producer:
        with pytest.raises(TypeError, match="not str"):
            await producer.send("text")  # type: ignore[arg-type]


async def test_a_gateway_lost_between_write_and_ack_neither_loses_nor_doubles() -> None:
    async with connected(gateways=2) as (cluster, log), log.producer("orders") as producer:
        await producer.send(b"first")
        cluster.lose_acks = 3
        pending = []
        for n in range(3):
            pending.append(await producer.submit(b"%d" % n))
            producer._core.close_open_batches()
        while cluster.lose_acks:
            cluster.produced = trio.Event()
            await cluster.produced.wait()
        cluster.cut()
        assert [(await p.wait()).offset for p in pending] == [1, 2, 3]
        assert values(cluster) == [b"first", b"0", b"1", b"2"]


async def test_many_cuts_under_load_leave_every_record_once_and_in_order() -> None:
    async with connected(gateways=2, partitions=2) as (cluster, log):
        async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=2000)) as producer:
            for n in range(3000):
                await producer.submit(b"%d" % n, partition=n % 2)
                if n % 500 == 250:
                    cluster.cut()
        assert values(cluster, 0) == [b"%d" % n for n in range(0, 3000, 2)]
        assert values(cluster, 1) == [b"%d" % n for n in range(1, 3000, 2)]


async def test_a_producer_presents_its_ticket_on_every_connection_and_asks_for_a_new_id_when_it_is_too_old() -> None:
    """A ticket that was presented after a rotation is renewed, so one rotation at a time does no harm."""
    async with connected() as (cluster, log):
        async with log.producer("orders") as producer:
            await producer.send(b"0")
            for rotations in (1, 1, 2):
                cluster.key += rotations
                cluster.cut()
                await log.topics.list()  # on the next connection
                await producer.send(b"%d" % rotations)
        assert values(cluster) == [b"0", b"1", b"1", b"2"]
        ids = [read_header(batch).producer_id for batch in cluster.log("orders").batches]
        assert ids[0] == ids[1] == ids[2] != ids[3]
        await log.topics.list()  # what was released before is heard by then
        assert not any(cluster.held.get(link.source) for link in cluster.links)


async def test_producers_of_one_connection_share_it_and_release_their_ids_one_by_one() -> None:
    async with connected() as (cluster, log), log.producer("orders") as kept:
        await kept.send(b"kept")
        async with log.producer("orders") as other:
            await other.send(b"other")
        await kept.send(b"on")
        (held,) = cluster.held.values()
        assert list(held) == [read_header(cluster.log("orders").batches[0]).producer_id]


async def test_submit_waits_while_the_buffer_is_full() -> None:
    async with connected() as (cluster, log):
        options = tidelog.ProducerOptions(batch_bytes=1000, buffer_bytes=3000)
        async with log.producer("orders", options) as producer:
            await producer.send(b"up")
            cluster.lose_acks = 10**6
            with trio.move_on_after(0.05) as scope:
                for _ in range(100):
                    await producer.submit(b"x" * 500)
            assert scope.cancelled_caught
            assert producer._core.buffered < 4000
            cluster.lose_acks = 0
            cluster.cut()
            await producer.submit(b"room again")


async def test_a_cancelled_producer_ends_at_once_and_fails_pending_records() -> None:
    told: list[str] = []

    async def wait(pending: tidelog.Pending) -> None:
        try:
            await pending.wait()
        except TidelogError as error:
            assert error.unknown_outcome
            told.append(error.code)

    async with connected() as (cluster, log), trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with log.producer("orders") as producer:
                await producer.send(b"up")
                cluster.lose_acks, cluster.produced = 1, trio.Event()
                nursery.start_soon(wait, await producer.submit(b"a"))
                await cluster.produced.wait()
                scope.cancel()
                await trio.sleep_forever()
        with pytest.raises(Closed):
            await producer.send(b"too late")
    assert told == ["CLOSED"]


async def test_consuming_from_the_start_to_the_end() -> None:
    async with connected(partitions=3) as (_, log):
        async with log.producer("orders") as producer:
            for n in range(300):
                await producer.submit(b"%d" % n, partition=n % 3)
        seen = [record async for record in log.consume("orders", start="earliest", end="latest")]
        assert len(seen) == 300
        for partition in range(3):
            mine = [(r.offset, r.value) for r in seen if r.partition == partition]
            assert mine == [(n, b"%d" % (3 * n + partition)) for n in range(100)]
        assert {r.topic for r in seen} == {"orders"}


async def test_a_range_of_offsets_is_half_open() -> None:
    async with connected() as (_, log):
        async with log.producer("orders") as producer:
            for n in range(20):
                await producer.submit(b"%d" % n)
        assert [r.offset async for r in log.consume("orders", start=5, end=9)] == [5, 6, 7, 8]
        assert [r.offset async for r in log.consume("orders", start={0: Position(4, 18)}, end="latest")] == [18, 19]
        assert [r.offset async for r in log.consume("orders", start=9, end=9)] == []


async def test_consuming_from_a_time() -> None:
    async with connected() as (_, log):
        async with log.producer("orders") as producer:
            for n in range(5):
                await producer.send(b"%d" % n, timestamp_ms=1000 * n)
        start = datetime.fromtimestamp(2.5, UTC)
        assert [r.offset async for r in log.consume("orders", start=start, end="latest")] == [3, 4]


async def test_a_consumer_that_waits_gets_new_records() -> None:
    async with connected() as (_, log), log.consume("orders", start="latest") as consumer:
        async with log.producer("orders") as producer:
            await producer.send(b"new")
        assert (await consumer.__anext__()).value == b"new"
        assert consumer.positions == {0: Position(4, 1)}


async def test_a_consumer_goes_on_at_the_next_gateway_without_loss_or_repetition() -> None:
    async with connected(gateways=2) as (cluster, log):
        seen = []
        async with log.producer("orders") as producer, log.consume("orders", start="earliest") as consumer:
            for n in range(200):
                await producer.send(b"%d" % n)
                if n % 40 == 20:
                    cluster.cut()
                if n % 3 == 0:
                    seen.append((await consumer.__anext__()).value)
            while len(seen) < 200:
                seen.append((await consumer.__anext__()).value)
        assert seen == [b"%d" % n for n in range(200)]


async def test_a_consumer_sends_its_choice_of_replica_and_freshness() -> None:
    async with connected() as (cluster, log):
        async with log.producer("orders") as producer:
            await producer.send(b"a")
        fresh = tidelog.ConsumerOptions(read_from="any", consistency="bounded", max_staleness_s=9)
        for fields in (
            {"options": fresh, "max_staleness_s": 2.0},
            {"read_from": "any", "consistency": "bounded", "max_staleness_s": 2.0},
        ):
            assert [r.value async for r in log.consume("orders", start=0, end=1, **fields)] == [b"a"]
            asked = [message for message in cluster.seen if isinstance(message, Subscribe)][-1]
            assert (asked.read_from, asked.consistency, asked.max_staleness_ms) == ("any", "bounded", 2000)
        assert [r.value async for r in log.consume("orders", start=0, end=1)] == [b"a"]
        asked = [message for message in cluster.seen if isinstance(message, Subscribe)][-1]
        assert (asked.read_from, asked.consistency, asked.max_staleness_ms) == ("leader", "eventual", -1)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"read_from": "nearest"}, "leader or any"),
        ({"consistency": "strong"}, "eventual, bounded, linearizable"),
        ({"consistency": "bounded"}, "needs max_staleness_s"),
        ({"max_staleness_s": 2}, "of consistency bounded"),
        ({"consistency": "bounded", "max_staleness_s": -1}, "0 or more"),
        ({"read_from": "any", "consistency": "linearizable"}, "from the leader"),
    ],
)
async def test_wrong_combinations_of_reading_options_are_refused_by_name(fields: dict[str, Any], text: str) -> None:
    async with connected() as (_, log):
        with pytest.raises(ConfigError, match=text):
            log.consume("orders", **fields)


async def test_a_slow_consumer_is_not_sent_more_than_its_credit() -> None:
    async with connected() as (cluster, log):
        async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=20_000)) as producer:
            for _ in range(400):
                await producer.submit(b"x" * 1000)
        options = tidelog.ConsumerOptions(buffer_bytes=100_000, partition_bytes=100_000)
        async with log.consume("orders", start="earliest", end="latest", options=options) as consumer:
            await consumer.next_records()
            await trio.testing.wait_all_tasks_blocked(0.02)
            [sub] = cluster.subs.values()
            assert sub.offset < 200
            count = 0
            async for _ in consumer:
                count += 1
        assert count > 350


async def test_a_consumer_that_wants_more_credit_than_the_gateway_keeps_does_not_wait_for_it() -> None:
    async with connected(credit_bytes=30_000) as (_, log):
        async with log.producer("orders", tidelog.ProducerOptions(batch_bytes=10_000)) as producer:
            for _ in range(100):
                await producer.submit(b"x" * 1000)
        options = tidelog.ConsumerOptions(buffer_bytes=64 << 20, partition_bytes=64 << 20)
        assert len([r async for r in log.consume("orders", start="earliest", end="latest", options=options)]) == 100


async def test_positions_are_those_of_the_last_record_handed_out() -> None:
    async with connected() as (_, log):
        async with log.producer("orders") as producer:
            for n in range(10):
                await producer.submit(b"%d" % n)
        async with log.consume("orders", start="earliest", end="latest") as consumer:
            for _ in range(4):
                await consumer.__anext__()
            saved = consumer.positions
        assert saved == {0: Position(4, 4)}
        assert [r.offset async for r in log.consume("orders", start=saved, end="latest")] == [4, 5, 6, 7, 8, 9]


async def test_an_offset_that_is_gone_is_an_error_with_its_place() -> None:
    async with connected() as (cluster, log):
        cluster.log("orders").start = 7
        with pytest.raises(TidelogError, match="orders/0 at offset 3") as caught:
            await log.consume("orders", start=3).__anext__()
        assert (caught.value.code, caught.value.detail["log_start"]) == ("OFFSET_OUT_OF_RANGE", 7)


async def test_an_iteration_that_was_left_is_unsubscribed() -> None:
    async with connected() as (cluster, log), log.producer("orders") as producer:
        await producer.send(b"a")
        async for _ in log.consume("orders", start="earliest"):
            break
        gc.collect()
        await producer.send(b"b")
        await log.topics.list()
        assert any(isinstance(message, Unsubscribe) for message in cluster.seen)
        assert sum(isinstance(message, Subscribe) for message in cluster.seen) == 1


async def test_topics_are_created_described_and_deleted() -> None:
    async with connected() as (_, log):
        created = await log.topics.create("new", partitions=2, config={"flush": "os"})
        assert (created.name, len(created.partitions)) == ("new", 2)
        assert await log.topics.describe("new") == created
        assert [topic.name for topic in await log.topics.list()] == ["orders", "new"]
        with pytest.raises(TidelogError, match="TOPIC_EXISTS"):
            await log.topics.create("new")
        await log.topics.delete("new")
        with pytest.raises(TidelogError, match="there is no topic new"):
            await log.topics.describe("new")
        with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
            await log.consume("new").__anext__()


@pytest.mark.parametrize("capabilities", [OF_GATEWAYS, ()])
async def test_topics_are_found_by_their_ids_also_through_a_gateway_that_does_not_know_ids(
    capabilities: tuple[str, ...],
) -> None:
    async with connected() as (cluster, log):
        cluster.capabilities = capabilities
        topic = cluster.add_topic("second")
        cluster.seen.clear()
        assert await log.topics.find([]) == () and not cluster.seen
        asked = [topic.topic_id, "gone", topic.topic_id]
        assert await log.topics.find(asked, offsets=True, consistency="eventual") == (cluster.with_offsets(topic),)
        request = Metadata(offsets=True, consistency="eventual", topic_ids=(topic.topic_id, "gone"))
        assert cluster.seen[0] == request and len(cluster.seen) == (1 if capabilities else 3)
        assert await log.topics.find(["gone"]) == ()


async def test_offsets_can_be_asked_for() -> None:
    async with connected() as (_, log):
        async with log.producer("orders") as producer:
            await producer.send(b"a")
        assert (await log.partitions.list_offset("orders", 0, "earliest")).offset == 0
        assert (await log.partitions.list_offset("orders", 0)).offset == 1
        with pytest.raises(TidelogError, match="partitions 0 to 0, not 1"):
            await log.partitions.list_offset("orders", 1)


async def test_without_a_gateway_connect_says_so() -> None:
    with pytest.raises(Unreachable, match=r"no gateway can be reached: ws://127\.0\.0\.1:1: nothing listens"):
        async with tidelog.connect("ws://127.0.0.1:1", connect_timeout_s=0.1):
            pass


@pytest.mark.parametrize("patience_s", [3.0, 30.0])
async def test_an_error_that_may_pass_is_waited_out_as_long_as_patience_lasts(autojump_clock, patience_s) -> None:
    class Away:
        closed = False

        async def call(self, _request: Message, _timeout_s: float) -> Message:
            raise refuse("UNREACHABLE", "r3 is away")

    connection = GatewayConnection(("ws://g1",), TrioLoop(WebSocketTransport()), "client", request_timeout_s=30.0)
    connection.link = Away()  # type: ignore[assignment]
    with pytest.raises(TidelogError, match="r3 is away"):
        await connection.call(Digest("r3", "t", 0), patience_s=patience_s)
    assert patience_s - RETRY_S <= trio.current_time() <= patience_s


async def test_reading_a_copy_goes_at_the_pace_of_the_quota(autojump_clock) -> None:
    """However long that takes: the server is there."""

    class Bounded:
        closed = False
        until = 100.0

        async def call(self, _request: Message, _timeout_s: float) -> Message:
            if (left_s := self.until - trio.current_time()) > 0:
                raise refuse("QUOTA_EXCEEDED", "too much", pause_ms=round(1000 * left_s))
            return CopyRead(0, 9, 9, 600)

    connection = GatewayConnection(("ws://g1",), TrioLoop(WebSocketTransport()), "client", request_timeout_s=30.0)
    connection.link = Bounded()  # type: ignore[assignment]
    log = tidelog.Log(connection, lambda: 0)
    assert await log.partitions.read_copy("t", 0, "r1", 0) == CopyRead(0, 9, 9, 600)
    assert trio.current_time() == pytest.approx(100.0)


@pytest.mark.parametrize(("again", "code"), [(True, "OFFSET_NOT_AVAILABLE"), (False, "REQUEST_TIMED_OUT")])
async def test_a_request_whose_time_ends_says_why_it_was_refused_before(
    autojump_clock, again: bool, code: str
) -> None:
    """A gateway that tries again takes the rest of the time. What may be done only once has an unknown outcome
    then."""

    class Slow:
        closed = False
        refused = False

        async def call(self, _request: Message, timeout_s: float) -> Message:
            if not self.refused:
                self.refused = True
                raise refuse("OFFSET_NOT_AVAILABLE", "the leader waits for r3", awaited="r3")
            waits.extend(connection.waits.values())
            autojump_clock.jump(timeout_s)
            raise TimedOut("no answer")

    waits: list[TidelogError] = []
    connection = GatewayConnection(("ws://g1",), TrioLoop(WebSocketTransport()), "client", request_timeout_s=30.0)
    connection.link = Slow()  # type: ignore[assignment]
    with pytest.raises(TidelogError) as caught:
        await connection.call(ListOffset("t", 0, "latest"), again=again)
    assert caught.value.code == code and trio.current_time() == pytest.approx(30.0)
    assert [error.detail["awaited"] for error in waits] == ["r3"] and not connection.waits


async def test_a_dead_gateway_in_the_list_does_no_harm() -> None:
    cluster = FakeCluster()
    async with cluster.gateways() as urls, tidelog.connect(["ws://127.0.0.1:1", *urls]) as log:
        assert await log.topics.list() == ()


async def test_an_error_in_the_block_of_connect_stays_itself() -> None:
    cluster = FakeCluster()
    async with cluster.gateways() as urls:
        with pytest.raises(ZeroDivisionError):
            async with tidelog.connect(urls):
                raise ZeroDivisionError


def test_options_name_every_fault() -> None:
    with pytest.raises(ConfigError, match=r"(?s)acks must be one of none, leader, all.*max_in_flight"):
        tidelog.ProducerOptions(acks="some", max_in_flight=0)
    with pytest.raises(ConfigError, match="no gateway URL"):
        tidelog.connect([])


async def test_a_condition_that_cannot_be_is_refused_at_once() -> None:
    async with connected(partitions=2) as (_, log):
        async with log.producer("orders") as producer:
            for wrong in ({"partition": 0, "expected_offset": -1}, {"expected_offset": 0}):
                with pytest.raises(ValueError, match="expected_offset"):
                    await producer.send(b"x", **wrong)
        async with log.producer("orders", tidelog.ProducerOptions(acks="none")) as producer:
            with pytest.raises(ValueError, match="acks none"):
                await producer.submit(b"x", partition=0, expected_offset=0)
