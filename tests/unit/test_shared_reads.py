"""Subscribers of one partition share reads and the newest batches; each gets its log all the same."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from tidelog.effects import Call, Post
from tidelog.errors import TidelogError, refuse
from tidelog.records import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicPartition, TopicState
from tidelog.wire.messages import Credit, Delivery, Read, ReadAnswer, Subscribe
from tidelog_gateway.core.cluster import ClusterMap
from tidelog_gateway.core.settings import SubscriptionSettings
from tidelog_gateway.core.subscription import Effect, Subscriptions
from tidelog_gateway.core.tail import BATCH_OVERHEAD_BYTES, Stretch, TailCache

KEY = TopicPartition("t", 0)
NODES = ("r1", "r2", "r3")
SERVERS = tuple(ServerState(node, f"ws://{node}", 1, False) for node in NODES)


def stored(offset: int, count: int = 1, epoch: int = 1, value: bytes = b"x") -> bytes:
    batch = encode_batch([NewRecord(value, timestamp_ms=1)] * count)
    return stamp_prefix(offset, epoch, read_header(batch).crc32c) + batch[16:]


class Bench:
    """A gateway's subscriptions to the one partition that there is; every client has one, of its own number."""

    def __init__(self, **settings: int) -> None:
        self.cluster = ClusterMap()
        self.settings = SubscriptionSettings(**settings)
        self.core = Subscriptions(self.cluster, self.settings)
        self.calls: dict[int, Call] = {}
        self.got: dict[int, list[Delivery]] = {}
        self.epoch = 0
        self.lead("r1")

    def lead(self, node: str | None, now: float = 0.0, epoch: int = 0, **changes: Any) -> None:
        self.epoch = epoch or self.epoch + 1
        state = replace(PartitionState(NODES, NODES, node, self.epoch, self.epoch), **changes)
        topic = TopicState("t", "orders", partitions=(state,))
        changed = self.cluster.update(ClusterImage(self.cluster.image.index + 1, "c", SERVERS, (topic,)))
        self.take(self.core.on_metadata(changed, now))

    def take(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Call):
                self.calls[effect.token] = effect
            elif isinstance(effect, Post):
                assert isinstance(effect.message, Delivery)
                self.got.setdefault(effect.source, []).append(effect.message)
        return effects

    def subscribe(self, client: int, offset: int = 0, credit: int = 100_000, now: float = 0.0, **fields: Any) -> None:
        message = Subscribe(client, "t", 0, offset, credit, **fields)
        self.take(self.core.on_subscribe(client, 1, message, now))

    def answer(self, payload: bytes, now: float = 0.0, hw: int = 0) -> None:
        """All reads that wait are answered with this."""
        for token in list(self.calls):
            del self.calls[token]
            self.take(self.core.on_answer(token, ReadAnswer(self.epoch, hw, 0, payload), now))

    def payloads(self, client: int) -> bytes:
        return b"".join(bytes(delivery.payload) for delivery in self.got.get(client, []))  # type: ignore[arg-type]


def test_a_thousand_subscribers_cost_the_leader_one_read_for_each_batch() -> None:
    bench = Bench()
    for client in range(1000):
        bench.subscribe(client)
    batches = [stored(offset) for offset in range(50)]
    for batch in batches:
        assert len(bench.calls) == 1
        bench.answer(batch)
    assert bench.core.counts.reads == 51
    assert bench.core.counts.deliveries == 50_000
    assert all(bench.payloads(client) == b"".join(batches) for client in range(1000))


def test_all_are_served_from_the_same_bytes() -> None:
    bench = Bench()
    batch = stored(0)
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(batch)
    assert [bench.got[client][0].payload.obj is batch for client in (1, 2)] == [True, True]  # type: ignore[union-attr]


def test_who_stands_within_the_tail_is_served_at_once() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2, credit=1)
    for offset in range(3):
        bench.answer(stored(offset), hw=offset + 1)
    reads = bench.core.counts.reads
    bench.take(bench.core.on_credit(2, Credit(2, 100_000), 0.0))
    assert bench.payloads(2) == bench.payloads(1)
    assert [delivery.high_watermark for delivery in bench.got[2]] == [1, 3, 3]
    assert bench.core.counts.reads == reads, "and waits with the other from there"


