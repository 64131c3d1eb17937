"""The bounds that filters put on a batch read: what need not be read, since Spark would leave it out again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from tidelog.spark.read.ranges import Range

_WHICH = ("topic", "partition")
"""Columns on which a filter may select single values."""


class Bounds:
    """The bounds that a query's filters put on ``topic``, ``partition``, ``offset`` and ``timestamp``. At first
    everything is within them, and each filter narrows them. Spark applies every filter to the rows again, so that a
    filter which is ignored here costs only time.

    Timestamps have a lower bound only. Producers set them, so they may be in any order: before the first record of a
    time or later all are earlier, and need not be read; but behind the first record that is too late there may be
    others that are not."""

    def __init__(self) -> None:
        self.since: datetime | None = None
        """A time, in whole milliseconds, before which no timestamp is within the bounds; None if there is no such
        time."""
        self._among: dict[str, set[Any]] = {}
        self._start: float = 0
        self._end: float = inf

    def add_filter(self, wanted: Any) -> None:
        """Narrow the bounds by one Spark filter: an equality or ``IN`` on ``topic`` or ``partition``, a comparison of
        ``offset`` with a number, or one by which ``timestamp`` is not before a time. Any other filter is ignored."""
        column = ".".join(getattr(wanted, "attribute", ()))
        match wanted:
            case EqualTo(value=value) if column in _WHICH:
                self._only(column, [value])
            case In(value=values) if column in _WHICH:
                self._only(column, values)
            case EqualTo(value=value) if column == "offset":
                self._start, self._end = max(self._start, value), min(self._end, value + 1)
            case GreaterThan(value=value) if column == "offset":
                self._start = max(self._start, value + 1)
            case GreaterThanOrEqual(value=value) if column == "offset":
                self._start = max(self._start, value)
            case LessThan(value=value) if column == "offset":
                self._end = min(self._end, value)
            case LessThanOrEqual(value=value) if column == "offset":
                self._end = min(self._end, value + 1)
            case EqualTo() | GreaterThan() | GreaterThanOrEqual() if column == "timestamp":
                self._not_before(wanted.value)

    def _not_before(self, time: Any) -> None:
        """Narrow the bounds to timestamps at or after ``time``. Ignored are a time without a zone, and one before
        1970, which no timestamp is."""
        if isinstance(time, datetime) and time.tzinfo is not None and time >= datetime.fromtimestamp(0, UTC):
            whole = time.replace(microsecond=time.microsecond // 1000 * 1000)  # of the log, which has milliseconds
            self.since = whole if self.since is None else max(self.since, whole)

    def _only(self, column: str, values: Iterable[Any]) -> None:
        self._among[column] = self._among.get(column, set(values)) & set(values)

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of the ranges that lie within the bounds on topic, partition and offset, in the order of
        the ranges; a range of which nothing is left is left out."""
        among = self._among
        narrowed = [
            replace(each, start=int(max(each.start, self._start)), end=int(min(each.end, self._end)))
            for each in ranges
            if each.topic in among.get("topic", {each.topic})
            and each.partition in among.get("partition", {each.partition})
        ]
        return [each for each in narrowed if each.start < each.end]
