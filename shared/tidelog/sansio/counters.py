"""How cores count for the metrics. A counter is declared once, as a field of a dataclass:

    @dataclass(slots=True)
    class ReplicaCounts:
        reads: int = counter("tidelog_replica_reads", "reads", "Reads of clients.")

The core counts with ``counts.reads += 1``. ``metrics_of`` gives the table of a class's metrics, and ``samples`` their
present values. ``runtime/metrics.py`` makes the page. This module needs no library, so that cores may import it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Literal, TypeVar

LATENCIES_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of a histogram's buckets in seconds, for latencies: from the sync of a disk to a failover."""
DURATIONS_S = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0)
"""Upper bounds of a histogram's buckets in seconds, for durations from a moment to a day."""
METRIC = "metric"
"""The key of a field's metadata that holds its ``Metric``."""

K = TypeVar("K", bound=Hashable)
Kind = Literal["counter", "gauge", "histogram"]


class Histogram:
    """The number of observed values in each bucket, and their sum. A bucket holds the values up to its upper bound in
    ``bounds``; one more holds the values above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``, observed ``times`` times, in the first bucket whose upper bound is not below it, and add
        it to the sum as often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Return the number of observed values, in all buckets."""
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class Metric:
    """The description of one metric for the metrics page. ``name`` is without the ``_total`` that counters get; it
    ends with the ``unit`` if that is a unit of measure."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def sample(self) -> str:
        """Return the name by which the metric is queried: with ``_total`` for a counter."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


Sample = tuple[Metric, tuple[str, ...], float | Histogram]
"""One sample for the metrics page: a metric, the values of its labels, and its present value."""


def counter(name: str, unit: str, help: str, label: str | None = None, known: tuple[str, ...] = ()) -> Any:
    """Declare a dataclass field that is a counter and begins at 0. With a ``label`` the field is a dictionary of
    counts by the label's value, in which the ``known`` values begin at 0."""
    if label is None:
        return field(default=0, metadata={METRIC: Metric(name, "counter", unit, help)})
    metric = Metric(name, "counter", unit, help, (label,))
    return field(default_factory=partial(dict.fromkeys, known, 0), metadata={METRIC: metric})


def histogram(name: str, help: str, bounds: tuple[float, ...] = LATENCIES_S) -> Any:
    """Declare a dataclass field that is a ``Histogram`` of seconds, with these upper bounds of its buckets."""
    return field(
        default_factory=partial(Histogram, bounds), metadata={METRIC: Metric(name, "histogram", "seconds", help)}
    )


def metrics_of(counts: type, first: str | None = None, last: str | None = None) -> tuple[Metric, ...]:
    """Return the metrics that the dataclass ``counts`` declares, in order: all of them; only that of field ``first``;
    or those from ``first`` to ``last``, both included. Raises ``ValueError`` if a named field declares no metric."""
    declared = {one.name: one.metadata[METRIC] for one in fields(counts) if METRIC in one.metadata}
    if first is None:
        return tuple(declared.values())
    names = list(declared)
    return tuple(declared.values())[names.index(first) : names.index(last or first) + 1]


def samples(counts: Any, *names: str) -> Iterator[Sample]:
    """Iterate over the present values of the metrics that the class of ``counts`` declares, or only of its fields
    with these names; one sample for each label value."""
    for one in fields(counts):
        if METRIC in one.metadata and (not names or one.name in names):
            metric, value = one.metadata[METRIC], getattr(counts, one.name)
            if isinstance(value, dict):
                yield from by_label(metric, value)
            else:
                yield metric, (), value


def by_label(metric: Metric, table: Mapping[str, float]) -> Iterator[Sample]:
    """Iterate over the samples of a metric with one label, from a table of its values by label."""
    for label, value in table.items():
        yield metric, (label,), value


def count(table: dict[K, int], name: K, more: int = 1) -> None:
    """Add ``more`` to the number under ``name`` in the table; a missing one begins at 0."""
    table[name] = table.get(name, 0) + more
