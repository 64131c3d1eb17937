"""The processes of a benchmark: their memory, as Linux tells it, and their end."""

from __future__ import annotations

import signal
from pathlib import Path


def resident_mb(pid: int, which: str = "VmRSS") -> float:
    """``VmRSS``, or ``VmHWM``: the highest since ``forget_peak``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024 / 1e6


def forget_peak(pid: int) -> None:
    """From now on ``VmHWM`` begins anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def end_with_sigterm() -> None:
    """SIGTERM ends this process as Ctrl-C does, so that what it started ends with it. A shell's job in the background
    ignores Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
