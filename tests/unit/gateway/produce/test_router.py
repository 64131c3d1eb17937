"""The gateway's router: order, merging, retries, outcomes, bounds."""

from __future__ import annotations

from unittest.mock import Mock

import cbor2
import pytest
import zstandard
from tidelog.backup.batches import empty_batches
from tidelog.batch.format import NewRecord, encode_batch, read_header, seal_batch
from tidelog.errors import refuse
from tidelog.feature_levels import VALIDATION
from tidelog.sansio.effects import Post, Send
from tidelog.tickets import sign
from tidelog.types import (
    ClusterImage,
    PartitionState,
    ServerState,
    TicketKey,
    TopicConfig,
    TopicPartition,
    TopicState,
)
from tidelog.wire.messages import Produce, ProduceAck, Produced, ProducePart, ProducerTicket, UseProducer
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.produce.router import Router
from tidelog_gateway.settings import RouterSettings

CLIENT, OTHER = 1, 2
DEFAULTS = TopicConfig()
KEYS = (TicketKey(1, "5c" * 32),)


def image(
    index: int,
    *leaders: str | None,
    leader_epoch: int = 1,
    config: TopicConfig = DEFAULTS,
    level: int = VALIDATION,
) -> ClusterImage:
    nodes = ("r1", "r2", "r3")
    partitions = tuple(PartitionState(nodes, nodes, leader, leader_epoch, leader_epoch) for leader in leaders)
    servers = tuple(ServerState(node, f"ws://{node}", 1, False) for node in nodes)
    return ClusterImage(
        index, "c", servers, (TopicState("t", "orders", config, partitions),), level=level, ticket_keys=KEYS
    )


def batch(sequence: int = 0, *, producer_id: int = 7, size: int = 10) -> bytes:
    records = [NewRecord(b"x" * size, timestamp_ms=1)]
    return encode_batch(records, producer_id=producer_id, base_sequence=sequence)


def produce(*batches: bytes, first_id: int = 1, partition: int = 0, timeout_ms: int = 10_000) -> Produce:
    parts = tuple(
        ProducePart(first_id + i, "t", partition, 2, timeout_ms, len(data)) for i, data in enumerate(batches)
    )
    return Produce(parts, b"".join(batches))


class Bench:
    """A router with three servers up, and what it did."""

    def __init__(
        self,
        *leaders: str | None,
        settings: RouterSettings | None = None,
        config: TopicConfig = DEFAULTS,
        level: int = VALIDATION,
    ) -> None:
        self.config = config
        self.level = level
        self.cluster = ClusterView()
        self.router = Router(self.cluster, settings or RouterSettings())
        self.now = 100.0
        for node in ("r1", "r2", "r3"):
            self.router.on_peer_up(node)
        self.lead(1, *(leaders or ("r1",)))
        for source in (CLIENT, OTHER):
            self.use(source, 7)

    def use(self, source: int, producer_id: int) -> None:
        """Let that client write under the producer id."""
        ticket = sign(KEYS, producer_id, 1, 0, "somebody")
        answer = self.router.tickets.use(source, "somebody", UseProducer(producer_id, 0, ticket))
        assert isinstance(answer, ProducerTicket)

    def lead(self, index: int, *leaders: str | None) -> None:
        changed = self.cluster.update(
            image(index, *leaders, leader_epoch=index, config=self.config, level=self.level)
        )
        self.router.on_metadata(changed, self.now)

    def flush(self) -> tuple[list[Send], dict[int, list[ProduceAck]]]:
        sends: list[Send] = []
        acks: dict[int, list[ProduceAck]] = {}
        for effect in self.router.flush(self.now):
            if isinstance(effect, Send):
                sends.append(effect)
            elif isinstance(effect, Post):
                assert isinstance(effect.message, Produced)
                acks.setdefault(effect.source, []).extend(effect.message.acks)
        assert not self.router.pending()
        return sends, acks

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.router.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.router.on_tick(self.now)
            after = self.router.deadline()
            assert after is None or after > self.now
            if self.router.pending():
                return
        self.now = end

    def refuse(self, node: str, part: ProducePart, code: str, *, unknown: bool = False, **detail: int) -> None:
        error = refuse(code, "no", unknown_outcome=unknown, **detail).to_info()
        self.router.on_produced(node, Produced((ProduceAck(part.id, error=error),)), self.now)


