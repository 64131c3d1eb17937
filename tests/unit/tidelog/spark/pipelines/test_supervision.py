"""The core that decides which query of a pipeline is started, started again or given up."""

from __future__ import annotations

import pytest
from tidelog.sansio.effects import Event
from tidelog.spark.pipelines.batch_report import BatchReport
from tidelog.spark.pipelines.restart_policy import RestartPolicy
from tidelog.spark.pipelines.supervision import (
    LOG_S,
    MOST_CHARACTERS,
    Effect,
    OutputStatus,
    StartQuery,
    State,
    StopQueries,
    Supervision,
    summary,
)

POLICY = RestartPolicy(times=3, within_s=100.0, delay_s=1.0, max_delay_s=30.0, reset_after_s=50.0)
PASSES = "[TIDELOG_UNREACHABLE] no gateway answered"
LASTS = "[TIDELOG_DATA_LOSS] orders/0: gone"


def started(*names: str, ends: tuple[str, ...] = (), on_failure: str = "stop") -> Supervision:
    """A core whose queries run since second 0."""
    core = Supervision(dict.fromkeys(names, POLICY), ends=ends, on_failure=on_failure)
    assert core.on_time(0.0) == [StartQuery(name) for name in names]
    for name in names:
        core.on_start(name, 0.0)
    return core


def status(core: Supervision, name: str = "a") -> OutputStatus:
    return next(one for one in core.statuses if one.output == name)


def in_state(core: Supervision, state: State) -> list[str]:
    return [one.output for one in core.statuses if one.state is state]


def names(effects: list[Effect]) -> list[str]:
    return [one.name if isinstance(one, Event) else type(one).__name__ for one in effects]


def test_an_output_is_started_once() -> None:
    core = Supervision({"a": POLICY}, ends=["a"])
    assert (core.wake_at, core.is_over, status(core).state) == (0.0, False, State.WAITING)
    assert core.on_time(0.0) == [StartQuery("a")]
    assert core.on_time(0.0) == [] and core.wake_at is None
    [line] = core.on_start("a", 0.0)
    assert line == Event("pipeline_output_started", {"output": "a", "restarts": 0})
    assert in_state(core, State.RUNNING) == ["a"]


def test_outputs_that_have_read_everything_are_done() -> None:
    core = started("a", "b", ends=("a", "b"))
    core.on_report("a", BatchReport(0, 5), 1.0)
    [line] = core.on_end("a", "", 2.0)
    assert line == Event("pipeline_output_ended", {"output": "a", "rows": 5, "batches": 1})
    assert not core.is_over
    core.on_end("b", "", 2.0)
    assert core.is_over and not in_state(core, State.FAILED)


def test_an_error_that_may_pass_is_followed_by_a_restart_after_its_delay() -> None:
    core = started("a", "b")
    [line] = core.on_end("a", PASSES, 10.0)
    assert isinstance(line, Event)
    assert line.fields == {"output": "a", "error": PASSES, "in_s": 1.0, "restarts": 1}
    assert (core.wake_at, in_state(core, State.RUNNING)) == (11.0, ["b"])
    assert core.on_time(10.9) == []
    assert core.on_time(11.0) == [StartQuery("a")]
    core.on_start("a", 11.5)
    assert (status(core).state, status(core).restarts, status(core).error) == (State.RUNNING, 1, PASSES)


def test_a_query_that_cannot_be_started_waits_longer_each_time_and_gives_up() -> None:
    core = started("a")
    now, delays = 0.0, []
    while core.on_end("a", PASSES, now) and not core.is_over:
        assert core.wake_at is not None
        delays.append(core.wake_at - now)
        now = core.wake_at
        assert core.on_time(now) == [StartQuery("a")]
    assert (delays, in_state(core, State.FAILED)) == ([1.0, 2.0, 4.0], ["a"])


def test_a_slow_series_of_failures_never_uses_up_the_restarts() -> None:
    core = started("a")
    for n in range(20):
        core.on_end("a", PASSES, 40.0 * n)
        core.on_time(40.0 * n + 30)
        core.on_start("a", 40.0 * n + 30)
    assert in_state(core, State.RUNNING) == ["a"] and status(core).restarts == 20


def test_a_query_that_has_worked_for_long_gets_its_restarts_back() -> None:
    core = started("a")
    for now in (0.0, 2.0, 5.0):
        core.on_end("a", PASSES, now)
        core.on_time(now + 4)
        core.on_start("a", now + 4)
    core.on_report("a", BatchReport(0, 1), 58.9)
    assert core._outputs["a"].recent == [0.0, 2.0, 5.0], "49.9 s after its start"
    core.on_idle("a", 59.0)
    core.on_end("a", PASSES, 60.0)
    assert core.wake_at == 61.0, "the first delay again"


@pytest.mark.parametrize("policy", [POLICY, RestartPolicy(times=0)])
def test_an_error_that_lasts_or_no_restarts_end_the_others_too(policy: RestartPolicy) -> None:
    core = Supervision({"a": policy, "b": policy}, ends=())
    core.on_time(0.0)
    core.on_start("a", 0.0)
    core.on_start("b", 0.0)
    effects = core.on_end("b", PASSES if policy.times == 0 else LASTS, 1.0)
    assert names(effects) == ["pipeline_output_failed", "StopQueries", "pipeline_output_stopped"]
    assert (core.is_over, in_state(core, State.FAILED), status(core).state) == (True, ["b"], State.STOPPED)
    assert core.on_end("a", "", 2.0) == [], "what was stopped ends, and that is nothing new"
    assert status(core).state is State.STOPPED


