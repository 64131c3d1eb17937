"""The simulated disk keeps what was synced, and may lose anything else."""

from __future__ import annotations

import errno
from random import Random

import pytest
from tidelog.testing.hardware.disk import PowerLost, SimDisk

FILE = "/data/a"


def fresh() -> SimDisk:
    disk = SimDisk()
    disk.mkdir("/data")
    return disk


def outcomes(disk: SimDisk, path: str = FILE) -> set[bytes | None]:
    found: set[bytes | None] = set()
    for seed in range(300):
        after = disk.clone()
        after.crash(Random(seed))
        found.add(after.read(path) if "a" in after.listdir("/data") else None)
    return found


def test_synced_data_survives_every_crash():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"ab", memoryview(b"cd")], 0)
    file.sync()
    disk.sync_dir("/data")
    assert outcomes(disk) == {b"abcd"}


def test_a_synced_file_may_lose_its_name_until_the_directory_is_synced():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"ab"], 0)
    file.sync()
    assert outcomes(disk) == {b"ab", None}


def test_an_unsynced_write_is_kept_lost_torn_flipped_or_zero():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"ab"], 0)
    file.sync()
    disk.sync_dir("/data")
    file.pwritev([b"cdef"], 2)
    found = outcomes(disk)
    assert {b"abcdef", b"ab", b"abc", b"abcd", b"abcde", b"ab\0\0\0\0"} <= found
    assert {len(each) for each in found if each is not None} <= set(range(2, 7))
    assert all(each is not None and each.startswith(b"ab") for each in found)
    assert len(found) > 10  # flipped bits


def test_changes_meet_their_fates_one_by_one():
    disk = fresh()
    file = disk.open(FILE, create=True)
    disk.sync_dir("/data")
    file.pwritev([b"a"], 0)
    file.pwritev([b"b"], 1)
    assert b"\0b" in outcomes(disk)
    file.truncate(0)
    assert {b"", b"ab", b"\0b"} <= outcomes(disk)


def test_an_atomic_write_leaves_the_old_bytes_or_the_new_ones_at_every_step():
    disk = fresh()
    disk.write_atomic(FILE, b"old")
    found = set()
    for after in range(10):
        trial = disk.clone()
        trial.lose_power(after)
        try:
            trial.write_atomic(FILE, b"new")
        except PowerLost:
            found |= outcomes(trial)
        else:
            assert after > 4 and outcomes(trial) == {b"new"}
    assert found == {b"old", b"new"}


def test_after_the_power_is_gone_nothing_works_until_the_crash_and_old_files_never_again():
    disk = fresh()
    file = disk.open(FILE, create=True)
    disk.lose_power(after=1)
    file.truncate(5)
    with pytest.raises(PowerLost):
        file.sync()
    for call in (lambda: disk.read(FILE), lambda: disk.listdir("/data"), lambda: file.pread(1, 0)):
        with pytest.raises(PowerLost):
            call()
    disk.crash(Random(1))
    assert disk.listdir("/") == ["data"]
    with pytest.raises(PowerLost):
        file.size()


def test_errors_come_after_the_count_and_go_with_heal():
    disk = fresh()
    file = disk.open(FILE, create=True)
    disk.fail_writes(errno.ENOSPC, after=1)
    file.pwritev([b"ok"], 0)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.pwritev([b"long"], 2)
    disk.heal()
    disk.fail_reads()
    with pytest.raises(OSError, match="Input/output"):
        file.pread(1, 0)
    disk.heal()
    assert file.pread(9, 0) == b"oklo"  # half of the failed write arrived


def test_data_dropped_by_a_failed_sync_is_readable_but_never_stable():
    disk = fresh()
    file = disk.open(FILE, create=True)
    disk.sync_dir("/data")
    file.pwritev([b"ab"], 0)
    disk.fail_syncs()
    with pytest.raises(OSError):
        file.sync()
    disk.heal()
    file.sync()
    assert disk.read(FILE) == b"ab"
    assert outcomes(disk) == {b""}


