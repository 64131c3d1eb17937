"""What a crash leaves in a log's directory besides the log: files of segments that are gone, names without a sync.
Tests ``tidelog_replica/storage/log.py`` and ``recovery/recovery.py``."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from support.log_builders import (
    PATH,
    SEGMENTS,
    SMALL,
    STORED,
    after_power_losses,
    batch,
    batches,
    build,
    content,
    flush,
    open_log,
    sound,
)
from tidelog.batch.format import read_header
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog_replica.maintenance.log_opener import OpenLog
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.open_files import OpenFiles
from tidelog_replica.storage.tail_cache import LogTailCache


def test_no_index_outlives_the_segment_that_it_described():
    """The crash of a truncation may keep the index of a segment whose file is gone. Another segment of that length
    may come to stand there; its own index is not synced, so a second crash could bring the former one back."""
    former = 0
    for seed in range(20):
        disk = build(high_watermark=0)
        log = open_log(disk)
        disk.lose_power(after=4 + seed % 5)
        with pytest.raises(PowerLost):
            log.truncate(4)
        disk.crash(Random(seed))
        if {SEGMENTS[1], SEGMENTS[1].replace(".log", ".index")} & set(disk.files()) != {f"{PATH}/{6:020d}.index"}:
            continue
        former += 1
        log = open_log(disk)
        log.append([each for each in STORED if log.end <= read_header(each).base_offset < 6])
        same = [read_header(each) for each in STORED if 6 <= read_header(each).base_offset < 12]
        for header in same:  # other batches, of the same lengths
            log.append([batch(header.base_offset, 9, header.record_count, timestamp_ms=5000)])
        log.append([batch(12, 9)])
        flush(log)
        for again in range(60):
            after = disk.clone()
            after.crash(Random(again))
            found = open_log(after)
            sound(found)
            assert found.chain_at(12) == log.chain_at(12)
    assert former


def test_the_recovery_point_covers_no_segment_whose_name_may_be_lost():
    """A process is killed that has filled segments but flushed none; the next one loses power while it opens them."""
    made = batches(0, 1, [1] * 12)

    def killed() -> SimDisk:
        disk = SimDisk()
        log = open_log(disk)
        log.append(made[:2])
        flush(log)
        log.append(made[2:])
        return disk

    for after in after_power_losses(killed, lambda disk: partial(open_log, disk), seeds=100, changes=6):
        found = open_log(after)
        assert found.end >= 2 and content(found) == made[: found.end]


def test_the_epoch_of_a_log_start_above_the_flushed_end_is_known():
    """The file of the epochs may have lost it; a leader would be told of an older one, for ever."""
    for seed in range(60):
        disk = SimDisk()
        log = open_log(disk)
        log.append(batches(0, 1, [1, 1]))
        flush(log)
        log.append(batches(2, 3, [1] * 12))
        assert log.advance_start(9)
        disk.crash(Random(seed))
        found = open_log(disk)
        assert found.start == log.start and found.epoch_at(found.start) == 3
        found.append(batches(found.end, 3, [1]))
        flush(found)
        sound(open_log(disk))


def test_an_opening_that_fails_leaves_no_file_open():
    disk = build()
    for path in SEGMENTS[:2]:
        data = disk.read(path)
        disk.replace(path, data[:-3])
        pool = OpenFiles(disk, 100)
        with pytest.raises(CorruptLog):
            Log.open(pool, PATH, SMALL)
        assert pool.opened == 0
        disk.replace(path, data)


def test_a_file_for_a_repair_that_was_not_needed_is_no_hole_when_its_segment_has_gone_in_order():
    disk = build()
    disk.open(f"{PATH}/{0:020d}.repair", create=True).close()
    log = OpenLog(disk, PATH, SMALL, LogTailCache(1000)).run().log
    log.advance_start(9)
    assert log.start == 6
    log.close()
    assert OpenLog(disk, PATH, SMALL, LogTailCache(1000)).run().log.start == 6
