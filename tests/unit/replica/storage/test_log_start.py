"""Where a log begins: retention moves it up, a copy starts over there, and what the lost part told is kept. Tests
``tidelog_replica/storage/log.py``, ``storage/checkpoints.py`` and ``recovery/reset.py``."""

from __future__ import annotations

from random import Random

import pytest
from support.log_builders import PATH, batch, content, flush, open_log, reset
from support.log_with_history import COUNT, HEADERS, STORED, at_each_step, built, chain_to, check, filled, stable
from tidelog.batch.format import NO_CHAIN
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.checkpoints import LOG_START, RESET, LogStartCheckpoint
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.recovery.recovery import EPOCHS, RECOVERY_POINT
from tidelog_replica.storage.segment import Segment

# --- retention -------------------------------------------------------------------------------------------


def test_the_start_moves_by_whole_segments_and_never_past_the_one_that_is_written():
    log = filled(SimDisk())
    bases = [segment.base for segment in log.segments]
    assert len(bases) > 4
    assert not log.advance_start(0) and not log.advance_start(bases[1] - 1)
    for offset in (bases[1], bases[2] + 1, bases[3], COUNT + 5):
        log.advance_start(offset)
        check(log, max(base for base in bases if base <= offset))
    assert log.start == bases[-1]
    assert log.read(0, 1000) == [] and log.read(log.start - 1, 1000) == []


def test_it_is_the_same_log_when_it_is_opened_again():
    disk = SimDisk()
    log = filled(disk)
    log.advance_start(15)
    start = log.start
    check(open_log(disk), start)
    disk.crash(Random(0))
    check(open_log(disk), start)
    names = disk.listdir(PATH)
    assert min(int(name[:20]) for name in names if name.endswith((".log", ".index"))) == start


def test_epochs_below_the_log_start_are_forgotten_except_that_of_the_last_record():
    log = filled(SimDisk())
    log.advance_start(15)
    assert log.epochs.entries == [(2, 5), (3, 13), (4, 21)] if log.start <= 13 else [(3, 13), (4, 21)]
    log.advance_start(COUNT)
    assert log.epochs.entries == [(4, 21)] and log.epoch_at(log.start) == 4
    log.assign_epoch(9)
    assert open_log(log._disk).epochs.entries == [(4, 21), (9, COUNT)]


def test_times_are_found_in_what_is_left():
    log = filled(SimDisk())
    log.advance_start(15)
    assert log.offset_for_timestamp(0, COUNT) == (log.start, 1000 + log.start)
    assert log.offset_for_timestamp(1020, COUNT) == (20, 1020)


def test_no_producer_that_the_disk_made_up_is_written_down_for_ever():
    """Retention takes the producers of what goes from its headers: where a bit has rotted in one, from memory."""
    disk = SimDisk()
    log = filled(disk)
    for offset in log._snapshots.offsets():
        disk.unlink(f"{PATH}/producers-{offset:020d}")
    disk.flip(f"{PATH}/{0:020d}.log", len(STORED[0]) + 52, 3)  # the second batch is another producer's now
    advance = log.begin_advance(15)
    assert advance is not None
    advance.run()
    log.complete_advance(advance)
    check(open_log(disk), log.start)


def test_a_log_that_was_cut_at_its_start_goes_on_there():
    disk = SimDisk()
    log = filled(disk)
    log.advance_start(15)
    start = log.start
    log.truncate(start)
    assert (log.start, log.end, log.epoch_at(start)) == (start, start, HEADERS[start - 1].leader_epoch)
    assert log.producers.snapshot() == ProducerState(HEADERS[:start]).snapshot()
    assert log.chain_at(start) == (start, chain_to(start))
    log.append(STORED[start:])
    flush(log)
    check(log, start)
    check(open_log(disk), start)


def test_D7_retention_may_be_cut_off_at_each_step():
    starts = set()

    def judge(log: Log) -> None:
        starts.add(log.start)
        check(log, log.start)

    at_each_step(lambda: stable(built()), lambda log: log.advance_start(15), judge, 6)
    assert len(starts) == 2


def test_D7_where_no_snapshot_of_the_producers_is_durable_none_is_forgotten_at_any_step_of_a_retention():
    """A producer that has written nothing since the new log start is known from what was below it alone."""

    def prepare() -> SimDisk:
        disk = built()
        for name in disk.listdir(PATH):
            if name.startswith("producers-"):
                disk.unlink(f"{PATH}/{name}")
        disk.sync_dir(PATH)
        return stable(disk)

    at_each_step(prepare, lambda log: log.advance_start(15), lambda log: check(log, log.start), 6)


