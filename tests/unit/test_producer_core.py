"""The producer core, one rule of its theory per test."""

from __future__ import annotations

import random
from itertools import count

import pytest
from tidelog.client.core.batch import Batch, record_size
from tidelog.client.core.producer import ProducerCore
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError, refuse
from tidelog.records import NewRecord, check_batch, decode_batch, split
from tidelog.wire.messages import Produce, ProduceAck

OPTIONS = ProducerOptions(linger_s=0.005, delivery_timeout_s=30, max_in_flight=5)


class Bench:
    """A core with a link and a producer id, and what it has sent so far."""

    def __init__(self, options: ProducerOptions = OPTIONS, partitions: int = 1, up: bool = True) -> None:
        numbers = count(1)
        self.core = ProducerCore("t", partitions, options, lambda: next(numbers))
        self.now = 100.0
        self.sent: list[tuple[int, int, int, list[bytes | None]]] = []
        self.ids: list[int] = []
        if up:
            self.core.on_link_up()
            self.core.on_producer_id(7)

    def add(self, value: bytes, partition: int = 0) -> Batch:
        record = NewRecord(value, None, 1000)
        size = record_size(value, None, ())
        return self.core.append(partition, record, size) or self.core.open(partition, record, size, self.now)

    def batch(self, value: bytes, partition: int = 0) -> Batch:
        """A batch of its own."""
        result = self.add(value, partition)
        self.core.seal_all()
        return result

    def send(self) -> list[list[bytes | None]]:
        """Take everything that may go; the values of each batch."""
        before = len(self.sent)
        while (message := self.core.take(self.now)) is not None:
            self._read(message)
        return [values for _, _, _, values in self.sent[before:]]

    def _read(self, message: Produce) -> None:
        assert isinstance(message.payload, list)
        for part, data in zip(message.parts, message.payload, strict=True):
            header = check_batch(data)
            assert part.size == header.size
            values = [record.value for record in decode_batch(data)]
            self.sent.append((part.id, header.producer_id, header.base_sequence, values))

    def ack(self, index: int, offset: int = 0) -> list[Batch]:
        """Acknowledge the batch that was sent as number ``index``."""
        return self.core.on_produced([ProduceAck(self.sent[index][0], offset, 3, "all/os")], self.now)

    def refuse(self, index: int, error: TidelogError) -> list[Batch]:
        return self.core.on_produced([ProduceAck(self.sent[index][0], error=error.to_info())], self.now)

    def sequences(self, since: int = 0) -> list[tuple[int, int]]:
        return [(producer_id, sequence) for _, producer_id, sequence, _ in self.sent[since:]]


GAP = refuse("OUT_OF_ORDER_SEQUENCE", "gap")
LATER = refuse("NOT_ENOUGH_REPLICAS", "isr 1 of 2")
UNKNOWN = refuse("REQUEST_TIMED_OUT", "no answer", unknown_outcome=True)
NEVER = refuse("CORRUPT_BATCH", "bad")


def test_a_lone_record_leaves_at_once() -> None:
    bench = Bench()
    bench.add(b"a")
    assert bench.send() == [[b"a"]]


def test_records_linger_while_earlier_ones_are_in_flight() -> None:
    bench = Bench()
    bench.add(b"a")
    bench.send()
    bench.add(b"b")
    assert bench.send() == []
    bench.add(b"c")
    assert bench.core.deadline() == bench.now + 0.005
    bench.now += 0.005
    assert bench.send() == [[b"b", b"c"]]


def test_lingering_ends_with_the_last_ack() -> None:
    bench = Bench()
    bench.add(b"a")
    bench.send()
    bench.add(b"b")
    bench.ack(0)
    assert bench.send() == [[b"b"]]


def test_a_full_batch_does_not_linger() -> None:
    bench = Bench(ProducerOptions(batch_bytes=400))
    bench.add(b"first")
    bench.send()
    for _ in range(6):
        bench.add(b"x" * 100)
    assert [len(values) for values in bench.send()] == [2, 2]


def test_every_record_of_a_batch_shares_its_fate() -> None:
    bench = Bench()
    first, second = bench.add(b"a"), bench.add(b"b")
    assert first is second
    bench.send()
    assert bench.ack(0, offset=41) == [first]
    assert (first.settled, first.error, first.offset, first.leader_epoch, first.durability) == (
        True,
        None,
        41,
        3,
        "all/os",
    )
    assert bench.core.is_idle
    assert bench.core.buffered == 0


def test_at_most_max_in_flight_batches_of_a_partition_are_on_their_way() -> None:
    bench = Bench(partitions=2)
    for n in range(8):
        bench.batch(b"%d" % n)
    bench.batch(b"other", partition=1)
    assert bench.send() == [[b"0"], [b"1"], [b"2"], [b"3"], [b"4"], [b"other"]]
    bench.ack(0)
    assert bench.send() == [[b"5"]]


def test_sequences_count_records_per_partition() -> None:
    bench = Bench(partitions=2)
    bench.add(b"a")
    bench.add(b"b")
    bench.core.seal_all()
    bench.batch(b"c")
    bench.batch(b"d", partition=1)
    bench.send()
    assert bench.sequences() == [(7, 0), (7, 2), (7, 0)]


