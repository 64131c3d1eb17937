"""A wall clock that can be set while a process runs. A C library, loaded before the process starts, replaces the
functions that read the realtime clock and no other, and adds the number of seconds that a file holds."""

from __future__ import annotations

import struct
from pathlib import Path

from chaos.cluster.network_namespaces import run

VARIABLE = "TIDELOG_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void find(void) {
    const char *path = getenv("TIDELOG_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (file >= 0) {
        void *at = mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
        if (at != MAP_FAILED) offset = at;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) find();
    int failed = real(clock, now);
    if (!failed && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += *offset;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (out) *out = exact.tv_sec;
    return exact.tv_sec;
}
"""


def build(folder: Path) -> Path:
    """Compile the clock library into ``folder`` and return its path. Raises ``RuntimeError`` if the compiler
    fails."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    run("gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl")
    return library


def set_clock(file: Path, seconds: int) -> None:
    """Write to the file that the clock of every process using it is ``seconds`` ahead (negative: behind) from now
    on."""
    with file.open("r+b" if file.exists() else "wb") as clock:
        clock.write(struct.pack("q", seconds))
