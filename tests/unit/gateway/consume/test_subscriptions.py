"""The gateway's subscriptions: credit, position, retries, final errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import TimedOut, Unreachable, refuse
from tidelog.sansio.effects import Answer, Call, Post
from tidelog.types import ClusterImage, PartitionState, ServerState, TopicState
from tidelog.wire.messages import Credit, Delivery, Done, Read, ReadAnswer, Subscribe, Unsubscribe
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.subscriptions import Effect, Subscriptions
from tidelog_gateway.settings import SubscriptionSettings

CLIENT = 1
FENCED = ("r5",)
SERVERS = tuple(ServerState(f"r{number}", f"ws://r{number}", 1, False) for number in range(1, 6))


def stored(offset: int, count: int = 1, epoch: int = 1, timestamp_ms: int = 1) -> bytes:
    batch = encode_batch([NewRecord(b"x", timestamp_ms=timestamp_ms)] * count)
    return stamp_prefix(offset, epoch, read_header(batch).crc32c) + batch[16:]


def image(index: int, leader: str | None) -> ClusterImage:
    state = PartitionState(("r1", "r2"), ("r1", "r2"), leader, index, index)
    servers = (ServerState("r1", "ws://r1", 1, False), ServerState("r2", "ws://r2", 1, False))
    return ClusterImage(index, "c", servers, (TopicState("t", "orders", partitions=(state,)),))


class Bench:
    def __init__(self, settings: SubscriptionSettings | None = None, rack: str = "") -> None:
        self.cluster = ClusterView(rack)
        self.cluster.update(image(1, "r1"))
        self.core = Subscriptions(self.cluster, settings or SubscriptionSettings(), lambda: self.wall_ms)
        self.wall_ms = 1

    def subscribe(self, credit: int, offset: int = 0, now: float = 0.0, **fields: Any) -> list[Effect]:
        return self.core.on_subscribe(CLIENT, 9, Subscribe(3, "t", 0, offset, credit, **fields), now)

    def know(self, index: int, racks: dict[str, str] | None = None, **changes: Any) -> None:
        """The partition's state is another."""
        known = image(index, "r1")
        topic = known.topics[0]
        state = replace(topic.partitions[0], leader_epoch=1, **changes)
        servers = tuple(
            replace(server, fenced=server.node in FENCED, rack=(racks or {}).get(server.node, ""))
            for server in SERVERS
        )
        self.cluster.update(replace(known, servers=servers, topics=(replace(topic, partitions=(state,)),)))


def read_of(effects: list[Effect]) -> Call:
    (call,) = [effect for effect in effects if isinstance(effect, Call)]
    assert isinstance(call.message, Read)
    return call


def delivery_of(effects: list[Effect]) -> Delivery:
    (post,) = [effect for effect in effects if isinstance(effect, Post)]
    assert isinstance(post.message, Delivery) and post.source == CLIENT
    return post.message


def test_batches_are_pushed_and_the_position_moves_behind_them() -> None:
    bench = Bench()
    effects = bench.subscribe(1000)
    assert effects[0] == Answer(CLIENT, 9, Done())
    call = read_of(effects)
    assert call.to == "r1" and call.message == Read("t", 0, 0, -1, 1, 1000, 5000)
    payload = stored(0, 2) + stored(2, 3, epoch=4)
    effects = bench.core.on_answer(call.token, ReadAnswer(4, 5, 0, payload), 0.1)
    assert delivery_of(effects) == Delivery(3, 5, None, payload)
    assert read_of(effects).message == Read("t", 0, 5, 4, 1, 1000 - len(payload), 5000)


def test_nothing_is_read_without_credit() -> None:
    bench = Bench()
    payload = stored(0)
    call = read_of(bench.subscribe(10))
    effects = bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, payload), 0.1)
    assert len(effects) == 1 and delivery_of(effects).payload == payload
    assert bench.core.on_credit(CLIENT, Credit(3, len(payload) - 10), 0.2) == []
    assert read_of(bench.core.on_credit(CLIENT, Credit(3, 50), 0.2)).message.max_bytes == 50  # type: ignore[attr-defined]


def test_a_wait_without_news_is_asked_again() -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    effects = bench.core.on_answer(call.token, ReadAnswer(1, 0, 0), 5.0)
    assert read_of(effects).message == call.message


