"""A record on a disk is made another, with the CRC of its batch made right: no check of one batch alone sees that."""

from __future__ import annotations

from tidelog.batch.format import HEADER_BYTES, read_header, seal_batch, split

from simulation.world.disk import SimDisk


def alter(disk: SimDisk, path: str, offset: int) -> None:
    """In the segment at ``path``, another byte in the value of the last record of the batch that holds ``offset``."""
    changed = b""
    for header, batch in split(disk.read(path)):
        if header.base_offset <= offset < header.end_offset:
            body = bytearray(batch[HEADER_BYTES:])
            body[-1] ^= 1
            batch = memoryview(seal_batch(read_header(batch), bytes(body)))
        changed += bytes(batch)
    disk.replace(path, changed)


def segment_of(disk: SimDisk, folder: str, offset: int) -> str:
    """Path of the segment that holds ``offset``."""
    names = [name for name in disk.listdir(folder) if name.endswith(".log") and int(name[:20]) <= offset]
    return f"{folder}/{max(names)}"


def forget_indexes(disk: SimDisk, folder: str) -> None:
    """The next opening reads all segments, and takes what is there for what was written."""
    for name in disk.listdir(folder):
        if name.endswith(".index"):
            disk.unlink(f"{folder}/{name}")
    disk.sync_dir(folder)