def test_names_and_trees():
    disk = fresh()
    for path in ("/data/t/p/1.log", "/data/t/2.log"):
        disk.mkdir(path.rpartition("/")[0])
        disk.open(path, create=True)
    assert disk.listdir("/data/t") == ["2.log", "p"]
    disk.rename("/data/t/2.log", "/data/t/3.log")
    disk.rmtree("/data/t")
    assert disk.listdir("/data") == []
    for call in (lambda: disk.open("/data/t/3.log"), lambda: disk.unlink("/data/x"), lambda: disk.listdir("/x")):
        with pytest.raises(FileNotFoundError):
            call()
    with pytest.raises(FileNotFoundError):
        disk.open("/nowhere/a", create=True)


def test_the_same_seed_is_the_same_crash():
    disk = fresh()
    file = disk.open(FILE, create=True)
    for position in range(0, 900, 9):
        file.pwritev([b"123456789"], position)
    disk.sync_dir("/data")
    first, second = disk.clone(), disk.clone()
    first.crash(Random(7))
    second.crash(Random(7))
    assert first.read(FILE) == second.read(FILE)


def test_a_full_disk_lets_no_file_grow_until_there_is_room_again():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"abcd"], 0)
    disk.full = True
    file.pwritev([b"AB"], 0)
    with pytest.raises(OSError) as caught:
        file.pwritev([b"CDEF"], 2)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError):
        disk.open("/data/b", create=True)
    file.sync()
    disk.crash(Random(1))
    assert disk.full
    disk.heal()
    disk.open(FILE, create=True).pwritev([b"more"], 4)


def test_a_flipped_bit_lies_on_the_disk_and_is_read_by_all():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"abcd"], 0)
    file.sync()
    disk.sync_dir("/data")
    disk.flip(FILE, 1, 0)
    assert file.pread(4, 0) == b"accd"
    assert outcomes(disk) == {b"accd"}


def test_reads_of_an_observer_meet_no_injected_read_errors():
    disk = fresh()
    file = disk.open(FILE, create=True)
    disk.fail_reads()
    with disk.watched():
        assert file.pread(4, 0) == b""
    with pytest.raises(OSError):
        file.pread(4, 0)
    disk.fail_reads(0)
    assert file.pread(4, 0) == b""


def test_reads_of_an_observer_see_no_bit_rot_and_a_write_or_a_cut_ends_it():
    disk = fresh()
    file = disk.open(FILE, create=True)
    file.pwritev([b"abcd"], 0)
    file.sync()
    disk.flip(FILE, 1, 0)
    disk.flip(FILE, 3, 0)
    with disk.watched():
        assert disk.read(FILE) == b"abcd"
    assert disk.read(FILE) == b"acce" and disk.rotten
    file.pwritev([b"BC"], 1)
    file.truncate(3)
    with disk.watched():
        assert disk.read(FILE) == b"aBC"
    assert disk.read(FILE) == b"aBC" and not disk.rotten


def test_a_cached_listing_equals_a_new_one() -> None:
    rng, disk = Random(1), SimDisk()
    for directory in ("a", "a/b", "c"):
        disk.mkdir(directory)
    for step in range(400):
        name = f"{rng.choice(('a', 'a/b', 'c'))}/{rng.randrange(6)}"
        match rng.randrange(6):
            case 0 | 1:
                disk.open(name, create=True).close()
            case 2 if disk.exists(name):
                disk.rename(name, f"c/{rng.randrange(6)}")
            case 3 if disk.exists(name):
                disk.unlink(name)
            case 4 if step % 50 == 0:
                disk.crash(rng)
            case 5 if step % 40 == 0:
                disk.rmtree("a/b")
                disk.mkdir("a/b")
        for directory in ("a", "a/b", "c"):
            assert disk.listdir(directory) == disk.clone().listdir(directory)