def test_an_empty_answer_that_comes_too_early_never_spins() -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    read = read_of(bench.core.on_answer(call.token, ReadAnswer(1, 0, 0), 0.001))
    assert read.message == replace(call.message, max_wait_ms=0), "there is something, which the wait could not bring"  # type: ignore[type-var]
    assert bench.core.on_answer(read.token, ReadAnswer(1, 0, 0), 0.002) == []
    deadline = bench.core.deadline()
    assert deadline is not None and deadline > 0.002
    assert read_of(bench.core.on_tick(deadline)).message == call.message
    assert bench.core.deadline() is None


@pytest.mark.parametrize("code", ["NOT_LEADER", "OFFSET_NOT_AVAILABLE", "UNKNOWN_TOPIC", "OFFLINE"])
def test_a_retriable_error_is_asked_again_later(code: str) -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10, offset=7))
    assert bench.core.on_answer(call.token, refuse(code, "no"), 0.0) == []
    assert bench.core.on_credit(CLIENT, Credit(3, 1), 0.0) == []
    again = read_of(bench.core.on_tick(0.02))
    assert isinstance(again.message, Read) and again.message.offset == 7


@pytest.mark.parametrize("code", ["OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"])
def test_a_final_error_ends_it_with_the_reason(code: str) -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    effects = bench.core.on_answer(call.token, refuse(code, "gone", log_start=5), 0.0)
    error = delivery_of(effects).error
    assert error is not None and (error.code, error.detail) == (code, {"log_start": "5"})
    assert bench.core.on_credit(CLIENT, Credit(3, 100), 0.0) == []
    assert isinstance(bench.subscribe(10)[0], Answer)


def test_a_new_leader_is_asked_at_once() -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    changed = bench.cluster.update(image(2, None))
    assert bench.core.on_metadata(changed, 1.0) == []
    changed = bench.cluster.update(image(3, "r2"))
    again = read_of(bench.core.on_metadata(changed, 1.0))
    assert again.to == "r2"
    assert bench.core.on_answer(call.token, TimedOut("late"), 2.0) == []
    assert bench.core.on_answer(again.token, Unreachable("no"), 2.0) == []
    assert read_of(bench.core.on_tick(3.0)).to == "r2"


def test_unsubscribe_is_final() -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    assert bench.core.on_unsubscribe(CLIENT, 4, Unsubscribe(3)) == [Answer(CLIENT, 4, Done())]
    assert bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, stored(0)), 0.0) == []
    assert bench.core.on_unsubscribe(CLIENT, 5, Unsubscribe(3)) == [Answer(CLIENT, 5, Done())]


def test_refusals() -> None:
    bench = Bench()
    bench.subscribe(10)
    for message, code in [
        (Subscribe(3, "t", 0, 0, 1), "MALFORMED"),
        (Subscribe(4, "t", 1, 0, 1), "UNKNOWN_TOPIC"),
        (Subscribe(4, "u", 0, 0, 1), "UNKNOWN_TOPIC"),
    ]:
        (answer,) = bench.core.on_subscribe(CLIENT, 9, message, 0.0)
        assert isinstance(answer, Answer) and getattr(answer.message, "code", "") == code


def test_a_client_has_so_many_subscriptions_and_no_more() -> None:
    bench = Bench(SubscriptionSettings(client_max_subscriptions=2))
    for sub in (1, 2):
        assert bench.core.on_subscribe(CLIENT, 9, Subscribe(sub, "t", 0, 0, 1), 0.0)[0] == Answer(CLIENT, 9, Done())
    (answer,) = bench.core.on_subscribe(CLIENT, 9, Subscribe(3, "t", 0, 0, 1), 0.0)
    assert isinstance(answer, Answer) and getattr(answer.message, "code", "") == "OVERLOADED"
    other = bench.core.on_subscribe(CLIENT + 1, 9, Subscribe(3, "t", 0, 0, 1), 0.0)
    assert other[0] == Answer(CLIENT + 1, 9, Done())


def test_credit_beyond_the_most_is_forgotten() -> None:
    bench = Bench(SubscriptionSettings(credit_max_bytes=500))
    assert read_of(bench.subscribe(10_000)).message.max_bytes == 500  # type: ignore[attr-defined]