def test_nothing_is_sent_before_there_is_a_producer_id() -> None:
    bench = Bench(up=False)
    bench.core.on_link_up()
    bench.batch(b"a")
    assert bench.send() == []
    assert bench.core.wants_producer_id
    bench.core.on_producer_id(9)
    assert bench.send() == [[b"a"]]
    assert bench.sequences() == [(9, 0)]


def test_after_a_reconnection_the_unacknowledged_go_again_in_order_with_their_sequences() -> None:
    bench = Bench()
    for n in range(4):
        bench.batch(b"%d" % n)
    bench.send()
    bench.ack(0)
    assert bench.core.on_link_down(bench.now) == []
    bench.batch(b"4")
    assert bench.send() == []
    bench.core.on_link_up()
    assert bench.send() == [[b"1"], [b"2"], [b"3"], [b"4"]]
    assert bench.sequences(4) == [(7, 1), (7, 2), (7, 3), (7, 4)]


def test_an_ack_that_belongs_to_the_former_link_is_ignored() -> None:
    bench = Bench()
    bench.batch(b"a")
    bench.send()
    bench.core.on_link_down(bench.now)
    assert bench.ack(0) == []


def test_a_retriable_error_drains_the_lane_and_all_that_remains_goes_again_in_order() -> None:
    bench = Bench()
    for n in range(3):
        bench.batch(b"%d" % n)
    bench.send()
    assert bench.refuse(0, LATER) == []
    bench.batch(b"3")
    assert bench.send() == []
    bench.refuse(1, GAP)
    bench.refuse(2, GAP)
    assert bench.send() == []
    bench.now += OPTIONS.backoff_s
    assert bench.send() == [[b"0"], [b"1"], [b"2"], [b"3"]]
    assert bench.sequences(3) == [(7, 0), (7, 1), (7, 2), (7, 3)]


def test_a_batch_that_was_acked_while_draining_does_not_go_again() -> None:
    bench = Bench()
    batches = [bench.batch(b"%d" % n) for n in range(3)]
    bench.send()
    bench.refuse(0, UNKNOWN)
    assert bench.ack(1, 1) == [batches[1]]
    bench.refuse(2, UNKNOWN)
    bench.now += 1
    assert bench.send() == [[b"0"], [b"2"]]


def test_after_a_definitive_failure_the_lane_goes_on_under_a_new_id() -> None:
    bench = Bench()
    batches = [bench.batch(b"%d" % n) for n in range(3)]
    bench.send()
    assert bench.refuse(0, NEVER) == [batches[0]]
    assert str(batches[0].error) == "[CORRUPT_BATCH] bad"
    bench.refuse(1, GAP)
    bench.refuse(2, UNKNOWN)
    bench.now += 1
    assert bench.send() == []
    assert bench.core.wants_producer_id
    bench.core.on_producer_id(8)
    assert bench.send() == [[b"1"], [b"2"]]
    assert bench.sequences(3) == [(8, 0), (8, 1)]


def test_other_partitions_keep_their_id_when_one_is_spoiled() -> None:
    bench = Bench(partitions=2)
    bench.batch(b"a")
    bench.batch(b"b", partition=1)
    bench.send()
    bench.refuse(0, NEVER)
    bench.batch(b"c")
    bench.batch(b"d", partition=1)
    bench.core.take(bench.now)
    bench.core.on_producer_id(8)
    bench.core.on_link_down(bench.now)
    bench.core.on_link_up()
    bench.send()
    assert sorted(bench.sequences(2)) == [(7, 0), (7, 1), (8, 0)]


def test_an_unknown_outcome_behind_a_failure_is_tried_again_under_the_old_id() -> None:
    bench = Bench()
    bench.batch(b"0")
    bench.batch(b"1")
    bench.send()
    bench.refuse(0, NEVER)
    bench.refuse(1, UNKNOWN)
    bench.now += 1
    assert bench.send() == [[b"1"]]
    assert bench.sequences(2) == [(7, 1)]


def test_a_gap_at_the_head_means_a_new_id_since_it_can_never_close() -> None:
    bench = Bench()
    bench.batch(b"0")
    bench.send()
    bench.ack(0)
    bench.batch(b"1")
    bench.send()
    bench.refuse(1, GAP)
    bench.now += 1
    bench.send()
    bench.core.on_producer_id(8)
    assert bench.send() == [[b"1"]]
    assert bench.sequences(2) == [(8, 0)]


def test_the_delivery_timeout_fails_what_was_never_sent_with_known_outcome() -> None:
    bench = Bench(up=False)
    batch = bench.batch(b"a")
    assert bench.core.deadline() == bench.now + 30
    bench.now += 30
    assert bench.core.on_tick(bench.now) == [batch]
    assert batch.error is not None
    assert batch.error.code == "REQUEST_TIMED_OUT"
    assert not batch.error.unknown_outcome


