"""Files that the disk cannot read any more: a bad sector is no reason for a server to start never again."""

from __future__ import annotations

import errno
from typing import Any, cast

import pytest
from logs import PATH, SEGMENTS, SMALL, STORED, batches, build, content, epochs_of, flush, open_log, sound
from simulation.sim_disk import SimDisk
from tidelog.disk import File
from tidelog_replica.log.log import CorruptLog, Log


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

    def open(self, path: str, *, create: bool = False) -> File:
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
