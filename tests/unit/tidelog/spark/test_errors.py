"""What Spark shows of an error: its code and text first, the trace behind them."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from tidelog.errors import refuse
from tidelog.spark.errors import SourceError, check_pyspark, data_loss, error_in, translated_errors

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'tidelog[spark]'")

import pyspark
from pyspark.util import handle_worker_exception
from tidelog.spark.read import arrow
from tidelog.spark.source import TidelogDataSource

TEXT = "[TIDELOG_UNKNOWN_TOPIC] there is no topic orders (UNKNOWN_TOPIC)"


def shown(error: BaseException) -> str:
    """What a worker of Spark sends for an exception that it handles."""
    sent = io.BytesIO()
    try:
        raise error
    except BaseException as caught:
        handle_worker_exception(caught, sent)
    return sent.getvalue()[8:].decode()  # behind a mark and a length


def failed() -> SourceError:
    with pytest.raises(SourceError) as caught, translated_errors():
        raise refuse("UNKNOWN_TOPIC", "there is no topic orders")
    return caught.value


@pytest.mark.parametrize("simplified", [False, True], ids=["driver", "task"])
def test_code_and_text_come_before_the_trace(simplified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if simplified:  # as Spark does in tasks, where it also removes the cause
        monkeypatch.setenv("SPARK_SIMPLIFIED_TRACEBACK", "1")
    first, *_, last = shown(failed()).strip().splitlines()
    assert first == f"tidelog.spark.errors.Summary: {TEXT}"
    assert last == f"tidelog.spark.errors.SourceError: {TEXT}"
    assert "in translated_errors" in shown(failed())
    assert "TidelogError" not in shown(failed())


def test_a_masked_error_comes_first_too() -> None:
    """PySpark's own clean-up fails after a stream could not be planned."""
    try:
        try:
            raise failed()
        finally:
            raise UnboundLocalError("cannot access local variable 'reader'")
    except UnboundLocalError as error:
        assert shown(error).startswith(f"tidelog.spark.errors.Summary: {TEXT}\n")


LOSS = data_loss("orders", 0, 0, 10, [(0, 3, "deleted by retention"), (3, 10, "retained")])


@pytest.mark.parametrize("error", [failed(), LOSS, SourceError("TIDELOG_OPTION", "two\nlines")], ids=lambda e: e.code)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "[PYTHON_DATA_SOURCE_ERROR] Failed to generate Python data source read partitions: {} SQLSTATE: 38000",
        "Job aborted: org.apache.spark.api.python.PythonException: {}\n\tat org.apache.spark.Reader.read(x:1)\n",
        "{}\n\nJVM stacktrace:\norg.apache.spark.sql.AnalysisException",
    ],
)
def test_programs_get_code_and_text_back(error: SourceError, around: str) -> None:
    for text in (shown(error), str(error)):
        found = error_in(around.format(text))
        assert found is not None
        assert (found.code, str(found)) == (error.code, str(error))


def test_other_errors_show_none() -> None:
    assert error_in(ValueError("[TIDELOG_DATA_LOS] nothing")) is None
    assert error_in("[STREAM_FAILED] a query ended") is None
    plan = "[UNRESOLVED_COLUMN] no b. SQLSTATE: 42703;\n'Project [raise_error(concat({}, concat_ws(/, topic)))]"
    assert error_in(plan.format("[TIDELOG_VALUE] ")) is error_in(plan.format("'[TIDELOG_VALUE] '")) is None


@pytest.mark.parametrize(
    ("version", "use", "text"),
    [
        ("4.1.4", "streamReader", "reads of a stream need PySpark 4.2 or newer; this is 4.1.4"),
        ("4.0.5", "reader", "filters that are pushed down need PySpark 4.1 or newer; this is 4.0.5"),
        ("4.0.5", "writer", "writes need PySpark 4.1 or newer; this is 4.0.5"),
        ("4.0.5", "streamWriter", "writes need PySpark 4.1 or newer; this is 4.0.5"),
    ],
)
def test_an_older_pyspark_is_told_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, version: str, use: str, text: str
) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    source = TidelogDataSource({"subscribe": "orders", "filterPushdown": "true"})
    schema = SimpleNamespace(fieldNames=lambda: arrow.schema(False).names)
    arguments = (schema,) if "ead" in use else (schema, False)
    with pytest.raises(SourceError) as caught:
        getattr(source, use)(*arguments)
    assert str(caught.value) == f"[TIDELOG_VERSION] {text}"


@pytest.mark.parametrize("version", ["4.2.0", "4.2.1", "4.3.0.dev1", "4.10.0", "5.0.0"])
def test_a_pyspark_that_is_new_enough_passes(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(pyspark, "__version__", version)
    check_pyspark("reads of a stream", 4, 2)
