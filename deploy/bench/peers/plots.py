"""Draws the figures: a bar for each product with its median, and a line from the lowest to the highest round."""

from __future__ import annotations

import statistics
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

Figures = dict[str, dict[str, list[float]]]
"""The figures of all rounds: product -> row of the table -> one value for each round."""

PLOTS: dict[str, tuple[str, bool, tuple[str, ...]]] = {
    "produce": (
        "MB/s",
        False,
        ("produce 100 B, MB/s", "produce 1 KiB, MB/s", "produce 10 KiB, MB/s", "produce 1 KiB, tuned, MB/s"),
    ),
    "own-tool": (
        "MB/s",
        False,
        (
            *("own tool, 100 B, MB/s", "own tool, 100 B, tuned, MB/s"),
            *("own tool, 1 KiB, MB/s", "own tool, 1 KiB, tuned, MB/s"),
            *("own tool, 10 KiB, MB/s", "own tool, 10 KiB, tuned, MB/s"),
        ),
    ),
    "consume": ("MB/s", False, ("consume 1 KiB, MB/s",)),
    "latency": (
        "ms",
        True,
        (
            "single record, p50 ms",
            "single record, p99 ms",
            "single record, p99.9 ms",
            "single record, prompt, p50 ms",
        ),
    ),
    "delivery": (
        "ms",
        True,
        ("end to end, p50 ms", "end to end, p99 ms", "fan-out to 100, p50 ms", "fan-out to 100, p99 ms"),
    ),
    "wide-fan-out": (
        "ms",
        True,
        (
            *("fan-out to 1,000, p50 ms", "fan-out to 1,000, p99 ms"),
            *("fan-out to 10,000, p50 ms", "fan-out to 10,000, p99 ms"),
        ),
    ),
    "seconds": ("s", True, ("start to the first ack, s", "kill -9 of the leader: no ack for, s")),
    "idle-cpu": ("% of one core", False, ("idle, CPU %",)),
    "memory": (
        "MB",
        False,
        (
            *("start to the first ack, memory MB", "idle, memory MB"),
            *("fan-out to 1,000, servers' memory MB", "fan-out to 10,000, servers' memory MB"),
        ),
    ),
    "disk": ("bytes on all disks per byte of values", False, ("produce 1 KiB, disk/value",)),
}
"""Name of the file -> unit, whether the scale is logarithmic, and the rows of the table."""


def draw(figures: Figures, folder: Path) -> list[Path]:
    """Write one picture for each plot that has figures into ``folder``, and return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, (unit, log, rows) in PLOTS.items():
        shown = [row for row in rows if any(row in measured for measured in figures.values())]
        if not shown:
            continue
        figure = Figure(figsize=(9, 4), layout="constrained")
        axes = figure.subplots()
        width = 0.8 / len(figures)
        for number, (product, measured) in enumerate(figures.items()):
            places = [at for at, row in enumerate(shown) if row in measured]
            if not places:
                continue
            values = [measured[shown[at]] for at in places]
            middle = [statistics.median(each) for each in values]
            spread = (
                [m - min(each) for m, each in zip(middle, values, strict=True)],
                [max(each) - m for m, each in zip(middle, values, strict=True)],
            )
            left = [at - 0.4 + width * (number + 0.5) for at in places]
            bars = axes.bar(
                left, middle, width * 0.95, yerr=spread, label=product, color=f"C{number}", error_kw={"alpha": 0.5}
            )
            axes.bar_label(bars, [f"{m:,.0f}" if m >= 100 else f"{m:.3g}" for m in middle], fontsize=6, padding=1)
        axes.set_xticks(
            range(len(shown)), [row.rpartition(", ")[0] + "\n" + row.rpartition(", ")[2] for row in shown]
        )
        axes.set(ylabel=unit, yscale="log" if log else "linear")
        axes.grid(axis="y", alpha=0.3)
        axes.set_axisbelow(True)
        axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
        files.append(folder / f"{name}.svg")
        with rc_context({"svg.fonttype": "none"}):  # texts stay texts
            figure.savefig(files[-1])
    return files
