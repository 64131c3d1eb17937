"""Reading backwards: the same records as forwards, in the other order, whatever the batches are like."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import pytest
from tidelog.batch.format import read_header
from tidelog.client.core.backward_consumer import BackwardCore, WindowRead
from tidelog.errors import TidelogError, refuse
from tidelog.types import Position

from unit.tidelog.client.core.test_consumer import batch


class Bench:
    """Logs in memory, a core that reads them, and the reads that it asked for."""

    def __init__(self, *sizes: int, partitions: int = 1, value_bytes: int = 1) -> None:
        self.logs: dict[int, list[bytes]] = {p: [] for p in range(partitions)}
        self.start = 0
        self.looks: list[WindowRead] = []
        self.answered_bytes: list[int] = []
        for p in range(partitions):
            for size in sizes:
                self.append(p, size, value_bytes)

    def end(self, partition: int = 0) -> int:
        return read_header(self.logs[partition][-1]).end_offset if self.logs[partition] else 0

    def append(self, partition: int, count: int, value_bytes: int = 1, epoch: int = 1) -> None:
        self.logs[partition].append(batch(self.end(partition), count, epoch, value_bytes))

    def core(
        self, start: Mapping[int, Position] | None = None, bound: int = 0, exact: bool = False, room: int = 1000
    ) -> BackwardCore:
        starts = start or {p: Position(-1, self.end(p)) for p in self.logs}
        return BackwardCore("orders", starts, dict.fromkeys(starts, bound), exact, room)

    def read(self, read: WindowRead) -> bytes:
        if not self.start <= read.offset <= self.end(read.partition):
            raise refuse("OFFSET_OUT_OF_RANGE", "not there", log_start=self.start)
        payload = b""
        for data in self.logs[read.partition]:
            if read_header(data).end_offset > read.offset:
                if payload and len(payload) + len(data) > read.max_bytes:
                    break
                payload += data
        return payload

    def step(self, core: BackwardCore) -> None:
        """Answer every read that the core asks for."""
        for read in core.next_reads():
            self.looks.append(read)
            try:
                payload = self.read(read)
            except TidelogError as error:
                core.on_error(read, error)
            else:
                self.answered_bytes.append(len(payload))
                core.on_batches(read, payload)

    def drain(self, core: BackwardCore, most: int = 10_000) -> list[tuple[int, int]]:
        """Return (partition, offset) of all records, in the order in which the core returns them."""
        found: list[tuple[int, int]] = []
        while len(found) < most and not core.is_finished:
            fetched = core.take_batch()
            if fetched is None:
                self.step(core)
            else:
                found += [(r.partition, r.offset) for r in reversed(fetched.records("orders"))]
        return found


def offsets(found: list[tuple[int, int]], partition: int = 0) -> list[int]:
    return [offset for p, offset in found if p == partition]


def test_records_come_newest_first_and_end_at_the_beginning() -> None:
    bench = Bench(3, 1, 4)
    assert offsets(bench.drain(bench.core())) == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("seed", range(20))
def test_any_range_of_any_log_is_the_forward_range_turned_round(seed: int) -> None:
    rng = Random(seed)
    bench = Bench(*(rng.choice((1, 2, 9, 40)) for _ in range(30)), value_bytes=rng.choice((1, 30)))
    for _ in range(10):
        low, high = sorted(rng.randrange(bench.end() + 1) for _ in range(2))
        core = bench.core({0: Position(-1, high)}, low, exact=True, room=rng.choice((1, 500, 1 << 20)))
        assert offsets(bench.drain(core)) == list(range(low, high))[::-1]


def test_partitions_take_turns() -> None:
    bench = Bench(1, 1, partitions=2)
    assert bench.drain(bench.core()) == [(0, 1), (1, 1), (0, 0), (1, 0)]


def test_the_last_record_costs_one_small_read() -> None:
    bench = Bench(*[100] * 50)
    core = bench.core()
    bench.step(core)
    assert core.take_batch() is not None
    assert bench.looks == [WindowRead(0, 4999, 1)]
    assert bench.answered_bytes == [len(bench.logs[0][-1])]


def test_windows_grow_to_the_room_and_no_further() -> None:
    bench = Bench(*[1] * 2000)
    room = 50 * len(bench.logs[0][0])
    assert len(bench.drain(bench.core(room=room))) == 2000
    assert max(bench.answered_bytes) <= room
    assert len(bench.looks) < 60, "a window holds about fifty batches"
    assert sum(bench.answered_bytes) < 1.5 * sum(map(len, bench.logs[0])), "little is read twice"


def test_a_window_that_servers_cut_short_is_made_smaller_for_good() -> None:
    bench = Bench(*[1] * 2000)
    size = len(bench.logs[0][0])
    core = bench.core(room=500 * size)
    served = bench.read

    def capped(read: WindowRead) -> bytes:
        return served(WindowRead(read.partition, read.offset, min(read.max_bytes, 20 * size)))

    bench.read = capped  # type: ignore[method-assign]
    assert offsets(bench.drain(core)) == list(range(2000))[::-1]
    assert len(bench.looks) < 2000 / 20 * 1.3


def test_positions_say_where_a_later_one_goes_on_below() -> None:
    bench = Bench(3, 3)
    core = bench.core()
    bench.step(core)
    core.take_batch()
    assert core.positions == {0: Position(-1, 3)}
    assert offsets(bench.drain(bench.core(core.positions))) == [2, 1, 0]


def test_a_start_past_the_end_is_an_error_with_its_place() -> None:
    bench = Bench(3)
    for start in (4, 9):
        core = bench.core({0: Position(-1, start)})
        with pytest.raises(TidelogError, match=f"orders/0 at offset {start}") as caught:
            bench.drain(core)
        assert caught.value.code == "OFFSET_OUT_OF_RANGE"


def test_a_start_below_the_beginning_is_an_error() -> None:
    bench = Bench(*[1] * 20)
    bench.start = 11
    with pytest.raises(TidelogError, match="orders/0 at offset 3: the log starts at 11"):
        bench.drain(bench.core({0: Position(-1, 3)}, bound=11))
    with pytest.raises(TidelogError, match="OFFSET_OUT_OF_RANGE"):
        bench.drain(bench.core({0: Position(1, 3)}))


def test_E4_a_start_in_an_epoch_that_is_gone_there_is_an_error() -> None:
    bench = Bench(3)
    bench.append(0, 2, epoch=4)
    core = bench.core({0: Position(4, 5)})
    assert core.next_reads() == [WindowRead(0, 5, 1, last_epoch=4)], "the leader compares the position with its log"
    assert offsets(bench.drain(core)) == [4, 3, 2, 1, 0]
    core = bench.core({0: Position(2, 5)})
    core.on_error(core.next_reads()[0], refuse("LOG_TRUNCATED", "the logs part at 3", end_offset=3))
    with pytest.raises(TidelogError, match="orders/0 at offset 5: the logs part at 3"):
        core.take_batch()
    with pytest.raises(TidelogError, match="of leader epoch 2, it is of 4 now") as caught:
        bench.drain(bench.core({0: Position(2, 5)}))
    assert (caught.value.code, caught.value.detail["offset"]) == ("LOG_TRUNCATED", 5)


def test_E4_a_log_that_was_cut_and_written_anew_below_what_was_read_is_noticed() -> None:
    bench = Bench(1, 1, 1, 1, 1)
    core = bench.core()
    assert offsets(bench.drain(core, most=1)) == [4]
    del bench.logs[0][2:]
    for _ in range(3):
        bench.append(0, 1, epoch=7)
    with pytest.raises(TidelogError) as caught:
        bench.drain(core)
    assert (caught.value.code, caught.value.detail["leader_epoch"]) == ("LOG_TRUNCATED", 7)
    with pytest.raises(TidelogError, match="LOG_TRUNCATED"):
        core.take_batch()


def test_retention_that_overtakes_a_bound_is_reported_after_all_remaining_records() -> None:
    bench = Bench(*[1] * 20)
    core = bench.core(bound=3, exact=True)
    found = bench.drain(core, most=2)
    bench.start = 11
    with pytest.raises(TidelogError, match="orders/0 at offset 11") as caught:
        found += bench.drain(core, most=9 - len(found))
        bench.drain(core)
    assert offsets(found) == list(range(11, 20))[::-1]
    assert (caught.value.code, caught.value.detail["log_start"]) == ("OFFSET_OUT_OF_RANGE", 11)


def test_without_a_bound_it_ends_where_the_log_begins_by_then() -> None:
    bench = Bench(*[1] * 20)
    core = bench.core()
    found = bench.drain(core, most=2)
    bench.start = 11
    assert offsets(found + bench.drain(core)) == list(range(11, 20))[::-1]


def test_an_error_of_one_partition_comes_when_the_others_are_done() -> None:
    bench = Bench(1, 1, partitions=2)
    core = bench.core()
    [read, _] = core.next_reads()
    core.on_error(read, refuse("CORRUPT_BATCH", "bad"))
    found = bench.drain(core, most=2)
    assert found == [(1, 1), (1, 0)]
    with pytest.raises(TidelogError, match="orders/0 at offset 2: bad"):
        bench.drain(core)
