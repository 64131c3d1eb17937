"""The plots of a report: inline SVG over one time axis. The colours come from the page's style, light or dark."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT = 1080, 64, 12
LANE = 14
"""Height of one lane of the fault timeline, in pixels."""
SILENCE = 0.015
"""Part of the run without measurements after which a line is broken."""
Points = Sequence[tuple[float, float]]
"""A series of (second, value)."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A span of time on the timeline of faults."""

    begin: float
    end: float
    kind: str
    """A CSS class of the page, which gives the bar its colour."""
    title: str


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis that all plots of a page share; ``seconds`` is its length."""

    seconds: float

    def x(self, at: float) -> float:
        """Return the horizontal position of a second, in pixels."""
        return LEFT + (WIDTH - LEFT - RIGHT) * max(0.0, min(1.0, at / self.seconds))

    def ticks(self, height: float) -> str:
        """Return the SVG of vertical lines and labels at round times, for a plot of this height."""
        step = next((s for s in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800) if self.seconds / s <= 14), 3600)
        made = []
        for number in range(int(self.seconds / step) + 1):
            at = number * step
            label = f"{at // 60}:{at % 60:02d}"
            made.append(f'<line class="grid" x1="{self.x(at):.1f}" x2="{self.x(at):.1f}" y1="0" y2="{height}"/>')
            made.append(
                f'<text class="tick" x="{self.x(at):.1f}" y="{height + 14}" text-anchor="middle">{label}</text>'
            )
        return "".join(made)


def svg(height: float, inner: str, label: str) -> str:
    """Return an SVG drawing as wide as the page, with these elements and this label for screen readers."""
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{escape(label)}">{inner}</svg>'


def timeline(bars: Iterable[Bar], axis: Axis) -> str:
    """Return an SVG with each bar in the first lane that is free at its beginning."""
    lanes: list[float] = []
    drawn = []
    for bar in sorted(bars, key=lambda bar: bar.begin):
        width = max(3.0, axis.x(bar.end) - axis.x(bar.begin))
        lane = next((n for n, free in enumerate(lanes) if free <= axis.x(bar.begin)), len(lanes))
        lanes[lane : lane + 1] = [axis.x(bar.begin) + width + 1]
        drawn.append(
            f'<rect class="{bar.kind}" x="{axis.x(bar.begin):.1f}" y="{lane * LANE + 1}" width="{width:.1f}" '
            f'height="{LANE - 3}" rx="2"><title>{escape(bar.title)}</title></rect>'
        )
    height = max(1, len(lanes)) * LANE
    return svg(height + 20, axis.ticks(height) + "".join(drawn), "faults over time")


def lines(
    series: Mapping[str, Points], axis: Axis, label: str, unit: str, *, height: float = 150, log: bool = False
) -> str:
    """Return a figure with one line per series, and a legend with their names. ``log``: use a logarithmic scale, for
    values that span decades."""
    top = max((value for points in series.values() for _, value in points), default=1.0) or 1.0
    low = min((value for points in series.values() for _, value in points if value > 0), default=top / 10)
    scale = _Scale(top, low, height, log)
    made = [axis.ticks(height)]
    for value in scale.marks():
        y = scale.y(value)
        made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        made.append(f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
    for number, (name, points) in enumerate(series.items()):
        for part in _parts(points, axis.seconds):
            path = " ".join(f"{axis.x(at):.1f},{scale.y(value):.1f}" for at, value in part)
            made.append(f'<polyline class="s{number}" points="{path}"><title>{escape(name)}</title></polyline>')
    legend = "".join(
        f'<span class="key"><i class="b{number}"></i>{escape(name)}</span>' for number, name in enumerate(series)
    )
    drawing = svg(height + 20, "".join(made), f"{label}, {unit}")
    caption = f"<b>{escape(label)}</b> <small>{escape(unit)}</small>{legend}"
    return f"<figure><figcaption>{caption}</figcaption>{drawing}</figure>"


def _parts(points: Points, seconds: float) -> list[Points]:
    """Split a series where nothing was measured for longer than ``SILENCE`` of the run, at least 3 s."""
    cuts = [n for n in range(1, len(points)) if points[n][0] - points[n - 1][0] > max(3.0, seconds * SILENCE)]
    return [points[begin:end] for begin, end in itertools.pairwise([0, *cuts, len(points)])]


class _Scale:
    """The vertical scale of a plot, linear or logarithmic."""

    def __init__(self, top: float, low: float, height: float, log: bool) -> None:
        self.log = log
        self.height = height - 6
        self.top = 10 ** math.ceil(math.log10(top)) if log else top * 1.05
        self.low = 10 ** math.floor(math.log10(low)) if log else 0.0
        if log and self.low >= self.top:
            self.low = self.top / 10

    def y(self, value: float) -> float:
        if self.log:
            part = math.log10(max(value, self.low) / self.low) / math.log10(self.top / self.low)
        else:
            part = value / self.top
        return 6 + self.height * (1 - part)

    def marks(self) -> list[float]:
        if self.log:
            decades = round(math.log10(self.top / self.low))
            return [self.low * 10**n for n in range(decades + 1)]
        step = 10 ** math.floor(math.log10(self.top / 2)) if self.top else 1.0
        step *= next(factor for factor in (1, 2, 5, 10) if self.top / (step * factor) <= 5)
        return [step * n for n in range(int(self.top / step) + 1)]


def short(value: float) -> str:
    """Return a number in few characters, as in 1.5M."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:.3g}"


def rates(times: Iterable[float], seconds: float, bins: int = 400) -> Points:
    """Return how many events happened per second, over spans of equal length. Events outside the run are left out."""
    width = max(0.5, seconds / bins)
    counts = [0] * (int(seconds / width) + 1)
    for at in times:
        if 0 <= at < seconds:
            counts[int(at / width)] += 1
    return [((n + 0.5) * width, count / width) for n, count in enumerate(counts)]


def quantile(samples: Iterable[tuple[float, float]], part: float, seconds: float, bins: int = 400) -> Points:
    """Return for each span of time the value that this part of its samples (0 to 1) does not exceed; spans without
    samples are left out."""
    width = max(0.5, seconds / bins)
    spans: dict[int, list[float]] = {}
    for at, value in samples:
        spans.setdefault(int(at / width), []).append(value)
    return [
        ((n + 0.5) * width, sorted(values)[min(len(values) - 1, int(part * len(values)))])
        for n, values in sorted(spans.items())
    ]