def test_an_output_that_waits_for_its_next_try_is_stopped_with_the_others() -> None:
    core = started("a", "b")
    core.on_end("a", PASSES, 1.0)
    core.on_end("b", LASTS, 1.5)
    assert core.is_over and core.wake_at is None and core.on_time(100.0) == []


def test_the_others_go_on_if_they_are_to() -> None:
    core = started("a", "b", on_failure="go-on")
    assert names(core.on_end("a", LASTS, 1.0)) == ["pipeline_output_failed"]
    assert (core.is_over, in_state(core, State.RUNNING), in_state(core, State.FAILED)) == (False, ["b"], ["a"])


def test_a_query_for_ever_that_ends_without_an_error_is_started_again() -> None:
    core = started("a")
    assert names(core.on_end("a", "", 1.0)) == ["pipeline_output_restarts"]
    assert status(core).error == "the query was stopped from outside of the pipeline"


def test_every_batch_is_counted_once_over_restarts() -> None:
    core = started("a")
    for batch, rows in ((0, 10), (1, 20), (2, 0), (2, 30)):
        core.on_report("a", BatchReport(batch, rows, {("t", 0): 7}, lost=1), 1.0)
    core.on_end("a", PASSES, 2.0)
    core.on_time(3.0)
    core.on_start("a", 3.0)
    for batch, rows in ((2, 30), (3, 40)):
        core.on_report("a", BatchReport(batch, rows, {("t", 0): 3, ("t", 1): 2}, lost=2), 4.0)
    now = status(core)
    assert (now.rows, now.batches, now.batch, now.lag, now.lost, now.heard_at) == (100, 4, 3, 5, 3, 4.0)


def test_progress_is_logged_once_a_minute_and_only_if_there_is_some() -> None:
    core = started("a")
    assert core.on_report("a", BatchReport(0, 10), 1.0) == []
    [line] = core.on_report("a", BatchReport(1, 5, {("t", 0): 2}), LOG_S)
    assert line == Event("pipeline_output_progressed", {"output": "a", "rows": 15, "batch": 1, "lag": 2})
    assert core.on_report("a", BatchReport(2, 5), LOG_S + 1) == []
    [line] = core.on_report("a", BatchReport(3, 1), 2 * LOG_S)
    assert isinstance(line, Event) and line.fields["rows"] == 6
    assert core.on_report("a", BatchReport(4, 0), 9 * LOG_S) == []


def test_a_query_is_healthy_again_when_it_has_shown_that_it_works() -> None:
    core = started("a", ends=("a",))
    assert status(core).healthy, "it has not failed yet"
    core.on_idle("a", 1.0)
    core.on_end("a", PASSES, 2.0)
    assert not status(core).healthy
    core.on_time(3.0)
    core.on_start("a", 3.0)
    assert status(core).state is State.RUNNING and not status(core).healthy
    core.on_idle("a", 4.0)
    assert status(core).healthy
    core.on_end("a", "", 5.0)
    assert status(core).healthy, "done"


@pytest.mark.parametrize("error", [PASSES, LASTS])
def test_what_waits_has_given_up_or_was_stopped_is_not_healthy(error: str) -> None:
    core = started("a", "b")
    core.on_end("a", error, 1.0)
    assert not status(core).healthy
    core.on_stop()
    assert not any(one.healthy for one in core.statuses)


def test_a_stopped_pipeline_is_over() -> None:
    core = started("a", "b")
    assert names(core.on_stop()) == ["StopQueries", "pipeline_output_stopped", "pipeline_output_stopped"]
    assert core.is_over and core.on_stop() == [StopQueries()]


def test_an_error_is_summed_up_from_its_code_to_the_trace() -> None:
    text = (
        "[STREAM_FAILED] Query failed: Traceback (most recent call last):\n  File x\nE: [TIDELOG_VALUE] bad;\n"
        "  see there\n\nTraceback (most recent call last):\n  File y\nJVM stacktrace:\n[TIDELOG_FAILED] never seen"
    )
    assert summary(text) == "[TIDELOG_VALUE] bad; see there"
    assert summary("[TIDELOG_SCHEMA] bad SQLSTATE: 38000\n=== Streaming Query ===\nIdentifier: x") == (
        "[TIDELOG_SCHEMA] bad SQLSTATE: 38000"
    )
    assert summary("x" * 5000) == "x" * MOST_CHARACTERS
    assert summary("one\n  two\n\tat org.apache") == "one two"


def test_a_query_of_several_outputs_is_one_query_and_tells_of_each() -> None:
    core = Supervision({"a": POLICY, "d": POLICY}, ends=(), shared={"a": ("b", "c")})
    assert core.on_time(0.0) == [StartQuery("a"), StartQuery("d")]
    lines = core.on_start("a", 0.0)
    assert lines == [Event("pipeline_output_started", {"output": one, "restarts": 0}) for one in "abc"]
    assert names(core.on_report("a", BatchReport(0, 5), LOG_S)) == ["pipeline_output_progressed"] * 3
    assert [(one.output, one.rows) for one in core.statuses] == [("a", 5), ("b", 5), ("c", 5), ("d", 0)]
    effects = core.on_end("a", LASTS, LOG_S)
    assert names(effects) == ["pipeline_output_failed"] * 3 + ["StopQueries", "pipeline_output_stopped"]
    assert in_state(core, State.FAILED) == ["a", "b", "c"]
