"""A bad batch above the recovery mark, with whole batches behind it or without."""

from __future__ import annotations

from random import Random

import pytest
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
    flush,
    open_log,
    sound,
)
from tidelog.batch.format import HEADER_BYTES, NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.testing.hardware.disk import SimDisk
from tidelog.types import TopicConfig
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage import log as log_module
from tidelog_replica.storage.checkpoints import RESET, LogStartCheckpoint, OffsetCheckpoint
from tidelog_replica.storage.encryption.files import EncryptedDisk
from tidelog_replica.storage.log import Log
from tidelog_replica.storage.recovery.doubtful_tail import DoubtfulLog, WriteTail, read_place, tail_path
from tidelog_replica.storage.recovery.recovery import EPOCHS, RECOVERY_POINT, recover
from tidelog_replica.storage.recovery.reset import begin, finish

from unit.replica.storage.encryption.test_files import CONFIG, OF_OLD

BIG = TopicConfig(segment_max_bytes=1 << 20)
HELD = batches(0, 1, [1, 2, 1, 3, 1, 1])
"""One segment of six batches."""


def one_segment() -> SimDisk:
    """``HELD``, all of it on the disk; the mark is where it was at first."""
    disk = SimDisk()
    log = open_log(disk, BIG)
    log.append(HELD)
    flush(log)
    disk.replace(f"{PATH}/{RECOVERY_POINT}", b"")
    OffsetCheckpoint(disk, f"{PATH}/{RECOVERY_POINT}").write(0)
    for name in disk.listdir(PATH):
        disk.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
    return disk


def doubt_of(disk: SimDisk, config: TopicConfig = BIG, *, has_peers: bool = False) -> DoubtfulLog:
    with pytest.raises(DoubtfulLog) as raised:
        Log.open(disk, PATH, config, has_peers=has_peers)
    return raised.value


def test_a_flip_of_any_byte_with_whole_batches_behind_it_is_doubtful_and_not_cut():
    path, base = f"{PATH}/{0:020d}.log", one_segment()
    data = base.read(path)
    edges = [0]
    for each in HELD:
        edges.append(edges[-1] + len(each))
    for position in range(edges[-2]):
        disk = base.clone()
        disk.flip(path, position, position % 8)
        number = sum(edge <= position for edge in edges) - 1
        doubt = doubt_of(disk)
        assert doubt.start == read_header(HELD[number]).base_offset and not doubt.torn
        assert [read_place(disk, place) for place in doubt.places] == HELD[number + 1 :]
        assert doubt.end == read_header(HELD[-1]).end_offset
        assert len(disk.read(path)) == len(data), "nothing is cut"


def test_a_flip_in_the_last_batch_is_torn_where_others_can_be_asked_and_else_cut():
    path, disk = f"{PATH}/{0:020d}.log", one_segment()
    disk.flip(path, len(disk.read(path)) - 3, 0)
    doubt = doubt_of(disk, has_peers=True)
    assert doubt.torn and not doubt.places
    assert content(Log.open(disk, PATH, BIG)) == HELD[:-1]


def test_a_last_batch_at_another_offset_is_doubtful_since_its_crc_is_right():
    path, disk = f"{PATH}/{0:020d}.log", one_segment()
    disk.flip(path, len(disk.read(path)) - len(HELD[-1]) + 7, 4)
    doubt = doubt_of(disk)
    assert not doubt.torn and not doubt.places


@pytest.mark.parametrize("path", SEGMENTS[:2])
def test_a_bad_batch_is_doubtful_where_a_later_segment_is_whole(path):
    disk = build(durable=0)
    disk.flip(path, len(disk.read(path)) - 3, 0)
    start = ends_before(path, len(disk.read(path)) - 3)
    doubt = doubt_of(disk, TopicConfig(segment_max_bytes=500))
    assert doubt.start == start
    later = [each for each in STORED if read_header(each).base_offset > start]
    assert [read_place(disk, place) for place in doubt.places] == later and all(p.anchored for p in doubt.places)


def test_a_flipped_bit_in_the_epoch_file_makes_the_tail_doubtful():
    disk = one_segment()
    disk.flip(f"{PATH}/{EPOCHS}", 3, 0)
    doubt = doubt_of(disk)
    assert doubt.start == 0 and doubt.epochs.epoch_at(0) == -1
    assert [read_place(disk, place) for place in doubt.places] == HELD


