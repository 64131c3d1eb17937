"""Compaction: the last record of every key stays, whatever crashes; the log keeps its shape."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_builders import PATH, after_power_losses, flush, sound
from tidelog.batch.format import (
    Columns,
    NewRecord,
    Record,
    decode_batch,
    decode_columns,
    encode_batch,
    encode_control,
    read_header,
    seal_batch,
    stamp_prefix,
)
from tidelog.batch.sparse import first_compacted_ms
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.compaction import (
    LatestOffsets,
    compactable_end,
    dirty_part,
    has_overdue,
    roll_age_ms,
    tombstones,
)
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.segment import SegmentExtent

CONFIG = TopicConfig(segment_max_bytes=600, cleanup="compact", tombstone_retention_ms=1000)
NOW = 10_000


def stamped(batch: bytes, base: int, epoch: int = 1) -> bytes:
    return stamp_prefix(base, epoch, read_header(batch).crc32c) + batch[16:]


def keyed(base: int, *rows: tuple[bytes | None, bytes | None], producer: int = 0, sequence: int = 0) -> bytes:
    """A batch of (key, value) rows."""
    records = [NewRecord(value, key, 1000 + base) for key, value in rows]
    return stamped(encode_batch(records, producer_id=producer, base_sequence=sequence), base)


def log_of(*batches: bytes, config: TopicConfig = CONFIG, disk: SimDisk | None = None) -> Log:
    log = Log.open(disk or SimDisk(), PATH, config)
    for each in batches:
        log.append([each])
    flush(log)
    return log


def changes(count: int, keys: int, seed: int = 1) -> list[bytes]:
    """Batches that change a table at random; every third record deletes, every tenth has no key."""
    rng, batches, offset = Random(seed), [], 0
    for _ in range(count):
        rows: list[tuple[bytes | None, bytes | None]] = []
        for _ in range(rng.randint(1, 4)):
            key = None if rng.random() < 0.1 else b"key-%d" % rng.randrange(keys)
            rows.append((key, None if rng.random() < 0.3 else b"%d of %d" % (offset, seed)))
            offset += 1
        base = offset - len(rows)
        batches.append(keyed(base, *rows, producer=1 + rng.randrange(3), sequence=base))
    return batches


def stored(log: Log) -> list[bytes]:
    """All batches, from the disk. Before that, readers get the same from memory."""
    served = read_all(log)
    log.segments.forget_tail()
    found = read_all(log)
    assert served == found, "the tail cache holds what is not on the disk any more"
    return found


def read_all(log: Log) -> list[bytes]:
    """All batches as readers get them."""
    found, offset = [], log.start
    while offset < log.end:
        for each in log.read(offset, 4096):
            found.append(bytes(each))
            offset = read_header(each).end_offset
    return found


def records(batches: list[bytes]) -> list[Record]:
    return [record for each in batches for record in decode_batch(each)]


def table(rows: list[Record]) -> dict[bytes, bytes]:
    """What a reader of these records knows at the end."""
    found: dict[bytes, bytes] = {}
    for record in rows:
        if record.key is not None:
            found.pop(record.key, None)
            if record.value is not None:
                found[record.key] = record.value
    return found


def same_shape(log: Log, batches: list[bytes]) -> None:
    """Offsets, epochs, boundaries, chain and producers are those of a log that was never compacted."""
    plain = log_of(*batches)
    assert (log.start, log.end) == (plain.start, plain.end)
    for mine, theirs in zip(log.segments.headers(), plain.segments.headers(), strict=True):
        changed = {"crc32c", "batch_length", "attributes", "header_length", "body_length"}
        assert {k: v for k, v in mine._asdict().items() if k not in changed} == {
            k: v for k, v in theirs._asdict().items() if k not in changed
        }
    assert all(log.chain_at(offset) == plain.chain_at(offset) for offset in range(log.end + 1))
    assert log.producers.snapshot() == ProducerState(plain.segments.headers()).snapshot()
    sound(log)


# --- which records ---------------------------------------------------------------------------------------

EXTENTS = [
    SegmentExtent(0, 10, 100, 1000),
    SegmentExtent(10, 20, 300, 2000),
    SegmentExtent(20, 30, 100, 1500),
    SegmentExtent(30, 35, 10, 3000),
]


@pytest.mark.parametrize(
    ("high_watermark", "lag", "now", "expected"),
    [(35, 0, 0, 30), (29, 0, 0, 20), (9, 0, 0, 0), (35, 500, 2499, 10), (35, 500, 2500, 30), (35, 500, 0, 0)],
)
def test_the_open_segment_and_uncommitted_or_young_records_are_not_compacted(high_watermark, lag, now, expected):
    config = TopicConfig(compaction_min_lag_ms=lag)
    assert compactable_end(EXTENTS, high_watermark, config, now) == expected


def test_the_dirty_part_counts_bytes_of_segments_that_were_not_compacted_as_a_whole():
    assert dirty_part(EXTENTS, 0, 30) == 1
    assert dirty_part(EXTENTS, 10, 30) == pytest.approx(0.8)
    assert dirty_part(EXTENTS, 15, 30) == pytest.approx(0.8)
    assert dirty_part(EXTENTS, 20, 20) == dirty_part(EXTENTS[:1], 0, 0) == 0


def test_a_record_that_has_waited_for_the_maximal_lag_is_overdue():
    """KIP-354. What is not known counts as overdue: a closed segment that a restart has found."""
    config = TopicConfig(cleanup="compact", max_compaction_lag_ms=1000)
    segments = [
        SegmentExtent(0, 10, 100, 0, 5000),
        SegmentExtent(10, 20, 100, 0, 6000),
        SegmentExtent(20, 25, 10, 0, 0),
    ]
    assert [has_overdue(segments, 0, 20, config, now) for now in (5999, 6000)] == [False, True]
    assert [has_overdue(segments, 10, 20, config, now) for now in (6999, 7000)] == [False, True]
    assert not has_overdue(segments, 20, 20, config, 99_999), "all closed segments were compacted"
    assert not has_overdue(segments, 10, 10, config, 99_999), "what follows must not be compacted yet"
    assert has_overdue([SegmentExtent(0, 10, 100, 0), segments[-1]], 0, 10, config, 1)
    assert not has_overdue(segments, 0, 20, TopicConfig(cleanup="compact"), 99_999), "there is no bound"


def test_no_producers_clock_holds_back_what_is_overdue():
    config = TopicConfig(cleanup="compact", compaction_min_lag_ms=500, max_compaction_lag_ms=1000)
    future = [SegmentExtent(0, 10, 100, 10**15, 5000), SegmentExtent(10, 15, 10, 0)]
    assert [compactable_end(future, 15, config, now) for now in (5999, 6000)] == [0, 10]


def test_after_a_restart_what_is_young_waits_for_the_minimal_lag():
    """The age of a closed segment is not known then: it makes a pass worth its while, but it overrides nothing."""
    config = TopicConfig(cleanup="compact", compaction_min_lag_ms=500, max_compaction_lag_ms=1000)
    found = [SegmentExtent(0, 10, 100, 5000), SegmentExtent(10, 15, 10, 0)]
    assert [compactable_end(found, 15, config, now) for now in (5000, 5499, 5500)] == [0, 0, 10]
    assert compactable_end(found, 15, config, 4999) == 10, "a timestamp of the future says nothing"
    assert has_overdue(found, 0, 10, config, 5500)


def test_the_written_segment_is_closed_in_time_for_the_maximal_lag():
    for age, lag, least, expected in ((9, 0, 0, 9), (9, 5, 0, 5), (9, 50, 0, 9), (9, 5, 2, 3), (9, 5, 5, 0)):
        config = TopicConfig(
            cleanup="compact", segment_max_age_ms=age, max_compaction_lag_ms=lag, compaction_min_lag_ms=least
        )
        assert roll_age_ms(config) == expected
    assert roll_age_ms(TopicConfig(segment_max_age_ms=9, max_compaction_lag_ms=5)) == 9, "it is not compacted"


def columns(base: int, *rows: tuple[bytes | None, bytes | None]) -> Columns:
    return decode_columns(keyed(base, *rows))


def test_only_the_last_record_of_a_key_survives_and_every_record_without_one():
    first = columns(0, (b"a", b"1"), (b"b", b"1"), (None, b"x"), (b"a", b"2"), (b"c", None))
    second = columns(5, (b"b", b"2"), (b"d", None))
    latest = LatestOffsets()
    for each in (first, second):
        latest.learn(each)
    assert latest.survivors(first) == [2, 3, 4]
    assert latest.survivors(second) == [0, 1]
    assert [tombstones(each, latest.survivors(each)) for each in (first, second)] == [[4], [1]]


# --- a log -----------------------------------------------------------------------------------------------


@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 40), st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_a_reader_that_begins_anywhere_ends_up_knowing_the_same(keys, count, keys_at_once, seed):
    disk, batches = SimDisk(), changes(count, keys, seed)
    log = log_of(*batches, disk=disk)
    log.compact(log.end, NOW, keys_at_once)
    for each in (log, Log.open(disk, PATH, CONFIG)):
        left, before = records(stored(each)), records(batches)
        assert set(left) <= set(before) and left == sorted(left, key=lambda r: r.offset)
        for begin in range(0, log.end, 5):
            assert table([r for r in left if r.offset >= begin]) == table([r for r in before if r.offset >= begin])
        assert [r for r in left if r.key is None] == [r for r in before if r.key is None]
        closed = each.segments.extents()[-1].base
        last = {r.key: r.offset for r in before if r.offset < closed}
        assert all(r.key is None or r.offset >= closed or last[r.key] == r.offset for r in left)
        same_shape(each, batches)


def test_it_makes_room_and_a_second_pass_finds_nothing_to_do():
    log = log_of(*(keyed(n, (b"%d" % (n // 4 % 5), b"v" * 100), *[(b"x", b"v" * 100)] * 3) for n in range(0, 400, 4)))
    before = sum(each.bytes for each in log.segments.extents())
    log.compact(log.end, NOW)
    assert sum(each.bytes for each in log.segments.extents()) < before / 3
    assert log.begin_compaction(log.end, NOW, 0.0) is None
    assert log.compacted_to == log.segments.extents()[-1].base


def test_it_waits_until_enough_is_dirty():
    log = log_of(*(batches := changes(100, 5)))
    log.compact(log.end // 2, NOW)
    low = dirty_part(log.segments.extents(), log.compacted_to, log.segments.extents()[-1].base)
    assert 0.3 < low < 1
    assert log.begin_compaction(log.end, NOW, low + 0.01) is None
    assert log.begin_compaction(log.end, NOW, low) is not None
    same_shape(log, batches)


def test_tombstones_stay_for_their_time_and_delete_until_then():
    rows = [keyed(0, (b"a", b"1")), keyed(1, (b"a", None)), *(keyed(n, (b"b", b"%d" % n)) for n in range(2, 20))]
    log = log_of(*rows)
    log.compact(log.end, NOW)
    tombstone = records(stored(log))[0]
    assert (tombstone.offset, tombstone.key, tombstone.value) == (1, b"a", None)
    more = [keyed(n, (b"b", b"%d" % n)) for n in range(20, 40)]
    for wait, gone in ((1000, False), (1001, True)):
        later = log_of(*rows)
        later.compact(later.end, NOW)
        for each in more:
            later.append([each])
        later.compact(later.end, NOW + wait)
        assert (tombstone not in records(stored(later))) is gone
        same_shape(later, [*rows, *more])


def test_a_tombstones_time_begins_with_the_pass_that_has_seen_its_key():
    """A map of keys that was full before it cannot have removed what it deletes."""
    log = log_of(keyed(0, (b"x", b"1")), keyed(1, (b"a", b"1")), *(keyed(n, (b"a", None)) for n in range(2, 20)))
    compaction = log.begin_compaction(log.end, NOW, 0.0, keys_at_once=1)
    assert compaction is not None
    while log.complete_compaction(compaction, compaction.run()):
        continue
    assert log.compacted_to == 1
    assert [first_compacted_ms(each) for each in stored(log)] == [None] * 20
    log.compact(log.end, NOW + 7, keys_at_once=1)
    assert {first_compacted_ms(each) for each in stored(log)} == {None, NOW + 7}


def test_a_tombstone_is_marked_also_where_its_batch_loses_nothing():
    log = log_of(*(keyed(n, (b"key-%d" % n, None)) for n in range(20)))
    log.compact(log.end, NOW)
    closed = log.segments.extents()[-1].base
    marks = {first_compacted_ms(each) for each in stored(log) if read_header(each).end_offset <= closed}
    assert marks == {NOW} and len(records(stored(log))) == 20


def test_control_batches_and_bodies_that_are_none_stay_as_they_are():
    garbage = keyed(1, (b"a", b"1"))
    header = read_header(garbage)
    body = cbor2.dumps({"v": "no column"})
    garbage = seal_batch(header._replace(body_length=len(body)), body)
    kept = [stamped(encode_control("epoch"), 0), garbage]
    log = log_of(*kept, *(keyed(n, (b"a", b"%d" % n)) for n in range(2, 30)))
    log.compact(log.end, NOW)
    assert stored(log)[:2] == kept


def test_D3_a_damaged_batch_stops_it():
    disk = SimDisk()
    log = log_of(*changes(60, 5), disk=disk)
    path = log.segments[1].path
    data = bytearray(disk.read(path))
    data[-1] ^= 1
    disk.replace(path, bytes(data))
    log.close()
    log = Log.open(disk, PATH, CONFIG)
    with pytest.raises(CorruptLog, match="CRC"):
        log.compact(log.end, NOW)


def test_a_copy_of_a_compacted_log_is_its_equal():
    leader = log_of(*(batches := changes(60, 5)))
    leader.compact(leader.end, NOW)
    copy = log_of(*stored(leader))
    same_shape(copy, batches)
    copy.compact(copy.end, NOW + 1)
    assert table(records(stored(copy))) == table(records(batches))
    same_shape(copy, batches)


def test_A15_truncation_within_and_at_the_edges_of_compacted_segments():
    batches = changes(40, 4)
    reference = log_of(*batches)
    ends = [0, *(read_header(each).end_offset for each in batches)]
    edges = {extent.base for extent in reference.segments.extents()}
    for end in range(reference.end + 1):
        disk = SimDisk()
        log = log_of(*batches, disk=disk)
        log.compact(log.end, NOW)
        log.truncate(end)
        kept = [each for each in batches if read_header(each).end_offset <= end]
        assert log.end == max(e for e in ends if e <= end)
        assert log.compacted_to <= log.end
        again = Log.open(disk, PATH, CONFIG)
        for each in (log, again):
            assert {r.offset for r in records(stored(each))} <= {r.offset for r in records(kept)}
            times = {
                h.base_offset: each.offset_for_timestamp(h.max_timestamp, each.end) for h in each.segments.headers()
            }
            assert all(found is not None and found[0] <= base for base, found in times.items())
        if end in edges or end % 7 == 0:
            more = [keyed(again.end + n, (b"new", b"%d" % n)) for n in range(12)]
            for each in more:
                again.append([each])
            flush(again)
            again.compact(again.end, NOW)
            same_shape(again, [*kept, *more])


def test_records_appended_where_a_compacted_part_was_cut_off_are_dirty():
    for reopen in (False, True):
        disk = SimDisk()
        log = log_of(*changes(40, 4), disk=disk)
        log.compact(log.end, NOW)
        log.truncate(3)
        if reopen:
            log = Log.open(disk, PATH, CONFIG)
        for n in range(log.end, 60):
            log.append([keyed(n, (b"new", b"%d" % n))])
        log.compact(log.end, NOW)
        closed = log.segments.extents()[-1].base
        assert [r.offset for r in records(stored(log)) if r.key == b"new" and r.offset < closed] == [closed - 1]


# --- crashes ---------------------------------------------------------------------------------------------


def built(batches: list[bytes]) -> SimDisk:
    disk = SimDisk()
    log_of(*batches, disk=disk).close()
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    return disk


@pytest.mark.parametrize("keys_at_once", [1 << 18, 2])
def test_D7_compaction_may_be_cut_off_at_each_step(keys_at_once):
    batches = changes(10, 3)
    prepared, known = built(batches), table(records(batches))
    seeds = 3 if keys_at_once > 2 else 1

    def ready(disk: SimDisk) -> Callable[[], object]:
        log = Log.open(disk, PATH, CONFIG)
        return partial(log.compact, log.end, NOW, keys_at_once)

    for after in after_power_losses(prepared.clone, ready, seeds=seeds, changes=13):
        found = Log.open(after, PATH, CONFIG)
        assert table(records(stored(found))) == known
        same_shape(found, batches)
        assert not [name for name in after.listdir(PATH) if name.endswith(".cleaned")]
        found.compact(found.end, NOW, keys_at_once)
        assert table(records(stored(found))) == known
        same_shape(Log.open(after, PATH, CONFIG), batches)


def test_a_compaction_overtaken_by_a_truncation_is_dropped():
    disk = SimDisk()
    log = log_of(*(batches := changes(40, 4)), disk=disk)
    compaction = log.begin_compaction(log.end, NOW, 0.0)
    assert compaction is not None
    cleaned = compaction.run()
    assert cleaned is not None
    log.truncate(3)
    assert not log.complete_compaction(compaction, cleaned)
    assert not [name for name in disk.listdir(PATH) if name.endswith(".cleaned")]
    same_shape(log, [each for each in batches if read_header(each).end_offset <= 3])


def test_reads_go_on_while_a_thread_works():
    log = log_of(*(batches := changes(40, 4)))
    compaction = log.begin_compaction(log.end, NOW, 0.0)
    assert compaction is not None
    while True:
        cleaned = compaction.run()
        assert table(records(stored(log))) == table(records(batches))
        more = keyed(log.end, (b"more", b"1"))
        batches.append(more)
        log.append([more])
        if not log.complete_compaction(compaction, cleaned):
            break
    flush(log)
    assert table(records(stored(log))) == table(records(batches))
    same_shape(log, batches)
