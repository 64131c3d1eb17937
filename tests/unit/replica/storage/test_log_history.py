"""What a log tells of all that was ever in it: the state of the producers, the hash chain. Tests
``tidelog_replica/storage/log.py`` and ``storage/producer_snapshots.py``."""

from __future__ import annotations

import errno
from random import Random

import pytest
from support.log_builders import PATH, batches, flush, open_log, produced, take_snapshot
from support.log_with_history import ALL, COUNT, HEADERS, STORED, built, check, filled
from tidelog.batch.format import NO_CHAIN, chain_after, read_header
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.jobs import run_job
from tidelog_replica.replication.producer_state import ProducerState
from tidelog_replica.storage.log import CorruptLog, Log
from tidelog_replica.storage.producer_snapshots import Snapshots
from tidelog_replica.storage.segment import Segment

# --- producers -------------------------------------------------------------------------------------------


def snapshots(disk: SimDisk) -> list[str]:
    return [name for name in disk.listdir(PATH) if name.startswith("producers-")]


def test_the_producers_are_known_after_a_restart_without_reading_the_whole_log():
    disk = built()
    assert snapshots(disk)[-1].endswith(f"{COUNT:020d}")
    for segment in open_log(disk).segments.closed():
        disk.replace(segment.path, bytes(segment.size))
    assert open_log(disk).producers.snapshot() == ALL


def test_a_producer_whose_batches_are_all_gone_is_still_known():
    disk = SimDisk()
    log = filled(disk)
    log.advance_start(COUNT)
    assert 3 in open_log(disk).producers.snapshot()


def test_D5_no_damage_to_a_snapshot_changes_what_is_known_of_the_producers():
    disk = built()
    newest = f"{PATH}/{snapshots(disk)[-1]}"
    data = disk.read(newest)
    changed = [data[:cut] for cut in range(len(data))]
    changed += [data[:p] + bytes([data[p] ^ 1 << p % 8]) + data[p + 1 :] for p in range(len(data))]
    for each in changed:
        after = disk.clone()
        after.replace(newest, each)
        assert open_log(after).producers.snapshot() == ALL
    for name in snapshots(disk):
        disk.replace(f"{PATH}/{name}", b"")
    check(open_log(disk), 0)


def spoil(disk: SimDisk, *names: str) -> None:
    """One bit of each of these is another."""
    for name in names:
        data = disk.read(f"{PATH}/{name}")
        disk.replace(f"{PATH}/{name}", data[:-1] + bytes([data[-1] ^ 1]))


def retired() -> tuple[SimDisk, Log, str, list[str]]:
    """A log that begins at 8, where nothing is left of producer 3; the name of the snapshot there, and the others."""
    disk = SimDisk()
    log = filled(disk)
    log.advance_start(8)
    first, *later = snapshots(disk)
    assert first.endswith(f"{log.start:020d}") and len(later) == 2
    return disk, log, first, later


def test_D5_where_the_newest_snapshots_are_damaged_an_older_one_serves():
    for damaged in ([1], [2], [1, 2], [0], [0, 1], [0, 2]):
        disk, _, first, later = retired()
        spoil(disk, *([first, *later][place] for place in damaged))
        found = open_log(disk)
        assert found.producers.snapshot() == ALL and not found.forgets


def test_D5_without_snapshots_the_headers_rebuild_the_producers_and_the_log_knows_that_it_forgot_some():
    disk, log, first, later = retired()
    spoil(disk, first, *later)
    found = open_log(disk)
    assert found.forgets
    assert found.producers.snapshot() == ProducerState(HEADERS[log.start :]).snapshot()
    assert 3 in ALL and 3 not in found.producers.snapshot()
    assert not open_log(SimDisk()).forgets


