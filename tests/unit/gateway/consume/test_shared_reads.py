"""Subscribers of one partition share reads and the newest batches. Tests ``consume/subscriptions.py`` and
``consume/tail_cache.py``."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from support.gateway_subscribers import Bench, stored
from tidelog.errors import refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import Credit, Read, ReadAnswer, Subscribe
from tidelog_gateway.consume.tail_cache import BATCH_OVERHEAD_BYTES, BatchRun, SubscriberTailCache

KEY = TopicPartition("t", 0)


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


def test_subscriptions_that_get_the_same_get_one_delivery() -> None:
    bench = Bench()
    for client, sub, credit in ((1, 7, 100_000), (2, 7, 100_000), (3, 8, 100_000), (4, 7, 1)):
        bench.take(bench.core.on_subscribe(client, 1, Subscribe(sub, "t", 0, 0, credit), 0.0))
    bench.answer(stored(0) + stored(1))
    first, same, other_number, smaller = (bench.got[client][0] for client in (1, 2, 3, 4))
    assert first is same
    assert other_number == replace(first, sub=8)
    assert bytes(smaller.payload) == stored(0)  # type: ignore[arg-type]


def test_a_reader_within_the_tail_cache_is_served_at_once() -> None:
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


def test_a_reader_behind_the_tail_cache_reads_alone_until_it_has_caught_up() -> None:
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
def test_a_new_leader_epoch_or_a_pause_drops_the_cached_batches(change: dict[str, Any]) -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    bench.lead("r1", **change)
    bench.subscribe(3)
    assert bench.payloads(3) == b""


def test_batches_below_the_log_start_are_not_served() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    bench.take(bench.core.on_answer(bench.calls.popitem()[0], ReadAnswer(1, 2, 1, stored(1)), 0.0))
    bench.subscribe(3)
    assert bench.payloads(3) == b""
    bench.subscribe(4, offset=1)
    assert bench.payloads(4) == stored(1)


def test_a_final_error_ends_all_subscriptions_of_the_read_and_drops_the_tail() -> None:
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


def test_a_subscriber_that_leaves_does_not_end_the_shared_read() -> None:
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


def test_batches_read_as_uncommitted_are_not_kept_for_others() -> None:
    bench = Bench()
    bench.subscribe(1, isolation="uncommitted")
    bench.subscribe(2, credit=0)
    bench.answer(stored(0), hw=1)
    assert bench.payloads(1) == stored(0)
    bench.take(bench.core.on_credit(2, Credit(2, 100_000), 0.0))
    assert bench.payloads(2) == b"", "its transaction may be aborted"
    assert [call.message.isolation for call in bench.calls.values()] == ["uncommitted", "committed"]  # type: ignore[attr-defined]


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


def test_cached_batches_are_served_for_a_bounded_time() -> None:
    """Nobody tells the gateway that compaction has rewritten a batch, so what it keeps must not stay for long."""
    bench = Bench(tail_cache_max_age_s=1.0)
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0, value=b"deleted since"), now=10.0)
    bench.subscribe(3, now=10.9)
    assert bench.payloads(3) == stored(0, value=b"deleted since")
    asked = set(bench.calls)
    bench.subscribe(4, now=11.0)
    assert bench.payloads(4) == b"" and len(set(bench.calls) - asked) == 1, "it is read again"
    assert bench.core.tails.bytes == 0


def test_an_empty_answer_updates_the_log_start() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.subscribe(2)
    bench.answer(stored(0))
    token, _ = bench.calls.popitem()
    bench.take(bench.core.on_answer(token, ReadAnswer(1, 1, 1, b""), 0.0))
    bench.subscribe(3)
    assert bench.payloads(3) == b"", "retention has deleted it"


# --- the tail itself -----------------------------------------------------------------------------------------


def test_a_tail_grows_at_its_end_only() -> None:
    cache = SubscriberTailCache(1 << 20, 1.0)
    cache.add(KEY, 1, BatchRun(stored(5) + stored(6)), 0.0)
    cache.add(KEY, 1, BatchRun(stored(3)), 0.0)
    assert cache.find(KEY, 3, 1, 0.0) is None, "history is not kept"
    cache.add(KEY, 1, BatchRun(stored(6) + stored(7, epoch=2)), 0.0)
    assert [cache.find(KEY, offset, 1, 0.0) is not None for offset in (5, 6, 7)] == [True] * 3
    cache.add(KEY, 1, BatchRun(stored(8)), 0.0)
    assert cache.find(KEY, 5, 1, 0.0) is None, "it does not continue epoch 2: another line"
    assert cache.find(KEY, 8, 1, 0.0) is not None
    cache.add(KEY, 1, BatchRun(stored(20)), 0.0)
    assert cache.find(KEY, 8, 1, 0.0) is None and cache.find(KEY, 20, -1, 0.0) is not None


def test_the_oldest_of_all_partitions_goes_first() -> None:
    size = len(stored(0)) + BATCH_OVERHEAD_BYTES
    cache, other = SubscriberTailCache(2 * size, 1.0), TopicPartition("t", 1)
    cache.add(KEY, 1, BatchRun(stored(0)), 0.0)
    cache.add(other, 1, BatchRun(stored(0)), 0.0)
    cache.add(KEY, 1, BatchRun(stored(1)), 0.0)
    assert cache.find(KEY, 0, 1, 0.0) is None
    assert cache.find(other, 0, 1, 0.0) is not None and cache.find(KEY, 1, 1, 0.0) is not None
    cache.add(KEY, 1, BatchRun(stored(2) + stored(3) + stored(4)), 0.0)
    assert cache.bytes == 2 * size, "what is larger than all of it is not kept"
