"""The files of a Raft store in a directory of their own, for tests that damage them."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidelog_controller.raft.effects import Persist
from tidelog_controller.raft.log import Entry, PersistentState
from tidelog_controller.storage import Damaged, RaftStorage

SMALL_PAGE = 512
Files = dict[str, bytes]
"""Content by name of file."""


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yield a temporary folder, in memory if possible, where a sync costs nothing."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="raft-store-", dir=where))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def open_store(folder: Path) -> RaftStorage:
    """Open the store in a folder."""
    return RaftStorage(folder, "harbour", "c1", "s")


def commit(number: int) -> Persist:
    """Return a commit: a vote in term ``number`` and one entry of that term."""
    return Persist(number, f"c{number % 3}", None, (Entry(number, number, b"command %d" % number),))


def read_files(folder: Path) -> Files:
    """Return the content of all files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_files(folder: Path, files: Files) -> None:
    """Replace all files of a folder by these."""
    for path in folder.iterdir():
        path.unlink()
    for name, data in files.items():
        (folder / name).write_bytes(data)


def killed_store(folder: Path, commits: int, *, page_bytes: int | None = None) -> tuple[Files, PersistentState]:
    """Return the files of a store whose process was killed after so many commits, and the state that they hold."""
    storage = open_store(folder)
    if page_bytes is not None:
        storage.close()
        db = sqlite3.connect(folder / "raft.db", isolation_level=None)
        db.executescript(f"PRAGMA journal_mode = DELETE; PRAGMA page_size = {page_bytes}; VACUUM")
        db.close()
        storage = open_store(folder)
    for number in range(1, commits + 1):
        storage.perform(commit(number))
    files, stored = read_files(folder), storage.load()
    storage.close()
    return files, stored


def opened(folder: Path) -> PersistentState | None:
    """Return the state in a store; None if it is damaged."""
    try:
        storage = open_store(folder)
    except Damaged:
        return None
    try:
        return storage.load()
    except Damaged:
        return None
    finally:
        storage.close()


def flipped(data: bytes, place: int, bit: int) -> bytes:
    """Return the bytes with one bit inverted."""
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
