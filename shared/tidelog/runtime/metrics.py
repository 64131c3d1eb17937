"""The metrics page of a service: the metrics of its table, with the values that its collector gives.

Cores count in plain attributes (``sansio/counters.py``), and a collector reads them when the page is requested. With
ten thousand partitions that takes 0.1 s, in which the process does nothing else, and anybody may request the page. So
a page that was costly is shown again unchanged until ``REST`` times its cost has passed.

A page is in OpenMetrics text if the ``Accept`` header asks for it (Prometheus does), else in Prometheus' older text
format. The client library must not import this module: it does not depend on prometheus-client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, chain

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidelog.net.transport import Page
from tidelog.sansio.counters import Histogram, Metric, Sample
from tidelog.wire.messages import MetricsAnswer

REST = 50
"""Making pages takes at most one part in ``REST`` of the process's time."""
FREE_S = 0.005
"""Seconds; a page that took less to make is made anew for every request."""

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
FAMILIES = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}


BUILD = Metric(
    "tidelog_build_info", "gauge", "boolean", "1, with the version of the program that runs.", ("version",)
)
CLOCK = Metric(
    "tidelog_wall_clock_seconds",
    "gauge",
    "seconds",
    "The clock of this machine when the page was made, in seconds since 1970. Another machine's time of the scrape"
    " shows how far it is off.",
)
COMMON = (BUILD, CLOCK)
"""Metrics that are on the page of every service."""


def _version() -> str:
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "unknown"


VERSION = _version()


def metrics_answer(show: Callable[[str], Page]) -> MetricsAnswer:
    """Return the answer to ``describe_metrics``: the text of the metrics page that ``show`` returns, with the release
    of this program and the wall clock (milliseconds since 1970)."""
    return MetricsAnswer(show("text/plain").body.decode(), VERSION, time.time_ns() // 1_000_000)


class MetricsPage(Collector):
    """The page ``/metrics`` of a service: every metric of the table ``metrics``, in its order, and those of the
    process (CPU, memory, open descriptors). ``collect`` returns the present values. The page is called for each
    request and lives as long as the service."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        collect: Callable[[], Iterable[Sample]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``clock``: a clock in seconds, which measures how long making a page takes."""
        self._clock = clock
        self._shown: dict[str, tuple[float, Page]] = {}
        """Costly pages by content type, each with the time until which it is shown again."""
        self._metrics = metrics
        self._collect = collect
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def __call__(self, accept: str) -> Page:
        """Return the page in the format that the header ``Accept`` asks for, with the present values. A page that
        took more than ``FREE_S`` to make is returned again unchanged until ``REST`` times as long has passed."""
        encode, content_type = choose_encoder(accept)
        began = self._clock()
        until, page = self._shown.get(content_type, (began, None))
        if page is not None and began < until:
            return page
        page = Page(encode(self._registry), content_type)
        ended = self._clock()
        if ended - began >= FREE_S:
            self._shown[content_type] = ended + REST * (ended - began), page
        return page

    def samples(self) -> Iterable[Sample]:
        """Return the present values of the service's metrics, each with its metric and labels; those of the process
        are not among them."""
        return self._collect()

    def describe(self) -> Iterable[Family]:
        """Return an empty list. The Prometheus library calls this when the page registers, and would otherwise
        collect all values to look for duplicate names."""
        return []

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of the table and those of every service, with their present values, as objects of the
        Prometheus library, which calls this for each page."""
        families = {metric: _family(metric) for metric in (*COMMON, *self._metrics)}
        for metric, labels, value in chain(_common(), self.samples()):
            _add(families[metric], labels, value)
        yield from families.values()


def _common() -> Iterator[Sample]:
    """Yield the samples of the metrics of every service."""
    yield BUILD, (VERSION,), 1.0
    yield CLOCK, (), time.time_ns() / 1e9


def _family(metric: Metric) -> Family:
    unit = metric.unit if metric.name.endswith(f"_{metric.unit}") else ""
    family: Family = FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels, unit=unit)
    return family


def _add(family: Family, labels: tuple[str, ...], value: float | Histogram) -> None:
    """Add a value with its labels to a metric of the Prometheus library; a histogram with cumulative counts."""
    if isinstance(family, HistogramMetricFamily):
        assert isinstance(value, Histogram), family.name
        bounds = [*map(str, value.bounds), "+Inf"]
        family.add_metric(labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum)
    else:
        assert not isinstance(value, Histogram), family.name
        family.add_metric(labels, value)
