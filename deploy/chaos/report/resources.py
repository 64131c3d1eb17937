"""Samples of the memory, the descriptors and the disk space of every process over time, and the judgement whether
they stay bounded."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from chaos.cluster.cluster import ChaosCluster
from chaos.cluster.disks import FILLER

PAGE = os.sysconf("SC_PAGE_SIZE")
BOUNDS = {"memory": 1.5, "descriptors": 1.5, "disk": 1.5}
"""The most by which the median of the last quarter of a soak may exceed that of its second quarter, as a factor."""
SLACK = {"memory": 32 << 20, "descriptors": 64, "disk": 16 << 20}
"""Bytes or descriptors that are allowed beyond ``BOUNDS``, for what a restart or a catch-up takes for a while."""
LEAST = 40
"""Number of samples below which nothing is judged."""


@dataclass(slots=True)
class Usage:
    """The samples of one process: (seconds since the start, amount) by kind, in bytes or descriptors."""

    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, kind: str, at: float, amount: float) -> None:
        """Add one sample of a kind."""
        self.samples.setdefault(kind, []).append((at, amount))

    def growth(self) -> list[str]:
        """Return in words which kinds have grown beyond their bounds; empty if none has, or there are too few
        samples."""
        found = []
        for kind, samples in self.samples.items():
            if len(samples) < LEAST:
                continue
            amounts = [amount for _, amount in samples]
            quarter = len(amounts) // 4
            before, after = _median(amounts[quarter : 2 * quarter]), _median(amounts[-quarter:])
            if after > before * BOUNDS[kind] + SLACK[kind]:
                found.append(f"{kind} grew from {before:,.0f} to {after:,.0f}")
        return found


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def sample_processes(cluster: ChaosCluster, at: float, usages: dict[str, Usage]) -> None:
    """Add one sample of each process that runs to ``usages``, at second ``at`` of the run."""
    for process in cluster.processes:
        usage = usages.setdefault(process.id, Usage())
        try:
            if process.is_alive():
                pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
                usage.add("memory", at, pages * PAGE)
                usage.add("descriptors", at, len(list(Path(f"/proc/{process.pid}/fd").iterdir())))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has just ended
        if process.role != "gateway":
            usage.add("disk", at, _size(cluster.data(process.id)))


def _size(folder: Path) -> int:
    """Return the bytes that the files in a folder take on the disk; files that vanish meanwhile count nothing."""
    total = 0
    for root, _, names in os.walk(folder, onerror=lambda error: None):
        for name in names:
            if name != FILLER:
                with suppress(OSError):
                    total += Path(root, name).stat().st_blocks * 512
    return total