def test_who_is_behind_the_tail_reads_for_himself_until_he_has_caught_up() -> None:
    batches = [stored(offset) for offset in range(4)]
    size = len(batches[0]) + BATCH_OVERHEAD_BYTES
    bench = Bench(tail_cache_bytes=2 * size)
    bench.subscribe(1)
    bench.subscribe(2, credit=1)
    for batch in batches:
        bench.answer(batch)
    assert bench.core.tails.bytes == 2 * size
    tail_read = list(bench.calls)
    bench.take(bench.core.on_credit(2, Credit(2, 100_000), 0.0))
    (token,) = [token for token in bench.calls if token not in tail_read]
    own = bench.calls.pop(token).message
    assert isinstance(own, Read) and own.offset == 1
    bench.take(bench.core.on_answer(token, ReadAnswer(1, 4, 0, batches[1]), 0.0))
    assert bench.payloads(2) == b"".join(batches)
    assert list(bench.calls) == tail_read


def test_a_small_credit_is_served_batch_by_batch_and_stops_nobody() -> None:
    bench = Bench()
    first, second = stored(0), stored(1)
    bench.subscribe(1, credit=1)
    bench.subscribe(2)
    bench.answer(first + second)
    assert bench.payloads(1) == first
    assert bench.payloads(2) == first + second


