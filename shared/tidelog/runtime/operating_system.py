"""Requests of services to the operating system in which Linux and macOS differ: syncs, reserved space, the page
cache, and the states of processes.

Linux has a call for each of these. On macOS, and on any other system, the functions here do the same in other ways.
Its docstring says what a function cannot do there. No other module asks which system it runs on, except
``prefork.py``, which is for Linux only."""

from __future__ import annotations

import calendar
import errno
import fcntl
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""File of Linux with the id of the present boot."""
LOOK_S = 0.02
"""Pause between two looks at a process whose end the system does not report."""
ZERO_BYTES = 1 << 20
"""Zeros are written in pieces of this many bytes."""
_NO_FULL_SYNC = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)
"""The errors of file systems of macOS that have no ``F_FULLFSYNC``: network mounts and FUSE."""
_LSTART = "%a %b %d %H:%M:%S %Y"
"""How ``ps -o lstart=`` writes a time in the C locale."""

FAILED_MEDIUM: tuple[int, ...] = (errno.EIO, errno.EBADMSG, errno.ENODATA, errno.EILSEQ)
"""The errors with which the system reports a failing medium, or a damaged file system, when a file is opened or
read."""
if sys.platform == "linux":
    FAILED_MEDIUM += (errno.EUCLEAN,)


def sync_data(descriptor: int) -> None:
    """Make the bytes and the length of an open file durable. Blocks until they are. Raises ``OSError`` if that
    fails."""
    if sys.platform == "linux":
        os.fdatasync(descriptor)
    else:
        sync_all(descriptor)


def sync_all(descriptor: int) -> None:
    """Make an open file and its metadata durable, or the names in an open directory. Blocks until that is done.
    Raises ``OSError`` if it fails.

    On macOS ``fsync`` only hands the bytes to the drive, which may lose them with the power. ``F_FULLFSYNC`` has the
    drive write them. On a file system without that call it is an ``fsync``, and what is durable depends on the file
    system."""
    if sys.platform == "darwin":
        try:
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
        except OSError as error:
            if error.errno not in _NO_FULL_SYNC:
                raise
    os.fsync(descriptor)


def can_drop_from_cache() -> bool:
    """Return whether this system has ``drop_from_cache``: Linux does."""
    return sys.platform == "linux"


def drop_from_cache(descriptor: int, start: int, length: int) -> None:
    """Drop a range of an open file, in bytes, from the page cache. The kernel drops only pages that are on the disk
    by then, and begins to write the others (posix_fadvise(2)). Raises ``OSError`` if the file is not open. Does
    nothing on other systems than Linux."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def reserve(descriptor: int, size: int) -> None:
    """Give an open, empty file ``size`` bytes of disk space, with any content. Raises ``OSError`` if there is not
    that much space. Where no call does that, zeros are written."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
        return
    zeros = memoryview(bytes(min(size, ZERO_BYTES)))
    while size:
        size -= os.write(descriptor, zeros[:size])


def boot_id() -> str:
    """Return the id of the present boot of the operating system; "" if the system does not give it."""
    if sys.platform == "linux":
        with suppress(OSError):
            return BOOT_ID.read_text(encoding="ascii").strip()
    else:
        with suppress(OSError):
            return _output("sysctl", "-n", "kern.bootsessionuuid")
    return ""


def process_state(pid: int) -> tuple[str, int]:
    """Return the state of a process (a letter, such as ``R`` or ``Z``) and its start time; ("", -1) if there is no
    such process. The start time is in clock ticks since boot on Linux, and in seconds since 1970 elsewhere. It never
    changes while the process runs. Raises ``OSError`` if the system does not give them."""
    if sys.platform == "linux":
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return "", -1
        fields = text.rpartition(")")[2].split()
        return fields[0], int(fields[19])
    shown = _output("ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)) if pid > 0 else ""  # 0 is the kernel's
    if not shown:
        return "", -1
    state, _, started = shown.partition(" ")
    return state[0], calendar.timegm(time.strptime(started.strip(), _LSTART))


def wait_until_ended(pid: int, timeout_s: float) -> None:
    """Wait until a process has ended with all its threads, for at most ``timeout_s`` seconds. Returns at once if
    there is no such process."""
    if sys.platform == "linux":
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                select.select([handle], [], [], timeout_s)
            finally:
                os.close(handle)
    else:
        deadline = time.monotonic() + timeout_s
        while process_state(pid)[0] not in ("", "Z") and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def _output(*command: str) -> str:
    """Run a command of the system in the C locale and in UTC, and return what it prints, without spaces around it; ""
    if it fails. Raises ``OSError`` if it cannot be started."""
    environment = os.environ | {"LC_ALL": "C", "TZ": "UTC0"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""