@pytest.mark.parametrize("cut", [10, 20, COUNT])
def test_D5_a_log_that_is_open_does_not_need_the_snapshot_at_its_start(cut: int):
    """What lies there is damaged one day; a copy, a cut and the next retention learn it from memory."""
    disk, log, first, later = retired()
    spoil(disk, first, *later)
    told = ProducerState.from_bytes(log.copy_start().producers)
    assert ProducerState(()).snapshot() != told.snapshot()
    assert {id: told.snapshot()[id] for id in (3,)} == {id: ALL[id] for id in (3,)}
    copy = open_log(SimDisk())
    copy.reset(log.copy_start(), told)
    copy.append(STORED[log.start :])
    assert copy.producers.snapshot() == ALL
    recall = log.begin_rebuild(cut)
    log.truncate(cut, None if recall is None else recall.run())
    assert log.producers.snapshot()[3] == ALL[3]
    log.advance_start(cut)
    assert open_log(disk).producers.snapshot()[3] == ALL[3]


@pytest.mark.parametrize("unreadable", [False, True])
def test_damage_to_segments_that_retention_removes_is_ignored(unreadable: bool, monkeypatch: pytest.MonkeyPatch):
    """Nor where the snapshot at the new start is missing, so that the headers would have to tell."""
    disk = SimDisk()
    log = filled(disk)
    advance = log.begin_advance(15)
    assert advance is not None
    for name in snapshots(disk):
        disk.unlink(f"{PATH}/{name}")
    for segment in advance.segments:
        disk.replace(segment.path, bytes(segment.size))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "bad sector")

    with monkeypatch.context() as patch:
        if unreadable:
            patch.setattr(Segment, "headers", fail)
        assert advance.run() is False, "what the producers had written is hidden"
    log.complete_advance(advance)
    assert ProducerState.from_bytes(log.copy_start().producers).snapshot()[3] == ALL[3]
    found = open_log(disk)
    assert found.start == log.start and found.producers.snapshot() == ALL


def test_batches_of_producers_hidden_by_damage_are_refused_when_sent_again():
    """Found by seeds 9000118 and 9003368: retention met a rotten segment, took the producers from memory, and the log
    was cut afterwards. What memory had not held any more was forgotten, and nothing said so."""
    disk = SimDisk()
    log = filled(disk)
    for name in snapshots(disk):
        disk.unlink(f"{PATH}/{name}")
    disk.flip(f"{PATH}/{0:020d}.log", len(STORED[0]) + 52, 3)
    advance = log.begin_advance(15)
    assert advance is not None and advance.run() is False
    log.complete_advance(advance)
    log.truncate(20)
    known, whole = log.producers.snapshot(), ProducerState(HEADERS[:20]).snapshot()
    for id, (epoch, written) in known.items():
        assert (epoch, written) == (whole[id][0], whole[id][1][-len(written) :]), "the newest, and none in between"
    again = [header for header in HEADERS[:20] if header.base_sequence]
    assert all(log.producers.check(header) is not None for header in again), "nothing is taken twice"


def test_retention_of_sound_segments_hides_nothing():
    disk = SimDisk()
    log = filled(disk)
    for name in snapshots(disk):
        disk.unlink(f"{PATH}/{name}")
    advance = log.begin_advance(15)
    assert advance is not None and advance.run() is True


def test_a_snapshot_of_another_history_is_not_believed():
    """It was written above a cut, and the log has grown past that offset again."""
    disk = built()
    name = snapshots(disk)[-1]
    data = disk.read(f"{PATH}/{name}")
    log = open_log(disk)
    log.truncate(20)
    assert name not in disk.listdir(PATH)
    assert log.producers.snapshot() == ProducerState(HEADERS[:20]).snapshot()
    log.append([produced(offset, 9, 8, offset - 20) for offset in range(20, COUNT)])
    flush(log)
    expected = log.producers.snapshot()
    log.close()
    disk.replace(f"{PATH}/{name}", data)
    assert open_log(disk).producers.snapshot() == expected


def test_the_producer_state_of_a_cut_log_is_that_of_the_remaining_batches():
    for end in range(COUNT + 1):
        log = filled(SimDisk())
        log.truncate(end)
        assert log.producers.snapshot() == ProducerState(HEADERS[:end]).snapshot()


