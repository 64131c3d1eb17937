"""Draws the plots that a pipeline's ``[plot.NAME]`` declares, as files that need no other file."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure

from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import Plot

MAX_POINTS = 10_000
"""Most rows of a plot; more rows are an error, since the SQL should aggregate them."""
MAX_SERIES = 10
"""Number of distinguishable colours. If there are more series, the last colour is for the sum of the remaining
ones."""
Row = dict[str, Any]


def draw(plot: Plot, rows: list[Row], file: Path) -> None:
    """Draw the rows of a plot's query as lines or stacked bars, and write the picture to ``file``; a missing folder
    is created. A plot without rows is a picture with the text "no rows". Raises ``ConfigError`` if a column of the
    plot is missing, or there are more than ``MAX_POINTS`` rows."""
    where = f"[plot.{plot.name}]"
    if len(rows) > MAX_POINTS:
        raise ConfigError(f"{where}: more than {MAX_POINTS} rows; let the SQL sum up")
    missing = [name for name in (plot.x, plot.y, plot.by) if name and rows and name not in rows[0]]
    if missing:
        raise ConfigError(f"{where}: there is no column {', '.join(missing)}; there are {', '.join(rows[0])}")
    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    series = _series(plot, rows)
    places = sorted({x for points in series.values() for x in points})
    bottom = dict.fromkeys(places, 0.0)
    for name, points in series.items():
        label = "" if not plot.by else str(name)
        if plot.mark == "bar":
            heights = [points.get(x, 0.0) for x in places]
            width = min((b - a for a, b in itertools.pairwise(places)), default=1.0) * 0.8
            axes.bar(places, heights, width, [bottom[x] for x in places], label=label)
            bottom = {x: bottom[x] + height for x, height in zip(places, heights, strict=True)}
        else:
            axes.plot(list(points), list(points.values()), marker="." if len(points) < 100 else "", label=label)
    if any(isinstance(row[plot.x], datetime) for row in rows):
        axes.xaxis.set_major_locator(locator := AutoDateLocator())
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    if not rows:
        axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center")
    axes.set(title=plot.title or plot.name, xlabel=plot.x, ylabel=plot.y, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)
    if plot.by and series:
        axes.legend(title=plot.by, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    file.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.fonttype": "none"}):  # texts stay selectable texts in an SVG
        figure.savefig(file)


def _series(plot: Plot, rows: list[Row]) -> dict[Any, dict[float, float]]:
    """Return for each value of the column ``by`` its points: y by x, in ascending order of x. Rows with the same x
    are summed; rows without x or y are left out. The series with the greatest sum comes first, and those after the
    first ``MAX_SERIES`` - 1 are combined as ``others``. Times become days, as matplotlib counts them."""
    series: dict[Any, dict[float, float]] = {}
    for row in rows:
        x, y = row[plot.x], row[plot.y]
        if x is None or y is None:
            continue
        points = series.setdefault(row[plot.by] if plot.by else "", {})
        at = float(date2num(x)) if isinstance(x, datetime) else float(x)
        points[at] = points.get(at, 0.0) + float(y)
    largest = sorted(series, key=lambda name: (-sum(series[name].values()), str(name)))
    if len(largest) > MAX_SERIES:
        others = Counter[float]()
        for name in largest[MAX_SERIES - 1 :]:
            others.update(series.pop(name))
        largest[MAX_SERIES - 1 :] = ["others"]
        series["others"] = dict(others)
    return {name: dict(sorted(series[name].items())) for name in largest}
