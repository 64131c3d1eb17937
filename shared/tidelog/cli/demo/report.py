"""The demo's report: a few lines for the terminal, and one HTML page with a plot, which needs no other files."""

from __future__ import annotations

import base64
import html
from dataclasses import dataclass, field
from typing import Any

from tidelog.cli.demo.check import Verdict

BUCKET_S = 0.25
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 960, 330, 60, 56, 40


@dataclass(slots=True)
class Incident:
    """A process that the demo killed, and the effect on the clients. Times are seconds since the first record was
    sent."""

    at: float
    what: str
    restarted_at: float = 0.0
    gap_s: float = 0.0
    """Longest time without an ack on one partition, in seconds, from just before the kill until the next incident."""


@dataclass(slots=True)
class Result:
    """The results of one run of the demo, collected while it runs and shown by the report."""

    source: str
    started_s: float = 0.0
    """Seconds from the start of the processes until the cluster accepted writes."""
    acks: list[tuple[float, int, int]] = field(default_factory=list)
    """(Time, partition, bytes) of each acknowledged record."""
    bytes: int = 0
    consumed: int = 0
    failed: int = 0
    quiet_gap_s: float = 0.0
    """Longest time without an ack on one partition before anything was killed, in seconds."""
    incidents: list[Incident] = field(default_factory=list)
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Changes of leaders and in-sync replicas, with their causes."""
    verdict: Verdict = field(default_factory=Verdict)
    spark: dict[str, Any] | None = None
    spark_note: str = ""
    plot: str = ""
    """The plot that the Spark pipeline has drawn, as SVG; "": there is none."""

    @property
    def seconds(self) -> float:
        """Time of the last acknowledgement, in seconds since the first record was sent; 0 if nothing was
        acknowledged."""
        return max((time for time, _, _ in self.acks), default=0.0)


def text(result: Result) -> list[str]:
    """Return the report for the terminal: lines that each begin with a word for their subject."""
    verdict, seconds = result.verdict, max(result.seconds, 1e-9)
    lines = [
        f"records    {verdict.acked} acked, {verdict.unknown} unknown, {result.failed} refused; "
        f"{result.consumed} consumed",
        f"throughput {verdict.acked / seconds:,.0f} records/s, {result.bytes / seconds / 1e6:.2f} MB/s (paced)",
        f"start      {result.started_s:.1f} s from nothing to a cluster that accepts writes",
        f"quiet      longest gap between acks on a partition before any kill: {result.quiet_gap_s:.2f} s",
    ]
    lines += [f"kill       {i.what}: longest gap on a partition {i.gap_s:.2f} s" for i in result.incidents]
    lines += [f"change     {change['where']}: {change['what']} ({change['why']})" for change in result.changes]
    lines += [f"FAULT      {fault}" for fault in verdict.faults]
    if result.spark:
        top = ", ".join(f"{name} {count}" for name, count in result.spark["top"])
        lines.append(
            f"spark      {result.spark['rows']} rows from {len(result.spark['partitions'])} partitions; most: {top}"
        )
    elif result.spark_note:
        lines.append(f"spark      left out: {result.spark_note}")
    if verdict.ok:
        lines.append(
            f"verdict    nothing was lost: {verdict.acked} acked records are there once, at their offsets, "
            f"with their bytes, on each of {verdict.replicas} replicas"
        )
    else:
        lines.append("verdict    RECORDS ARE MISSING OR WRONG")
    return lines


def page(result: Result) -> str:
    """Return the report as the text of one HTML page that needs no other file: plots and the lines of ``text``."""
    rows = "".join(
        f"<tr><td>{html.escape(line[:10].strip())}</td><td>{html.escape(line[11:])}</td></tr>"
        for line in text(result)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidelog demo</title>
<meta name="viewport" content="width=device-width">
<style>
:root {{ color-scheme: light dark; --line: #1f77b4; --kill: #c0392b; --grid: #8884; }}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; }} td {{ padding: .15rem .8rem .15rem 0; vertical-align: top; }}
td:first-child {{ color: #777; }} svg, img {{ width: 100%; height: auto; }} img {{ margin-top: 1.5rem; }}
svg text {{ font-size: 12px; fill: currentColor; }}
</style></head><body>
<h1>Tidelog demo</h1>
<p>{html.escape(result.source)}</p>
{_plot(result)}
<table>{rows}</table>
{_picture(result.plot)}
</body></html>
"""


def _picture(svg: str) -> str:
    if not svg:
        return ""
    return f'<img alt="What Spark drew" src="data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}">'


def _plot(result: Result) -> str:
    """Return an SVG picture of the acknowledged records per second over time, with a vertical line for each kill and
    each restart."""
    seconds = result.seconds + BUCKET_S
    counts = [0] * (int(seconds / BUCKET_S) + 1)
    for time, _, _ in result.acks:
        counts[int(time / BUCKET_S)] += 1
    top = max(max(counts), 1) / BUCKET_S

    def x(time: float) -> float:
        return LEFT + time / seconds * (WIDTH - LEFT - 10)

    def y(rate: float) -> float:
        return TOP + (1 - rate / top) * (HEIGHT - BOTTOM - TOP)

    points = " ".join(f"{x((i + 0.5) * BUCKET_S):.1f},{y(n / BUCKET_S):.1f}" for i, n in enumerate(counts))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Acknowledged records per second over time">'
    ]
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{at:.1f}" y2="{at:.1f}" stroke="var(--grid)"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{top * share:,.0f}</text>')
    for second in range(0, int(seconds) + 1, 5):
        parts.append(f'<text x="{x(second):.1f}" y="{HEIGHT - 18}" text-anchor="middle">{second} s</text>')
    for row, incident in enumerate(result.incidents):
        at = x(incident.at)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{20 + 15 * row}" y2="{HEIGHT - BOTTOM}" stroke="var(--kill)"/>'
        )
        parts.append(
            f'<text x="{at + 4:.1f}" y="{31 + 15 * row}" style="fill:var(--kill)">{html.escape(incident.what)}, '
            f"gap {incident.gap_s:.2f} s</text>"
        )
        if incident.restarted_at:
            back = x(incident.restarted_at)
            parts.append(
                f'<line x1="{back:.1f}" x2="{back:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="var(--grid)" '
                'stroke-dasharray="4 3"/>'
            )
    parts.append(f'<polyline points="{points}" fill="none" stroke="var(--line)" stroke-width="2"/>')
    parts.append(f'<text x="{LEFT}" y="12">acked records per second; dashed: restarted</text></svg>')
    return "".join(parts)