def sent_batches(send: Send) -> list[bytes]:
    assert isinstance(send.message, Produce) and isinstance(send.message.payload, list)
    return [bytes(buffer) for buffer in send.message.payload]


def parts(send: Send) -> tuple[ProducePart, ...]:
    assert isinstance(send.message, Produce)
    return send.message.parts


def test_batches_of_several_clients_travel_in_one_message_per_leader() -> None:
    bench = Bench("r1", "r2")
    bench.use(OTHER, 8)
    bench.use(OTHER, 9)
    one, two, three = batch(0), batch(0, producer_id=8), batch(0, producer_id=9)
    bench.router.on_produce(CLIENT, produce(one), bench.now)
    bench.router.on_produce(OTHER, produce(two), bench.now)
    bench.router.on_produce(OTHER, produce(three, first_id=2, partition=1), bench.now)
    sends, acks = bench.flush()
    assert [send.to for send in sends] == ["r1", "r2"]
    assert sent_batches(sends[0]) == [one, two]
    assert [part.leader_epoch for part in parts(sends[0])] == [1, 1]
    assert acks == {}
    ids = [part.id for part in parts(sends[0])]
    bench.router.on_produced("r1", Produced(tuple(ProduceAck(i, i, 1, "all/os") for i in ids)), bench.now)
    _, acks = bench.flush()
    assert acks == {
        CLIENT: [ProduceAck(1, ids[0], 1, "all/os")],
        OTHER: [ProduceAck(1, ids[1], 1, "all/os")],
    }
    assert bench.router.held_bytes == len(three)


def test_messages_are_closed_at_the_merge_limit() -> None:
    data = [batch(i, size=400) for i in range(5)]
    bench = Bench(settings=RouterSettings(merge_max_bytes=2 * len(data[0])))
    bench.router.on_produce(CLIENT, produce(*data), bench.now)
    sends, _ = bench.flush()
    assert [len(parts(send)) for send in sends] == [2, 2, 1]
    assert [b for send in sends for b in sent_batches(send)] == data


def test_garbage_is_refused_at_once() -> None:
    bench = Bench()
    good = batch()
    bad = produce(b"nonsense", bytes(80), good + b"x")
    bench.router.on_produce(CLIENT, bad, bench.now)
    unknown = Produce((ProducePart(9, "t", 5, 2, 1000, len(good)),), good)
    bench.router.on_produce(CLIENT, unknown, bench.now)
    short = Produce((ProducePart(10, "t", 0, 2, 1000, len(good) + 1),), good)
    bench.router.on_produce(CLIENT, short, bench.now)
    sends, acks = bench.flush()
    assert sends == []
    codes = [(ack.id, ack.error.code) for ack in acks[CLIENT] if ack.error]
    assert codes == [
        (1, "CORRUPT_BATCH"),
        (2, "CORRUPT_BATCH"),
        (3, "CORRUPT_BATCH"),
        (9, "UNKNOWN_TOPIC"),
        (10, "CORRUPT_BATCH"),
    ]


def unreadable_batches() -> dict[str, bytes]:
    """Batches with a right header and CRC that no reader can decode."""
    good = read_header(batch())
    values = cbor2.dumps({"v": [b"x"]})
    bomb = zstandard.compress(bytes(1 << 20))
    made = {
        "garbage": (b"\xff" * 16, {}),
        "two records instead of one": (cbor2.dumps({"v": [b"x", b"y"]}), {}),
        "a record count that lies": (values, {"record_count": 3}),
        "texts as values": (cbor2.dumps({"v": ["x"]}), {}),
        "an indefinite array": (b"\xa1\x61v\x9f\x40\xff", {}),
        "a byte behind the map": (values + b"\x00", {}),
        "another timestamp": (values, {"max_timestamp": 2}),
        "a zstd frame that unfolds to more": (bomb, {"attributes": 1, "body_length": 1000}),
        "no lz4 frame": (values, {"attributes": 2}),
        "an unknown codec": (values, {"attributes": 5}),
        "a count that no body can hold": (values, {"record_count": 1 << 18}),
    }
    return {
        name: seal_batch(good._replace(**{"body_length": len(body), **fields}), body)
        for name, (body, fields) in made.items()
    }


