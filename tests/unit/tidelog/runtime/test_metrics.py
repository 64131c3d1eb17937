"""The metrics page: every metric explained, the text as Prometheus reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from tidelog.runtime.metrics import FREE_S, REST, Metric, MetricsPage, Sample
from tidelog.sansio.counters import Histogram
from tidelog_controller.observability import metrics as controller
from tidelog_gateway.observability import metrics as gateway
from tidelog_replica.observability import group_metrics
from tidelog_replica.observability import metrics as replica

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
ALL = [*controller.METRICS, *replica.METRICS, *gateway.METRICS]
BASE_UNITS = ("seconds", "bytes", "records")


@pytest.mark.parametrize("metric", ALL, ids=lambda m: m.name)
def test_every_metric_is_explained_and_named_as_the_others(metric: Metric) -> None:
    assert re.fullmatch(r"tidelog(_[a-z]+)+", metric.name) and not metric.name.endswith("_total")
    assert metric.help.endswith(".") and "\n" not in metric.help and "|" not in metric.help
    assert metric.unit
    if metric.unit in BASE_UNITS:
        assert metric.name.endswith(f"_{metric.unit}")
    if metric.kind == "histogram":
        assert metric.unit == "seconds"


def test_no_two_metrics_have_one_name() -> None:
    assert len({metric.name for metric in ALL}) == len(ALL)


def test_every_metric_that_a_module_declares_is_on_its_page() -> None:
    for modules in ((controller,), (replica, group_metrics), (gateway,)):
        declared = [value for module in modules for value in vars(module).values() if isinstance(value, Metric)]
        assert sorted(m.name for m in declared) == sorted(m.name for m in modules[0].METRICS)


EATEN = Metric("tea_eaten_bytes", "counter", "bytes", "Cake.", ("kind",))
CUPS = Metric("tea_cups", "gauge", "cups", "Cups on the table.")
BREW = Metric("tea_brew_seconds", "histogram", "seconds", "Brewing.")


def page() -> MetricsPage:
    brewed = Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 60.0):
        brewed.observe(seconds)
    brewed.observe(2.0, 3)

    def collect() -> Iterator[Sample]:
        yield EATEN, ('plum "cake"',), 700
        yield EATEN, ("scone",), 30
        yield BREW, (), brewed

    return MetricsPage((EATEN, CUPS, BREW), collect)


def test_a_page_is_openmetrics_for_who_asks_for_it() -> None:
    shown = page()(OPENMETRICS)
    assert shown.content_type.startswith("application/openmetrics-text")
    families = {family.name: family for family in parse(shown.body.decode())}
    eaten = families["tea_eaten_bytes"]
    assert (eaten.type, eaten.unit, eaten.documentation) == ("counter", "bytes", "Cake.")
    assert {s.labels["kind"]: s.value for s in eaten.samples} == {'plum "cake"': 700, "scone": 30}
    assert families["tea_cups"].samples == []
    assert {s.labels["le"]: s.value for s in families["tea_brew_seconds"].samples if "le" in s.labels} == {
        "1.0": 2,
        "2.0": 6,
        "+Inf": 7,
    }
    totals = {s.name: s.value for s in families["tea_brew_seconds"].samples if not s.labels}
    assert totals == {"tea_brew_seconds_count": 7, "tea_brew_seconds_sum": 69.0}
    assert families["process_resident_memory_bytes"].samples[0].value > 0


def test_it_is_the_older_text_for_everybody_else() -> None:
    shown = page()("*/*")
    assert shown.content_type.startswith("text/plain")
    names = {sample.name for family in parse_plain(shown.body.decode()) for sample in family.samples}
    assert {"tea_eaten_bytes_total", "tea_brew_seconds_bucket"} <= names


def test_a_page_that_is_costly_rests_so_that_looking_takes_a_bounded_part_of_the_time() -> None:
    now, cost, looks = 100.0, 0.1, 0

    def collect() -> Iterator[Sample]:
        nonlocal now, looks
        now += cost
        looks += 1
        yield CUPS, (), looks

    costly = MetricsPage((CUPS,), collect, clock=lambda: now)
    first = costly(OPENMETRICS)
    now += REST * cost - 0.01
    assert costly(OPENMETRICS) == first and looks == 1
    assert costly("*/*").content_type.startswith("text/plain") and looks == 2, "each format has its own"
    now += 0.02
    assert costly(OPENMETRICS) != first and looks == 3
    now, cost = now + 2 * REST * cost, FREE_S / 2
    assert costly(OPENMETRICS) != costly(OPENMETRICS) and looks == 5, "what costs little is always new"


def test_what_no_table_declares_is_a_fault_of_ours() -> None:
    stray = Metric("tea_spoons", "gauge", "spoons", "Spoons.")
    with pytest.raises(KeyError):
        MetricsPage((CUPS,), lambda: [(stray, (), 1)])(OPENMETRICS)
