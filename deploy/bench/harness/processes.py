"""The processes of a benchmark: their memory and CPU time, as Linux reports them, and how they end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path


def resident_mb(pid: int, which: str = "VmRSS") -> float:
    """Return the resident memory of a process in MB: now (``VmRSS``), or the highest since ``forget_peak``
    (``VmHWM``)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024 / 1e6


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that a process has used, with those of its ended threads. The number of its clock is
    made as ``clock_getcpuclockid`` makes it."""
    return time.clock_gettime(~pid << 3 | 2)


class TreeCpu:
    """The CPU seconds of a process and all its descendants. A thread looks at them every ``PERIOD_S`` seconds, and
    keeps what ended ones had used by then: the kernel forgets that of a process whose parent ends before it."""

    PERIOD_S = 0.3

    def __init__(self, root: int) -> None:
        self._root = root
        self._used: dict[tuple[int, str], int] = {}
        """(process id, time of its start) -> clock ticks."""
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.seconds()
            time.sleep(self.PERIOD_S)

    def seconds(self) -> float:
        """Return the CPU seconds until now. The kernel counts them in ticks of 10 ms."""
        parents: dict[int, int] = {}
        found: dict[int, tuple[str, int]] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(stat.parent.name)] = int(fields[1])
            found[int(stat.parent.name)] = fields[19], int(fields[11]) + int(fields[12])
        with self._lock:
            for process, (started, ticks) in found.items():
                ancestor = process
                while ancestor != self._root and ancestor in parents:
                    ancestor = parents[ancestor]
                if ancestor == self._root:
                    self._used[process, started] = max(ticks, self._used.get((process, started), 0))
            return sum(self._used.values()) / os.sysconf("SC_CLK_TCK")


def forget_peak(pid: int) -> None:
    """Let ``VmHWM`` of a process begin anew at its present memory (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def require_linux() -> None:
    """End this program with one line on stderr and exit code 1 on any other system than Linux."""
    if sys.platform != "linux":
        sys.exit(f"{sys.argv[0]}: Linux only: it reads the CPU time and the memory of processes in /proc")


def end_with_sigterm() -> None:
    """Make SIGTERM and Ctrl-C end this process with ``KeyboardInterrupt``, so that it stops what it has started. A
    shell's job in the background would ignore Ctrl-C otherwise."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