@pytest.mark.parametrize("name", unreadable_batches())
def test_a_batch_that_no_reader_can_decode_is_refused_before_it_is_sent(name: str) -> None:
    bad = unreadable_batches()[name]
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(bad, batch()), bench.now)
    sends, acks = bench.flush()
    assert [sent_batches(send) for send in sends] == [[batch()]]
    [refused] = acks[CLIENT]
    assert refused.id == 1 and refused.error is not None
    assert refused.error.code == "CORRUPT_BATCH" and not refused.error.unknown_outcome
    assert bench.router.held_bytes == len(batch())


def test_a_topic_may_trust_its_producers() -> None:
    bench = Bench(config=TopicConfig(validate_batches=False))
    bad = unreadable_batches()["garbage"]
    bench.router.on_produce(CLIENT, produce(bad), bench.now)
    sends, acks = bench.flush()
    assert [sent_batches(send) for send in sends] == [[bad]] and acks == {}


def test_a_zstd_batch_need_not_declare_its_size_once_readers_know_such() -> None:
    body = cbor2.dumps({"v": [b"x" * 100]})
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(body)
    unsized = seal_batch(read_header(batch())._replace(attributes=1, body_length=len(body)), frame)
    for level, is_sent in ((VALIDATION - 1, False), (VALIDATION, True)):
        bench = Bench(level=level)
        bench.router.on_produce(CLIENT, produce(unsized, batch()), bench.now)
        sends, acks = bench.flush()
        assert [sent_batches(send) for send in sends] == [[unsized, batch()] if is_sent else [batch()]]
        assert [ack.error.code for ack in acks.get(CLIENT, []) if ack.error] == ([] if is_sent else ["CORRUPT_BATCH"])


def test_batches_with_gaps_are_passed_on_only_with_the_offset_where_they_belong() -> None:
    bench = Bench()
    [gap] = empty_batches(0, 5)
    bench.router.on_produce(CLIENT, produce(gap), bench.now)
    placed = ProducePart(2, "t", 0, 2, 10_000, len(gap), expected_offset=0)
    bench.router.on_produce(CLIENT, Produce((placed,), gap), bench.now)
    sends, acks = bench.flush()
    assert [(ack.id, ack.error.code) for ack in acks[CLIENT] if ack.error] == [(1, "CORRUPT_BATCH")]
    assert [(part.expected_offset, part.size) for send in sends for part in parts(send)] == [(0, len(gap))]


def test_a_refused_batch_and_those_that_overtook_it_are_sent_again_in_order() -> None:
    bench = Bench()
    data = [batch(i) for i in range(4)]
    bench.router.on_produce(CLIENT, produce(*data[:3]), bench.now)
    sends, _ = bench.flush()
    first, second, third = parts(sends[0])
    bench.refuse("r1", first, "OFFLINE")
    bench.router.on_produce(CLIENT, produce(data[3], first_id=4), bench.now)
    bench.refuse("r1", second, "OUT_OF_ORDER_SEQUENCE")
    bench.refuse("r1", third, "OUT_OF_ORDER_SEQUENCE")
    assert bench.flush() == ([], {})
    bench.advance(0.02)
    sends, acks = bench.flush()
    assert sent_batches(sends[0]) == data
    assert acks == {}


