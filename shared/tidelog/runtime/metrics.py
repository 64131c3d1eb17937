"""The metrics page of a service: the metrics of its table, with the values that its collector gives.

Cores count in plain attributes (``sansio/counters.py``), and a collector reads them when the page is requested. With
ten thousand partitions that takes 0.1 s, in which the process does nothing else, and anybody may request the page. So
a page that was costly is shown again unchanged until ``REST`` times its cost has passed.

A page is in OpenMetrics text if the ``Accept`` header asks for it (Prometheus does), else in Prometheus' older text
format. The client library must not import this module: it does not depend on prometheus-client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, chain

import trio
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidelog.net.tls import TlsFiles
from tidelog.net.transport import Page
from tidelog.sansio.counters import Histogram, Metric, Sample
from tidelog.wire.messages import MetricsAnswer

REST = 50
"""Making pages takes at most one part in ``REST`` of the process's time."""
FREE_S = 0.005
"""Seconds; a page that took less to make is made anew for every request."""
KEEP_S = 5.0
"""Seconds after which ``RecentMetrics`` keeps another state of its metrics."""

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
CERTIFICATE = Metric(
    "tidelog_certificate_expiry_timestamp_seconds",
    "gauge",
    "seconds",
    "When the certificate that this process shows expires, in seconds since 1970. Absent: it shows none, or none"
    " that a server may show.",
)
COMMON = (BUILD, CLOCK, CERTIFICATE)
"""Metrics that are on the page of every service."""


def _version() -> str:
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "unknown"


VERSION = _version()


def metrics_answer(show: Callable[[str], Page], recent: RecentMetrics | None = None) -> MetricsAnswer:
    """Return the answer to ``describe_metrics``: the text of the metrics page that ``show`` returns, with the release
    of this program and the wall clock (milliseconds since 1970). ``recent``: the metrics whose last seconds the
    answer has, too; None: there are none."""
    page = show("text/plain").body.decode()
    text, ms = ("", -1) if recent is None else recent.show()
    return MetricsAnswer(page, VERSION, time.time_ns() // 1_000_000, recent=text, recent_ms=ms)


class MetricsPage(Collector):
    """The page ``/metrics`` of a service: every metric of the table ``metrics``, in its order, and those of the
    process (CPU, memory, open descriptors). ``collect`` returns the present values. The page is called for each
    request and lives as long as the service."""

    def __init__(
        self,
        metrics: Sequence[Metric],
        collect: Callable[[], Iterable[Sample]],
        tls: TlsFiles | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``tls``: the TLS files of the process; None: it uses no TLS. ``clock``: a clock in seconds, which
        measures how long making a page takes."""
        self._tls = tls
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
        for metric, labels, value in chain(_common(self._tls), self.samples()):
            _add(families[metric], labels, value)
        yield from families.values()


class RecentMetrics:
    """What some metrics of a service have counted in the last seconds, for readers that look only one time. Two
    earlier states of the metrics are kept, and ``run`` replaces the older one every ``KEEP_S`` seconds. So the time
    that is counted is between ``KEEP_S`` and twice as long; less only in the first seconds of the process. Counting
    itself costs nothing more."""

    def __init__(self, collect: Callable[[], Iterable[Sample]], clock: Callable[[], float]) -> None:
        """``collect`` returns the present values of the metrics: counters and histograms. ``clock``: seconds of a
        clock that never goes back."""
        self._collect = collect
        self._clock = clock
        self._older = self._newer = self._state()

    async def run(self) -> None:
        """Keep the present state every ``KEEP_S`` seconds, until cancelled."""
        while True:
            await trio.sleep(KEEP_S)
            self._older, self._newer = self._newer, self._state()

    def show(self) -> tuple[str, int]:
        """Return the metrics in Prometheus' text format with what was counted since the older of the two states, and
        how long ago that was, in milliseconds."""
        began, before = self._older
        families: dict[Metric, Family] = {}
        for metric, labels, value in self._collect():
            family = families.setdefault(metric, _family(metric))
            _add(family, labels, _more(value, before.get((metric, labels))))
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Listed(families.values()))
        return generate_latest(registry).decode(), round((self._clock() - began) * 1000)

    def _state(self) -> tuple[float, dict[tuple[Metric, tuple[str, ...]], float | Histogram]]:
        """Return the present time and a copy of the present values, by metric and labels."""
        return self._clock(), {(metric, labels): _more(value, None) for metric, labels, value in self._collect()}


@dataclass(frozen=True)
class _Listed(Collector):
    """A list of metrics, as an object that the Prometheus library can collect."""

    families: Collection[Family]

    def collect(self) -> Iterable[Family]:
        """Return the metrics."""
        return self.families


def _more(value: float | Histogram, before: float | Histogram | None) -> float | Histogram:
    """Return how much more a counter or histogram has counted than ``before``, as a value of its own. None: before
    anything was counted."""
    if not isinstance(value, Histogram):
        assert not isinstance(before, Histogram)
        return value - (before or 0)
    more = Histogram(value.bounds)
    more.counts, more.sum = list(value.counts), value.sum
    if isinstance(before, Histogram):
        more.counts = [now - earlier for now, earlier in zip(value.counts, before.counts, strict=True)]
        more.sum = value.sum - before.sum
    return more


def _common(tls: TlsFiles | None) -> Iterator[Sample]:
    """Yield the samples of the metrics of every service."""
    yield BUILD, (VERSION,), 1.0
    yield CLOCK, (), time.time_ns() / 1e9
    expires_s = None if tls is None else tls.expires_s()
    if expires_s is not None:
        yield CERTIFICATE, (), expires_s


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