def test_the_rest_of_a_damaged_epoch_file_excludes_foreign_batches_from_the_log():
    disk = SimDisk()
    log = open_log(disk, BIG)
    log.append(HELD)
    log.assign_epoch(4)  # this server led, and wrote nothing: another may hold more of epoch 1, which was lost then
    flush(log)
    end, size = log.end, len(disk.read(f"{PATH}/{EPOCHS}"))
    disk.flip(f"{PATH}/{EPOCHS}", size - 1, 0)  # in the count of the entries
    disk.flip(f"{PATH}/{0:020d}.log", HEADER_BYTES + 1, 0)
    with pytest.raises(log_module.CorruptLog) as raised:
        open_log(disk, BIG)
    assert isinstance(raised.value.doubt, DoubtfulLog)
    epochs = raised.value.doubt.epochs
    assert not epochs.is_whole and (epochs.epoch_at(end - 1), epochs.epoch_at(end)) == (1, -1)
    held, lost, later = (read_header(made) for made in (batch(end - 1, 1), batch(end, 1), batch(end, 5)))
    assert epochs.fits(held) and not epochs.fits(lost) and epochs.fits(later)


def test_a_record_that_contains_a_batch_is_not_taken_for_a_batch_of_the_log():
    hidden = batch(1, 1)
    outer = encode_batch([NewRecord(hidden, None, 1000)])
    outer = stamp_prefix(0, 1, read_header(outer).crc32c) + outer[16:]
    disk = SimDisk()
    log = open_log(disk, BIG)
    log.append([outer])
    flush(log)
    disk.replace(f"{PATH}/{RECOVERY_POINT}", b"")
    OffsetCheckpoint(disk, f"{PATH}/{RECOVERY_POINT}").write(0)
    path = f"{PATH}/{0:020d}.log"
    disk.flip(path, 17, 0)  # the magic of the outer one
    doubt = doubt_of(disk)
    assert [place.start for place in doubt.places] == [1] and not doubt.places[0].anchored


def test_the_tail_file_is_appended_where_the_log_is_cut_whenever_the_power_goes():
    path = f"{PATH}/{0:020d}.log"

    def prepare() -> SimDisk:
        disk = one_segment()
        disk.flip(path, len(HELD[0]) + 100, 0)
        return disk

    def settle(disk: SimDisk) -> None:
        doubt = doubt_of(disk)
        WriteTail(disk, PATH, doubt.start, (HELD[1], *doubt.places)).run()
        open_log_strictly(disk)

    def open_log_strictly(disk: SimDisk) -> Log:
        return Log.open(disk, PATH, BIG)

    for after in after_power_losses(prepare, lambda disk: lambda: settle(disk), seeds=15, changes=6):
        try:
            log = open_log_strictly(after)
        except DoubtfulLog as doubt:
            assert doubt.start == 1 and not after.exists(tail_path(PATH, 1))
            assert [read_place(after, place) for place in doubt.places] == HELD[2:]
        else:
            assert content(log) == HELD
            sound(log)
            assert not [name for name in after.listdir(PATH) if ".tail" in name]


def test_a_settled_tail_without_batches_is_cut():
    disk = one_segment()
    disk.flip(f"{PATH}/{0:020d}.log", len(HELD[0]) + 100, 0)
    WriteTail(disk, PATH, doubt_of(disk).start, ()).run()
    log = Log.open(disk, PATH, BIG)
    assert content(log) == HELD[:1]
    log.append(batches(1, 2, [1, 1]))
    flush(log)
    sound(log)


def test_a_copy_that_begins_anew_takes_nothing_from_an_earlier_tail_file_whenever_the_power_goes():
    """A log that is damaged, too, is not opened with its tail file: it may be thrown away before that is used."""
    start = read_header(HELD[1]).base_offset
    origin = LogStartCheckpoint(start, 0, b"c" * 16)

    def prepare() -> SimDisk:
        disk = one_segment()
        WriteTail(disk, PATH, start, tuple(HELD[1:])).run()
        return disk

    def begin_anew(disk: SimDisk) -> None:
        begin(disk, PATH, origin, ProducerState().to_bytes())
        finish(disk, PATH)

    for after in after_power_losses(prepare, lambda disk: lambda: begin_anew(disk), seeds=15, changes=6):
        begun = after.exists(f"{PATH}/{RESET}") or after.exists(f"{PATH}/{start:020d}.log")
        log = Log.open(after, PATH, BIG)
        assert content(log) == ([] if begun else HELD)
        assert (log.start, log.end) == ((start, start) if begun else (0, read_header(HELD[-1]).end_offset))
        assert not [name for name in after.listdir(PATH) if ".tail" in name]


