"""The log by example, and its errors. Against a model: ``test_log_model.py``; damage: ``test_recovery.py``."""

from __future__ import annotations

import errno
from random import Random

import pytest
from support.log_builders import (
    PATH,
    SMALL,
    append_as_leader,
    batch,
    batches,
    content,
    epochs_of,
    flush,
    open_log,
    sound,
)
from tidelog.batch.format import read_header
from tidelog.runtime.disk import RealDisk
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.storage.index import IndexCache
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.tail_cache import LogTailCache

OS = TopicConfig(segment_max_bytes=500, flush="os")


def filled(disk: SimDisk, count: int = 10, config: TopicConfig = SMALL) -> tuple[Log, list[bytes]]:
    """A log of batches of two records, in epoch 1, flushed."""
    log = open_log(disk, config)
    log.assign_epoch(1)
    made = batches(0, 1, [2] * count)
    log.append(made)
    flush(log)
    return log, made


# --- by example ------------------------------------------------------------------------------------------


def test_a_new_log_is_empty():
    log = open_log(SimDisk())
    assert (log.start, log.end, log.durable, log.epochs.latest(), log.read_high_watermark()) == (0, 0, 0, -1, 0)
    assert log.read(0, 1000) == [] and list(log.segments.headers()) == []
    assert log.begin_flush() is None
    assert log.offset_for_timestamp(0, 0) is None


def test_the_leader_stamps_offset_and_epoch_and_nothing_else():
    log = open_log(SimDisk())
    log.assign_epoch(7)
    sent = [batch(0, 0, 3), memoryview(batch(0, 0, 2))]
    assert [append_as_leader(log, each, 7) for each in sent] == [0, 3]
    stored = content(log)
    assert [bytes(each)[12:] for each in sent] == [each[12:] for each in stored]
    assert [(h.base_offset, h.leader_epoch) for h in map(read_header, stored)] == [(0, 7), (3, 7)]
    assert log.epochs.entries == [(7, 0)] and (log.epoch_at(0), log.epoch_at(1), log.epoch_at(5)) == (-1, 7, 7)


def test_a_read_is_whole_batches_from_the_one_that_holds_the_offset():
    for from_disk in (False, True):
        log, made = filled(SimDisk())
        size = len(made[0])
        if from_disk:
            log.segments.forget_tail()
        assert log.read(5, 0) == [made[2]]
        assert log.read(4, 2 * size) == made[2:4]
        assert log.read(4, 2 * size + 1, 7) == [made[2]]
        assert log.read(4, 9999, 5) == []
        assert log.read(20, 9999) == log.read(99, 9999) == log.read(-1, 9999) == []


def test_a_batch_larger_than_a_segment_or_than_the_memory_is_stored_all_the_same(monkeypatch):
    log = Log.open(SimDisk(), PATH, SMALL, LogTailCache(100))
    large = [batch(0, 1, size=2000), batch(1, 1), batch(2, 1, size=2000)]
    log.append(large)
    assert content(log) == large
    assert [segment.base for segment in log.segments] == [0, 1, 2]


def test_memory_is_bounded_and_gives_the_same_bytes_as_the_disk():
    log = Log.open(SimDisk(), PATH, SMALL, LogTailCache(1000))
    tail = log.segments._tail
    made = batches(0, 1, [1, 2, 3] * 20)
    for each in made:
        log.append([each])
        assert tail._bytes == sum(map(len, tail._batches)) <= 1000
    for offset in range(log.end):
        for end in range(offset, log.end, 7):
            quick = tail.read(offset, 400, end)
            slow = log.segments.segment_at(offset).read(offset, 400, end)
            if quick is not None:
                shared = min(len(quick), len(slow))
                assert quick[:shared] == slow[:shared] and (shared or quick == slow)


def test_the_indexes_of_full_segments_are_in_memory_only_while_there_is_room():
    """They are a hundredth of all that was ever written or read."""
    disk, cache = SimDisk(), IndexCache(300)  # room for seven entries, one a segment
    log = Log.open(disk, PATH, SMALL, indexes=cache)
    made = batches(0, 1, [1] * 200)
    for number in range(0, 200, 2):
        log.append(made[number : number + 2])
    assert len(log.segments) > 30 and cache.bytes == 0, "writing needs none of them"
    flush(log)
    for same in (log, Log.open(disk, PATH, SMALL, indexes=cache)):
        assert content(same, from_disk=True) == made
        assert sum(segment._index is not None for segment in same.segments.closed()) <= 7
        assert 0 < cache.bytes <= 300
    log = Log.open(disk, PATH, SMALL, indexes=cache)
    log.truncate(100)
    active = log.segments[-1]
    content(log, from_disk=True)
    assert active._index is not None and active not in cache._sizes, "what is written again is not for the cache"
    log.close()
    assert not set(log.segments) & set(cache._sizes)