def test_a_sequence_gap_that_no_retry_can_close_is_reported_at_once() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0), batch(1), batch(2)), bench.now)
    (send,), _ = bench.flush()
    first, second, third = parts(send)
    bench.refuse("r1", first, "NOT_ENOUGH_REPLICAS")
    bench.refuse("r1", second, "OUT_OF_ORDER_SEQUENCE")
    bench.refuse("r1", third, "OUT_OF_ORDER_SEQUENCE")
    sends, acks = bench.flush()
    assert sends == []
    assert [ack.error.code for ack in acks[CLIENT] if ack.error] == [
        "NOT_ENOUGH_REPLICAS",
        "OUT_OF_ORDER_SEQUENCE",
        "OUT_OF_ORDER_SEQUENCE",
    ]
    assert bench.router.held_bytes == 0


def test_a_gap_settles_the_doubt_about_tries_of_earlier_leader_epochs_only() -> None:
    for newer in (True, False):
        bench = Bench()
        bench.router.on_produce(CLIENT, produce(batch(3)), bench.now)
        bench.flush()
        bench.router.on_peer_down("r1", bench.now)
        bench.router.on_peer_up("r1")
        if newer:
            bench.lead(2, "r1")
        (send,), _ = bench.flush()
        (part,) = parts(send)
        bench.refuse("r1", part, "OUT_OF_ORDER_SEQUENCE", unknown=True)  # the leader does not know yet: again
        bench.advance(0.05)
        (send,), acks = bench.flush()
        assert acks == {}
        bench.refuse("r1", parts(send)[0], "OUT_OF_ORDER_SEQUENCE")
        _, acks = bench.flush()
        (ack,) = acks[CLIENT]
        assert ack.error is not None
        assert (ack.error.code, ack.error.unknown_outcome) == ("OUT_OF_ORDER_SEQUENCE", not newer)


def test_a_gap_where_records_may_be_lost_leaves_the_doubt_and_still_lets_the_client_number_anew() -> None:
    for newer, tried, unknown, detail in (
        (True, True, True, {"lossy": "1"}),
        (True, False, False, {"lossy": "1"}),
        (False, True, True, {}),  # the lost try may be on its way to this leader
    ):
        bench = Bench()
        bench.router.on_produce(CLIENT, produce(batch(3)), bench.now)
        if tried:
            bench.flush()
        bench.router.on_peer_down("r1", bench.now)
        bench.router.on_peer_up("r1")
        if newer:
            bench.lead(2, "r1")
        (send,), _ = bench.flush()
        bench.refuse("r1", parts(send)[0], "OUT_OF_ORDER_SEQUENCE", lossy=1)
        _, acks = bench.flush()
        (ack,) = acks[CLIENT]
        assert ack.error is not None
        assert (ack.error.code, ack.error.unknown_outcome) == ("OUT_OF_ORDER_SEQUENCE", unknown)
        assert ack.error.detail == detail


def test_failover_with_an_idempotent_producer_is_only_latency() -> None:
    bench = Bench()
    data = [batch(0), batch(1)]
    bench.router.on_produce(CLIENT, produce(*data), bench.now)
    (old,), _ = bench.flush()
    bench.router.on_peer_down("r1", bench.now)
    assert bench.flush() == ([], {})
    bench.lead(2, None)
    assert bench.flush() == ([], {})
    bench.lead(3, "r2")
    (send,), acks = bench.flush()
    assert (send.to, sent_batches(send)) == ("r2", data)
    assert [part.leader_epoch for part in parts(send)] == [3, 3]
    assert acks == {}
    late = Produced(tuple(ProduceAck(part.id, 5, 1) for part in parts(old)))
    bench.router.on_produced("r1", late, bench.now)
    assert bench.flush() == ([], {})


def test_a_copy_is_said_to_be_one_unless_an_earlier_try_of_the_gateway_may_be_its_original() -> None:
    for lost in (False, True):
        bench = Bench()
        for source in (CLIENT, OTHER):  # the same bytes, as of two requests with one Idempotency-Key
            bench.router.on_produce(source, produce(batch(0)), bench.now)
        (send,), _ = bench.flush()
        for part in parts(send):
            bench.refuse("r1", part, "OFFLINE", unknown=lost)  # without doubt as of a partition that is being opened
        bench.advance(0.05)
        (send,), _ = bench.flush()
        first, second = parts(send)
        acks = ProduceAck(first.id, 5, 1), ProduceAck(second.id, 5, 1, duplicate=True)
        bench.router.on_produced("r1", Produced(acks), bench.now)
        _, found = bench.flush()
        assert [found[source][0].duplicate for source in (CLIENT, OTHER)] == [False, not lost]


