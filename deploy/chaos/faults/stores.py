"""Faults of controllers' stores that are damaged, or whose disk is put back from an earlier copy."""

from __future__ import annotations

import shutil
import struct
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import trio
from chaos.cluster import capabilities
from chaos.cluster.network_namespaces import run
from chaos.cluster.supervisor import STEADY_S, Stage, Unfit
from chaos.faults.disks import flip_bit, wipe
from chaos.faults.registry import fault
from tidelog_controller.storage import Damaged, RaftStorage

DISKS = (capabilities.DISKS,)
FILES = ("raft.db", "raft.db-wal", "raft.db-commits")
WAL_HEADER = struct.Struct(">8xI4x8s8x")
"""Page size and salts of a SQLite WAL (https://sqlite.org/fileformat2.html#walformat)."""
FRAME_HEADER = struct.Struct(">4xI8s8x")
"""Size of the database after a commit, 0 in frames before the last of a commit; salts."""
TOPICS = 5
"""Number of topics that are created and deleted after the copy to which a disk is put back."""


@fault(
    "bit-flip-controller",
    "a controller is killed, one bit of its store's write-ahead log flips, it starts on that and is added again",
    "controller",
    hold=(0.0, 0.0),
    spoils=True,
)
async def _flipped_store(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    """Do the fault ``bit-flip-controller``. A flip in frames that are in the database, too, is harmless: the store is
    not set aside then, and the controller keeps its vote."""
    await stage.commit(1)
    await stage.kill(target)
    try:
        damaged = _flip_frame(stage, target, random)
    finally:
        await stage.start(target)
    yield
    if damaged:
        await stage.vote_again(target)


@fault(
    "power-bit-flip-controller",
    "a controller's host loses power, one bit of its store's write-ahead log has flipped, and it is added again",
    "controller",
    needs=DISKS,
    hold=(0.0, 0.0),
    spoils=True,
)
async def _power_flip(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    await stage.commit(1)
    await stage.lose_power(target)
    await stage.boot(target)
    try:
        damaged = _flip_frame(stage, target, random)
    finally:
        await stage.start(target)
    yield
    if damaged:
        await stage.vote_again(target)


@fault(
    "power-bit-flip-controllers",
    "all controllers' hosts lose power at once, and one bit of one store's write-ahead log has flipped",
    "all",
    needs=DISKS,
    hold=(0.0, 0.0),
    spoils=True,
)
async def _power_all_flip(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    nodes = stage.nodes("controller")
    struck = random.choice(nodes)
    await stage.commit(1)
    await stage.lose_power(*nodes)
    await stage.boot(*nodes)
    try:
        damaged = _flip_frame(stage, struck, random)
    finally:
        await stage.start(*nodes)
    yield
    if damaged:
        await stage.vote_again(struck)


def _flip_frame(stage: Stage, node: str, random: Random) -> bool:
    """Flip one bit of a committed frame in the write-ahead log of a controller that does not run. Returns whether the
    controller will find its store damaged. Raises ``Unfit`` if the write-ahead log holds no commit."""
    data = stage.cluster.data(node)
    wal = data / "raft.db-wal"
    start, end = committed_frames(wal.read_bytes() if wal.exists() else b"")
    if start == end:
        raise Unfit(f"{node} has no commit in its write-ahead log")
    flip_bit(wal, random.randrange(start, end), random)
    return _is_damaged(data, stage.cluster.cluster, node)


def committed_frames(wal: bytes) -> tuple[int, int]:
    """Return the byte offsets in a WAL at which the frames that SQLite reads begin, and at which the last commit
    among them ends; equal if there is none. The frames behind are of an earlier round, with other salts."""
    start = end = at = WAL_HEADER.size
    if len(wal) < start:
        return start, start
    page_size, salts = WAL_HEADER.unpack_from(wal)
    while at + FRAME_HEADER.size + page_size <= len(wal):
        pages, own = FRAME_HEADER.unpack_from(wal, at)
        if own != salts:
            break
        at += FRAME_HEADER.size + page_size
        end = at if pages else end
    return start, end


def _is_damaged(data: Path, cluster: str, node: str) -> bool:
    """Return whether a controller will find its store damaged. Opens a copy of the store, since opening changes its
    files."""
    with tempfile.TemporaryDirectory() as copy:
        for name in FILES:
            shutil.copy(data / name, copy)
        try:
            storage = RaftStorage(copy, cluster, node, "")
            try:
                storage.load()
            finally:
                storage.close()
        except Damaged:
            return True
    return False


@fault(
    "old-disk-controller",
    "a controller's disk is put back from an earlier copy; status must name it, and it must vote again by itself",
    "controller",
    hold=(0.0, 0.0),
    spoils=True,
)
async def _old_disk(stage: Stage, target: str, random: Random) -> AsyncIterator[None]:
    data = stage.cluster.data(target)
    with tempfile.TemporaryDirectory(dir=stage.cluster.folder) as kept:
        await stage.kill(target)
        _copy(data, Path(kept))
        await stage.start(target)
        await stage.commit(TOPICS)
        await stage.acknowledged(target)
        await trio.sleep(STEADY_S)  # until heartbeats have reported its acknowledgements to the others
        async with stage.old_copy_named(target):
            await stage.kill(target)
            wipe(data)
            _copy(Path(kept), data)
            run("sync", "--file-system", str(data))
            await stage.start(target)
    yield
    await stage.acknowledged(target)


def _copy(source: Path, to: Path) -> None:
    for path in source.iterdir():
        if path.is_dir() and path.name != "lost+found":
            shutil.copytree(path, to / path.name)
        elif path.is_file():
            shutil.copy2(path, to)
