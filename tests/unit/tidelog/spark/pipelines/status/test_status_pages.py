"""What ``/healthz`` and ``/metrics`` of a pipeline show."""

from __future__ import annotations

import json

from tidelog.spark.pipelines.status.status_pages import StatusPages
from tidelog.spark.pipelines.supervision import OutputStatus, State

RUNNING = OutputStatus("a", State.RUNNING, 2, 10, 3, 7, {("t", 0): 4, ("u", 1): 1}, 5, "why", 90.0)


def shown(*statuses: OutputStatus) -> StatusPages:
    pages = StatusPages("p", clock=lambda: 100.0)
    pages.show(lambda: statuses)
    return pages


def test_health_has_what_is_known_of_each_output() -> None:
    page = shown(RUNNING, OutputStatus("b", State.DONE)).pages["/healthz"]("")
    assert page.status == 200 and page.private
    told = json.loads(page.body)
    assert (told["pipeline"], told["healthy"]) == ("p", True)
    assert told["outputs"][0] == {
        "output": "a",
        "state": "running",
        "healthy": True,
        "restarts": 2,
        "error": "why",
        "restart_in_s": None,
        "rows": 10,
        "batches": 3,
        "batch": 7,
        "lag": 5,
        "lags": {"t/0": 4, "u/1": 1},
        "lost": 5,
        "quiet_s": 10.0,
    }
    assert (told["outputs"][1]["state"], told["outputs"][1]["quiet_s"]) == ("done", None)


def test_one_output_that_is_not_healthy_is_enough_for_503() -> None:
    waits = OutputStatus("b", State.WAITING, restart_at=103.0, healthy=False)
    page = shown(RUNNING, waits).pages["/healthz"]("")
    assert page.status == 503
    assert json.loads(page.body)["outputs"][1]["restart_in_s"] == 3.0


def test_a_pipeline_that_starts_is_not_healthy_yet() -> None:
    page = StatusPages("p").pages["/healthz"]("")
    assert (page.status, json.loads(page.body)) == (503, {"pipeline": "p", "healthy": False, "outputs": []})


def test_metrics_are_in_the_format_of_prometheus() -> None:
    text = shown(RUNNING, OutputStatus("b", State.FAILED, healthy=False)).pages["/metrics"]("").body.decode()
    lines = set(text.splitlines())
    assert {
        'tidelog_pipeline_output_up{output="a"} 1.0',
        'tidelog_pipeline_output_up{output="b"} 0.0',
        'tidelog_pipeline_output_failed{output="b"} 1.0',
        'tidelog_pipeline_restarts_total{output="a"} 2.0',
        'tidelog_pipeline_rows_total{output="a"} 10.0',
        'tidelog_pipeline_batches_total{output="a"} 3.0',
        'tidelog_pipeline_lost_total{output="a"} 5.0',
        'tidelog_pipeline_lag{output="a",partition="0",topic="t"} 4.0',
        'tidelog_pipeline_quiet_seconds{output="a"} 10.0',
    } <= lines, text