def test_only_the_newest_snapshots_and_the_one_at_the_start_stay():
    disk = SimDisk()
    log = filled(disk)
    assert len(snapshots(disk)) == 2
    log.advance_start(8)
    for offset in range(COUNT, 3 * COUNT):
        log.append([produced(offset, 4, 1, offset)])
        take_snapshot(log)
    flush(log)
    log.truncate(COUNT)
    assert snapshots(disk) == [f"producers-{log.start:020d}"]
    check(log, log.start)


def test_a_snapshot_of_a_roll_that_was_followed_by_retention_leaves_that_of_the_new_start():
    """Nobody else knows of the producers whose batches are gone."""
    disk = SimDisk()
    log = filled(disk)
    assert log.roll_if_old(10**12) is False and log.roll_if_old(10**13)
    advance = log.begin_advance(15)
    snapshot = log.begin_snapshot()
    assert advance is not None and snapshot is not None
    advance.run()
    log.complete_advance(advance)
    snapshot.run()
    log.complete_snapshot(snapshot)
    told = ProducerState.from_bytes(log.copy_start().producers)
    assert told.snapshot() == ProducerState(HEADERS[: log.start]).snapshot()
    check(open_log(disk), log.start)


@pytest.mark.parametrize("fault", ["no space", "power lost"])
def test_the_snapshot_of_a_roll_leaves_that_of_a_log_start_at_the_same_offset_as_it_is(fault: str):
    """The log start's is durable and nothing else tells what it does; the roll's is a cache."""
    disk = SimDisk()
    log = filled(disk)
    log.roll_if_old(10**12)
    assert log.roll_if_old(10**13)
    advance, snapshot = log.begin_advance(COUNT), log.begin_snapshot()
    assert advance is not None and snapshot is not None and snapshot.offset == advance.log_start.start == COUNT
    advance.run()
    log.complete_advance(advance)
    flush(log)
    if fault == "no space":
        disk.fail_writes(errno.ENOSPC)
    run_job(snapshot)
    for seed in range(40):
        after = disk.clone()
        after.heal()
        if fault == "power lost":
            after.crash(Random(seed))
        assert open_log(after).producers.snapshot() == ALL


def test_a_roll_writes_no_snapshot_and_the_later_one_is_of_the_moment_of_the_roll():
    """Encoding ten thousand producers takes a tenth of a second."""
    disk = SimDisk()
    log = open_log(disk)
    for offset in range(7):
        log.append([STORED[offset]])
    assert len(log.segments) == 2 and snapshots(disk) == []
    snapshot = log.begin_snapshot()
    assert snapshot is not None and log.begin_snapshot() is None
    log.append(STORED[7:9])
    log.producers.record(HEADERS[20], 20)
    snapshot.run()
    log.complete_snapshot(snapshot)
    (name,) = snapshots(disk)
    assert name.endswith(f"{snapshot.offset:020d}")
    found = Snapshots(disk, PATH).newest(0, 9, log.chain_at)
    assert found is not None
    offset, producers = found
    assert offset == snapshot.offset == log.segments[-1].base + 1
    assert producers.snapshot() == ProducerState(HEADERS[:offset]).snapshot()


def test_only_the_newest_snapshot_that_nobody_has_begun_is_taken():
    disk = SimDisk()
    log = open_log(disk)
    for each in STORED:
        log.append([each])
    flush(log)
    assert snapshots(disk) == [f"producers-{log.segments[-1].base + 1:020d}"]


@pytest.mark.parametrize("grows", [False, True])
def test_a_snapshot_that_a_truncation_has_overtaken_is_gone(grows: bool):
    disk = SimDisk()
    log = open_log(disk)
    for each in STORED[:7]:
        log.append([each])
    snapshot = log.begin_snapshot()
    assert snapshot is not None
    log.truncate(2)
    if grows:
        log.append([produced(offset, 9, 8, offset - 2) for offset in range(2, COUNT)])
    snapshot.run()
    log.complete_snapshot(snapshot)
    assert snapshots(disk) == []
    for each in STORED[2:7] if not grows else []:
        log.append([each])
    log.truncate(3)
    assert log.begin_snapshot() is None, "what was due goes with the cut, too"


