"""The report of a measurement: figures as a table, delays as a histogram, and all of it as JSON.

Delays are counted in buckets 1 % wide, so that a run of any length takes the same memory: a percentile is exact to 1
%, the greatest delay is exact. MB are 10^6 bytes of values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tidelog.cli.output import Cell, Column, Table, say

_STEP = math.log(1.01)
_ZERO = 1e-9
"""Shortest delay in seconds; shorter ones count as this one."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
MOST_BARS = 20
"""Most bars of a histogram."""
BAR_WIDTH = 40
"""Characters of the longest bar of a histogram."""
FEW = 10
"""Number of delays below which no histogram is shown."""
_PER_DECADE = (8, 4, 2, 1)


class Delays:
    """The delays of a measurement, counted as a histogram in a bounded amount of memory. Delays are in seconds."""

    def __init__(self) -> None:
        self.count = 0
        self.greatest = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one delay, in seconds, and remember it if it is the greatest."""
        bucket = math.floor(math.log(max(seconds, _ZERO)) / _STEP)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self.count += 1
        if seconds > self.greatest:
            self.greatest = seconds

    def percentile(self, share: float) -> float:
        """Return a percentile of the counted delays in seconds, exact to 1 % (nearest rank). ``share`` is from 0 to
        1: 0.5 for the median. At least one delay must have been counted."""
        left = math.ceil(share * self.count)
        for bucket, count in sorted(self._buckets.items()):
            left -= count
            if left <= 0:
                return min(math.exp((bucket + 1) * _STEP), self.greatest)
        return self.greatest

    def bars(self) -> list[tuple[float, float, int]]:
        """Return the bars of a histogram as (from, to, count), in seconds, without gaps. Each decade is divided into
        8, 4, 2 or 1 equal ratios: as many as give at most ``MOST_BARS`` bars, or else 1. Returns an empty list if
        nothing was counted."""
        if not self._buckets:
            return []
        for per_decade in _PER_DECADE:
            found: dict[int, int] = {}
            for bucket, count in self._buckets.items():
                place = math.floor((bucket + 0.5) * _STEP / math.log(10) * per_decade)
                found[place] = found.get(place, 0) + count
            bounds = range(min(found), max(found) + 2)
            if len(bounds) <= MOST_BARS + 1:
                break
        return [(10 ** (a / per_decade), 10 ** (b / per_decade), found.get(a, 0)) for a, b in pairwise(bounds)]

    def as_json(self) -> dict[str, Any]:
        """Return count, percentiles, maximum and histogram in milliseconds as an object for JSON. Percentiles and
        maximum are null if nothing was counted."""
        shares = {name: _ms(self.percentile(share)) if self.count else None for name, share in PERCENTILES.items()}
        bars = [{"from": _ms(a), "to": _ms(b), "count": count} for a, b, count in self.bars()]
        most = _ms(self.greatest) if self.count else None
        return {"count": self.count, **shares, "max": most, "histogram": bars}


@dataclass
class ReportRow:
    """The results of one case of a measurement, such as one level of acks. ``more`` has further figures by name,
    which are printed below the table."""

    case: str
    delay_of: str
    """Description of what the delays measure: from which event to which."""
    seconds: float = 0.0
    records: int = 0
    bytes: int = 0
    failed: int = 0
    first_error: str = ""
    delays: Delays = field(default_factory=Delays)
    more: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the figures of the case as an object for JSON, with rates per second. It has ``first_error`` only if
        a record failed."""
        per_s = 1 / self.seconds if self.seconds else 0.0
        return {
            "case": self.case,
            "seconds": round(self.seconds, 3),
            "records": self.records,
            "bytes": self.bytes,
            "failed": self.failed,
            **({"first_error": self.first_error} if self.first_error else {}),
            "records_per_s": round(self.records * per_s, 1),
            "mb_per_s": round(self.bytes * per_s / 1e6, 3),
            "latency": self.delay_of,
            "latency_ms": self.delays.as_json(),
            **self.more,
        }


@dataclass
class Report:
    """The results of one command: its kind, topic and settings, and a row for each case."""

    bench: str
    topic: str
    settings: dict[str, Any]
    rows: list[ReportRow] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the whole report as an object for JSON."""
        rows = [row.as_json() for row in self.rows]
        return {"bench": self.bench, "topic": self.topic, "settings": self.settings, "rows": rows}

    @property
    def is_whole(self) -> bool:
        """Whether no record of any case failed; records that a subscriber did not receive count as failed."""
        return all(not row.failed for row in self.rows)

    def table(self) -> Table:
        """Return the table of all cases. For programs the delays are in milliseconds, as in ``as_json``."""
        delays = [Column(name.replace("_", "."), f"{name}_ms", right=True) for name in PERCENTILES]
        table = Table(
            "case",
            Column("records/s", "records_per_s", right=True),
            Column("MB/s", "mb_per_s", right=True),
            *delays,
            Column("max ms", "max_ms", right=True),
            Column("failed", right=True),
        )
        for row in self.rows:
            figures = row.as_json()
            records, size = figures["records_per_s"], figures["mb_per_s"]
            found = [figures["latency_ms"][name] for name in (*PERCENTILES, "max")]
            cells = [Cell(delay, "-" if delay is None else f"{delay:,.2f}") for delay in found]
            table.add(row.case, Cell(records, f"{records:,.0f}"), Cell(size, f"{size:,.2f}"), *cells, row.failed)
        return table

    def show(self) -> None:
        """Print the report for people: the table of all cases, then the further figures of each, and a histogram for
        each case with at least ``FEW`` delays."""
        self.table().print()
        for row in self.rows:
            for name, value in row.more.items():
                say(f"{row.case}: {name.replace('_', ' ')} {_text(value)}")
            if row.delays.count >= FEW:
                say()
                say(f"{row.case}: {row.delay_of}, {row.delays.count:,} times")
                _print_histogram(row.delays)


def _print_histogram(delays: Delays) -> None:
    """Print the histogram of the delays: bounds, a bar and a count for each interval. There must be at least one
    delay."""
    bars = [(f"{_short(start)} - {_short(end)} ms", count) for start, end, count in delays.bars()]
    most = max(count for _, count in bars)
    bounds_width, count_width = max(len(bounds) for bounds, _ in bars), len(f"{most:,}")
    for bounds, count in bars:
        bar = "█" * round(BAR_WIDTH * count / most) or ("▏" if count else "")
        say(f"{bounds:>{bounds_width}}  {bar:{BAR_WIDTH}}  {count:>{count_width},}")


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def _short(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"


def _text(value: Any) -> str:
    """Return a figure, or a map of figures by name, as text."""
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {_text(one)}" for name, one in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)