def test_the_delivery_timeout_of_a_batch_in_flight_leaves_its_outcome_unknown() -> None:
    bench = Bench()
    batch = bench.batch(b"a")
    bench.send()
    bench.now += 30
    bench.core.on_tick(bench.now)
    assert batch.error is not None
    assert batch.error.unknown_outcome
    assert bench.ack(0) == []


def test_the_answer_is_named_when_the_delivery_timeout_ends_the_retries() -> None:
    bench = Bench()
    batch = bench.batch(b"a")
    bench.send()
    bench.refuse(0, LATER)
    bench.now += 30
    bench.core.on_tick(bench.now)
    assert batch.error is not None
    assert "NOT_ENOUGH_REPLICAS" in str(batch.error)
    assert not batch.error.unknown_outcome


def test_without_idempotence_a_lost_link_fails_the_batch_with_unknown_outcome() -> None:
    bench = Bench(ProducerOptions(acks="leader", idempotent=False))
    batch = bench.batch(b"a")
    bench.send()
    assert bench.sequences() == [(0, 0)]
    assert bench.core.on_link_down(bench.now) == [batch]
    assert batch.error is not None
    assert batch.error.unknown_outcome


def test_without_idempotence_no_error_is_tried_again() -> None:
    bench = Bench(ProducerOptions(acks="none"))
    batch = bench.batch(b"a")
    bench.send()
    assert bench.refuse(0, LATER) == [batch]


def test_a_duplicate_too_old_to_know_its_offset_counts_as_acked() -> None:
    bench = Bench()
    batch = bench.batch(b"a")
    bench.send()
    assert bench.refuse(0, refuse("DUPLICATE_SEQUENCE", "old")) == [batch]
    assert batch.error is None
    assert batch.offset == -1


def test_a_record_that_no_batch_can_hold_is_refused_at_once() -> None:
    with pytest.raises(TidelogError, match="BATCH_TOO_LARGE"):
        Bench().add(b"x" * (1 << 20))


def test_a_record_larger_than_batch_bytes_gets_a_batch_of_its_own() -> None:
    bench = Bench()
    bench.add(b"a")
    bench.add(b"x" * (500 << 10))
    bench.add(b"b")
    bench.core.seal_all()
    assert [len(values) for values in bench.send()] == [1, 1, 1]


@pytest.mark.parametrize("seed", range(40))
def test_under_random_faults_order_holds_and_nothing_is_lost_or_doubled(seed: int) -> None:
    """A leader that keeps the sequence rule behind a link that breaks and answers that fail or get lost."""
    rng = random.Random(seed)
    bench = Bench(ProducerOptions(linger_s=0.005, delivery_timeout_s=8, max_in_flight=rng.choice((1, 2, 5))))
    log: list[bytes | None] = []
    ends: dict[int, int] = {}
    batches: dict[bytes, Batch] = {}
    fresh = count(8)
    todo = [b"%d" % n for n in range(150)]
    healthy = False
    break_rate = rng.choice((0.03, 0.002))  # the rarer, the more delivery timeouts
    for step in range(20_000):
        healthy = step > 2000
        bench.now += rng.random() * 0.05
        if todo and rng.random() < 0.5:
            value = todo.pop(0)
            batches[value] = bench.add(value)
        bench.core.on_tick(bench.now)
        before = len(bench.sent)
        bench.send()
        if bench.core.wants_producer_id and rng.random() < 0.7:
            bench.core.on_producer_id(next(fresh))
        for index in range(before, len(bench.sent)):
            number, producer_id, sequence, values = bench.sent[index]
            fate = 1.0 if healthy else rng.random()
            if fate < 0.05:
                error: TidelogError | None = LATER
            elif fate < 0.07:
                error = NEVER
            elif sequence > ends.get(producer_id, 0):
                error = GAP
            else:
                if sequence == ends.get(producer_id, 0):
                    log += values
                    ends[producer_id] = sequence + len(values)
                error = UNKNOWN if fate < 0.2 else None
            if fate < 0.25 and not error:
                continue  # the ack is lost until the link breaks
            info = error.to_info() if error else None
            bench.core.on_produced([ProduceAck(number, 0, 1, "all/os", error=info)], bench.now)
        if not healthy and rng.random() < break_rate:
            bench.core.on_link_down(bench.now)
            bench.core.on_link_up()
        deadline = bench.core.deadline()
        bench.core.on_tick(bench.now)
        if bench.send() == [] and deadline is not None:
            assert (bench.core.deadline() or bench.now + 1) > bench.now
        if not todo and bench.core.is_idle:
            break
    assert bench.core.is_idle
    assert bench.core.buffered == 0
    assert len(set(log)) == len(log)
    written = [value for value in log if value is not None]
    assert written == sorted(written, key=int)
    for value, batch in batches.items():
        assert batch.settled
        if batch.error is None:
            assert value in log
        elif not batch.error.unknown_outcome:
            assert value not in log


def test_the_bench_reads_what_is_sent() -> None:
    bench = Bench()
    bench.add(b"a")
    message = bench.core.take(bench.now)
    assert message is not None
    assert isinstance(message.payload, list)
    assert [header.record_count for header, _ in split(b"".join(message.payload))] == [1]