def test_damage_below_the_mark_in_the_tail_is_made_whole_by_a_tail_file_and_never_cut():
    disk = build()
    disk.flip(SEGMENTS[-1], 70, 0)
    with pytest.raises(log_module.CorruptLog, match="were synced") as raised:
        Log.open(disk, PATH, TopicConfig(segment_max_bytes=500))
    doubt = raised.value.doubt
    assert isinstance(doubt, DoubtfulLog) and (doubt.start, doubt.end) == (12, END)
    WriteTail(disk, PATH, 12, ()).run()
    with pytest.raises(log_module.CorruptLog):
        Log.open(disk, PATH, TopicConfig(segment_max_bytes=500))
    WriteTail(disk, PATH, 12, (STORED[-2], *doubt.places)).run()
    assert content(Log.open(disk, PATH, TopicConfig(segment_max_bytes=500))) == STORED


@pytest.mark.parametrize("position", [8192 + 20, 8192 + 150, 8192 + 400])
def test_a_flip_in_an_encrypted_tail_is_doubtful_too(position):
    disk = SimDisk()
    sealed = EncryptedDisk(disk, OF_OLD)
    log = Log.open(sealed, PATH, CONFIG)
    log.append(HELD[:4])
    flush(log)
    disk.replace(f"{PATH}/{RECOVERY_POINT}", b"")
    OffsetCheckpoint(disk, f"{PATH}/{RECOVERY_POINT}").write(0)
    path = f"{PATH}/{0:020d}.log"
    disk.flip(path, position, 0)
    with pytest.raises(DoubtfulLog) as raised:
        Log.open(sealed, PATH, CONFIG)
    doubt = raised.value
    assert doubt.places and all(read_place(sealed, place) in HELD for place in doubt.places)
    missing = [each for each in HELD[:4] if doubt.start <= read_header(each).base_offset < doubt.places[0].start]
    WriteTail(sealed, PATH, doubt.start, (*missing, *doubt.places)).run()
    assert missing[0][20:60] not in disk.read(tail_path(PATH, doubt.start)), "the tail file is encrypted"
    assert content(Log.open(sealed, PATH, CONFIG)) == HELD[:4]


def test_the_mark_follows_the_durable_end_within_so_many_bytes(monkeypatch):
    monkeypatch.setattr(log_module, "RECOVERY_POINT_BYTES", 1000)
    disk, largest = SimDisk(), 0
    log = open_log(disk, BIG)
    for number in range(200):
        log.append([batch(number, 1, size=40)])
        flush(log)
        stable = SimDisk()
        stable.replace(f"{PATH}/{RECOVERY_POINT}", disk.stable(f"{PATH}/{RECOVERY_POINT}"))
        mark = OffsetCheckpoint(stable, f"{PATH}/{RECOVERY_POINT}").value or 0
        assert mark <= log.durable
        largest = max(largest, log.durable - mark)
    assert largest <= 1000 // len(batch(0, 1, size=40)) + 3


def test_the_recovery_point_is_never_above_the_durable_offset_after_a_power_loss(monkeypatch):
    monkeypatch.setattr(log_module, "RECOVERY_POINT_BYTES", 300)

    def use(disk: SimDisk) -> None:
        log = open_log(disk)
        for number in range(20):
            log.append([batch(number, 1)])
            if number % 3 == 2:
                flush(log)

    for after in after_power_losses(SimDisk, lambda disk: lambda: use(disk), seeds=12, changes=30):
        after.crash(Random(1))
        open_log(after)  # nothing is called damaged


def test_an_idle_log_syncs_nothing_more():
    disk = SimDisk()
    log = open_log(disk, BIG)
    log.append(HELD)
    flush(log)
    changes = disk.changes
    assert log.begin_flush() is None and disk.changes == changes
    log.close()
    recover(disk, PATH).close()
