"""Opening a damaged log: a cut at every byte, a flip of every byte."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.log_builders import (
    END,
    PATH,
    SEGMENTS,
    STORED,
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
from tidelog.batch.format import read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.replication.leader_epochs import LeaderEpochCache
from tidelog_replica.storage.checkpoints import OffsetCheckpoint, seed_of
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.recovery.recovery import EPOCHS, HIGH_WATERMARK, RECOVERY_POINT

LAST = SEGMENTS[-1]


def damaged(disk: SimDisk, path: str, data: bytes) -> SimDisk:
    disk = disk.clone()
    disk.replace(path, data)
    return disk


def check_prefix(log: Log, end: int) -> None:
    assert log.end == log.durable == end
    kept = [each for each in STORED if read_header(each).end_offset <= end]
    assert content(log) == kept
    assert log.epochs.entries[: len(epochs_of(kept))] == epochs_of(kept)
    sound(log)
    more = batches(end, 9, [2, 2, 2, 2, 2])  # and it goes on from there, over whatever was behind
    log.append(more)
    flush(log)
    sound(log)


# --- segments --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SEGMENTS)
def test_a_cut_at_every_byte_above_the_mark_leaves_the_whole_batches_before_it(path):
    disk = build(durable=0)
    data = disk.read(path)
    for cut in range(len(data)):
        after = damaged(disk, path, data[:cut])
        check_prefix(open_log(after), ends_before(path, cut))
        again = open_log(after)
        assert again.epochs.latest() == 9


@pytest.mark.parametrize("path", SEGMENTS)
def test_a_flip_of_every_byte_above_the_mark_cuts_there(path):
    disk = build(durable=0)
    data = bytearray(disk.read(path))
    for position in range(len(data)):
        data[position] ^= 1 << position % 8
        check_prefix(open_log(damaged(disk, path, bytes(data))), ends_before(path, position))
        data[position] ^= 1 << position % 8


def test_a_cut_or_flip_of_every_byte_of_the_last_segment_below_the_mark_is_corruption():
    disk = build()
    data = bytearray(disk.read(LAST))
    for position in range(len(data)):
        with pytest.raises(CorruptLog, match="were synced"):
            open_log(damaged(disk, LAST, bytes(data[:position])))
        data[position] ^= 1 << position % 8
        with pytest.raises(CorruptLog, match="were synced"):
            open_log(damaged(disk, LAST, bytes(data)))
        data[position] ^= 1 << position % 8
    assert content(open_log(disk)) == STORED


def test_a_refused_log_is_left_as_it_was():
    disk = build()
    disk.replace(LAST, disk.read(LAST)[:-1])
    before = {name: disk.read(f"{PATH}/{name}") for name in disk.listdir(PATH)}
    for _ in range(2):
        with pytest.raises(CorruptLog):
            open_log(disk)
    assert {name: disk.read(f"{PATH}/{name}") for name in disk.listdir(PATH)} == before


@pytest.mark.parametrize("path", SEGMENTS[:2])
@pytest.mark.parametrize("index", ["there", "gone"])
def test_damage_to_the_length_or_headers_of_an_older_segment_is_corruption(path, index):
    """What stands in a body there is found when it is read, or by scrubbing: opening does not read everything."""
    disk = build()
    if index == "gone":
        for segment in SEGMENTS[:2]:
            disk.unlink(segment.replace(".log", ".index"))
    data = bytearray(disk.read(path))
    starts = [0]
    while starts[-1] < len(data):
        starts.append(starts[-1] + read_header(bytes(data), starts[-1]).size)
    for position in range(len(data)):
        with pytest.raises(CorruptLog):
            open_log(damaged(disk, path, bytes(data[:position])))
    for start in starts[:-1]:
        for position in (*range(start, start + 12), *range(start + 16, start + 24), start + 31):  # stamped or checked
            data[position] ^= 1 << position % 8
            after = damaged(disk, path, bytes(data))
            if index == "gone":
                with pytest.raises(CorruptLog):
                    open_log(after)
            else:
                assert open_log(after).end == END
            data[position] ^= 1 << position % 8


def test_a_damaged_header_that_is_met_in_reading_is_corruption_too():
    disk = build()
    disk.replace(SEGMENTS[0], bytes(len(disk.read(SEGMENTS[0]))))
    log = open_log(disk)
    for call in (
        lambda: log.read(1, 100),
        lambda: list(log.segments.headers()),
        lambda: log.offset_for_timestamp(1000, END),
    ):
        with pytest.raises(CorruptLog):
            call()


@pytest.mark.parametrize("path", SEGMENTS)
@pytest.mark.parametrize("durable", [0, 6, 12, END])
def test_a_segment_that_is_gone_is_a_torn_tail_above_the_mark_and_corruption_below(path, durable):
    disk = build(durable)
    disk.unlink(path)
    disk.sync_dir(PATH)
    base = int(path[-24:-4])
    if path == SEGMENTS[0] or durable > base:  # not as after retention: the log start is written down
        with pytest.raises(CorruptLog):
            open_log(disk)
    else:
        check_prefix(open_log(disk), base)


def test_a_directory_without_segments_is_a_new_log_unless_mark_or_hw_know_better():
    disk = build()
    for path in SEGMENTS:
        disk.unlink(path)
    with pytest.raises(CorruptLog, match="no segment is left"):
        open_log(disk)
    disk.unlink(f"{PATH}/{RECOVERY_POINT}")
    with pytest.raises(CorruptLog, match="synced to offset 9"):
        open_log(disk)
    disk.unlink(f"{PATH}/{HIGH_WATERMARK}")
    assert open_log(disk).end == 0


def test_a_new_log_is_made_with_the_file_that_its_high_watermark_moves_in():
    disk = SimDisk()
    log = open_log(disk)
    made = disk.files()
    log.append(batches(0, 1, [1, 1]))
    flush(log)
    log.write_high_watermark(2)
    assert disk.files() == made
    disk.crash(Random(1))
    assert f"{PATH}/{HIGH_WATERMARK}" in disk.files()


@given(st.binary(max_size=300) | st.integers(1, 9000).map(bytes), st.booleans())
@settings(max_examples=150, deadline=None)
def test_zeros_or_garbage_behind_the_last_batch_are_cut(tail, with_part):
    disk = build()
    part = batch(END, 3)[:70] if with_part else b""
    disk.replace(LAST, disk.read(LAST) + part + tail)
    check_prefix(open_log(disk), END)


def test_whole_batches_behind_the_mark_are_kept_but_none_behind_a_bad_one():
    disk = build()
    more = batches(END, 3, [1, 1, 1])
    bad = bytearray(more[1])
    bad[-1] ^= 1
    disk.replace(LAST, disk.read(LAST) + more[0] + bad + more[2])
    assert content(open_log(disk)) == [*STORED, more[0]]


def test_a_batch_of_an_epoch_that_the_epoch_file_lacks_is_cut():
    for epoch in (2, 4, 1000):
        disk = build()
        disk.replace(LAST, disk.read(LAST) + batch(END, epoch))
        check_prefix(open_log(disk), END)


# --- everything beside the segments ----------------------------------------------------------------------


@pytest.mark.parametrize("name", [EPOCHS, HIGH_WATERMARK, RECOVERY_POINT, f"{0:020d}.index", f"{6:020d}.index"])
def test_no_damage_to_another_file_stops_the_log_or_changes_it(name):
    disk = build()
    path = f"{PATH}/{name}"
    data = disk.read(path)
    changed: list[bytes] = [data[:cut] for cut in range(len(data))]
    changed += [data[:p] + bytes([data[p] ^ 1 << p % 8]) + data[p + 1 :] for p in range(len(data))]
    changed += [bytes(len(data)), b"\xff" * 500, data + b"x", data + data, Random(1).randbytes(400)]
    for each in changed:
        log = open_log(damaged(disk, path, each))
        assert content(log) == STORED and log.end == END
        assert log.epochs.entries == epochs_of(STORED)
        sound(log)
    gone = disk.clone()
    gone.unlink(path)
    assert content(open_log(gone)) == STORED
    sound(open_log(gone))


def test_with_nothing_but_segments_everything_is_there():
    disk = build()
    for name in disk.listdir(PATH):
        if not name.endswith(".log"):
            disk.unlink(f"{PATH}/{name}")
    log = open_log(disk)
    assert content(log) == STORED and log.epochs.entries == epochs_of(STORED) and log.read_high_watermark() == 0
    check_prefix(log, END)


def test_an_index_of_the_same_length_but_another_log_is_not_believed():
    disk = build()
    index = SEGMENTS[0].replace(".log", ".index")
    disk.replace(index, disk.read(SEGMENTS[1].replace(".log", ".index")))
    log = open_log(disk)
    assert content(log) == STORED
    sound(log)


def test_the_epoch_file_is_made_again_where_it_is_damaged():
    disk = build()
    whole = disk.read(f"{PATH}/{EPOCHS}")
    disk.replace(f"{PATH}/{EPOCHS}", whole[:30])
    open_log(disk)
    assert disk.read(f"{PATH}/{EPOCHS}") == whole


def test_an_epoch_that_begins_past_the_log_end_is_forgotten_and_one_at_the_end_is_not():
    disk = build(durable=0)
    cache = LeaderEpochCache([*epochs_of(STORED), (5, END), (6, END + 1)], seed_of(PATH))
    disk.replace(f"{PATH}/{EPOCHS}", cache.to_bytes())
    assert open_log(disk).epochs.entries == [*epochs_of(STORED), (5, END)]


def test_other_files_in_the_directory_do_no_harm():
    disk = build()
    for name in ("leader-epochs.new", "note.log", "00000000000000000006.log.bak", "4.log"):
        disk.replace(f"{PATH}/{name}", b"something")
    assert content(open_log(disk)) == STORED


def test_power_that_goes_takes_no_full_segment_from_below_the_mark():
    """Found with disks that rot: the mark was back where it had been long ago, a bit in a full segment looked like
    the end of a write that never finished, and all that was acked behind it was cut without a word."""
    for seed in range(20):
        disk = SimDisk()
        log = open_log(disk)
        for each in STORED:
            log.append([each])
            while (pending := log.begin_flush()) is not None:
                pending.run()
                log.complete_flush(pending)
        disk.crash(Random(seed))
        assert (OffsetCheckpoint(disk, f"{PATH}/{RECOVERY_POINT}").value or 0) >= int(LAST[-24:-4])
        disk.flip(SEGMENTS[1], 50, 3)
        with pytest.raises(CorruptLog):
            log = open_log(disk)
            content(log, from_disk=True)


def test_the_mark_is_synced_once_for_each_full_segment():
    disk = SimDisk()
    log = open_log(disk)
    synced = 0
    for each in STORED:
        log.append([each])
        while (pending := log.begin_flush()) is not None:
            synced += pending.recovery_point is not None
            pending.run()
            log.complete_flush(pending)
    assert synced == len(SEGMENTS) - 1
