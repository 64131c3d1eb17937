"""The pages of a running pipeline: ``/healthz`` (JSON, what is known of each output) and ``/metrics`` (Prometheus).

A pipeline is *healthy* if every output is: its query runs, or is done. An output is not healthy while it waits for
its next try, until the query has shown after a restart that it works, and when it has given up. ``/healthz`` has
status 503 then, and while the pipeline starts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any

from tidelog.net.http_pages import METRICS_PATH
from tidelog.net.transport import Page, Pages
from tidelog.runtime.health import HEALTH_PATH
from tidelog.runtime.metrics import MetricsPage
from tidelog.sansio.counters import Metric, Sample
from tidelog.spark.pipelines.supervision import OutputStatus, State

OUTPUT = ("output",)
UP = Metric(
    "tidelog_pipeline_output_up",
    "gauge",
    "boolean",
    "1 if the query runs, and works after a restart, or is done; else 0.",
    OUTPUT,
)
FAILED = Metric("tidelog_pipeline_output_failed", "gauge", "boolean", "1 if the output has given up.", OUTPUT)
RESTARTS = Metric(
    "tidelog_pipeline_restarts",
    "counter",
    "restarts",
    "Restarts of the output's query after errors.",
    OUTPUT,
)
ROWS = Metric("tidelog_pipeline_rows", "counter", "rows", "Rows that the output has read in this run.", OUTPUT)
BATCHES = Metric(
    "tidelog_pipeline_batches", "counter", "batches", "Micro-batches with rows that the output has done.", OUTPUT
)
LOST = Metric(
    "tidelog_pipeline_lost",
    "counter",
    "offsets",
    "Offsets that were passed over because they are gone (failOnDataLoss=false).",
    OUTPUT,
)
LAG = Metric(
    "tidelog_pipeline_lag",
    "gauge",
    "offsets",
    "Offsets between the output's last batch and the end of the log, as of that batch.",
    ("output", "topic", "partition"),
)
QUIET = Metric(
    "tidelog_pipeline_quiet_seconds",
    "gauge",
    "seconds",
    "Time since the query last did a batch or found nothing to do. Such an idle query says so every 10 s.",
    OUTPUT,
)
METRICS = (UP, FAILED, RESTARTS, ROWS, BATCHES, LOST, LAG, QUIET)
"""Metrics of ``tidelog pipeline run``."""


class StatusPages:
    """The pages of the pipeline ``name``. They show what the function that ``show`` was given returns; until then the
    pipeline starts. Every thread may ask for pages."""

    def __init__(self, name: str, clock: Callable[[], float] = monotonic) -> None:
        self._name = name
        self._clock = clock
        self._statuses: Callable[[], tuple[OutputStatus, ...]] = tuple
        metrics = MetricsPage(METRICS, lambda: samples(self._statuses(), clock()))
        self.pages: Pages = {HEALTH_PATH: lambda accept: self._health(), METRICS_PATH: metrics}
        """The pages by path."""

    def show(self, statuses: Callable[[], tuple[OutputStatus, ...]]) -> None:
        """Show from now on what ``statuses`` returns."""
        self._statuses = statuses

    def _health(self) -> Page:
        statuses = self._statuses()
        healthy = bool(statuses) and all(one.healthy for one in statuses)
        now = self._clock()
        shown = {"pipeline": self._name, "healthy": healthy, "outputs": [described(one, now) for one in statuses]}
        body = f"{json.dumps(shown)}\n".encode()
        return Page(body, "application/json", 200 if healthy else 503, private=True)


def described(one: OutputStatus, now: float) -> dict[str, Any]:
    """Return what ``/healthz`` has of an output. ``now``: the time of the clock of the status, in seconds."""
    return {
        "output": one.output,
        "state": str(one.state),
        "healthy": one.healthy,
        "restarts": one.restarts,
        "error": one.error,
        "restart_in_s": None if one.restart_at is None else round(max(0.0, one.restart_at - now), 1),
        "rows": one.rows,
        "batches": one.batches,
        "batch": one.batch,
        "lag": one.lag,
        "lags": {f"{topic}/{partition}": lag for (topic, partition), lag in sorted(one.lags.items())},
        "lost": one.lost,
        "quiet_s": None if one.heard_at is None else round(now - one.heard_at, 1),
    }


def samples(statuses: tuple[OutputStatus, ...], now: float) -> Iterator[Sample]:
    """Yield the present values of ``METRICS``."""
    for one in statuses:
        label = (one.output,)
        yield UP, label, float(one.healthy)
        yield FAILED, label, float(one.state is State.FAILED)
        yield RESTARTS, label, one.restarts
        yield ROWS, label, one.rows
        yield BATCHES, label, one.batches
        yield LOST, label, one.lost
        for (topic, partition), lag in sorted(one.lags.items()):
            yield LAG, (one.output, topic, str(partition)), lag
        if one.heard_at is not None and one.state is not State.DONE:
            yield QUIET, label, now - one.heard_at
