"""What opening a log writes and syncs: nothing where nothing is unsure, since a server opens thousands at once.
Tests ``tidelog_replica/storage/log.py`` and ``recovery/recovery.py``."""

from __future__ import annotations

from collections import Counter

import pytest
from support.log_builders import PATH, SMALL, batches, flush
from tidelog.runtime.disk import File
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.storage.log import Log


class CountingDisk(SimDisk):
    """Counts what changes something."""

    def __init__(self) -> None:
        super().__init__()
        self.done: Counter[str] = Counter()

    def open(self, path: str, *, create: bool = False) -> File:
        return _Counted(self, super().open(path, create=create))

    def sync_dir(self, path: str) -> None:
        self.done["sync_dir"] += 1
        super().sync_dir(path)


class _Counted:
    def __init__(self, disk: CountingDisk, file: File) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> object:
        if name in ("pwritev", "truncate", "sync"):
            self._disk.done[name] += 1
        return getattr(self._file, name)


def log_of(disk: CountingDisk, *, closed: bool) -> Log:
    """Some records, then a leader epoch in which nothing was written."""
    log = Log.open(disk, PATH, SMALL)
    log.assign_epoch(4)
    log.append(batches(0, 4, [1, 2]))
    flush(log)
    log.assign_epoch(5)
    if closed:
        log.sync_all()
        log.close()
    return log


def opened(disk: CountingDisk) -> Log:
    disk.done.clear()
    return Log.open(disk, PATH, SMALL)


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "killed"])
def test_a_log_whose_last_leader_epoch_is_empty_is_opened_without_a_write(closed: bool) -> None:
    disk = CountingDisk()
    log_of(disk, closed=closed)
    for _ in range(2):
        log = opened(disk)
        assert log.epochs.latest() == 5 and not disk.done


def test_a_log_that_was_closed_then_grew_and_was_killed_is_opened_without_a_sync() -> None:
    """The index that it has outgrown goes; should that come back, it does not fit."""
    disk = CountingDisk()
    log_of(disk, closed=True)
    log = opened(disk)
    log.append(batches(3, 5, [1]))
    flush(log)
    assert opened(disk).end == 4 and not disk.done


def test_a_new_log_syncs_its_directory_once() -> None:
    disk = CountingDisk()
    opened(disk)
    assert disk.done["sync_dir"] == 2, "for the epoch file, which is put in its place whole, and for all the rest"


@pytest.mark.parametrize("epoch", [5, 6])
def test_epochs_that_an_earlier_process_may_have_failed_to_sync_are_written_again_first(epoch: int) -> None:
    """The pages are clean, and on no disk: only what is written anew is synced."""
    disk = CountingDisk()
    log_of(disk, closed=False)
    disk.fail_syncs()
    with pytest.raises(OSError, match="Input/output"):
        disk.open(f"{PATH}/leader-epochs").sync()
    disk.heal()
    log = opened(disk)
    log.append(batches(3, epoch, [1]))
    flush(log)
    name = f"{PATH}/leader-epochs"
    assert disk.stable(name) == disk.read(name) and log.epochs.latest() == epoch
