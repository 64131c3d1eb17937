"""Catching up leaves live traffic its share: a limit per second, live partitions first, small bites beside them."""

from __future__ import annotations

from typing import Any

from support.replica_network import KEY, Net, cluster
from tidelog.batch.format import NewRecord, encode_batch
from tidelog.sansio.effects import Answer, Call
from tidelog.types import TopicConfig
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import Fetch, FetchAnswer
from tidelog_replica.config import ReplicaSettings
from tidelog_replica.fetcher.throttle import BURST_S, CATCH_UP_FETCH_BYTES, PAUSE_MIN_S, Throttle

VALUE = b"x" * (100 << 10)


def test_tokens_come_in_at_the_rate_and_pile_up_for_a_moment_only() -> None:
    throttle = Throttle(1000, 10.0)
    assert throttle.open_at(10.0) == 10.0
    throttle.spend(2000, 10.0)
    assert throttle.open_at(10.0) == 10.0 + (2000 - 1000 * BURST_S) / 1000
    assert throttle.open_at(100.0) == 100.0
    throttle.spend(int(1000 * BURST_S) + 500, 100.0)
    assert throttle.open_at(100.0) == 100.5


def test_a_closed_throttle_opens_later_than_now() -> None:
    throttle = Throttle(1 << 30, 1e9)
    throttle.spend(int((1 << 30) * BURST_S) + 1, 1e9)
    assert throttle.open_at(1e9) >= 1e9 + PAUSE_MIN_S / 2


def test_without_a_rate_there_is_no_limit() -> None:
    throttle = Throttle(0, 1.0)
    throttle.spend(1 << 40, 1.0)
    assert throttle.open_at(1.0) == 1.0


def fill(net: Net, count: int, partition: int = 0) -> None:
    for _ in range(count):
        net.send_batch("r1", encode_batch([NewRecord(VALUE)]), partition=partition)


def behind(count: int, **options: Any) -> Net:
    """r3 was away while so many batches of 100 KiB were written to each partition; it is in no ISR."""
    net = cluster(config=TopicConfig(min_insync_replicas=1, flush="os"), **options)
    net.stop("r3")
    for number in range(len(net.topics[KEY.topic_id].partitions)):
        net.lead("r1", "r1 r2", number)
        fill(net, count, number)
    return net


def answers_to(net: Net, name: str) -> list[tuple[float, Fetch, FetchAnswer]]:
    """From now on: when, what was asked, and what came of it."""
    seen: list[tuple[float, Fetch, FetchAnswer]] = []
    asked: dict[int, Fetch] = {}
    perform = net._perform

    def watch(node: str, effect: Any) -> None:
        if isinstance(effect, Call) and node == name and isinstance(effect.message, Fetch):
            asked[effect.token] = effect.message
        to = effect.source if isinstance(effect, Answer) else -1
        if to == net.names.index(name) and isinstance(effect.message, FetchAnswer):
            seen.append((net.now, asked[effect.id], effect.message))
        perform(node, effect)

    net._perform = watch  # type: ignore[method-assign]
    return seen


def size(answer: FetchAnswer) -> int:
    return len(payload_view(answer.payload))


def test_a_replica_that_is_behind_copies_no_faster_than_the_limit() -> None:
    net = behind(30, settings=ReplicaSettings(catchup_max_bytes_per_s=1 << 20, fetch_max_bytes=256 << 10))
    seen = answers_to(net, "r3")
    net.start("r3")
    net.advance(1)
    copied = sum(size(answer) for _, _, answer in seen)
    assert 0.7 * (1 << 20) < copied < 1.5 * (1 << 20)
    net.advance(4)
    assert net.partition("r3").log.end == 30
    assert net.state().isr == ("r1", "r2", "r3")


def test_a_replica_in_sync_is_not_limited() -> None:
    net = cluster(
        config=TopicConfig(min_insync_replicas=3, flush="os"), settings=ReplicaSettings(catchup_max_bytes_per_s=1)
    )
    fill(net, 5)
    assert len(net.acks) == 5
    assert net.partition("r3").log.end == 5


def test_in_sync_partitions_go_on_while_those_catching_up_wait_for_the_limit() -> None:
    net = behind(10, partitions=2, settings=ReplicaSettings(catchup_max_bytes_per_s=100 << 10))
    net.start("r3")
    net.push(1, isr=("r1", "r2", "r3"))
    net.run()
    net.advance(1)
    assert net.partition("r3", 1).log.end == 10
    assert net.partition("r3", 0).log.end < 10
    fill(net, 3, partition=1)
    assert net.partition("r3", 1).log.end == 13, "at once"


def test_live_partitions_come_first_and_the_others_get_a_bite() -> None:
    net = behind(20, partitions=3, settings=ReplicaSettings(catchup_max_bytes_per_s=0))
    net.push(2, isr=("r1", "r2", "r3"))
    net.run()
    seen = answers_to(net, "r3")
    net.start("r3")
    mixed = [(asked, answer) for _, asked, answer in seen if len(asked.parts) == 3]
    assert mixed
    for asked, answer in mixed:
        assert asked.parts[0].partition == 2
        assert sum(part.size for part in answer.parts if part.partition != 2) <= CATCH_UP_FETCH_BYTES + (200 << 10)
    for _, asked, answer in seen:
        if all(part.partition != 2 for part in asked.parts):
            assert size(answer) <= CATCH_UP_FETCH_BYTES + (200 << 10), "also while the live one is idle"
    assert [net.partition("r3", number).log.end for number in range(3)] == [20, 20, 20]


def test_where_nothing_is_live_answers_are_as_large_as_ever() -> None:
    net = behind(20, settings=ReplicaSettings(catchup_max_bytes_per_s=0))
    seen = answers_to(net, "r3")
    net.start("r3")
    assert max(size(answer) for _, _, answer in seen) > 15 * len(VALUE)


def test_one_limit_is_for_all_leaders_together() -> None:
    net = behind(10, partitions=2, settings=ReplicaSettings(catchup_max_bytes_per_s=200 << 10))
    net.lead("r2", "r1 r2", 1)
    net.start("r3")
    net.advance(2)
    copied = sum(net.partition("r3", number).log.end for number in range(2))
    assert 3 <= copied <= 8, "400 KiB, and a batch or two more"
