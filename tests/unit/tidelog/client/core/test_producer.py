"""The producer core, one rule of its theory per test."""

from __future__ import annotations

import pytest
from support.producers import GAP, LATER, LOSSY_GAP, LOSSY_GAP_IN_DOUBT, NEVER, OPTIONS, UNKNOWN, Bench
from tidelog.batch.format import MAX_RECORDS, NewRecord, split
from tidelog.client.core.batch import TransactionIdentity
from tidelog.client.core.producer import ProducerCore
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError, from_info, refuse
from tidelog.types import PRODUCER_WINDOW
from tidelog.wire.messages import ErrorInfo, ProduceAck

NO_TICKET = refuse("INVALID_TICKET", "not presented")


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


def test_a_conditional_append_is_a_batch_of_its_own_and_keeps_its_place_and_its_condition() -> None:
    bench = Bench(ProducerOptions(max_in_flight=9))
    bench.add(b"before")
    bench.add(b"conditional", expected_offset=41)
    bench.add(b"after")
    bench.core.close_open_batches()
    assert bench.send() == [[b"before"], [b"conditional"], [b"after"]]
    assert bench.conditions == [-1, 41, -1]
    for index in range(3):
        bench.refuse(index, LATER)
    bench.now += 1
    assert bench.send() == [[b"before"], [b"conditional"], [b"after"]]
    assert bench.conditions[3:] == [-1, 41, -1]


def test_a_condition_that_does_not_hold_fails_its_record_and_no_other() -> None:
    bench = Bench(ProducerOptions(max_in_flight=9))
    refused = bench.add(b"conditional", expected_offset=41)
    after = bench.batch(b"after")
    bench.send()
    assert bench.refuse(0, refuse("UNEXPECTED_OFFSET", "the log ends at 42", end_offset=42)) == [refused]
    assert refused.error is not None
    assert (refused.error.code, refused.error.detail) == ("UNEXPECTED_OFFSET", {"end_offset": 42})
    assert not refused.error.unknown_outcome
    bench.refuse(1, GAP)
    bench.core.on_producer_id(8)
    bench.now += 1
    assert bench.send() == [[b"after"]]
    assert bench.sequences(2) == [(8, 0)]
    assert bench.ack(2) == [after]


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


@pytest.mark.parametrize(("announced", "kept"), [(0, PRODUCER_WINDOW), (3, 3), (7, 7), (99, 9)])
def test_an_idempotent_producer_keeps_to_the_window_that_was_announced(announced: int, kept: int) -> None:
    bench = Bench(ProducerOptions(max_in_flight=9))
    bench.core.on_producer_id(8, announced)
    for number in range(12):
        bench.batch(b"%d" % number)
    assert len(bench.send()) == kept
    bench.ack(0)
    assert len(bench.send()) == 1


def test_nothing_new_is_sent_behind_a_batch_that_is_repeated() -> None:
    """Others may be settled between them: the leader would remember the new ones instead of the repeated one."""
    bench = Bench()
    for number in range(12):
        bench.batch(b"%d" % number)
    assert len(bench.send()) == PRODUCER_WINDOW
    bench.refuse(0, UNKNOWN)
    for index in range(1, PRODUCER_WINDOW):
        bench.ack(index)
    bench.now += 1
    assert bench.send() == [[b"0"]]
    bench.ack(PRODUCER_WINDOW)
    assert bench.send() == [[b"%d" % number] for number in range(5, 10)]


def test_a_producer_without_an_id_has_no_window() -> None:
    bench = Bench(ProducerOptions(max_in_flight=9, idempotent=False))
    for number in range(12):
        bench.batch(b"%d" % number)
    assert len(bench.send()) == 9


def test_sequences_count_records_per_partition() -> None:
    bench = Bench(partitions=2)
    bench.add(b"a")
    bench.add(b"b")
    bench.core.close_open_batches()
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


def test_a_retriable_error_drains_the_queue_and_all_that_remains_is_sent_again_in_order() -> None:
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
    bench.core.take_message(bench.now)
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


@pytest.mark.parametrize(
    ("answers", "in_doubt"),
    [
        ((UNKNOWN, GAP), False),
        ((UNKNOWN, LOSSY_GAP), True),
        ((LATER, LOSSY_GAP_IN_DOUBT), True),
        ((LATER, LOSSY_GAP), False),
    ],
)
def test_behind_a_gap_where_records_may_be_lost_a_batch_in_doubt_goes_anew_and_stays_in_doubt(
    answers: tuple[TidelogError, ...], in_doubt: bool
) -> None:
    bench = Bench()
    batch = bench.batch(b"a")
    for number, answer in enumerate(answers):
        bench.send()
        bench.refuse(number, answer)
        bench.now += 1
    bench.send()
    bench.core.on_producer_id(8)
    assert bench.send() == [[b"a"]]
    assert bench.sequences() == [(7, 0), (7, 0), (8, 0)]
    assert bench.refuse(2, NEVER) == [batch]
    assert batch.error is not None
    assert batch.error.unknown_outcome == in_doubt


def test_a_gap_after_a_lost_link_proves_nothing() -> None:
    """The next gateway may still route to a leader that was replaced, and knows nothing of what its successor has."""
    bench = Bench()
    bench.batch(b"a")
    bench.send()
    bench.core.on_link_down(bench.now)
    bench.core.on_link_up()
    assert bench.send() == [[b"a"]]
    bench.refuse(1, GAP)
    bench.now += 0.2
    assert bench.send() == [[b"a"]]
    assert bench.sequences() == [(7, 0)] * 3
    assert not bench.core.wants_producer_id