def test_while_the_start_moves_the_snapshot_at_the_old_one_stays():
    """It tells the job what came before; and until the job is over, a crash brings the old start back."""
    disk = SimDisk()
    log = filled(disk)
    log.advance_start(8)
    advance = log.begin_advance(15)
    assert advance is not None
    more = [produced(offset, 4, 9, offset - COUNT) for offset in range(COUNT, COUNT + 12)]
    for each in more:
        log.append([each])
        take_snapshot(log)
    found = open_log(disk.clone())
    found.truncate(found.start + 1)
    assert found.producers.snapshot() == ProducerState(HEADERS[: found.start + 1]).snapshot()
    advance.run()
    log.complete_advance(advance)
    expected = ProducerState(HEADERS[: log.start])
    assert ProducerState.from_bytes(log.copy_start().producers).snapshot() == expected.snapshot()


def test_a_snapshot_that_a_former_life_could_not_sync_is_durable_before_the_segments_go():
    """The page cache has it still, and a second sync would say that all is well."""
    disk = SimDisk()
    advance = filled(disk).begin_advance(15)
    assert advance is not None
    disk.fail_syncs()
    with pytest.raises(OSError, match="simulated"):
        advance.run()
    disk.heal()
    log = open_log(disk)
    log.advance_start(15)
    expected = log.copy_start()
    for seed in range(20):
        after = disk.clone()
        after.crash(Random(seed))
        assert open_log(after).copy_start() == expected
    assert ProducerState.from_bytes(expected.producers).snapshot() == ProducerState(HEADERS[: log.start]).snapshot()


def test_snapshots_may_go_under_the_hands_of_a_thread_that_removes_them():
    disk = SimDisk()
    log = filled(disk)
    listed = Snapshots(disk, PATH)
    gone = Snapshots(disk, PATH)
    gone.offsets = lambda names=None: [3, *Snapshots.offsets(gone)]  # type: ignore[method-assign]
    gone.remove(below=COUNT)
    gone.retire(())
    assert listed.newest(0, COUNT, log.chain_at) is None


# --- chain -----------------------------------------------------------------------------------------------


def test_the_chain_at_every_offset_is_that_of_the_batches_before_it():
    disk = SimDisk()
    log = open_log(disk)
    many = batches(0, 1, [1, 2, 3] * 8)
    log.append(many)
    flush(log)
    for each in (log, open_log(disk)):
        chain, boundary = NO_CHAIN, 0
        for stored in many:
            header = read_header(stored)
            for offset in range(header.base_offset, header.end_offset):
                assert each.chain_at(offset) == (boundary, chain)
            chain, boundary = chain_after(chain, stored), header.end_offset
        assert each.chain_at(boundary) == each.chain_at(boundary + 9) == (boundary, chain)


def test_an_index_whose_chain_is_not_that_of_the_headers_is_noticed():
    disk = built()
    log = open_log(disk)
    first = log.segments[0]
    data = bytearray(disk.read(first.path))
    data[40] ^= 1  # in max_timestamp of the first batch: nothing but its CRC and the chain cover it
    disk.replace(first.path, bytes(data))
    log = open_log(disk)
    log.segments[0]._index = None
    disk.unlink(first.index_path)
    with pytest.raises(CorruptLog, match="hash chain"):
        log.chain_at(1)


def test_the_tail_cache_drops_batches_that_retention_removed():
    log = filled(SimDisk())
    assert log.segments._tail.read(0, 100, COUNT) is not None
    log.advance_start(15)
    assert log.segments._tail.read(log.start - 1, 100, COUNT) is None
    assert log.segments._tail.read(log.start, 100, COUNT) is not None