def test_a_paused_leader_that_was_replaced_is_not_waited_for() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0)), bench.now)
    bench.router.on_produce(OTHER, produce(batch(0, producer_id=0)), bench.now)
    bench.flush()
    bench.lead(2, "r2")
    (send,), _ = bench.flush()
    assert send.to == "r2" and len(parts(send)) == 1
    bench.advance(2)
    _, acks = bench.flush()
    (ack,) = acks[OTHER]
    assert ack.error is not None and ack.error.code == "REQUEST_TIMED_OUT" and ack.error.unknown_outcome


def test_a_plain_batch_whose_fate_is_unknown_is_not_sent_twice() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0, producer_id=0)), bench.now)
    bench.flush()
    bench.router.on_peer_down("r1", bench.now)
    bench.router.on_peer_up("r1")
    sends, acks = bench.flush()
    assert sends == []
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "UNREACHABLE" and ack.error.unknown_outcome


def test_a_plain_batch_that_was_refused_is_sent_again() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0, producer_id=0)), bench.now)
    (send,), _ = bench.flush()
    bench.refuse("r1", parts(send)[0], "NOT_LEADER")
    bench.lead(2, "r3")
    (send,), acks = bench.flush()
    assert send.to == "r3" and acks == {}


def test_other_refusals_reach_the_client_unchanged() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0)), bench.now)
    (send,), _ = bench.flush()
    bench.refuse("r1", parts(send)[0], "NOT_ENOUGH_REPLICAS")
    _, acks = bench.flush()
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "NOT_ENOUGH_REPLICAS" and not ack.error.unknown_outcome
    assert bench.router.deadline() is None and bench.router.held_bytes == 0


@pytest.mark.parametrize(("timeout_ms", "waits_s"), [(-1, 3.0), (0, 0.0), (500, 0.5), (10**9, 120.0)])
def test_a_batch_waits_as_long_as_its_client_says_or_as_the_gateway_is_set(timeout_ms: int, waits_s: float) -> None:
    bench = Bench(None, settings=RouterSettings(ack_timeout_s=3.0))
    began = bench.now
    bench.router.on_produce(CLIENT, produce(batch(0), timeout_ms=timeout_ms), bench.now)
    bench.advance(200.0)
    ((ack,),) = bench.flush()[1].values()
    assert ack.error is not None and ack.error.code == "REQUEST_TIMED_OUT"
    assert bench.now - began == pytest.approx(waits_s, abs=0.1)


def test_the_timeout_says_whether_the_batch_may_have_been_written() -> None:
    bench = Bench(None)
    bench.router.on_produce(CLIENT, produce(batch(0), timeout_ms=500), bench.now)
    assert bench.flush() == ([], {})
    bench.advance(1)
    _, acks = bench.flush()
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "REQUEST_TIMED_OUT" and not ack.error.unknown_outcome
    bench.lead(2, "r1")
    bench.router.on_produce(CLIENT, produce(batch(0), timeout_ms=500), bench.now)
    bench.flush()
    bench.router.on_peer_down("r1", bench.now)
    bench.flush()
    bench.advance(1)
    _, acks = bench.flush()
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "REQUEST_TIMED_OUT" and ack.error.unknown_outcome
    assert bench.router.held_bytes == 0


def test_a_batch_that_was_in_flight_at_a_replaced_leader_may_have_been_written() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0), timeout_ms=500), bench.now)
    bench.flush()
    bench.lead(2, None)
    assert bench.flush() == ([], {}), "it waits for the next leader"
    bench.advance(1)
    _, acks = bench.flush()
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "REQUEST_TIMED_OUT" and ack.error.unknown_outcome