def test_a_first_segment_that_is_gone_is_damage_and_one_too_many_is_not():
    disk = built()
    first = Segment(disk, PATH, 0)
    kept = disk.read(first.path)
    disk.unlink(first.path)
    with pytest.raises(CorruptLog, match="begins at 0, but its first segment at"):
        open_log(disk)
    disk.replace(first.path, kept)
    log = open_log(disk)
    log.advance_start(15)
    disk.replace(first.path, kept)
    check(open_log(disk), log.start)
    assert first.path.rpartition("/")[2] not in disk.listdir(PATH)
    disk.unlink(log.segments[0].path)
    with pytest.raises(CorruptLog, match="begins at"):
        open_log(disk)


def test_D5_no_damage_to_the_file_of_the_log_start_changes_the_log():
    disk = built()
    open_log(disk).advance_start(15)
    start = open_log(disk).start
    path = f"{PATH}/{LOG_START}"
    data = disk.read(path)
    changed = [data[:cut] for cut in range(len(data))]
    changed += [data[:p] + bytes([data[p] ^ 1 << p % 8]) + data[p + 1 :] for p in range(len(data))]
    changed += [
        b"",
        data + b"x",
        bytes(len(data)),
        LogStartCheckpoint(17, 5).to_bytes(PATH),
        LogStartCheckpoint(1000, 7).to_bytes(PATH),
    ]
    for each in changed:
        after = disk.clone()
        after.replace(path, each)
        check(open_log(after), start)
        assert after.read(path) == data
    disk.replace(f"{PATH}/{EPOCHS}", b"")
    check(open_log(disk), start)


def test_under_os_the_log_start_moves_past_the_synced_offset():
    lazy = TopicConfig(segment_max_bytes=500, flush="os")
    disk = SimDisk()
    log = filled(disk, lazy, flushed=False)
    synced = log._synced
    log.advance_start(15)
    assert log.start > synced
    check(log, log.start)
    log.sync_all()
    disk.crash(Random(1))
    check(open_log(disk, lazy), log.start)


def test_a_flush_that_ends_when_the_start_has_moved_past_it_takes_nothing_back():
    """A follower may know more to be committed than it has flushed."""
    disk = SimDisk()
    log = open_log(disk)
    log.append(STORED[:4])
    pending = log.begin_flush()
    assert pending is not None
    log.append(STORED[4:])
    log.advance_start(15)
    pending.run()
    log.complete_flush(pending)
    assert log.durable == log.start > 4
    flush(log)
    for seed in range(10):
        after = disk.clone()
        after.crash(Random(seed))
        check(open_log(after), log.start)


# --- a copy that starts over -----------------------------------------------------------------------------


def test_a_copy_that_starts_over_where_the_leader_begins_becomes_its_equal():
    leader, disk = filled(SimDisk()), SimDisk()
    leader.advance_start(15)
    follower = open_log(disk)
    follower.append(STORED[:4])
    past = leader.copy_start()
    follower.reset(past, ProducerState.from_bytes(past.producers))
    assert (follower.start, follower.end, follower.durable) == (leader.start, leader.start, leader.start)
    assert follower.read_high_watermark() == leader.start and follower.epoch_at(follower.start) == 3
    assert follower.producers.snapshot() == ProducerState(HEADERS[: leader.start]).snapshot()
    follower.append(STORED[leader.start :])
    flush(follower)
    for log in (follower, open_log(disk)):
        check(log, leader.start)
        assert all(log.chain_at(o) == leader.chain_at(o) for o in range(leader.start, COUNT + 1))
        assert log.copy_start() == leader.copy_start()


def test_a_log_that_begins_at_0_has_no_past():
    assert filled(SimDisk()).copy_start()[:3] == (0, -1, NO_CHAIN)
    log = open_log(SimDisk())
    reset(log, 0, -1, b"")
    assert (log.start, log.end, log.epochs.latest(), log.chain_at(0)) == (0, 0, -1, (0, NO_CHAIN))


