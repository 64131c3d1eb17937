"""Tables and pictures of figures that grow: a row for each size, and how the cost grew since the row before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from matplotlib import rc_context
from matplotlib.figure import Figure

INK = "#848d97"
"""Colour of texts and axes. It can be read on white and on black: the pictures have no background."""
COLORS = ("#2f81f7", "#d29922", "#3fb950", "#db61a2")
WIDE = 50
"""Ratio of the largest value to the smallest above which the scale is logarithmic."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram of a picture: the label of its axis, and the columns that are drawn as lines."""

    label: str
    columns: tuple[str, ...]


@dataclass(slots=True)
class Table:
    """The figures of one case, a row for each size. ``columns``: the size first, each with its number of decimals."""

    name: str
    """Name of the case, in the name of the picture's file."""
    title: str
    columns: dict[str, int]
    panels: tuple[Panel, ...]
    growth: str = ""
    """The column that stays the same, or falls, if growth is linear or better: compared with the row before."""
    rows: list[dict[str, float]] = field(default_factory=list)
    labels: dict[float, str] = field(default_factory=dict)
    """Texts of the first column, by size, where a plain number would not do."""

    @property
    def axis(self) -> str:
        """Return the name of the column with what grows."""
        return next(iter(self.columns))

    def label(self, size: float) -> str:
        """Return the text in the first column of a row."""
        return self.labels.get(size, f"{size:,.0f}")

    def add(self, row: dict[str, float]) -> None:
        """Add a row and print it at once, since a case takes minutes."""
        self.rows.append(row)
        cells = [f"{name} {row[name]:,.{n}f}" for name, n in list(self.columns.items())[1:] if name in row]
        click.echo(f"  {self.axis} {self.label(row[self.axis])}: {', '.join(cells)}", err=True)

    def markdown(self) -> str:
        """Return the table in Markdown, under its title."""
        titles = [*self.columns, *([f"{self.growth}: of the row before"] if self.growth else [])]
        lines = [f"### {self.title}", "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        before: dict[str, float] = {}
        for row in self.rows:
            cells = [self.label(row[self.axis])]
            cells += [f"{row[name]:,.{n}f}" if name in row else "" for name, n in list(self.columns.items())[1:]]
            if self.growth:
                known = before.get(self.growth) and self.growth in row
                cells.append(f"{row[self.growth] / before[self.growth]:.2f}" if known else "")
            lines.append(f"| {' | '.join(cells)} |")
            before = row
        return "\n".join(lines) + "\n"

    def draw(self, folder: Path) -> Path:
        """Draw the picture into an SVG file in ``folder`` and return the file."""
        folder.mkdir(parents=True, exist_ok=True)
        figure = Figure(figsize=(4.6 * len(self.panels), 3.4), layout="constrained")
        for axes, panel in zip(figure.subplots(1, len(self.panels), squeeze=False)[0], self.panels, strict=True):
            self._draw_panel(axes, panel)
        figure.suptitle(self.title, color=INK, fontsize="medium")
        file = folder / f"scaling-{self.name}.svg"
        # Texts stay texts, and the same figures make the same file.
        with rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name, "font.family": "sans-serif"}):
            figure.savefig(file, transparent=True, metadata={"Date": None})
        return file

    def _draw_panel(self, axes, panel: Panel) -> None:  # type: ignore[no-untyped-def]
        sizes = [row[self.axis] for row in self.rows]
        places = range(len(sizes))
        for color, name in zip(COLORS, panel.columns, strict=False):
            known = [(at, row[name]) for at, row in zip(places, self.rows, strict=True) if name in row]
            if known:
                axes.plot(*zip(*known, strict=True), marker="o", color=color, label=name)
        values = [row[name] for row in self.rows for name in panel.columns if row.get(name, 0.0) > 0]
        if _is_wide(values):
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xticks(places, [self.label(size) for size in sizes])
        axes.set_xlabel(self.axis, color=INK)
        axes.set_ylabel(panel.label, color=INK)
        axes.tick_params(colors=INK, which="both")
        axes.grid(axis="y", alpha=0.3, color=INK)
        for spine in axes.spines.values():
            spine.set_color(INK)
        if len(panel.columns) > 1 and values:
            axes.legend(fontsize="small", labelcolor=INK, framealpha=0)


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and max(values) > WIDE * min(values)
