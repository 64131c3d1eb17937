"""Files that the disk cannot read any more: a bad sector is no reason for a server to start never again. Tests
``tidelog_replica/storage/log.py`` and ``runtime/disk.py``."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any, cast

import pytest
from support.log_builders import (
    PATH,
    SEGMENTS,
    SMALL,
    STORED,
    batches,
    build,
    content,
    epochs_of,
    flush,
    open_log,
    sound,
)
from tidelog.runtime.disk import File
from tidelog.testing.hardware.disk import SimDisk
from tidelog_replica.jobs import run_job
from tidelog_replica.storage.log import CorruptLog, Log


class BadSector(SimDisk):
    """One file cannot be read, until it is another one or holds something else."""

    bad = ""
    held = b""

    @classmethod
    def under(cls, disk: SimDisk, path: str) -> BadSector:
        spoiled = cls()
        for name in disk.listdir(PATH):
            spoiled.mkdir(PATH)
            spoiled.replace(f"{PATH}/{name}", disk.read(f"{PATH}/{name}"))
        spoiled.held, spoiled.bad = spoiled.read(path), path
        return spoiled

    closed = False
    """It cannot even be opened."""

    def open(self, path: str, *, create: bool = False) -> File:
        if self.closed and path == self.bad:
            raise OSError(errno.EBADMSG, "simulated: bad inode", path)
        return cast(File, _BadFile(self, path, super().open(path, create=create)))

    def unlink(self, path: str) -> None:
        self._forget(path)
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        self._forget(source)
        self._forget(target)
        super().rename(source, target)

    def _forget(self, path: str) -> None:
        if path == self.bad:
            self.bad = ""

    def is_bad(self, path: str) -> bool:
        return path == self.bad and self._names[path].content == self.held


class _BadFile:
    def __init__(self, disk: BadSector, path: str, file: File) -> None:
        self._disk, self._path, self._file = disk, path, file

    def pread(self, length: int, position: int) -> bytes:
        if self._disk.is_bad(self._path):
            raise OSError(errno.EIO, "simulated: bad sector", self._path)
        return self._file.pread(length, position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


BESIDE = [f"{PATH}/{name}" for name in build().listdir(PATH) if not name.endswith(".log")]


def test_every_kind_of_file_beside_the_segments_is_there() -> None:
    kinds = {path.rpartition("/")[2].strip("0123456789") for path in BESIDE}
    assert kinds == {".index", "high-watermark", "leader-epochs", "log-start", "producers-", "recovery-mark"}


@pytest.mark.parametrize("path", BESIDE)
def test_one_beside_the_segments_is_made_again(path: str) -> None:
    disk = BadSector.under(build(), path)
    log = open_log(disk)
    assert content(log, from_disk=True) == STORED and log.epochs.entries == epochs_of(STORED)
    log.write_high_watermark(12)
    log.append(batches(log.end, 4, [1]))
    flush(log)
    log.close()
    log = open_log(disk)
    assert disk.bad == "" or disk.read(path) != disk.held
    assert log.read_high_watermark() == 12
    sound(log)


def test_an_index_that_becomes_unreadable_is_no_damage_to_its_segment() -> None:
    path = f"{PATH}/{0:020d}.index"
    disk = BadSector.under(build(), path)
    bad, disk.bad = disk.bad, ""
    log = open_log(disk)
    disk.bad = bad
    assert content(log, from_disk=True) == STORED


@pytest.mark.parametrize("path", SEGMENTS)
def test_a_segment_is_damaged_and_nothing_else_is(path: str) -> None:
    """Whatever there was is to be had from others; the server goes on."""
    disk = BadSector.under(build(), path)
    if path != SEGMENTS[-1]:
        disk.unlink(path.replace(".log", ".index"))
    with pytest.raises(CorruptLog, match="bad sector") as caught:
        Log.open(disk, PATH, SMALL)
    assert caught.value.filename == path


@pytest.mark.parametrize("path", SEGMENTS)
def test_a_segment_that_cannot_be_opened_is_damaged_too(path: str) -> None:
    """It never passes for a segment that is not there, or empty."""
    disk = BadSector.under(build(), path)
    disk.closed = True
    if path != SEGMENTS[-1]:
        disk.unlink(path.replace(".log", ".index"))
    with pytest.raises(CorruptLog, match="bad inode") as caught:
        Log.open(disk, PATH, SMALL)
    assert caught.value.filename == path


@pytest.mark.parametrize("path", BESIDE)
def test_one_beside_the_segments_that_cannot_be_opened_is_made_again(path: str) -> None:
    disk = BadSector.under(build(), path)
    disk.closed = True
    log = open_log(disk)
    assert content(log, from_disk=True) == STORED and log.epochs.entries == epochs_of(STORED)
    sound(log)


def test_where_the_producers_are_to_be_read_from_a_segment_that_cannot_be_it_is_damaged() -> None:
    """Nothing else of it is read at a start in order."""
    disk = build()
    for name in disk.listdir(PATH):
        if name.startswith("producers-"):
            disk.unlink(f"{PATH}/{name}")
    with pytest.raises(CorruptLog, match="bad sector") as caught:
        Log.open(BadSector.under(disk, SEGMENTS[-1]), PATH, SMALL)
    assert caught.value.filename == SEGMENTS[-1]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_errors_that_say_nothing_of_the_medium_are_no_damage(error: int) -> None:
    disk = build()
    disk.fail_reads(error, only=SEGMENTS[0])
    disk.unlink(SEGMENTS[0].replace(".log", ".index"))
    with pytest.raises(OSError, match="simulated") as caught:
        Log.open(disk, PATH, SMALL)
    assert caught.value.errno == error and not isinstance(caught.value, CorruptLog)


def test_a_wish_to_begin_anew_that_cannot_be_read_is_passed_over_like_a_damaged_one() -> None:
    disk = build()
    disk.replace(f"{PATH}/reset", b"wish")
    log = open_log(BadSector.under(disk, f"{PATH}/reset"))
    assert content(log, from_disk=True) == STORED


@pytest.mark.parametrize("closed", [False, True], ids=["not read", "not opened"])
def test_a_full_segment_that_a_job_cannot_read_is_damaged_and_the_disk_does_not_fail(closed: bool) -> None:
    """Else the process would end, start, and meet it again with the next job, for ever."""
    disk = build()
    log = open_log(disk)
    spoiled = BadSector.under(disk, SEGMENTS[0])
    spoiled.closed = closed
    compaction = log.begin_compaction(log.end, 10**13, 0.0)
    assert compaction is not None
    result = run_job(replace(compaction, disk=spoiled))
    assert isinstance(result, CorruptLog) and result.filename == SEGMENTS[0]
    twin = log.segments[0].read_only_view()
    twin._disk = spoiled
    with pytest.raises(CorruptLog):
        list(twin.headers(0))


def test_a_segment_that_is_written_and_cannot_be_read_is_a_failing_disk() -> None:
    """Nobody can say what of it is there."""
    disk = SimDisk()
    log = open_log(disk)
    log.append(batches(0, 4, [1]))
    disk.fail_reads(errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        list(log.segments.headers())
    assert not isinstance(caught.value, CorruptLog)