def test_offset_for_timestamp_is_the_first_batch_with_a_record_at_or_after_it():
    for reopened in (False, True):
        disk = SimDisk()
        log = open_log(disk)
        times = [50, 40, 60, 60, 55, 90, 80, 100, 95]
        for number, time in enumerate(times):
            log.append([batch(number * 2, 1, 2, timestamp_ms=time)])
        flush(log)
        if reopened:
            log = open_log(disk)
        for sought in range(30, 110):
            expected = next((i * 2 for i, time in enumerate(times) if time + 1 >= sought), None)
            found = log.offset_for_timestamp(sought, log.end)
            assert found == (None if expected is None else (expected, times[expected // 2]))
        assert log.offset_for_timestamp(100, 15) is None
        assert log.offset_for_timestamp(100, 16) == (14, 100)


def test_a_flush_covers_what_was_there_when_it_began_full_segments_too():
    disk = SimDisk()
    log = open_log(disk)
    made = batches(0, 1, [1] * 12)
    log.append(made[:10])
    pending = log.begin_flush()
    assert pending is not None and pending.end == 10 and log.durable == 0
    log.append(made[10:])
    pending.run()
    log.complete_flush(pending)
    assert (log.durable, log.end) == (10, 12)
    for seed in range(50):
        after = disk.clone()
        after.crash(Random(seed))
        found = open_log(after)
        assert found.end >= 10 and content(found) == made[: found.end]


def test_under_os_everything_counts_at_once_and_nothing_is_flushed():
    log, _ = filled(SimDisk(), config=OS)
    assert log.durable == log.end == 20 and log.begin_flush() is None


def test_a_flush_that_began_before_a_truncation_moves_nothing():
    disk = SimDisk()
    log, made = filled(disk, 4)
    log.append(batches(8, 1, [1] * 10))
    pending = log.begin_flush()
    assert pending is not None
    log.truncate(6)
    assert (log.durable, log.end) == (6, 6)
    log.append(batches(6, 2, [1] * 9))
    pending.run()  # its files are still open, also those that are gone from the directory
    log.complete_flush(pending)
    assert log.durable == 6
    flush(log)
    assert log.durable == 15
    assert content(log, from_disk=True) == made[:3] + batches(6, 2, [1] * 9)


def test_truncation_at_every_offset_leaves_whole_batches_and_their_epochs():
    for end in range(22):
        disk = SimDisk()
        log, made = filled(disk)
        log.assign_epoch(4)
        made += (later := batches(20, 4, [1]))
        log.append(later)
        flush(log)
        log.truncate(end)
        kept = [each for each in made if read_header(each).end_offset <= end]
        assert content(log) == kept == content(log, from_disk=True)
        assert log.durable == log.end == (read_header(kept[-1]).end_offset if kept else 0)
        assert log.epochs.entries == epochs_of(kept)
        more = batches(log.end, 5, [3, 1, 2])
        log.append(more)
        flush(log)
        sound(log)
        assert content(open_log(disk)) == kept + more


def test_truncating_at_the_end_forgets_empty_epochs_and_nothing_else():
    disk = SimDisk()
    log, made = filled(disk)
    log.assign_epoch(9)
    assert log.epochs.latest() == 9
    log.truncate(log.end)
    changes = disk.changes
    log.truncate(log.end)
    assert disk.changes == changes
    disk.crash(Random(0))
    log = open_log(disk)
    assert log.epochs.entries == [(1, 0)] and content(log) == made


def test_an_assigned_epoch_costs_no_sync_and_is_durable_with_its_first_batch():
    disk = SimDisk()
    log, made = filled(disk)
    disk.fail_syncs()
    log.assign_epoch(3)  # a server may come to lead a thousand logs at once
    disk.heal()
    new = batch(20, 3)
    log.append([new])
    for seed in range(40):
        after = disk.clone()
        after.crash(Random(seed))
        found = open_log(after)
        assert found.epochs.entries[:1] == [(1, 0)]
        assert content(found) in (made, [*made, new])
        sound(found)
    flush(log)
    for seed in range(40):
        after = disk.clone()
        after.crash(Random(seed))
        found = open_log(after)
        assert found.epochs.entries == [(1, 0), (3, 20)] and content(found) == [*made, new]


def test_under_os_a_full_segment_is_synced_so_that_the_next_opening_need_not_read_it():
    disk = SimDisk()
    log = open_log(disk, TopicConfig(flush="os", segment_max_bytes=500))
    log.append([batch(0, 1)])
    assert log.begin_flush() is None and log.durable == log.end == 1
    for offset in range(1, 6):
        log.append([batch(offset, 1)])
    assert len(log.segments) == 2
    flush(log)
    assert log.begin_flush() is None
    disk.crash(Random(0))
    assert open_log(disk).end >= 4


def test_the_high_watermark_survives_and_is_never_above_the_log_end():
    disk = SimDisk()
    log, _ = filled(disk)
    for high_watermark in range(18):
        log.write_high_watermark(high_watermark)
    assert open_log(disk).read_high_watermark() == 17
    found = set()
    for seed in range(50):
        after = disk.clone()
        after.crash(Random(seed))
        found.add(open_log(after).read_high_watermark())
    assert found <= set(range(18)) and len(found) > 2
    log.truncate(4)
    assert log.read_high_watermark() == 4


# --- errors ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_write_the_log_takes_nothing_more_until_it_is_opened_again(error):
    for after in range(6):
        disk = SimDisk()
        log, made = filled(disk, 4)
        disk.fail_writes(error, after)
        more = [batches(8 + number * 3, 2, [1, 1, 1]) for number in range(4)]
        done = 0
        with pytest.raises(OSError):
            for each in more:
                log.append(each)
                done += 1
        disk.heal()
        for call, *arguments in (
            (log.append, more[0]),
            (log.assign_epoch, 5),
            (log.truncate, 0),
        ):
            with pytest.raises(OSError, match="failed earlier"):
                call(*arguments)
        assert log.begin_flush() is None
        assert log.end == 8 + 3 * done and log.durable == 8
        log.close()
        log = open_log(disk)
        assert content(log)[:4] == made and log.end >= 8 + 3 * done
        sound(log)


def test_a_flush_that_failed_makes_nothing_durable():
    disk = SimDisk()
    log, made = filled(disk, 4)
    log.append(batches(8, 1, [1]))
    disk.fail_syncs()
    pending = log.begin_flush()
    assert pending is not None
    with pytest.raises(OSError):
        pending.run()
    disk.heal()
    assert log.durable == 8
    disk.crash(Random(3))
    assert content(open_log(disk)) == made


def test_a_read_error_is_raised_and_changes_nothing():
    disk = SimDisk()
    log, made = filled(disk)
    log.segments.forget_tail()
    disk.fail_reads()
    with pytest.raises(OSError):
        log.read(0, 100)
    disk.heal()
    assert content(log) == made


def test_a_wrong_offset_or_epoch_is_our_own_bug():
    log, _ = filled(SimDisk(), 2)
    for bad in (batch(3, 1), batch(5, 1), batch(4, 0)):
        with pytest.raises(AssertionError):
            log.append([bad])


def test_files_of_a_running_flush_are_closed_when_it_is_complete():
    disk = SimDisk()
    log, _ = filled(disk, 2)
    log.append([batch(4, 1)])
    pending = log.begin_flush()
    assert pending is not None
    log.close()
    pending.run()
    log.complete_flush(pending)
    with pytest.raises(OSError, match="closed"):
        pending.files[0].size()


def test_it_works_on_a_real_disk(tmp_path):
    path = str(tmp_path / "topic" / "0")
    log = Log.open(RealDisk(), path, SMALL)
    made = batches(0, 3, [1, 2, 3, 4] * 10)
    for start in range(0, 40, 4):
        log.append(made[start : start + 4])
        flush(log)
    log.write_high_watermark(70)
    sound(log)
    log.close()
    log = Log.open(RealDisk(), path, SMALL)
    assert content(log) == made and log.durable == 100 and log.read_high_watermark() == 70
    log.truncate(50)
    sound(log)
    log.close()
    log = Log.open(RealDisk(), path, SMALL)
    assert log.end == 50 and content(log) == made[:20]
    log.close()


def test_the_path_is_a_directory_of_its_own():
    disk = SimDisk()
    filled(disk)
    assert disk.listdir("/data") == [PATH.rpartition("/")[2]]


def test_records_covered_by_a_failed_flush_are_cut_before_the_next_opening():
    for count in (1, 12):
        disk = SimDisk()
        log, made = filled(disk, 4)
        log.append(batches(8, 1, [1] * count))
        pending = log.begin_flush()
        assert pending is not None
        disk.fail_syncs()
        with pytest.raises(OSError):
            pending.run()
        disk.heal()
        log.discard_unsynced()
        log = open_log(disk)
        assert log.end == 8 and content(log) == made
        disk.crash(Random(1))
        assert content(open_log(disk)) == made
