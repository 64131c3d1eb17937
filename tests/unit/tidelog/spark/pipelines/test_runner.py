"""The runner of queries, with a session that does what the test says; ``tests/spark/test_supervised.py`` has a real
one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tidelog.errors import ConfigError
from tidelog.sansio.effects import Event

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from tidelog.spark.errors import SourceError
from tidelog.spark.pipelines import runner as module
from tidelog.spark.pipelines.restart_policy import RestartPolicy
from tidelog.spark.pipelines.runner import Runner
from tidelog.spark.pipelines.supervision import Supervision

QUICK = RestartPolicy(times=2, delay_s=0.001, max_delay_s=0.001)


class Query:
    """A query that has ended, or runs until it is stopped. Its end is reported unless it is ``silent``."""

    def __init__(self, session: Session, error: Exception | None, ends: bool, silent: bool) -> None:
        self.runId = f"run-{len(session.queries)}"
        self.isActive = True
        self._session, self._error, self._silent = session, error, silent
        session.queries.append(self)
        if ends:
            self.stop()

    def exception(self) -> Exception | None:
        return self._error

    def stop(self) -> None:
        if self.isActive and not self._silent:
            self._session.listener.onQueryTerminated(SimpleNamespace(runId=self.runId))
        self.isActive = False


class Session:
    """A session of Spark whose queries end as told."""

    def __init__(self) -> None:
        self.queries: list[Query] = []
        self.listener: Any = None
        self.streams = SimpleNamespace(addListener=self._listen, removeListener=self._leave)

    def _listen(self, listener: Any) -> None:
        self.listener = listener

    def _leave(self, listener: Any) -> None:
        assert listener is self.listener
        self.listener = None

    def query(self, error: str = "", *, ends: bool = True, silent: bool = False) -> Query:
        return Query(self, PySparkException(error) if error else None, ends, silent)


def runner(session: Any, starts: dict[str, Callable[[], Any]], ends: bool, lines: list[Event]) -> Runner:
    """A runner of the outputs of ``starts``, each of which is started by its function."""
    core = Supervision(dict.fromkeys(starts, QUICK), ends=starts if ends else ())
    return Runner(
        session, core, lambda name: starts[name](), lines.append, lambda text: text.replace("secret", "***")
    )


@pytest.mark.parametrize(
    "refused",
    [PySparkException("it cannot be started"), SourceError("TIDELOG_UNREACHABLE", "no gateway answers")],
    ids=["spark", "gateway"],
)
def test_an_output_that_cannot_be_started_or_fails_is_started_again(refused: Exception) -> None:
    session, lines = Session(), list[Event]()
    errors = [str(refused), "secret: it fails", ""]

    def start() -> Query:
        error = errors.pop(0)
        if len(errors) == 2:
            raise refused
        return session.query(error)

    run = runner(session, {"a": start}, True, lines)
    run.begin()
    run.wait()
    assert [line.fields.get("error") for line in lines if line.name == "pipeline_output_restarts"] == [
        str(refused),
        "***: it fails",
    ]
    assert (run.error, run.statuses[0].state, run.statuses[0].restarts) == (None, "done", 2)
    assert session.listener is None


@pytest.mark.parametrize("silent", [False, True])
def test_the_last_error_is_that_of_the_run_and_the_others_are_stopped(
    silent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LATE_S", 0.0)
    monkeypatch.setattr(module, "LOOK_S", 0.001)
    session, lines = Session(), list[Event]()
    starts = {"a": lambda: session.query(ends=False), "b": lambda: session.query("it fails", silent=silent)}
    run = runner(session, starts, False, lines)
    run.begin()
    run.wait()
    assert str(run.error) == "it fails" and [one.state for one in run.statuses] == ["stopped", "failed"]
    assert not any(query.isActive for query in session.queries) and len(session.queries) == 4


def test_a_query_that_cannot_be_stopped_does_not_keep_the_others_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LATE_S", 0.0)
    session, lines = Session(), list[Event]()

    def refuse() -> None:
        raise Py4JError("the secret gateway is gone")

    def stubborn() -> Query:
        query = session.query(ends=False)
        monkeypatch.setattr(query, "stop", refuse)
        return query

    run = runner(session, {"a": stubborn, "b": lambda: session.query(ends=False)}, False, lines)
    run.begin()
    run.close()
    assert [query.isActive for query in session.queries] == [True, False]
    told = [line.fields for line in lines if line.name == "pipeline_output_not_stopped"]
    assert told == [{"output": "a", "error": "the *** gateway is gone"}]


def test_an_output_that_is_stopped_from_outside_once_too_often_is_an_error() -> None:
    session = Session()
    run = runner(session, {"a": session.query}, False, [])
    run.begin()
    run.wait()
    assert str(run.error) == "[TIDELOG_FAILED] a: the query was stopped from outside of the pipeline"


def test_a_fault_of_the_declaration_stops_what_runs_already() -> None:
    def wrong() -> Query:
        raise ConfigError("there is no steps.py")

    session = Session()
    run = runner(session, {"a": lambda: session.query(ends=False), "b": wrong}, False, [])
    with pytest.raises(ConfigError, match=r"there is no steps\.py"):
        run.begin()
    assert not session.queries[0].isActive and session.listener is None