def test_a_leader_behind_the_metadata_is_asked_again() -> None:
    bench = Bench()
    bench.router.on_produce(CLIENT, produce(batch(0)), bench.now)
    (send,), _ = bench.flush()
    bench.refuse("r1", parts(send)[0], "UNKNOWN_TOPIC")
    bench.advance(0.1)
    (send,), acks = bench.flush()
    assert send.to == "r1" and acks == {}


def test_the_window_of_a_server_holds_back_the_rest() -> None:
    data = [batch(i, size=400) for i in range(3)]
    for settings in (RouterSettings(server_max_bytes=len(data[0])), RouterSettings(server_max_batches=1)):
        bench = Bench(settings=settings)
        bench.router.on_produce(CLIENT, produce(*data), bench.now)
        for expected in data:
            (send,), _ = bench.flush()
            assert sent_batches(send) == [expected]
            bench.router.on_produced("r1", Produced((ProduceAck(parts(send)[0].id, 0, 1, "all/os"),)), bench.now)
        assert bench.flush()[0] == []


def test_an_ack_looks_only_at_the_partitions_that_it_makes_space_for() -> None:
    bench = Bench(*["r1"] * 1000, settings=RouterSettings(server_max_bytes=1))
    for partition in range(1000):
        bench.router.on_produce(CLIENT, produce(batch(), partition=partition), bench.now)
    (send,), _ = bench.flush()
    bench.cluster.state = looks = Mock(wraps=bench.cluster.state)  # type: ignore[method-assign]
    for turn in range(3):
        bench.router.on_produced("r1", Produced((ProduceAck(parts(send)[0].id, 0, 1, "all/os"),)), bench.now)
        (send,), _ = bench.flush()
        assert parts(send)[0].partition == turn + 1
    assert [look.args[1] for look in looks.call_args_list] == [1, 2, 2, 3, 3, 4]


def test_small_batches_do_not_overtake_a_large_one_that_waits_for_room() -> None:
    small, large = batch(size=100), batch(size=400)
    bench = Bench("r1", "r1", "r1", settings=RouterSettings(server_max_bytes=len(large)))
    bench.router.on_produce(CLIENT, produce(small), bench.now)
    (send,), _ = bench.flush()
    bench.router.on_produce(CLIENT, produce(large, partition=1), bench.now)
    bench.router.on_produce(CLIENT, produce(small, partition=2), bench.now)
    assert bench.flush()[0] == []
    for expected in (large, small):
        bench.router.on_produced("r1", Produced((ProduceAck(parts(send)[0].id, 0, 1, "all/os"),)), bench.now)
        (send,), _ = bench.flush()
        assert sent_batches(send) == [expected]


def test_a_client_that_sends_too_much_is_refused() -> None:
    data = [batch(i, size=400) for i in range(3)]
    bench = Bench(None, settings=RouterSettings(client_max_bytes=2 * len(data[0])))
    bench.router.on_produce(CLIENT, produce(*data), bench.now)
    bench.router.on_produce(OTHER, produce(data[0]), bench.now)
    _, acks = bench.flush()
    (ack,) = acks.pop(CLIENT)
    assert ack.id == 3 and ack.error is not None and ack.error.code == "OVERLOADED"
    assert acks == {}


def test_the_limit_that_a_client_has_exceeded_is_named() -> None:
    data = [batch(i, size=400) for i in range(3)]
    for limit, settings in (
        ("produce_bytes", RouterSettings(client_max_bytes=2 * len(data[0]))),
        ("produce_batches", RouterSettings(client_max_batches=2)),
    ):
        bench = Bench(None, settings=settings)
        bench.router.on_produce(CLIENT, produce(*data), bench.now)
        _, acks = bench.flush()
        error = acks[CLIENT][0].error
        assert error is not None and (error.code, error.detail["limit"]) == ("OVERLOADED", limit)
        assert int(error.detail["most"]) in (2, 2 * len(data[0]))
        bench.router.on_link_closed(CLIENT)
        bench.router.on_produce(CLIENT, produce(batch(producer_id=0), batch(producer_id=0)), bench.now)
        assert bench.flush()[1] == {}, "nothing of the closed connection counts any more"