def test_a_deleted_topic_ends_it() -> None:
    bench = Bench()
    bench.subscribe(10)
    changed = bench.cluster.update(ClusterImage(5, "c"))
    error = delivery_of(bench.core.on_metadata(changed, 0.0)).error
    assert error is not None and error.code == "UNKNOWN_TOPIC"


def test_nothing_is_left_of_a_client_that_went() -> None:
    bench = Bench()
    call = read_of(bench.subscribe(10))
    bench.core.on_link_closed(CLIENT)
    assert bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, stored(0)), 0.0) == []
    assert bench.core.on_metadata(bench.cluster.update(image(2, "r2")), 0.0) == []


# --- any replica ---------------------------------------------------------------------------------------------


def reading_any(bench: Bench, sub: int = 3, offset: int = 0, **fields: Any) -> Call:
    message = Subscribe(sub, "t", 0, offset, 1000, read_from="any", **fields)
    return read_of(bench.core.on_subscribe(CLIENT, 9, message, 0.0))


def test_readers_of_any_replica_are_spread_over_the_copies_in_sync_and_the_learners() -> None:
    bench = Bench()
    bench.know(2, replicas=("r1", "r2", "r3", "r5"), isr=("r1", "r2", "r5"), learners=("r4",))
    calls = [reading_any(bench, sub, offset=sub) for sub in range(4)]
    assert [call.to for call in calls] == ["r2", "r4", "r2", "r4"], "not the leader, not a replica behind or fenced"
    assert all(call.message.any_replica for call in calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("rack", "served"),
    [
        ("east", ["r2", "r3", "r2"]),  # both copies there
        ("west", ["r4", "r4", "r4"]),  # the only one there, though others are idle
        ("south", ["r1", "r1", "r1"]),  # the leader alone is there: it is the closest
        ("moon", ["r2", "r3", "r4"]),  # nobody is there
        ("", ["r2", "r3", "r4"]),  # not even a server without a rack is near to a gateway without one
    ],
)
def test_a_reader_from_any_replica_reads_in_the_gateways_rack(rack: str, served: list[str]) -> None:
    bench = Bench(rack=rack)
    everybody = ("r1", "r2", "r3", "r5")
    racks = {"r1": "south", "r2": "east", "r3": "east", "r4": "west", "r5": "moon"}
    bench.know(2, racks, replicas=everybody, isr=everybody, learners=("r4",))
    assert [reading_any(bench, sub, offset=sub).to for sub in range(3)] == served


def test_a_reader_moves_to_its_rack_when_there_is_a_copy_in_sync() -> None:
    bench = Bench(rack="east")
    bench.know(2, {"r3": "east"}, isr=("r1", "r2"))
    call = reading_any(bench)
    assert call.to == "r2"
    bench.know(3, {"r3": "east"}, isr=("r1", "r2", "r3"))
    again = read_of(bench.core.on_answer(call.token, ReadAnswer(1, 0, 0), 5.0))
    assert again.to == "r3"


def test_without_another_copy_the_leader_serves() -> None:
    bench = Bench()
    bench.know(2, isr=("r1",))
    assert reading_any(bench).to == "r1"
    assert not reading_any(bench, 4, offset=4).message.any_replica  # type: ignore[attr-defined]


def test_only_the_leader_serves_linearizable_reads() -> None:
    call = reading_any(Bench(), consistency="linearizable")
    assert (call.to, call.message.consistency) == ("r1", "linearizable")  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", ["STALE_REPLICA", "OFFSET_NOT_AVAILABLE", "UNREACHABLE", "OFFSET_OUT_OF_RANGE"])
def test_E9_the_leader_serves_at_once_and_for_a_while_where_a_copy_cannot(code: str) -> None:
    bench = Bench()
    call = reading_any(bench)
    assert call.to == "r2"
    call = read_of(bench.core.on_answer(call.token, refuse(code, "no"), 1.0))
    assert call.to == "r1"
    call = read_of(bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, stored(0)), 2.0))
    assert call.to == "r1"
    call = read_of(bench.core.on_answer(call.token, ReadAnswer(1, 1, 0), 6.5))
    assert call.to == "r2"