def test_a_subscription_that_knows_another_epoch_is_not_served_from_the_tail() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0) + stored(1))
    bench.subscribe(3, offset=1, last_epoch=1)
    assert bench.payloads(3) == stored(1)
    bench.subscribe(4, offset=1, last_epoch=0)
    assert bench.payloads(4) == b""
    assert [call.message.last_epoch for call in bench.calls.values()] == [1, 0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("change", [{}, {"epoch": 1, "paused": True}])
def test_a_new_leader_epoch_or_a_pause_ends_what_was_kept(change: dict[str, Any]) -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    bench.lead("r1", **change)
    bench.subscribe(3)
    assert bench.payloads(3) == b""


def test_what_the_log_start_has_passed_is_not_given_out() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    bench.take(bench.core.on_answer(bench.calls.popitem()[0], ReadAnswer(1, 2, 1, stored(1)), 0.0))
    bench.subscribe(3)
    assert bench.payloads(3) == b""
    bench.subscribe(4, offset=1)
    assert bench.payloads(4) == stored(1)


def test_a_final_error_ends_all_who_share_the_read_and_drops_the_tail() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    bench.take(bench.core.on_answer(bench.calls.popitem()[0], refuse("LOG_TRUNCATED", "gone"), 0.0))
    assert [bench.got[client][-1].error is not None for client in (1, 2)] == [True, True]
    assert bench.core.tails.bytes == 0


def test_an_error_that_passes_makes_all_ask_again_with_one_read() -> None:
    bench = Bench()
    for client in range(5):
        bench.subscribe(client)
    bench.take(bench.core.on_answer(bench.calls.popitem()[0], refuse("NOT_LEADER", "no"), 0.0))
    assert bench.calls == {}
    bench.take(bench.core.on_tick(bench.settings.retry_first_s))
    assert len(bench.calls) == 1
    assert bench.core.counts.retries == {"NOT_LEADER": 1}


def test_one_who_leaves_does_not_take_the_read_with_him() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.core.on_link_closed(1)
    bench.answer(stored(0))
    assert bench.payloads(2) == stored(0)
    assert 1 not in bench.got


def test_a_reader_that_is_alone_keeps_nothing() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.answer(stored(0))
    assert bench.core.tails.bytes == 0


def test_the_tail_goes_with_its_last_subscriber() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    assert bench.core.tails.bytes > 0
    bench.core.on_link_closed(1)
    bench.core.on_link_closed(2)
    assert bench.core.tails.bytes == 0


def test_linearizable_subscriptions_share_nothing_bounded_ones_a_read_of_the_same_bound() -> None:
    bench = Bench()
    asked: list[dict[str, Any]] = [
        *({"consistency": "linearizable"},) * 2,
        *({"consistency": "bounded", "max_staleness_ms": 500},) * 2,
        {"consistency": "bounded", "max_staleness_ms": 600},
    ]
    for client, fields in enumerate(asked):
        bench.subscribe(client, **fields)
    assert len(bench.calls) == 4
    bench.answer(stored(0))
    for client, fields in enumerate(asked):
        bench.subscribe(10 + client, **fields)
        assert bench.payloads(10 + client) == b"", "what was kept may be older than promised"
    bench.subscribe(20)
    assert bench.payloads(20) == stored(0)


def test_subscribers_of_any_replica_share_a_read_at_one_copy() -> None:
    bench = Bench()
    for client in range(4):
        bench.subscribe(client, read_from="any")
    ((token, call),) = bench.calls.items()
    assert call.to == "r2"
    bench.calls.clear()
    bench.take(bench.core.on_answer(token, refuse("UNREACHABLE", "no"), 0.0))
    assert [call.to for call in bench.calls.values()] == ["r1"], "the leader, once for all"


def test_memory_is_bounded_however_many_do_not_read() -> None:
    bound, size, batches = 1 << 20, 50_000, 200
    bench = Bench(tail_cache_bytes=bound)
    bench.subscribe(0, credit=1)
    for client in range(1, 500):
        bench.subscribe(client, credit=1)
    bench.subscribe(1000, credit=8 << 20)
    tracemalloc.start()
    try:
        for offset in range(batches):
            bench.answer(stored(offset, value=b"%06d" % offset + b"x" * size))
            bench.got.clear()
            bench.take(bench.core.on_credit(1000, Credit(1000, 2 * size), 0.0))
            assert bench.core.tails.bytes <= bound
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bench.core.tails.bytes > bound - 2 * size, "it is used"
    assert kept < bound + 4 * size, f"{kept} bytes of {batches * size} that came"


# --- the tail itself -----------------------------------------------------------------------------------------


def test_a_tail_grows_at_its_end_only() -> None:
    cache = TailCache(1 << 20)
    cache.add(KEY, 1, Stretch(stored(5) + stored(6)))
    cache.add(KEY, 1, Stretch(stored(3)))
    assert cache.find(KEY, 3, 1) is None, "history is not kept"
    cache.add(KEY, 1, Stretch(stored(6) + stored(7, epoch=2)))
    assert [cache.find(KEY, offset, 1) is not None for offset in (5, 6, 7)] == [True] * 3
    cache.add(KEY, 1, Stretch(stored(8)))
    assert cache.find(KEY, 5, 1) is None, "it does not continue epoch 2: another line"
    assert cache.find(KEY, 8, 1) is not None
    cache.add(KEY, 1, Stretch(stored(20)))
    assert cache.find(KEY, 8, 1) is None and cache.find(KEY, 20, -1) is not None


def test_the_oldest_of_all_partitions_goes_first() -> None:
    size = len(stored(0)) + BATCH_OVERHEAD_BYTES
    cache, other = TailCache(2 * size), TopicPartition("t", 1)
    cache.add(KEY, 1, Stretch(stored(0)))
    cache.add(other, 1, Stretch(stored(0)))
    cache.add(KEY, 1, Stretch(stored(1)))
    assert cache.find(KEY, 0, 1) is None
    assert cache.find(other, 0, 1) is not None and cache.find(KEY, 1, 1) is not None
    cache.add(KEY, 1, Stretch(stored(2) + stored(3) + stored(4)))
    assert cache.bytes == 2 * size, "what is larger than all of it is not kept"


# --- at random, against a model ------------------------------------------------------------------------------


class World:
    """A log of committed batches and readers who come, stop, go on and are refused in any order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(tail_cache_bytes=self.random.choice([0, 600, 3000, 1 << 20]))
        self.batches: list[bytes] = []
        self.ends = [0]
        self.epochs: list[int] = []
        self.starts: dict[int, int] = {}
        self.credit: dict[int, int] = {}
        self.seen: dict[int, int] = {}
        self.truncated: set[int] = set()
        self.now = 0.0

    def append(self) -> None:
        count = self.random.randint(1, 3)
        value = b"%d" % self.random.getrandbits(100)
        self.batches.append(stored(self.ends[-1], count, self.bench.epoch, value))
        self.ends.append(self.ends[-1] + count)
        self.epochs.append(self.bench.epoch)

    def subscribe(self) -> None:
        client = len(self.starts)
        first = self.random.randint(0, len(self.batches))
        self.starts[client] = first
        self.credit[client] = self.random.choice([1, 100, 400, 10_000])
        bound = self.random.choice([{}, {}, {}, {"consistency": "bounded", "max_staleness_ms": 500}])
        epoch = self.epochs[first - 1] if first and self.random.random() < 0.7 else -1
        self.bench.subscribe(
            client,
            self.ends[first],
            self.credit[client],
            self.now,
            last_epoch=epoch,
            read_from=self.random.choice(["leader", "any"]),
            **bound,
        )

    def reply(self) -> None:
        if not self.bench.calls:
            return
        token = self.random.choice(list(self.bench.calls))
        call = self.bench.calls.pop(token)
        self.bench.take(self.bench.core.on_answer(token, self.judge(call), self.now))

    def judge(self, call: Call) -> ReadAnswer | TidelogError:
        read = call.message
        assert isinstance(read, Read)
        if self.random.random() < 0.1:
            return refuse(self.random.choice(["NOT_LEADER", "UNREACHABLE", "OFFSET_NOT_AVAILABLE"]), "no")
        if read.offset not in self.ends or (
            read.last_epoch >= 0 and read.offset and self.epochs[self.ends.index(read.offset) - 1] != read.last_epoch
        ):
            return refuse("LOG_TRUNCATED", "another line")
        known = len(self.batches) - self.random.randint(0, 2) if read.any_replica else len(self.batches)
        first = self.ends.index(read.offset)
        payload = b""
        for batch in self.batches[first:known]:
            if payload and len(payload) + len(batch) > read.max_bytes:
                break
            payload += batch
        return ReadAnswer(self.bench.epoch, self.ends[max(known, first)], 0, payload)

    def give(self) -> None:
        if self.starts:
            client = self.random.randrange(len(self.starts))
            more = self.random.choice([1, 100, 1000])
            self.credit[client] += more
            self.bench.take(self.bench.core.on_credit(client, Credit(client, more), self.now))

    def elect(self) -> None:
        if self.batches and self.random.random() < 0.2:  # unclean: committed records are lost
            keep = self.random.randint(len(self.batches) - 1, len(self.batches))
            del self.batches[keep:], self.epochs[keep:], self.ends[keep + 1 :]
        self.bench.calls.clear()
        self.bench.lead(self.random.choice([*NODES, None]), self.now)

    def check(self) -> None:
        """What was delivered since the last look is the log as it is now; nobody got more than he gave credit for,
        but for one batch."""
        for client, deliveries in self.bench.got.items():
            at = self.seen.setdefault(client, self.starts[client])
            told = -1
            for delivery in deliveries:
                if delivery.error is not None:
                    self.truncated.add(client)
                    continue
                assert delivery.high_watermark >= told
                told = delivery.high_watermark
                payload = bytes(delivery.payload)  # type: ignore[arg-type]
                assert self.credit[client] > 0
                while payload:
                    batch = self.batches[at]
                    assert payload.startswith(batch), f"{client} did not get batch {at}"
                    payload = payload[len(batch) :]
                    self.credit[client] -= len(batch)
                    at += 1
                assert told >= self.ends[at], "a batch beyond the HW"
            self.seen[client] = at
        self.bench.got.clear()
        assert self.bench.core.tails.bytes <= self.bench.settings.tail_cache_bytes

    def finish(self) -> None:
        """The leader is there to stay, and all want all."""
        self.bench.calls.clear()
        self.bench.lead("r1", self.now)
        for client in self.starts:
            self.credit[client] += 1 << 20
            self.bench.take(self.bench.core.on_credit(client, Credit(client, 1 << 20), self.now))
        for _ in range(10_000):
            self.check()
            if all(self.seen.get(c, s) >= len(self.batches) or c in self.truncated for c, s in self.starts.items()):
                return
            self.now += 0.1
            self.bench.take(self.bench.core.on_tick(self.now))
            self.reply()
        raise AssertionError("somebody does not get the log to its end")


@pytest.mark.parametrize("seed", range(150))
def test_at_random_every_subscriber_gets_the_log_from_its_position(seed: int) -> None:
    world = World(seed)
    for _ in range(150):
        act = world.random.choices(
            [world.append, world.subscribe, world.reply, world.give, world.elect], [30, 8, 40, 20, 2]
        )[0]
        act()
        world.now += world.random.choice([0.0, 0.01, 0.3])
        world.bench.take(world.bench.core.on_tick(world.now))
        world.check()
    world.finish()
