"""Filters on ``topic``, ``partition`` and ``offset`` that make a batch read smaller. Spark checks every row again, so
a filter that is not understood here costs only time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import Any

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from tidelog.spark.read.ranges import Range

_WHICH = ("topic", "partition")


class Bounds:
    """Bounds of what a query wants, narrowed by each filter; at first everything."""

    def __init__(self) -> None:
        self._among: dict[str, set[Any]] = {}
        self._start: float = 0
        self._end: float = inf

    def add_filter(self, wanted: Any) -> None:
        """Add a filter."""
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

    def _only(self, column: str, values: Iterable[Any]) -> None:
        self._among[column] = self._among.get(column, set(values)) & set(values)

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """Return the parts of the ranges that may match."""
        among = self._among
        narrowed = [
            replace(each, start=int(max(each.start, self._start)), end=int(min(each.end, self._end)))
            for each in ranges
            if each.topic in among.get("topic", {each.topic})
            and each.partition in among.get("partition", {each.partition})
        ]
        return [each for each in narrowed if each.start < each.end]
