"""Runs the queries of a pipeline: carries out what ``supervision.py`` decides, and tells it what Spark reports.

Spark reports through a listener, which gets every micro-batch and every end, in order: ``recentProgress`` forgets all
but the last hundred batches. Its events are put into a queue, and the thread of the caller takes them out. A listener
may lose events, since Spark drops them when 10,000 wait. So queries are also asked every second whether they run."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.listener import StreamingQueryListener

from tidelog.sansio.effects import Event
from tidelog.spark.errors import SourceError
from tidelog.spark.pipelines.batch_report import batch_report
from tidelog.spark.pipelines.supervision import (
    Effect,
    OutputStatus,
    StartQuery,
    State,
    StopQueries,
    Supervision,
    summary,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

LOOK_S = 1.0
"""Seconds between two looks whether the queries still run."""
LATE_S = 10.0
"""Seconds to wait for the report of a query's end after it was seen to have ended."""

Report = tuple[str, Any]
"""The run id of a query, and what it reports: a progress, ``IDLE`` or ``ENDED``."""
IDLE, ENDED = "idle", "ended"


class _Listener(StreamingQueryListener):  # type: ignore[misc]
    """Puts the reports of all queries of the session into a queue. The methods with names in camel case are those of
    PySpark's interface; Spark calls them in a thread of its own."""

    def __init__(self, reports: SimpleQueue[Report]) -> None:
        self._reports = reports

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing: the start of a query is seen when ``start`` returns."""

    def onQueryProgress(self, event: Any) -> None:
        """Pass the progress of a micro-batch on."""
        self._reports.put((str(event.progress.runId), event.progress))

    def onQueryIdle(self, event: Any) -> None:
        """Pass on that a query has found nothing to do."""
        self._reports.put((str(event.runId), IDLE))

    def onQueryTerminated(self, event: Any) -> None:
        """Pass on that a query has ended."""
        self._reports.put((str(event.runId), ENDED))


class Runner:
    """Runs the queries of a pipeline until all outputs are done, have given up or were stopped. ``begin`` starts
    them, ``wait`` waits for the end. ``start`` starts the query of an output and returns it. ``perform`` writes a
    line of the log; ``hide`` returns a text without the secrets of the pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        core: Supervision,
        start: Callable[[str], StreamingQuery],
        perform: Callable[[Event], None],
        hide: Callable[[str], str],
    ) -> None:
        self._spark = spark
        self._core = core
        self._start = start
        self._perform = perform
        self._hide = hide
        self._reports: SimpleQueue[Report] = SimpleQueue()
        self._listener = _Listener(self._reports)
        self._queries: dict[str, StreamingQuery] = {}
        """The last query of each output."""
        self._outputs: dict[str, str] = {}
        """Run id of a query -> its output; queries whose end was reported are removed."""
        self._ended_at: dict[str, float] = {}
        """Run id of a query that was seen to have ended -> when, until its end is reported."""
        self._errors: dict[str, Exception] = {}
        """The last error of each output."""
        self._look_at = 0.0
        self.statuses: tuple[OutputStatus, ...] = core.statuses
        """What is known of each output; other threads may read it."""

    def begin(self) -> None:
        """Start the queries of all outputs. An error of Spark fails an output, or is tried again later; any other
        error, such as ``ConfigError``, stops all queries and is raised."""
        self._spark.streams.addListener(self._listener)
        try:
            self._carry_out(self._core.on_time(monotonic()))
        except BaseException:
            self.close()
            raise

    def wait(self) -> None:
        """Wait until no output runs or waits for its start, and then stop what is left. Raises what ``begin``
        raises, and ``KeyboardInterrupt``; all queries are stopped then, too."""
        try:
            while not self._core.is_over:
                self._step()
        finally:
            self.close()

    def close(self) -> None:
        """Stop all queries, take in their last reports, and listen no more."""
        self._carry_out(self._core.on_stop())
        until = monotonic() + LATE_S
        while self._outputs and (left := until - monotonic()) > 0:
            self._take(left)
        self._spark.streams.removeListener(self._listener)

    @property
    def error(self) -> Exception | None:
        """Return the error of the first output that has given up; None if none has."""
        for one in self._core.statuses:
            if one.state is State.FAILED:
                return self._errors.get(one.output) or SourceError("TIDELOG_FAILED", f"{one.output}: {one.error}")
        return None

    # --- what Spark reports ------------------------------------------------------------------------------------

    def _step(self) -> None:
        """Wait for a report, for the next start or for the next look, and do what is to be done."""
        now = monotonic()
        wake_at = min(self._look_at, self._core.wake_at or self._look_at)
        self._take(max(0.0, wake_at - now))
        now = monotonic()
        self._carry_out(self._core.on_time(now))
        if now >= self._look_at:
            self._look_at = now + LOOK_S
            self._look(now)

    def _take(self, timeout_s: float) -> None:
        """Wait for one report, up to ``timeout_s`` seconds, and take it in. Reports of other queries of the session
        are dropped."""
        try:
            run, what = self._reports.get(timeout=timeout_s)
        except Empty:
            return
        output = self._outputs.get(run)
        if output is None:
            return
        now = monotonic()
        if what is ENDED:
            self._end(run, now)
        elif what is IDLE:
            self._core.on_idle(output, now)
            self._publish()
        else:
            report = batch_report(what.batchId, what.numInputRows, what.sources)
            self._carry_out(self._core.on_report(output, report, now))

    def _look(self, now: float) -> None:
        """Find queries that have ended and whose end is not reported, and end their outputs after ``LATE_S``."""
        for run, output in list(self._outputs.items()):
            if self._queries[output].isActive:
                continue
            if now - self._ended_at.setdefault(run, now) >= LATE_S:
                self._end(run, now)

    def _end(self, run: str, now: float) -> None:
        """Tell the core that a query has ended, with its error if it has one."""
        output = self._outputs.pop(run)
        self._ended_at.pop(run, None)
        error = self._queries[output].exception()
        if error is None:
            self._errors.pop(output, None)
        else:
            self._errors[output] = error
        self._carry_out(self._core.on_end(output, "" if error is None else self._text(error), now))

    # --- what is to be done ------------------------------------------------------------------------------------

    def _carry_out(self, effects: list[Effect]) -> None:
        """Perform effects in order, and those that they lead to."""
        self._publish()
        for effect in effects:
            if isinstance(effect, StartQuery):
                self._start_query(effect.output)
            elif isinstance(effect, StopQueries):
                self._stop_queries()
            else:
                self._perform(effect)

    def _start_query(self, output: str) -> None:
        """Start the query of an output, unless the outputs were stopped meanwhile."""
        if not any(one.output == output and one.state is State.WAITING for one in self._core.statuses):
            return
        try:
            query = self._start(output)
        except (PySparkException, Py4JJavaError, SourceError) as error:
            self._errors[output] = error
            self._carry_out(self._core.on_end(output, self._text(error), monotonic()))
            return
        self._queries[output] = query
        self._outputs[str(query.runId)] = output
        self._carry_out(self._core.on_start(output, monotonic()))

    def _stop_queries(self) -> None:
        """Stop all queries. One that cannot be stopped does not keep the others running."""
        for output, query in self._queries.items():
            try:
                query.stop()
            except (PySparkException, Py4JError) as error:
                fields = {"output": output, "error": summary(self._text(error))}
                self._perform(Event("pipeline_output_not_stopped", fields))

    def _text(self, error: Exception) -> str:
        """Return the text of an error without secrets."""
        return self._hide(str(error))

    def _publish(self) -> None:
        self.statuses = self._core.statuses
