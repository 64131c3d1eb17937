"""The rules and the board that are shipped name only what the services show. Tests ``generate/alerts.py`` and
``generate/grafana_board.py``."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from tidelog.runtime.metrics import COMMON
from tidelog.sansio.counters import Metric
from tidelog.spark.pipelines.status import status_pages
from tidelog_controller.observability import metrics as controller
from tidelog_gateway.observability import metrics as gateway
from tidelog_replica.observability import metrics as replica

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
ALERTS = runpy.run_path(str(DEPLOY / "generate" / "alerts.py"))["ALERTS"]
BOARD = json.loads((DEPLOY / "grafana" / "tidelog.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
OWN = ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds")
ANYWHERE = {"job", "instance"}
"""What Prometheus adds."""
CHOSEN = 'job=~"$job"'


def samples(metric: Metric) -> dict[str, set[str]]:
    """Return every metric that the services expose, with its labels."""
    labels = {*metric.labels, *ANYWHERE}
    if metric.kind == "histogram":
        of_all = {f"{metric.name}_{part}": labels for part in ("count", "sum")}
        return {f"{metric.name}_bucket": labels | {"le"}, **of_all}
    return {metric.sample: labels}


SHOWN = {name: set(ANYWHERE) for name in OWN}
for table in (COMMON, controller.METRICS, replica.METRICS, gateway.METRICS, status_pages.METRICS):
    for metric in table:
        SHOWN |= samples(metric)


def faults(expr: str, legend: str = "") -> list[str]:
    """Return the metrics and labels that an expression, or the text about its result, names and that do not exist."""
    found, labels = [], set()
    for name, selector in re.findall(r"\b((?:tidelog|process)_\w+)(\{[^}]*\})?", expr):
        has = SHOWN.get(name)
        if has is None:
            found.append(f"no metric {name}")
            continue
        labels |= has
        found += [
            f"{name} has no {label}" for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector) if label not in has
        ]
    for clause in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", expr):
        found += [f"nothing by {label}" for label in re.findall(r"\w+", clause) if label not in labels]
    for told in re.findall(r"\{\{ *(?:\$labels\.)?(\w+) *[}|]", legend):
        kept = {label for clause in re.findall(r"\bby\s*\(([^)]*)\)", expr) for label in re.findall(r"\w+", clause)}
        if told not in (kept if re.search(r"\b(sum|max|min|absent)\b", expr) else labels):
            found.append(f"{{{{{told}}}}} is not of it")
    return found if labels or found else ["asks for nothing"]


def test_an_expression_that_asks_in_vain_is_found_out() -> None:
    assert faults("sum(tidelog_offline_partitions) > 0") == []
    assert faults("tidelog_elections > 0") == ["no metric tidelog_elections"], "a counter is shown as _total"
    assert faults("tidelog_commit_latency_seconds") == ["no metric tidelog_commit_latency_seconds"], "nor a histogram"
    assert faults('tidelog_servers{server="r1"}') == ["tidelog_servers has no server"]
    assert faults("sum by (le, code) (rate(tidelog_commit_latency_seconds_bucket[5m]))") == ["nothing by code"]
    assert faults("sum(tidelog_topics)", "{{instance}}") == ["{{instance}} is not of it"]
    assert faults("tidelog_topics", "{{ $labels.instance }}") == []
    assert faults("vector(1)") == ["asks for nothing"]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_rule_queries_existing_metrics_and_has_a_help_text(alert: object) -> None:
    rule = vars(alert)
    assert faults(rule["expr"], rule["summary"].replace("$value", "")) == []
    assert re.fullmatch(r"Tidelog[A-Za-z]+", rule["name"]) and re.fullmatch(r"\d+[mh]", rule["for_"])
    assert rule["severity"] in ("critical", "warning", "info")
    assert rule["summary"][-1] != "." and rule["help"].endswith(".")


def test_no_two_rules_have_one_name() -> None:
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_queries_existing_metrics_of_the_chosen_jobs(panel: dict[str, object]) -> None:
    assert panel["description"]
    targets = panel["targets"]
    assert isinstance(targets, list) and targets
    for target in targets:
        assert faults(target["expr"], target["legendFormat"]) == []
        assert target["expr"].count(CHOSEN) == len(re.findall(r"\b(?:tidelog|process)_\w+", target["expr"]))


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + i, place["y"] + j) for i in range(place["w"]) for j in range(place["h"])}
        assert not taken & cells and place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def asked_by_the_board() -> str:
    return " ".join(target["expr"] for panel in PANELS for target in panel["targets"])


def test_limits_of_slow_servers_and_the_waits_for_them_are_on_the_board() -> None:
    asked = asked_by_the_board()
    for shown in ("server_limit_bytes_per_second", "throttle_time_seconds_total", "throttle_holds_total"):
        assert f"tidelog_gateway_{shown}" in asked


def test_every_latency_of_the_way_is_on_the_board() -> None:
    asked = asked_by_the_board()
    for way in ("gateway_produce_latency", "commit_latency", "replica_fetch_latency", "gateway_end_to_end_latency"):
        assert f"tidelog_{way}_seconds_bucket" in asked