@pytest.mark.parametrize("start", [4, COUNT + 5])
def test_starting_over_may_be_cut_off_at_each_step(start):
    """Also where the old log reached further: a damaged copy is thrown away that way."""
    past = ProducerState(HEADERS[:4])

    def judge(log: Log) -> None:
        if log.end == COUNT:
            check(log, 0)
        else:
            assert (log.start, log.end, log.epoch_at(start)) == (start, start, 7)
            assert log.chain_at(start) == (start, b"c" * 16)
            assert log.producers.snapshot() == past.snapshot()
            assert log.read_high_watermark() == start

    at_each_step(lambda: stable(built()), lambda log: reset(log, start, 7, b"c" * 16, past), judge, 20)


def test_starting_over_goes_on_where_a_flush_is_under_way():
    disk = SimDisk()
    log = open_log(disk)
    log.append(STORED)
    pending = log.begin_flush()
    assert pending is not None
    reset(log, 40, 4, NO_CHAIN)
    pending.run()
    log.complete_flush(pending)
    assert (log.durable, log.end) == (40, 40)
    log.append([batch(40, 5)])
    flush(log)
    assert (open_log(disk).start, open_log(disk).end) == (40, 41)


def test_a_damaged_wish_to_start_over_is_passed_over():
    disk = built()
    for data in (b"", b"garbage", LogStartCheckpoint(3, 1).to_bytes(PATH), bytes(100)):
        disk.replace(f"{PATH}/{RESET}", data)
        check(open_log(disk), 0)
        assert RESET not in disk.listdir(PATH)


# --- age -------------------------------------------------------------------------------------------------


def test_a_segment_is_closed_when_its_first_record_is_old():
    day = TopicConfig(segment_max_age_ms=1000)
    disk = SimDisk()
    log = open_log(disk, day)
    assert not log.roll_if_old(5000)
    log.append([STORED[0]])
    assert not log.roll_if_old(6000) and not log.roll_if_old(6999)
    log.append([STORED[1]])
    assert log.roll_if_old(7000) and not log.roll_if_old(99_000)
    log.append([STORED[2]])
    flush(log)
    assert not log.roll_if_old(99_000)
    assert [segment.base for segment in log.segments] == [0, 2]
    assert content(open_log(disk)) == STORED[:3]


def test_after_a_restart_the_age_is_that_of_the_first_record():
    log = open_log(SimDisk(), config := TopicConfig(segment_max_age_ms=1000))
    log.append([STORED[0], STORED[1]])  # from 1000 ms on
    log.close()
    log = Log.open(log._disk, PATH, config)
    assert not log.roll_if_old(1999)
    assert log.roll_if_old(2000)


def test_restarts_in_order_do_not_begin_the_age_anew():
    """A start that trusts the index file reads no batch, so it does not know the first record's timestamp."""
    disk, config = SimDisk(), TopicConfig(segment_max_age_ms=1000)
    log = open_log(disk, config)
    log.append([STORED[0], STORED[1]])  # from 1000 ms on
    flush(log)
    for wall_ms in (1300, 1900, 1999):
        log.close()
        log = open_log(disk, config)
        assert not log.roll_if_old(wall_ms)
    log.close()
    log = open_log(disk, config)
    assert log.segments[-1]._file is None, "an idle log has no open file"
    assert log.roll_if_old(2000)


def test_after_a_restart_a_first_record_of_the_future_counts_as_old():
    """Otherwise a server that restarts often enough would never close the segment."""
    log = open_log(disk := SimDisk(), config := TopicConfig(segment_max_age_ms=500))
    log.append([STORED[0]])  # at 1000 ms
    flush(log)
    assert not log.roll_if_old(900)
    log.close()
    assert open_log(disk, config).roll_if_old(999)


def test_a_clock_that_was_ahead_for_one_look_delays_no_closing():
    log = open_log(SimDisk(), TopicConfig(segment_max_age_ms=1000))
    log.append([STORED[0]])
    assert not log.roll_if_old(10**9)
    assert not log.roll_if_old(5000) and not log.roll_if_old(5999)
    assert log.roll_if_old(6000)
    log.append([STORED[1]])
    assert not log.roll_if_old(10**9)
    log.roll()
    log.roll_if_old(7000)
    assert [each.since_ms for each in log.segments.extents()[:-1]] == [5000, 7000]


def test_the_marks_file_is_still_the_judge_after_a_reset():
    disk = SimDisk()
    log = filled(disk)
    reset(log, 50, 4, NO_CHAIN)
    disk.unlink(f"{PATH}/{50:020d}.log")
    with pytest.raises(CorruptLog, match="no segment is left"):
        open_log(disk)
    disk.unlink(f"{PATH}/{RECOVERY_POINT}")
    with pytest.raises(CorruptLog, match="no segment is left"):
        open_log(disk)
