"""The machines below the processes, as far as an incident changes them: clocks, syncs of disks, and small disks.

A C library is loaded before a process starts. It adds a number of seconds to every reading of the wall clock, as in
``chaos/cluster/clocks.py``, and waits before every sync. Both numbers are in files, so that they can be changed while
the process runs. Nothing in the product knows of them.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

from chaos.cluster import clocks
from chaos.cluster.network_namespaces import run

SYNC_VARIABLE = "TIDELOG_SYNC_DELAY"
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int64_t *delay_us;

__attribute__((constructor)) static void find(void) {
    const char *path = getenv("TIDELOG_SYNC_DELAY");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(0, sizeof *delay_us, PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) delay_us = at;
    close(file);
}

static int late(const char *name, int file) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    if (delay_us && *delay_us > 0) usleep((useconds_t)*delay_us);
    return real(file);
}

int fsync(int file) { return late("fsync", file); }
int fdatasync(int file) { return late("fdatasync", file); }
"""


def build(folder: Path) -> str:
    """Compile the libraries into ``folder``, and return the value of ``LD_PRELOAD`` with which processes load them.
    Raises ``RuntimeError`` if the compiler fails, and ``FileNotFoundError`` if there is none."""
    clock = clocks.build(folder)
    source, library = folder / "syncs.c", folder / "syncs.so"
    source.write_text(SOURCE)
    run("gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl")
    return f"{clock}:{library}"


def prepare(folder: Path) -> None:
    """Write the files that set clock and syncs of one process, whose folder this is: both as they are by nature."""
    clocks.set_clock(folder / "clock", 0)
    set_sync_delay(folder, 0.0)


def variables(libraries: str, folder: Path) -> Mapping[str, str]:
    """Return the environment variables of a process whose clock and syncs can be set by files in ``folder``."""
    return {
        "LD_PRELOAD": libraries,
        clocks.VARIABLE: str(folder / "clock"),
        SYNC_VARIABLE: str(folder / "sync-delay"),
    }


def set_clock(folder: Path, seconds: int) -> None:
    """Make the clock of a process ``seconds`` ahead (negative: behind) from now on."""
    clocks.set_clock(folder / "clock", seconds)


def set_sync_delay(folder: Path, seconds: float) -> None:
    """Make every sync of a process take this much longer from now on."""
    file = folder / "sync-delay"
    with file.open("r+b" if file.exists() else "wb") as delay:
        delay.write(struct.pack("q", round(seconds * 1e6)))


def mount_disk(at: Path, mib: int) -> None:
    """Mount a file system of its own of so many MiB at ``at``, which takes root. Raises ``RuntimeError`` if that
    fails."""
    at.mkdir(parents=True, exist_ok=True)
    at.chmod(0o700)
    run("mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=700", "none", str(at))


def unmount_disk(at: Path) -> None:
    """Unmount what ``mount_disk`` mounted; does nothing if nothing is mounted there."""
    if at.is_mount():
        run("umount", str(at))


def free_bytes(at: Path) -> int:
    """Return how many bytes are free on the disk that holds ``at``."""
    found = os.statvfs(at)
    return found.f_bavail * found.f_frsize