def test_a_copy_that_is_none_any_more_is_left() -> None:
    bench = Bench()
    call = reading_any(bench)
    bench.know(2, isr=("r1", "r3"), replicas=("r1", "r2", "r3"))
    assert read_of(bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, stored(0)), 0.1)).to == "r3"


def test_R5_the_high_watermark_sent_to_a_client_never_goes_back_with_the_replica() -> None:
    bench = Bench()
    call = reading_any(bench)
    effects = bench.core.on_answer(call.token, ReadAnswer(1, 7, 0, stored(0)), 0.1)
    assert delivery_of(effects).high_watermark == 7
    effects = bench.core.on_answer(read_of(effects).token, ReadAnswer(1, 4, 0, stored(1)), 0.2)
    assert delivery_of(effects).high_watermark == 7


def test_E9_a_bounded_subscription_waits_no_longer_than_its_bound() -> None:
    call = reading_any(Bench(), consistency="bounded", max_staleness_ms=700)
    assert call.message == Read(
        "t", 0, 0, -1, 1, 1000, 700, consistency="bounded", max_staleness_ms=700, any_replica=True
    )


def test_an_ended_subscription_leaves_its_copy_to_others() -> None:
    bench = Bench()
    bench.know(2, isr=("r1", "r2", "r3"), replicas=("r1", "r2", "r3"))
    assert [reading_any(bench, sub, offset=sub).to for sub in (1, 2)] == ["r2", "r3"]
    bench.core.on_unsubscribe(CLIENT, 9, Unsubscribe(2))
    bench.core.on_unsubscribe(CLIENT, 9, Unsubscribe(1))
    assert [reading_any(bench, sub, offset=sub).to for sub in (3, 4)] == ["r2", "r3"]
    bench.core.on_link_closed(CLIENT)
    assert [reading_any(bench, sub, offset=sub).to for sub in (5, 6)] == ["r2", "r3"]


@pytest.mark.parametrize(
    "fields",
    [
        {"read_from": "nearest"},
        {"consistency": "strong"},
        {"consistency": "bounded"},
        {"max_staleness_ms": 5},
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    (answer,) = Bench().subscribe(10, **fields)
    assert isinstance(answer, Answer) and isinstance(answer.message, Exception)
    assert answer.message.code == "MALFORMED"  # type: ignore[attr-defined]


def test_the_age_of_records_is_measured_for_readers_that_waited_for_them() -> None:
    bench = Bench()
    ages = bench.core.counts.ages
    bench.wall_ms = 9_000_000
    call = read_of(bench.subscribe(1000))
    effects = bench.core.on_answer(call.token, ReadAnswer(1, 2, 0, stored(0, 2)), 0.1)
    assert ages.count == 0, "history, that it had not waited for"
    news = stored(2, timestamp_ms=8_999_600) + stored(3, timestamp_ms=8_999_900)
    effects = bench.core.on_answer(read_of(effects).token, ReadAnswer(1, 5, 0, news), 0.2)
    assert (ages.count, round(ages.sum, 3)) == (2, 0.5)
    effects = bench.core.on_answer(read_of(effects).token, ReadAnswer(1, 5, 0, stored(4)), 0.3)
    assert ages.count == 2, "more had come than it was given: it was behind"
    effects = bench.core.on_answer(read_of(effects).token, ReadAnswer(1, 5, 0), 5.3)
    early = stored(5, timestamp_ms=bench.wall_ms + 50)
    bench.core.on_answer(read_of(effects).token, ReadAnswer(1, 6, 0, early), 5.4)
    assert (ages.count, round(ages.sum, 3)) == (3, 0.5), "its producer's clock is ahead of ours"


def test_a_reader_without_credit_did_not_wait() -> None:
    bench = Bench()
    bench.wall_ms = 9_000_000
    first = stored(0)
    call = read_of(bench.subscribe(len(first)))
    bench.core.on_answer(call.token, ReadAnswer(1, 1, 0, first), 0.1)
    call = read_of(bench.core.on_credit(CLIENT, Credit(3, 1000), 8000.0))
    bench.core.on_answer(call.token, ReadAnswer(1, 2, 0, stored(1, timestamp_ms=1_000_000)), 8000.1)
    assert bench.core.counts.ages.count == 0
