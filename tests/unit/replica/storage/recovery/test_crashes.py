"""Power lost at each step of what changes a log: roll, truncation, recovery, the first start. Tests
``tidelog_replica/storage/log.py`` and ``recovery/recovery.py``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_builders import (
    END,
    PATH,
    SEGMENTS,
    STORED,
    after_power_losses,
    batch,
    batches,
    build,
    content,
    ends_before,
    epochs_of,
    flush,
    open_log,
    sound,
)
from tidelog.batch.format import HEADER_BYTES, read_header
from tidelog.testing.hardware.disk import PowerLost, SimDisk
from tidelog_replica.storage.log import CorruptLog, Log

SEGMENT = f"{PATH}/{0:020d}.log"


def at_each_step(action: Callable[[Log], None], check: Callable[[Log], None], prepare: Callable[[], SimDisk]) -> None:
    """Run ``action`` on an open log and lose power at its first change, at its second, … and check what is found."""
    for after in after_power_losses(prepare, lambda disk: partial(action, open_log(disk)), seeds=25, changes=4):
        found = open_log(after)
        check(found)
        sound(found)


def test_a_roll_may_be_cut_off_at_each_step():
    more = batches(END, 4, [1] * 9)  # three segments more

    def append_and_flush(log: Log) -> None:
        log.append(more[:5])
        flush(log)
        log.append(more[5:])
        flush(log)

    def check(log: Log) -> None:
        assert log.end >= END
        assert content(log) == [*STORED, *more][: len(STORED) + log.end - END]

    at_each_step(append_and_flush, check, build)


@pytest.mark.parametrize("end", [0, 1, 5, 6, 7, 8, 9, 11, 12, 13])
def test_a_truncation_may_be_cut_off_at_each_step(end):
    """Segment edges are 0, 6 and 12; 5 and 9 are within a batch. Whatever is found is a beginning of the log, and
    never less than was kept."""

    def check(log: Log) -> None:
        assert log.end >= ends_before(SEGMENTS[0], sum(len(b) for b in STORED if read_header(b).end_offset <= end))
        kept = [each for each in STORED if read_header(each).end_offset <= log.end]
        assert content(log) == kept
        assert [entry for entry in log.epochs.entries if entry[1] < log.end] == epochs_of(kept)

    at_each_step(lambda log: log.truncate(end), check, build)


@pytest.mark.parametrize("position", [3, HEADER_BYTES + 3])
def test_a_truncation_gives_up_nothing_below_it_that_the_disk_has_damaged(position):
    """A bit of the first batch that is kept of the segment, in its header or not. The log was synced to its end:
    to take that batch for a torn write and cut there would be a silent loss."""
    kept, steps, over = 11, 0, False  # within the second segment, at a batch edge
    while not over:
        disk = build()
        log = open_log(disk)
        disk.flip(SEGMENTS[1], position, 0)
        disk.lose_power(after=steps)
        try:
            log.truncate(kept)
            over = True
        except CorruptLog:
            over = True
        except PowerLost:
            pass
        for seed in range(5):
            after = disk.clone()
            after.crash(Random(seed))
            with suppress(CorruptLog):
                assert open_log(after).end >= kept
        steps += 1


def test_after_a_truncation_new_records_never_mix_with_old_ones():
    """The old ones had the same lengths and offsets, and were synced once."""
    more = batches(4, 4, [2, *[1] * 9])

    def cut_and_append(log: Log) -> None:
        log.truncate(3)
        log.append(batches(3, 4, [1]))
        for each in more:
            log.append([each])
        flush(log)

    new = [*batches(3, 4, [1]), *more]

    def check(log: Log) -> None:
        found = content(log)
        assert found[:3] == STORED[:3]
        assert found[3:] in (STORED[3 : len(found)], new[: len(found) - 3])

    at_each_step(cut_and_append, check, build)


@pytest.mark.parametrize("torn", [0, 100])
def test_recovery_may_be_cut_off_at_each_step(torn):
    def prepare() -> SimDisk:
        disk = build(durable=6)
        data = disk.read(SEGMENTS[1])
        disk.replace(SEGMENTS[1], data[: len(data) - torn])
        return disk

    for after in after_power_losses(prepare, lambda disk: partial(open_log, disk), seeds=25, changes=4):
        log = open_log(after)
        assert log.end == (END if not torn else 10)
        sound(log)


def test_a_new_log_may_be_cut_off_at_each_step():
    made = batches(0, 2, [1] * 6)

    def use(disk: SimDisk) -> None:
        log = open_log(disk)
        log.assign_epoch(2)
        log.append(made)
        flush(log)

    for after in after_power_losses(SimDisk, lambda disk: partial(use, disk), seeds=25, changes=11):
        log = open_log(after)
        assert content(log) == made[: log.end]


@given(st.integers(0, 2**32), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_flushed_records_survive_several_power_losses(seed, steps):
    rng = Random(seed)
    disk, stored, epoch = SimDisk(), [], 0
    durable = 0
    for _ in range(4):
        log = open_log(disk)
        assert log.end >= durable
        del stored[log.end :]
        assert content(log) == stored
        durable, epoch = log.end, max(epoch, log.epochs.latest()) + 1
        disk.lose_power(after=rng.randrange(steps + 1))
        try:
            for _ in range(12):
                made = batches(log.end, epoch, [1] * rng.randint(1, 5))
                stored += made
                log.append(made)
                if rng.random() < 0.5:
                    flush(log)
                    durable = log.durable
                if rng.random() < 0.1:
                    epoch += 1
                    log.assign_epoch(epoch)
        except PowerLost:
            pass
        disk.crash(rng)


def test_no_index_outlives_its_segment():
    """Else a segment that grew again to the same length and end would be read through its former index."""
    disk = build()
    assert f"{6:020d}.index" in disk.listdir(PATH)
    open_log(disk).truncate(8)
    for seed in range(25):
        after = disk.clone()
        after.crash(Random(seed))
        assert [name for name in after.listdir(PATH) if name.endswith(".index")] == [f"{0:020d}.index"]


@pytest.mark.parametrize("more", [0, 1])
def test_no_index_comes_back_to_a_segment_that_grew_again(more: int) -> None:
    """A power loss leaves the index of a full segment, and of the segment only what was flushed. It is filled again,
    with as many bytes of another epoch (and ``more`` batches are written to the next one), and the power is lost
    once more."""
    for seed in range(100):
        disk = SimDisk()
        log = open_log(disk)
        log.assign_epoch(1)
        log.append(batches(0, 1, [1, 1]))
        flush(log)
        flushed = len(disk.read(SEGMENT))
        while len(log.segments) == 1:
            log.append(batches(log.end, 1, [1]))
        full = log.segments.active.base
        assert f"{0:020d}.index" in disk.listdir(PATH)
        for name in disk.listdir(PATH):
            disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
        disk.replace(SEGMENT, disk.read(SEGMENT)[:flushed])
        disk.unlink(f"{PATH}/{full:020d}.log")
        disk.sync_dir(PATH)
        log = open_log(disk)
        log.assign_epoch(2)
        made = batches(0, 1, [1, 1]) + batches(2, 2, [1] * (full - 2 + more))
        log.append(made[2:full])
        flush(log)
        log.append(made[full:])
        disk.crash(Random(seed))
        found = open_log(disk)
        assert found.end >= full and content(found) == made[: found.end]
        sound(found)
        found.sync_all()
        found.close()
        sound(open_log(disk))


def test_data_left_unsynced_by_a_killed_process_is_synced_before_it_counts():
    disk = SimDisk()
    made = batches(0, 1, [1] * 12)
    log = open_log(disk)
    log.assign_epoch(1)
    log.append(made)
    assert open_log(disk).durable == 12
    for seed in range(25):
        after = disk.clone()
        after.crash(Random(seed))
        assert content(open_log(after)) == made


def test_an_epoch_that_a_former_life_failed_to_sync_is_written_anew_before_another_follows_it():
    """What was appended is discarded: the mark, which is where the epoch begins, tells nothing of it."""
    disk = SimDisk()
    log = open_log(disk)
    log.assign_epoch(0)
    log.append([batch(0, 0)])
    pending = log.begin_flush()
    disk.fail_syncs(after=1)
    with pytest.raises(OSError, match="simulated"):
        pending.run()
    disk.heal()
    log.discard_unsynced()
    log = open_log(disk)
    log.assign_epoch(3)
    log.append([batch(0, 3)])
    flush(log)
    disk.crash(Random(1))
    found = open_log(disk)
    assert found.end == 1 and found.epochs.epoch_before(1) == 3
    sound(found)


def test_an_epoch_that_begins_after_a_restart_puts_nothing_at_risk_that_was_flushed():
    """The mark that says so may be lost with the power, and what the epoch file says below it must not be."""
    for seed in range(100):
        disk = SimDisk()
        log = open_log(disk)
        log.assign_epoch(3)
        log.append([batch(0, 3)])
        flush(log)
        log.assign_epoch(4)
        log = open_log(disk)
        log.assign_epoch(6)
        disk.crash(Random(seed))
        found = open_log(disk)
        assert content(found) == [batch(0, 3)], seed
        sound(found)