def test_the_delivery_timeout_fails_unsent_batches_with_a_known_outcome() -> None:
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


@pytest.mark.parametrize("code", ["UNVERIFIED_SEQUENCE", "DUPLICATE_SEQUENCE"])
def test_a_batch_that_cannot_be_compared_fails_with_unknown_outcome(code: str) -> None:
    """The second is what a server of an earlier release says, without ``unknown_outcome``."""
    bench = Bench()
    batch = bench.batch(b"a")
    bench.send()
    assert bench.refuse(0, from_info(ErrorInfo(code, "old", False, {}))) == [batch]
    assert batch.error is not None
    assert (batch.error.code, batch.error.unknown_outcome, batch.offset) == (code, True, -1)


def test_another_batch_in_its_place_fails_a_batch_and_the_next_one_goes_under_a_new_id() -> None:
    bench = Bench()
    batch = bench.batch(b"a")
    bench.send()
    assert bench.refuse(0, refuse("SEQUENCE_CONFLICT", "another's")) == [batch]
    assert batch.error is not None
    assert (batch.error.code, batch.error.unknown_outcome) == ("SEQUENCE_CONFLICT", False)
    bench.batch(b"b")
    bench.send()
    assert bench.core.wants_producer_id
    bench.core.on_producer_id(99)
    assert bench.send() == [[b"b"]]
    assert bench.sequences() == [(7, 0), (99, 0)]


def test_a_record_that_no_batch_can_hold_is_refused_at_once() -> None:
    with pytest.raises(TidelogError, match="BATCH_TOO_LARGE"):
        Bench().add(b"x" * (1 << 20))


def test_a_record_larger_than_batch_bytes_gets_a_batch_of_its_own() -> None:
    bench = Bench()
    bench.add(b"a")
    bench.add(b"x" * (500 << 10))
    bench.add(b"b")
    bench.core.close_open_batches()
    assert [len(values) for values in bench.send()] == [1, 1, 1]


def test_a_batch_holds_no_more_records_than_a_server_takes() -> None:
    core = ProducerCore("t", 1, ProducerOptions(batch_bytes=16 << 20), lambda: 1, max_batch_bytes=16 << 20)
    record = NewRecord(b"", None, 1000)
    full = core.open(0, record, 16, 0.0)
    for _ in range(MAX_RECORDS - 1):
        assert core.append(0, record, 16) is full
    assert core.append(0, record, 16) is None


def test_the_bench_decodes_the_sent_batches() -> None:
    bench = Bench()
    bench.add(b"a")
    message = bench.core.take_message(bench.now)
    assert message is not None
    assert isinstance(message.payload, list)
    assert [header.record_count for header, _ in split(b"".join(message.payload))] == [1]


# --- tickets ---------------------------------------------------------------------------------------------


def test_batches_that_were_refused_for_lack_of_a_ticket_go_under_a_new_id_in_order() -> None:
    bench = Bench()
    first, second = bench.batch(b"a"), bench.batch(b"b")
    bench.send()
    assert bench.refuse(0, NO_TICKET) == [] and bench.refuse(1, NO_TICKET) == []
    bench.now += 1
    assert bench.send() == [] and bench.core.wants_producer_id
    assert bench.core.on_producer_id(8) == []
    assert bench.send() == [[b"a"], [b"b"]] and bench.sequences(2) == [(8, 0), (8, 1)]
    assert bench.ack(2) == [first] and bench.ack(3) == [second]


def test_a_batch_that_may_have_been_written_does_not_go_under_a_new_id() -> None:
    """Its try was lost with a link. The one behind it was never sent."""
    bench = Bench()
    doubtful = bench.batch(b"a")
    bench.send()
    bench.core.on_link_down(bench.now)
    bench.core.on_link_up()
    certain = bench.batch(b"b")
    assert bench.send() == [[b"a"], [b"b"]]
    assert bench.refuse(1, NO_TICKET) == [doubtful]
    assert doubtful.error is not None and doubtful.error.code == "INVALID_TICKET" and doubtful.error.unknown_outcome
    assert bench.refuse(2, NO_TICKET) == []
    bench.now += 1
    bench.send()
    bench.core.on_producer_id(8)
    assert bench.send() == [[b"b"]] and bench.sequences(3) == [(8, 0)]
    assert bench.ack(3) == [certain]


def test_a_transaction_without_its_ticket_fails() -> None:
    """Its id is not the producer's to change."""
    core = ProducerCore("t", 1, OPTIONS, iter(range(1, 9)).__next__, identity=TransactionIdentity("app", 7, 3))
    core.on_link_up()
    batch = core.open(0, (b"a", None, 1, ()), 20, 1.0)
    message = core.take_message(1.0)
    assert message is not None
    assert core.on_produced([ProduceAck(message.parts[0].id, error=NO_TICKET.to_info())], 1.0) == [batch]
    assert batch.error is not None and batch.error.code == "INVALID_TICKET" and not batch.error.unknown_outcome


def test_an_id_is_released_when_no_partition_is_written_under_it() -> None:
    bench = Bench(partitions=2)
    for partition in (0, 1):
        bench.batch(b"a", partition)
    bench.send()
    bench.refuse(0, NO_TICKET)
    bench.now += 1
    bench.send()
    assert bench.core.on_producer_id(8) == [], "partition 1 uses the first, and 0 has yet to change"
    bench.send()
    bench.refuse(1, NO_TICKET)
    bench.now += 1
    bench.send()
    assert bench.core.producer_ids == {7, 8}
    bench.refuse(2, NO_TICKET)
    bench.now += 1
    bench.send()
    assert bench.core.on_producer_id(9) == [7]
