"""The figures of a case of ``throughput.py``, and their tables."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

CONSOLE = Console(highlight=False, soft_wrap=True)


@dataclass(slots=True)
class Row:
    """The figures of one case. ``mb_per_s`` counts the bytes of the values, in 10^6; times in ms; ``cpu`` is cores by
    process."""

    case: str
    flush: str
    mb_per_s: float | None = None
    records_per_s: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    cpu: dict[str, float] | None = None


def percentile(values: list[float], share: float) -> float:
    """Return the nearest-rank percentile of the values; ``share`` is 0 to 1."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def middle(rows: list[Row]) -> Row:
    """Return the round whose speed is the median of all rounds."""
    rows = sorted(rows, key=lambda row: row.mb_per_s or row.records_per_s or 0.0)
    return rows[(len(rows) - 1) // 2]


def machine() -> str:
    """Return CPUs, Python and kernel of this machine, in one line."""
    return f"{os.cpu_count()} CPUs, Python {platform.python_version()}, Linux {platform.release()}"


def show(row: Row) -> None:
    """Print the figures of one case in a line."""
    figures = [
        f"{row.mb_per_s:.1f} MB/s" if row.mb_per_s else "",
        f"{row.records_per_s:,.0f} records/s" if row.records_per_s else "",
        f"p50 {row.p50_ms:.2f} ms, p99 {row.p99_ms:.2f} ms" if row.p50_ms and row.p99_ms else "",
        cpu_text(row),
    ]
    CONSOLE.print(f"  flush {row.flush:6} {row.case}: {', '.join(filter(None, figures))}")


def cpu_cost(row: Row, cores: float) -> float:
    """Return the cost of this many cores in ms of CPU per MB, or per 1000 records if the case counts no bytes."""
    return cores * 1e3 / (row.mb_per_s or (row.records_per_s or 1.0) / 1e3)


def cpu_unit(row: Row) -> str:
    """Return the unit of ``cpu_cost``."""
    return "ms/MB" if row.mb_per_s else "ms/1000 records"


def cpu_roles(row: Row) -> dict[str, float]:
    """Return the ``cpu_cost`` of the gateway, of all replica servers together, and of the client."""
    assert row.cpu is not None
    replicas = sum(used for name, used in row.cpu.items() if name.startswith("r"))
    cores = {"gateway": row.cpu["g1"], "replicas": replicas, "client": row.cpu["client"]}
    return {role: cpu_cost(row, used) for role, used in cores.items()}


def cpu_text(row: Row) -> str:
    """Return ``cpu_roles`` as text; "" if no CPU was measured."""
    if row.cpu is None:
        return ""
    return " ".join(f"{role} {cost:.2f}" for role, cost in cpu_roles(row).items()) + f" {cpu_unit(row)}"


def table(rows: list[Row]) -> Table:
    """Return a table with the figures and the CPU costs of all rows."""
    made = Table("case", "flush", "MB/s", "records/s", "p50 ms", "p99 ms", "CPU", box=None)
    for row in rows:
        made.add_row(
            row.case,
            row.flush,
            f"{row.mb_per_s:.1f}" if row.mb_per_s else "",
            f"{row.records_per_s:,.0f}" if row.records_per_s else "",
            f"{row.p50_ms:.2f}" if row.p50_ms else "",
            f"{row.p99_ms:.2f}" if row.p99_ms else "",
            cpu_text(row),
        )
    return made
