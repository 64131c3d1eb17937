"""Changes a record on a disk together with the CRC of its batch, so that no check of that batch alone notices."""

from __future__ import annotations

from tidelog.batch.format import HEADER_BYTES, read_header, seal_batch, split
from tidelog.testing.hardware.disk import SimDisk


def alter(disk: SimDisk, path: str, offset: int) -> None:
    """Change a byte in the value of the last record of the batch with ``offset``, in the segment at ``path``, and
    make the CRC of the batch right."""
    changed = b""
    for header, batch in split(disk.read(path)):
        if header.base_offset <= offset < header.end_offset:
            body = bytearray(batch[HEADER_BYTES:])
            body[-1] ^= 1
            batch = memoryview(seal_batch(read_header(batch), bytes(body)))
        changed += bytes(batch)
    disk.replace(path, changed)


def segment_of(disk: SimDisk, folder: str, offset: int) -> str:
    """Return the path of the segment of a log that holds an offset."""
    names = [name for name in disk.listdir(folder) if name.endswith(".log") and int(name[:20]) <= offset]
    return f"{folder}/{max(names)}"


def forget_indexes(disk: SimDisk, folder: str) -> None:
    """Delete the index files of a log, so that the next opening reads all segments and accepts their content."""
    for name in disk.listdir(folder):
        if name.endswith(".index"):
            disk.unlink(f"{folder}/{name}")
    disk.sync_dir(folder)