def test_a_batch_beyond_the_bytes_of_a_client_is_taken_if_it_is_the_only_one() -> None:
    data = [batch(i, size=400) for i in range(2)]
    bench = Bench(None, settings=RouterSettings(client_max_bytes=100))
    bench.router.on_produce(CLIENT, produce(*data), bench.now)
    (ack,) = bench.flush()[1][CLIENT]
    assert ack.id == 2 and ack.error is not None and ack.error.code == "OVERLOADED"


def test_a_principal_leaves_room_for_the_bytes_of_others_over_all_its_connections() -> None:
    """Also when a connection has ended, until what it had in flight is settled."""
    data = batch(producer_id=0)
    bench = Bench("r1", settings=RouterSettings(total_max_bytes=16 * len(data)))
    for source, principal in enumerate(("mallory", "mallory", "mallory", "bob"), 1):
        bench.router.on_link_opened(source, principal, named=True)

    def taken(source: int) -> list[Send]:
        """As many batches as are taken, one after the other."""
        sends: list[Send] = []
        while True:
            bench.router.on_produce(source, produce(data), bench.now)
            sent, acks = bench.flush()
            if acks:
                assert [ack.error.code for ack in acks[source] if ack.error is not None] == ["OVERLOADED"]
                return sends
            sends += sent

    first = taken(1)
    assert len(first) == 6 and not taken(2), "three eighths"
    assert len(taken(4)) == 3, "half of what is left for all"
    bench.router.on_link_closed(1)
    bench.router.on_link_opened(1, "mallory", named=True)
    assert not taken(1)
    for send in first:
        bench.router.on_produced("r1", Produced((ProduceAck(parts(send)[0].id, 0, 1, "all/os"),)), bench.now)
    bench.flush()
    assert len(taken(3)) == 5


def test_nothing_is_kept_of_a_client_that_left() -> None:
    bench = Bench("r1", None)
    bench.router.on_produce(CLIENT, produce(batch(0)), bench.now)
    bench.router.on_produce(CLIENT, produce(batch(0), partition=1), bench.now)
    (send,), _ = bench.flush()
    bench.router.on_link_closed(CLIENT)
    bench.refuse("r1", parts(send)[0], "NOT_LEADER")
    assert bench.flush() == ([], {})
    assert bench.router.held_bytes == 0 and bench.router.deadline() is None


def test_a_deleted_topic_ends_what_waits_for_it() -> None:
    bench = Bench(None)
    bench.router.on_produce(CLIENT, produce(batch(0)), bench.now)
    bench.flush()
    changed = bench.cluster.update(ClusterImage(2, "c"))
    assert changed == [TopicPartition("t", 0)]
    bench.router.on_metadata(changed, bench.now)
    _, acks = bench.flush()
    (ack,) = acks[CLIENT]
    assert ack.error is not None and ack.error.code == "UNKNOWN_TOPIC"


def test_no_batch_is_forwarded_under_an_id_and_epoch_that_its_client_does_not_hold() -> None:
    """Neither first nor after a batch that is taken; of a message only those are refused."""
    bench = Bench()
    raised = encode_batch([NewRecord(b"x", timestamp_ms=1)], producer_id=7, producer_epoch=1)
    wrong = [batch(producer_id=8), raised, batch(producer_id=2**40)]
    for taken in ([], [batch(0), batch(0, producer_id=0)]):
        bench.router.on_produce(CLIENT, produce(*taken, *wrong), bench.now)
        sends, acks = bench.flush()
        assert [sent_batches(send) for send in sends] == ([taken] if taken else [])
        errors = [ack.error for ack in acks[CLIENT] if ack.error is not None]
        assert [error.code for error in errors] == ["INVALID_TICKET"] * 3
        assert not any(error.unknown_outcome for error in errors)


def test_a_client_that_left_holds_nothing() -> None:
    bench = Bench()
    bench.router.on_link_closed(CLIENT)
    bench.router.on_produce(CLIENT, produce(batch()), bench.now)
    sends, acks = bench.flush()
    assert not sends and [ack.error.code for ack in acks[CLIENT] if ack.error] == ["INVALID_TICKET"]
