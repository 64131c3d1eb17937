"""The metrics page: every metric explained, the text as Prometheus reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
from prometheus_client.parser import text_string_to_metric_families as parse_plain
from tidelog.explain.samples import total
from tidelog.net.dev_certificates import open_authority
from tidelog.net.tls import TlsFiles
from tidelog.runtime.metrics import FREE_S, KEEP_S, REST, MetricsPage, RecentMetrics
from tidelog.sansio.counters import Histogram, Metric, Sample, count, counter, histogram, metrics_of, samples
from tidelog_controller.counters import ControllerCounts, PersistCounts
from tidelog_controller.observability import metrics as controller
from tidelog_gateway.clients.refused_clients import RefusedClients
from tidelog_gateway.counters import DeliveryCounts, ReadCounts, RequestCounts, RouterCounts
from tidelog_gateway.observability import metrics as gateway
from tidelog_replica.counters import FlushCounts, ReplicaCounts
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
    for modules, counts in (
        ((controller,), (ControllerCounts, PersistCounts)),
        ((replica, group_metrics), (ReplicaCounts, FlushCounts)),
        ((gateway,), (RequestCounts, RouterCounts, ReadCounts, DeliveryCounts, RefusedClients)),
    ):
        declared = [value for module in modules for value in vars(module).values() if isinstance(value, Metric)]
        declared += [metric for counter_class in counts for metric in metrics_of(counter_class)]
        assert sorted(m.name for m in declared) == sorted(m.name for m in modules[0].METRICS)


@dataclass
class Tea:
    cups: int = counter("tea_drunk_cups", "cups", "Cups that were drunk.")
    guests: int = 0
    eaten: dict[str, int] = counter("tea_eaten_bytes", "bytes", "Cake.", "kind", ("scone",))
    brews: Histogram = histogram("tea_brew_seconds", "Brewing.", (1.0, 2.0))


def test_a_counter_is_a_field_that_declares_its_metric() -> None:
    tea = Tea()
    tea.cups += 2
    count(tea.eaten, "plum", 700)
    tea.brews.observe(1.5)
    assert [(metric.name, labels, value) for metric, labels, value in samples(tea)] == [
        ("tea_drunk_cups", (), 2),
        ("tea_eaten_bytes", ("scone",), 0),
        ("tea_eaten_bytes", ("plum",), 700),
        ("tea_brew_seconds", (), tea.brews),
    ]
    assert Tea().eaten == {"scone": 0} and Tea().brews.count == 0, "and another object counts for itself"


def test_samples_may_be_those_of_some_fields_only() -> None:
    tea = Tea(cups=2)
    assert [(metric.name, value) for metric, _, value in samples(tea, "cups", "brews")] == [
        ("tea_drunk_cups", 2),
        ("tea_brew_seconds", tea.brews),
    ]


def test_a_table_takes_counters_by_the_names_of_their_fields() -> None:
    drunk, eaten, brewed = metrics_of(Tea)
    assert (drunk.kind, eaten.kind, brewed.kind) == ("counter", "counter", "histogram")
    assert (eaten.labels, brewed.unit) == (("kind",), "seconds")
    assert metrics_of(Tea, "eaten") == (eaten,) and metrics_of(Tea, "eaten", "brews") == (eaten, brewed)


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


def test_a_page_is_openmetrics_for_a_client_that_accepts_it() -> None:
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


def test_the_page_of_a_process_with_tls_says_when_its_certificate_expires(tmp_path: Path) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    ends = now + timedelta(days=3)
    files = open_authority(tmp_path, now, timedelta(days=9)).issue("s", [], (), now, timedelta(days=3))
    shown = MetricsPage((), lambda: (), TlsFiles(files))("*/*").body.decode()
    assert total(shown, "tidelog_certificate_expiry_timestamp_seconds") == ends.timestamp()
    assert "\ntidelog_certificate_expiry" not in page()("*/*").body.decode()


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


async def test_recent_metrics_show_what_was_counted_in_the_last_seconds(mock_clock: trio.testing.MockClock) -> None:
    tea = Tea(cups=100)
    recent = RecentMetrics(lambda: samples(tea), trio.current_time)

    def drunk() -> tuple[float, int, int]:
        page, ms = recent.show()
        return total(page, "tea_drunk_cups_total"), round(total(page, "tea_brew_seconds_count")), ms

    async def wait(*seconds: float) -> None:
        for each in seconds:
            mock_clock.jump(each)
            await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(recent.run)
        await trio.testing.wait_all_tasks_blocked()
        await wait(1)
        tea.cups += 1
        tea.brews.observe(1.5)
        count(tea.eaten, "plum", 700)
        assert drunk() == (1, 1, 1000)
        page = recent.show()[0]
        assert total(page, "tea_brew_seconds_sum") == 1.5 and total(page, "tea_brew_seconds_bucket", le="1.0") == 0
        assert total(page, "tea_brew_seconds_bucket", le="2.0") == 1
        assert total(page, "tea_eaten_bytes_total", kind="plum") == 700
        await wait(KEEP_S - 1, 1)
        tea.cups += 1
        assert drunk() == (2, 1, 6000)
        await wait(KEEP_S - 1, 1)  # what was counted before the first state of ``run`` is forgotten
        assert drunk() == (1, 0, 6000)
        await wait(KEEP_S - 2)
        assert drunk() == (1, 0, 9000)
        await wait(1)
        assert drunk() == (0, 0, 5000)
        nursery.cancel_scope.cancel()


def test_an_undeclared_metric_raises() -> None:
    stray = Metric("tea_spoons", "gauge", "spoons", "Spoons.")
    with pytest.raises(KeyError):
        MetricsPage((CUPS,), lambda: [(stray, (), 1)])(OPENMETRICS)
