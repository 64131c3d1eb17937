"""The consumer core: positions, skipping, credit, reconnection, errors."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from random import Random

import pytest
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.client.core.consumer import (
    UNANNOUNCED_CREDIT_BYTES,
    ConsumerCore,
    Effect,
    Grant,
    Open,
    StopSubscription,
)
from tidelog.errors import TidelogError, refuse
from tidelog.types import Position
from tidelog.wire.messages import Delivery


def batch(base: int, count: int, epoch: int = 1, size: int = 1) -> bytes:
    """Return a batch as a leader stores it, with the values ``v<offset>``."""
    data = encode_batch([NewRecord(b"v%d" % (base + n) + b"." * (size - 1), None, 5) for n in range(count)])
    return stamp_prefix(base, epoch, read_header(data).crc32c) + data[16:]


class Bench:
    """A consumer core, and the records that the application got from it."""

    def __init__(
        self,
        starts: Mapping[int, Position] | None = None,
        ends: Mapping[int, int] | None = None,
        credit: int = 1000,
    ) -> None:
        numbers = count(1)
        self.core = ConsumerCore(
            "orders", starts or {0: Position(-1, 0)}, ends or {}, credit, 0.1, lambda: next(numbers)
        )
        self.effects: list[Effect] = []
        self.now = 10.0

    def up(self, **limits: int) -> list[Open]:
        effects = self.core.on_link_up(limits, self.now)
        opened = [effect for effect in effects if isinstance(effect, Open)]
        assert len(opened) == len(effects)
        return opened

    def deliver(self, sub: int, *batches: bytes) -> list[Effect]:
        return self.core.on_delivery(Delivery(sub, 100, payload=b"".join(batches)), self.now)

    def fail(self, sub: int, error: TidelogError) -> list[Effect]:
        return self.core.on_delivery(Delivery(sub, error=error.to_info()), self.now)

    def drain(self) -> list[tuple[int, int]]:
        """Take every batch that is ready, and return (partition, offset) of its records."""
        found = []
        while (fetched := self.core.take_batch()) is not None:
            found += [(record.partition, record.offset) for record in fetched.records("orders")]
            self.effects += self.core.on_taken(fetched.partition)
        return found


def offsets(*numbers: int, partition: int = 0) -> list[tuple[int, int]]:
    return [(partition, number) for number in numbers]


def test_it_subscribes_every_partition_at_its_start() -> None:
    bench = Bench({1: Position(3, 50), 0: Position(-1, 7)})
    assert bench.up() == [Open(1, 0, Position(-1, 7), 1000), Open(2, 1, Position(3, 50), 1000)]


def test_records_below_the_position_are_skipped_in_the_first_batch() -> None:
    bench = Bench({0: Position(-1, 3)})
    bench.up()
    bench.deliver(1, batch(0, 5), batch(5, 2))
    assert bench.drain() == offsets(3, 4, 5, 6)


def test_it_stops_at_its_end_and_unsubscribes() -> None:
    bench = Bench(ends={0: 4})
    bench.up()
    assert bench.deliver(1, batch(0, 3), batch(3, 5)) == [StopSubscription(1)]
    assert bench.drain() == offsets(0, 1, 2, 3)
    assert bench.core.is_finished


def test_a_range_without_records_needs_no_subscription() -> None:
    bench = Bench({0: Position(-1, 4)}, ends={0: 4})
    assert bench.up() == []
    assert bench.core.is_finished


def test_a_new_link_continues_behind_the_received_records() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 3, epoch=2))
    bench.core.on_link_down()
    assert [(opened.sub, opened.position) for opened in bench.up()] == [(2, Position(2, 3))]
    assert bench.deliver(1, batch(3, 1, epoch=2)) == []  # of the former subscription
    bench.deliver(2, batch(3, 2, epoch=2))
    assert bench.drain() == offsets(0, 1, 2, 3, 4)


def test_a_resubscription_that_begins_with_a_known_batch_repeats_nothing() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 3))
    bench.core.on_link_down()
    bench.up()
    bench.deliver(2, batch(0, 3), batch(3, 1))
    assert bench.drain() == offsets(0, 1, 2, 3)


def test_credit_comes_back_only_when_records_are_taken() -> None:
    data = batch(0, 3, size=100)
    bench = Bench(credit=2 * len(data))
    bench.up()
    assert bench.deliver(1, data) == []
    bench.drain()
    assert bench.effects == [Grant(1, len(data))]


def test_small_batches_give_their_credit_back_together() -> None:
    size = len(batch(0, 1))
    bench = Bench(credit=20 * size)
    bench.up()
    for n in range(10):
        bench.deliver(1, batch(n, 1))
    bench.drain()
    assert bench.effects == [Grant(1, 5 * size), Grant(1, 5 * size)]


def test_credit_stays_within_what_the_gateway_announces() -> None:
    size = len(batch(0, 1))
    bench = Bench(credit=1 << 30)
    [opened] = bench.up(credit_bytes=4 * size)
    assert opened.credit == 4 * size
    bench.deliver(1, batch(0, 1))
    bench.drain()
    assert bench.effects == [Grant(1, size)]
    assert bench.core.set_credit(1 << 20) == [], "that is still more than is kept"
    assert bench.core.set_credit(2 * size) == []
    assert bench.core.set_credit(1 << 30) == [], "what was held back is given back, and no more"
    bench.core.on_link_down()
    [opened] = bench.up()
    assert opened.credit == UNANNOUNCED_CREDIT_BYTES


def test_waiting_records_lower_the_credit_of_the_next_subscription() -> None:
    data = batch(0, 3)
    bench = Bench(credit=1000)
    bench.up()
    bench.deliver(1, data)
    bench.core.on_link_down()
    assert bench.up()[0].credit == 1000 - len(data)


def test_an_error_that_may_pass_leads_to_a_new_subscription_after_a_pause() -> None:
    bench = Bench()
    bench.up()
    bench.fail(1, refuse("NOT_LEADER", "moved"))
    assert bench.core.on_tick(bench.now) == []
    assert bench.core.deadline() == pytest.approx(bench.now + 0.1)
    bench.now += 0.11
    assert bench.core.on_tick(bench.now) == [Open(2, 0, Position(-1, 0), 1000)]
    assert bench.core.deadline() is None


def test_a_lasting_error_is_raised_with_its_place_after_the_records_before_it() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 2))
    bench.fail(1, refuse("OFFSET_OUT_OF_RANGE", "gone", log_start=9))
    first = bench.core.take_batch()
    assert first is not None
    with pytest.raises(TidelogError, match="orders/0 at offset 2: gone") as caught:
        bench.core.take_batch()
    assert caught.value.code == "OFFSET_OUT_OF_RANGE"
    assert caught.value.detail == {"log_start": 9, "topic": "orders", "partition": 0, "offset": 2}


def test_batches_are_taken_together_up_to_an_error() -> None:
    bench = Bench({0: Position(-1, 0), 1: Position(-1, 0)})
    bench.up()
    bench.deliver(1, batch(0, 2), batch(2, 1))
    bench.deliver(2, batch(0, 1))
    bench.fail(1, refuse("OFFSET_OUT_OF_RANGE", "gone", log_start=9))
    bench.deliver(2, batch(1, 1))
    taken = [(each.partition, each.first, each.end) for each in bench.core.take_batches()]
    assert taken == [(0, 0, 2), (0, 2, 3), (1, 0, 1)]
    assert bench.core.take_batches() == []
    with pytest.raises(TidelogError, match="gone"):
        bench.core.take_batch()
    assert [each.first for each in bench.core.take_batches()] == [1]
    assert bench.core.positions == {0: Position(1, 3), 1: Position(1, 2)}


def test_a_refused_subscription_is_raised_too() -> None:
    bench = Bench()
    bench.up()
    bench.core.on_subscribed(1, refuse("UNKNOWN_TOPIC", "no such topic"), bench.now)
    with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
        bench.core.take_batch()


def test_a_gap_in_the_offsets_is_never_passed_over() -> None:
    bench = Bench()
    bench.up()
    assert bench.deliver(1, batch(0, 2), batch(3, 1)) == [StopSubscription(1)]
    assert bench.core.take_batch() is not None
    with pytest.raises(TidelogError, match="passed over offsets 2 to 2"):
        bench.core.take_batch()


def test_a_leader_epoch_that_goes_back_is_an_error() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 2, epoch=4), batch(2, 1, epoch=3))
    assert bench.core.take_batch() is not None
    with pytest.raises(TidelogError, match="epoch 3 follows 4"):
        bench.core.take_batch()


def test_positions_follow_what_the_application_has_taken() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 2, epoch=4), batch(2, 3, epoch=5))
    assert bench.core.positions == {0: Position(-1, 0)}
    bench.core.take_batch()
    assert bench.core.positions == {0: Position(4, 2)}
    bench.core.take_batch()
    assert bench.core.positions == {0: Position(5, 5)}


def test_partitions_do_not_wait_for_each_other() -> None:
    bench = Bench({0: Position(-1, 0), 1: Position(-1, 0)})
    bench.up()
    bench.deliver(2, batch(0, 1))
    bench.fail(1, refuse("NOT_LEADER", "moved"))
    assert bench.drain() == offsets(0, partition=1)


def test_closing_ends_every_subscription() -> None:
    bench = Bench({0: Position(-1, 0), 1: Position(-1, 0)})
    bench.up()
    assert bench.core.close() == [StopSubscription(1), StopSubscription(2)]
    assert bench.core.is_finished
    assert bench.core.deadline() is None


def test_a_paused_partition_hands_nothing_out_and_keeps_what_arrives() -> None:
    bench = Bench({0: Position(-1, 0), 1: Position(-1, 0)})
    bench.up()
    bench.deliver(1, batch(0, 2))
    bench.core.pause([0])
    bench.deliver(1, batch(2, 1))
    bench.deliver(2, batch(0, 1))
    assert bench.core.paused == [0]
    assert bench.drain() == offsets(0, partition=1)
    bench.core.resume([0])
    assert bench.drain() == offsets(0, 1, 2)


def test_a_paused_partition_with_its_end_waiting_is_not_finished() -> None:
    bench = Bench(ends={0: 2})
    bench.up()
    bench.core.pause([0])
    bench.deliver(1, batch(0, 2))
    assert bench.drain() == [] and not bench.core.is_finished
    bench.core.resume([0])
    assert bench.drain() == offsets(0, 1) and bench.core.is_finished


def test_a_paused_partition_gives_no_credit_back() -> None:
    data = batch(0, 3, size=100)
    bench = Bench(credit=2 * len(data))
    bench.up()
    bench.core.pause([0])
    assert bench.deliver(1, data, batch(3, 3, size=100)) == []
    assert bench.drain() == [] and bench.effects == []


def test_only_the_unused_part_of_a_batch_comes_again_after_a_pause() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 4), batch(4, 1))
    fetched = bench.core.take_batch()
    assert fetched is not None
    bench.core.pause([0])
    bench.core.put_back(fetched, Position(1, 3))
    assert bench.core.positions == {0: Position(1, 3)}
    assert bench.drain() == []
    bench.core.resume([0])
    assert bench.drain() == offsets(3, 4)


def test_waiting_batches_and_batches_in_flight_stay_within_the_credit() -> None:
    """The gateway sends what it may, one batch a delivery; the application pauses, resumes, seeks and takes."""
    rng = Random(5)
    size = len(batch(3000, 1))
    bench = Bench(credit=10 * size)
    [opened] = bench.up()
    sub, credit, end = opened.sub, opened.credit, opened.position.offset
    for _ in range(3000):
        effects: list[Effect] = []
        match rng.randrange(6):
            case 0:
                bench.core.pause([0])
            case 1:
                bench.core.resume([0])
            case 2 if rng.random() < 0.1:
                effects = bench.core.seek(0, Position(-1, rng.randrange(50)), bench.now)
            case 3 | 4 if credit > 0:
                data = batch(end, 1)
                credit, end = credit - len(data), end + 1
                effects = bench.deliver(sub, data)
            case 5:
                if (fetched := bench.core.take_batch()) is not None:
                    effects = bench.core.on_taken(fetched.partition)
                    if rng.random() < 0.5:
                        bench.core.put_back(fetched, Position(1, fetched.first))
        for effect in effects:
            match effect:
                case Open(sub, _, position, credit):
                    end = position.offset
                case Grant(_, more):
                    credit += more
        assert bench.core.waiting + max(0, credit) <= 12 * size, "credit, one delivery, and one batch that is in use"


def test_seeking_drops_what_waits_and_subscribes_there() -> None:
    bench = Bench()
    bench.up()
    bench.deliver(1, batch(0, 3))
    assert bench.core.seek(0, Position(1, 1), bench.now) == [StopSubscription(1), Open(2, 0, Position(1, 1), 1000)]
    assert bench.drain() == []
    bench.deliver(2, batch(0, 3))
    assert bench.drain() == offsets(1, 2)


def test_seeking_goes_on_after_the_end_and_while_there_is_no_link() -> None:
    bench = Bench(ends={0: 2})
    bench.up()
    bench.deliver(1, batch(0, 2))
    assert bench.drain() == offsets(0, 1) and bench.core.is_finished
    bench.core.on_link_down()
    assert bench.core.seek(0, Position(-1, 1), bench.now) == []
    assert bench.up() == [Open(2, 0, Position(-1, 1), 1000)]
    bench.deliver(2, batch(0, 2))
    assert bench.drain() == offsets(1) and bench.core.is_finished


def test_E4_a_failed_partition_stays_failed_until_the_application_seeks() -> None:
    """Its error is told once while others have records, then again: never an end, never a place of its own choice."""
    bench = Bench({0: Position(2, 9), 1: Position(-1, 0)}, ends={0: 12, 1: 1})
    bench.up()
    bench.fail(1, refuse("LOG_TRUNCATED", "the logs part at 4", end_offset=4, leader_epoch=2))
    bench.deliver(2, batch(0, 1))
    told = "orders/0 at offset 9: the logs part at 4"
    with pytest.raises(TidelogError, match=told):
        bench.core.take_batch()
    assert bench.core.take_batch() is not None
    with pytest.raises(TidelogError, match=told):
        bench.core.take_batch()
    assert not bench.core.is_finished
    assert bench.core.positions[0] == Position(2, 9)
    [opened] = bench.core.seek(0, Position(2, 4), bench.now)
    assert isinstance(opened, Open) and opened.position == Position(2, 4)
