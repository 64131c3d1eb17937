"""What services ask of the operating system beyond POSIX: syncs, reserved space, the page cache, and the states of
processes."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File of the operating system that names its present run."""


def sync_data(descriptor: int) -> None:
    """Make the bytes and the length of an open file durable. Blocks until they are. Raises ``OSError`` if that
    fails."""
    os.fdatasync(descriptor)


def sync_all(descriptor: int) -> None:
    """Make an open file durable with all that the file system knows of it, or the names in an open directory. Blocks
    until that is done. Raises ``OSError`` if it fails."""
    os.fsync(descriptor)


def drop_from_cache(descriptor: int, start: int, length: int) -> None:
    """Drop a range of an open file, in bytes, from the page cache. The kernel drops only pages that are on the disk
    by then, and begins to write the others (posix_fadvise(2)). Raises ``OSError`` if the file is not open."""
    os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def reserve(descriptor: int, size: int) -> None:
    """Give an open, empty file ``size`` bytes of disk space, with any content. Raises ``OSError`` if there is not so
    much."""
    os.posix_fallocate(descriptor, 0, size)


def boot_id() -> str:
    """Return the name of the operating system's present run; "" if the system does not give it."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def process_state(pid: int | str) -> tuple[str, int]:
    """Return the state of a process (a letter, such as ``R`` or ``Z``) and its start time in clock ticks since boot;
    ("", -1) if there is no such process. ``pid``: its id, or "self"."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "", -1
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])


def wait_until_ended(pid: int, timeout_s: float) -> None:
    """Wait until a process has ended with all its threads, for at most ``timeout_s`` seconds. Returns at once if
    there is no such process."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            select.select([handle], [], [], timeout_s)
        finally:
            os.close(handle)
