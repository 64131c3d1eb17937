"""Memory of a process, as Linux tells it."""

from __future__ import annotations

from pathlib import Path


def resident_mb(pid: int, which: str = "VmRSS") -> float:
    """``VmRSS``, or ``VmHWM``: the highest since ``forget_peak``."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(which)) * 1024 / 1e6


def forget_peak(pid: int) -> None:
    """From now on ``VmHWM`` begins anew (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
