"""How much of a log stays in the page cache, where that is bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tidelog.runtime.disk import RealDisk

CACHED, PIECE, PIECES = 64 << 10, 10_000, 100


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The ranges that the kernel was told to forget."""
    ranges: list[range] = []

    def note(fd: int, start: int, length: int, advice: int) -> None:
        assert os.fstat(fd).st_size and advice == os.POSIX_FADV_DONTNEED
        ranges.append(range(start, start + length))

    monkeypatch.setattr(os, "posix_fadvise", note)
    return ranges


def write(path: Path, cached_bytes: int) -> None:
    file = RealDisk(cached_bytes).open(str(path), create=True)
    for number in range(PIECES):
        file.pwritev([bytes(PIECE)], number * PIECE)
    file.close()


def test_the_kernel_decides_unless_a_size_is_set(tmp_path: Path, forgotten: list[range]) -> None:
    write(tmp_path / "log", 0)
    assert not forgotten


def test_older_pages_are_given_back_in_parts_each_of_them_more_than_once(
    tmp_path: Path, forgotten: list[range]
) -> None:
    """The kernel forgets only what is on the disk already, and sends the rest there."""
    write(tmp_path / "log", CACHED)
    end = PIECE * PIECES
    for place in range(0, end - 2 * CACHED, 1000):
        assert sum(place in given for given in forgotten) >= 2
    assert max(given.stop for given in forgotten) <= end - CACHED
    assert len(forgotten) <= 4 * end / CACHED, "not for every write"


def test_a_small_file_stays(tmp_path: Path, forgotten: list[range]) -> None:
    file = RealDisk(CACHED).open(str(tmp_path / "checkpoint"), create=True)
    for _ in range(PIECES):
        file.pwritev([bytes(PIECE)], 0)
    file.close()
    assert not forgotten
