"""What a log says of its transactions: the last stable offset, what was aborted, and what survives. Tests
``tidelog_replica/storage/log.py`` and ``replication/transaction_index.py``."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog.batch.format import NewRecord, decode_batch, encode_batch, encode_marker, read_header, stamp_prefix
from tidelog.errors import ProtocolError
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.replication.transaction_index import TransactionIndex, is_aborted
from tidelog_replica.storage.log import Log

CONFIG = TopicConfig(cleanup="compact", segment_max_bytes=1024)


def batch(value: bytes, producer: int = 0, epoch: int = 0, sequence: int = 0, key: bytes | None = None) -> bytes:
    record = NewRecord(value, key, 1000)
    return encode_batch(
        [record],
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=producer > 0,
    )


class Bench:
    """A log that is written batch by batch."""

    def __init__(self, config: TopicConfig = CONFIG) -> None:
        self.disk, self.config = SimDisk(), config
        self.log = Log.open(self.disk, "/log", config)
        self.log.assign_epoch(1)

    def add(self, *batches: bytes) -> None:
        for one in batches:
            stamp = stamp_prefix(self.log.end, 1, read_header(one).crc32c)
            self.log.append([stamp + one[len(stamp) :]])

    def reopen(self, *, clean: bool = True) -> None:
        self.log.sync_all()
        if clean:
            self.log.close()
        self.log = Log.open(self.disk, "/log", self.config)

    @property
    def transactions(self) -> TransactionIndex:
        return self.log.producers.transactions

    def seen(self, high_watermark: int | None = None) -> list[bytes | None]:
        hw = self.log.end if high_watermark is None else high_watermark
        end, offset, values = self.transactions.last_stable_offset(hw), self.log.start, []
        while offset < end:
            for one in self.transactions.without_aborted(self.log.read(offset, 1 << 20, end), offset):
                values += [record.value for record in decode_batch(one)]
                offset = read_header(one).end_offset
        return values


def commit(producer: int, epoch: int = 0) -> bytes:
    return encode_marker(producer, epoch, commit=True)


def abort(producer: int, epoch: int = 0) -> bytes:
    return encode_marker(producer, epoch, commit=False)


def test_the_last_stable_offset_waits_for_the_marker_to_be_committed() -> None:
    bench = Bench()
    bench.add(batch(b"a"), batch(b"b", 7), batch(b"c"), commit(7))
    stable = bench.transactions.last_stable_offset
    assert [stable(hw) for hw in (0, 1, 2, 3)] == [0, 1, 1, 1], "the marker may be lost with this leader"
    assert stable(4) == 4


def test_two_transactions_at_a_time() -> None:
    bench = Bench()
    bench.add(batch(b"a", 7), batch(b"b", 8), abort(7), batch(b"c", 8, sequence=1))
    assert bench.transactions.last_stable_offset(4) == 1
    bench.add(commit(8))
    assert bench.transactions.last_stable_offset(5) == 5
    assert bench.seen() == [b"b", b"c"]


def test_a_producer_goes_on_in_the_next_epoch() -> None:
    bench = Bench()
    bench.add(batch(b"a", 7), abort(7), batch(b"b", 7, 1), commit(7, 1))
    assert bench.seen() == [b"b"]
    assert bench.log.producers.fences(7, 1) and not bench.log.producers.fences(7, 2)


@pytest.mark.parametrize("epoch", [2, 3, 9, 65535])
def test_a_plain_batch_of_a_later_epoch_keeps_no_marker_out(epoch: int) -> None:
    """An earlier release took plain batches under the id of an open transaction."""
    bench = Bench()
    plain = encode_batch([NewRecord(b"plain")], producer_id=7, producer_epoch=epoch)
    bench.add(batch(b"a", 7, 2), plain)
    producers = bench.log.producers
    assert producers.needs_marker(7, 2)
    bench.add(commit(7, 2))
    assert bench.transactions.last_stable_offset(3) == 3
    assert not producers.needs_marker(7, 2), "told again it is not written again"
    assert producers.check(read_header(batch(b"b", 7, 3))) is None, "and the next transaction goes on"
    bench.add(batch(b"b", 7, 3))
    assert not producers.needs_marker(7, 2), "which a late one does not end"
    assert producers.needs_marker(7, 3) and producers.needs_marker(8, 0)


@pytest.mark.parametrize("clean", [True, False])
def test_all_of_it_survives_a_restart(clean: bool) -> None:
    bench = Bench()
    bench.add(*(batch(b"x%d" % number, 7, sequence=number) for number in range(20)), abort(7))
    bench.add(*(batch(b"y%d" % number) for number in range(20)), batch(b"open", 8))
    before = bench.transactions.to_map(), bench.seen()
    bench.log.begin_snapshot()
    bench.reopen(clean=clean)
    assert (bench.transactions.to_map(), bench.seen()) == before
    assert bench.transactions.is_open(8, 0)


def test_a_truncation_opens_again_what_its_marker_closed() -> None:
    bench = Bench()
    bench.add(batch(b"a"), batch(b"b", 7), batch(b"c"), commit(7))
    bench.log.truncate(3)
    assert bench.transactions.is_open(7, 0) and bench.transactions.last_stable_offset(3) == 1
    bench.add(abort(7))
    assert bench.seen() == [b"a", b"c"]
    bench.log.truncate(1)
    assert bench.transactions.is_idle


def test_compaction_ignores_and_drops_aborted_records() -> None:
    bench = Bench()
    bench.add(batch(b"kept", key=b"k"), batch(b"aborted" * 20, 7, key=b"k"), abort(7))
    bench.add(*(batch(b"%d" % number * 50, key=b"%d" % number) for number in range(40)))
    bench.log.sync_all()
    bench.log.compact(bench.log.end, 5000)
    chain = bench.log.chain_at(bench.log.end)
    bench.reopen()
    values = [r.value for one in bench.log.read(0, 1 << 20, 3) for r in decode_batch(one)]
    assert values == [b"kept"], "the aborted record hides nothing, and is gone from the disk"
    assert bench.log.chain_at(bench.log.end) == chain
    assert bench.seen()[0] == b"kept"


def test_a_late_marker_of_an_older_epoch_ends_nothing() -> None:
    bench = Bench()
    bench.add(batch(b"a", 7, 1), commit(7, 0))
    assert bench.transactions.is_open(7, 1) and bench.seen() == []
    bench.add(abort(7, 1))
    assert bench.transactions.open == {} and bench.seen() == []


def test_compaction_stops_at_an_open_transaction() -> None:
    bench = Bench()
    bench.add(batch(b"old", key=b"k"), batch(b"open", 7, key=b"k"))
    bench.add(*(batch(b"%d" % number * 50, key=b"%d" % number) for number in range(40)))
    bench.log.sync_all()
    bench.log.compact(bench.log.end, 5000)
    bench.add(abort(7))
    bench.reopen()  # what is in memory was not compacted
    assert bench.seen()[0] == b"old"


def test_retention_forgets_what_lies_before_the_log() -> None:
    bench = Bench(TopicConfig(segment_max_bytes=1024))
    bench.add(batch(b"a", 7), abort(7), *(batch(b"%d" % number * 50) for number in range(40)), batch(b"z", 8))
    assert bench.log.advance_start(bench.log.end - 5)
    assert bench.transactions.aborted_from(0) == [] and bench.transactions.is_open(8, 0)
    copy = ProducerState.from_bytes(bench.log.copy_start().producers)
    assert copy.transactions.aborted_from(bench.log.start) == []
    assert not copy.transactions.open, "what began later is in the batches that a copy gets"


def test_a_producer_snapshot_without_transactions_has_the_former_format() -> None:
    state = ProducerState()
    state.record(read_header(encode_batch([NewRecord(b"a")], producer_id=5)), 0)
    assert cbor2.loads(state.to_bytes()) == [[5, 0, [[0, 1, 0]]]]


@pytest.mark.parametrize(
    "rows",
    [
        {"open": []},
        {"open": [[1, 2]], "ended": []},
        {"open": [], "ended": [[1, 2, 3, 1]]},
        {"open": [[-1, 0, 0]], "ended": []},
        {"open": 1, "ended": []},
    ],
)
def test_transactions_that_are_none_are_refused(rows: object) -> None:
    with pytest.raises(ProtocolError):
        ProducerState.from_bytes(cbor2.dumps([rows]))


@given(st.lists(st.tuples(st.sampled_from("wca"), st.integers(1, 3)), max_size=30), st.data())
def test_any_log_says_the_same_however_it_is_learnt(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Against a naive model; and over a snapshot at any offset."""
    epochs = dict.fromkeys((1, 2, 3), 0)
    written: dict[int, list[int]] = {1: [], 2: [], 3: []}
    headers, fate = [], {}
    for what, id in steps:
        offset = len(headers)
        if what == "w":
            headers.append(read_header(batch(b"x", id, epochs[id], len(written[id]))))
            written[id].append(offset)
        else:
            headers.append(read_header(encode_marker(id, epochs[id], commit=what == "c")))
            fate |= dict.fromkeys(written[id], what)
            epochs[id], written[id] = epochs[id] + 1, []
    headers = [header._replace(base_offset=offset) for offset, header in enumerate(headers)]
    state = ProducerState(headers)
    cut = data.draw(st.integers(0, len(headers)))
    again = ProducerState.from_bytes(ProducerState(headers[:cut]).to_bytes())
    for header in headers[cut:]:
        again.record(header, header.base_offset)
    assert again.transactions.to_map() == state.transactions.to_map()
    still_open = [offset for offsets in written.values() for offset in offsets]
    stable = state.transactions.last_stable_offset(len(headers))
    assert stable == min(still_open, default=len(headers))
    aborted = state.transactions.aborted_from(0)
    for header in headers[:stable]:
        if not header.is_control:
            assert is_aborted(header, aborted) == (fate[header.base_offset] == "a")
