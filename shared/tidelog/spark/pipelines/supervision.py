"""Supervises the outputs of a pipeline: decides which query is started, started again or given up, and when. Pure.

| state | meaning | goes on to |
|---|---|---|
| ``waiting`` | its query is to be started, at once or after a delay | ``running``, ``waiting``, ``failed`` |
| ``running`` | its query runs | ``done``, ``waiting``, ``failed``, ``stopped`` |
| ``done`` | everything was read, with trigger ``available-now`` | |
| ``failed`` | it has given up: the error is not worth a restart, or its restarts are used up | |
| ``stopped`` | it was ended because another output failed, or the pipeline was interrupted | |

A query that ends without an error is done with ``available-now``. With a time as trigger no query ends by itself: one
that does was stopped from outside, and is started again as after an error. Methods take ``now``, in seconds of a
monotonic clock, and return effects, which ``runner.py`` performs in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType

from tidelog.sansio.effects import Event
from tidelog.spark.pipelines.batch_report import NO_LAGS, BatchReport
from tidelog.spark.pipelines.restart_policy import STOP, RestartPolicy, is_worth_restart

LOG_S = 60.0
"""Seconds between two lines of the log about the progress of an output."""
MOST_CHARACTERS = 2000
"""Length to which the text of an error is cut in log lines and on pages."""
_TRACES = ("at ", "Traceback ", "File ", "During handling", "Driver stacktrace:", "=== Streaming Query ===")
"""How the first line begins that is of no use in the summary of an error."""
STOPPED_OUTSIDE = "the query was stopped from outside of the pipeline"
NOT_SHARED: Mapping[str, tuple[str, ...]] = MappingProxyType({})


class State(StrEnum):
    """The state of an output; the module has the table."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class StartQuery:
    """Effect: start the query of an output, and report it with ``on_start``, or with ``on_end`` if that fails."""

    output: str


@dataclass(frozen=True, slots=True)
class StopQueries:
    """Effect: stop all queries."""


Effect = StartQuery | StopQueries | Event


@dataclass(frozen=True, slots=True)
class OutputStatus:
    """What is known of an output: the values of ``/healthz`` and ``/metrics``. Counts are of this run of the
    pipeline, over all restarts."""

    output: str
    state: State
    restarts: int = 0
    rows: int = 0
    """Number of rows that the query read."""
    batches: int = 0
    """Number of micro-batches with rows."""
    batch: int | None = None
    """Number of the last micro-batch with rows; None before the first."""
    lags: Mapping[tuple[str, int], int] = field(default_factory=lambda: NO_LAGS)
    """(Topic, partition) -> number of offsets that are not read yet, as of the last report."""
    lost: int = 0
    """Number of offsets that were passed over, because they are gone."""
    error: str = ""
    """The last error, as one line; "": there was none."""
    heard_at: float | None = None
    """When the query last showed that it works, with a batch or by finding nothing to do; None: never."""
    restart_at: float | None = None
    """When the query will be started again; None if it need not be."""
    healthy: bool = True
    """Whether the output is done, or its query runs and, after a restart, has shown that it works."""

    @property
    def lag(self) -> int:
        """Return the number of offsets of all partitions that are not read yet."""
        return sum(self.lags.values())


@dataclass(slots=True)
class _Output:
    """What the core keeps of an output, besides what others see."""

    name: str
    policy: RestartPolicy
    state: State = State.WAITING
    restarts: int = 0
    recent: list[float] = field(default_factory=list)
    """When it was started again, within the policy's window."""
    restart_at: float | None = 0.0
    started_at: float = 0.0
    heard_at: float | None = None
    error: str = ""
    rows: int = 0
    batches: int = 0
    batch: int | None = None
    lags: Mapping[tuple[str, int], int] = field(default_factory=lambda: NO_LAGS)
    lost: int = 0
    lost_before: int = 0
    """Lost offsets of the queries before this one; the source counts anew after a restart."""
    logged_at: float = float("-inf")
    logged_rows: int = 0

    @property
    def status(self) -> OutputStatus:
        restart_at = self.restart_at if self.state is State.WAITING else None
        works = not self.restarts or (self.heard_at is not None and self.heard_at >= self.started_at)
        healthy = self.state is State.DONE or (self.state is State.RUNNING and works)
        return OutputStatus(
            self.name,
            self.state,
            self.restarts,
            self.rows,
            self.batches,
            self.batch,
            self.lags,
            self.lost_before + self.lost,
            self.error,
            self.heard_at,
            restart_at,
            healthy,
        )


class Supervision:
    """Supervises the outputs of one run of a pipeline. ``policies``: the restart policy of each output. ``ends``:
    the outputs whose queries end by themselves (trigger ``available-now``). ``on_failure``: ``stop`` or
    ``go-on``. ``shared``: for an output whose query writes further ones, their names; effects and reports are about
    the first one, statuses and lines of the log about each."""

    def __init__(
        self,
        policies: Mapping[str, RestartPolicy],
        *,
        ends: Collection[str],
        on_failure: str = STOP,
        shared: Mapping[str, tuple[str, ...]] = NOT_SHARED,
    ) -> None:
        self._outputs = {name: _Output(name, policy) for name, policy in policies.items()}
        self._ends = ends
        self._stops = on_failure == STOP
        self._shared = shared

    # --- what is known ---------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Return whether no output runs or waits for its start."""
        return all(one.state not in (State.WAITING, State.RUNNING) for one in self._outputs.values())

    @property
    def statuses(self) -> tuple[OutputStatus, ...]:
        """Return what is known of each output."""
        found = [one.status for one in self._outputs.values()]
        return tuple(replace(one, output=name) for one in found for name in self._names(one.output))

    @property
    def wake_at(self) -> float | None:
        """Return when ``on_time`` is to be called at the latest; None if no output waits for its start."""
        waiting = [one.restart_at for one in self._outputs.values() if one.state is State.WAITING]
        return min((at for at in waiting if at is not None), default=None)

    # --- what happens ----------------------------------------------------------------------------------------

    def on_time(self, now: float) -> list[Effect]:
        """Return the starts of the outputs whose delay is over. Each is returned only once."""
        effects: list[Effect] = []
        for one in self._outputs.values():
            if one.state is State.WAITING and one.restart_at is not None and one.restart_at <= now:
                one.restart_at = None
                effects.append(StartQuery(one.name))
        return effects

    def on_start(self, output: str, now: float) -> list[Effect]:
        """Note that the query of an output was started, and return the line for the log."""
        one = self._outputs[output]
        one.state, one.started_at, one.logged_at = State.RUNNING, now, now
        return self._tell("pipeline_output_started", one, {"restarts": one.restarts})

    def on_report(self, output: str, report: BatchReport, now: float) -> list[Effect]:
        """Count a micro-batch that a query has reported. A batch that was counted already, as one that is reported
        again after a restart, is not counted twice. Returns a line for the log if the last one is ``LOG_S`` old."""
        one = self._outputs[output]
        if report.rows and (one.batch is None or report.batch > one.batch):
            one.rows += report.rows
            one.batches += 1
            one.batch = report.batch
        one.lags, one.lost = report.lags, report.lost
        self.on_idle(output, now)
        if now - one.logged_at < LOG_S or one.rows == one.logged_rows:
            return []
        return self._progress(one, now)

    def on_idle(self, output: str, now: float) -> None:
        """Note that a query has found nothing to do. If it was started long enough ago, earlier restarts count no
        more."""
        one = self._outputs[output]
        one.heard_at = now
        if one.recent and now - one.started_at >= one.policy.reset_after_s:
            one.recent.clear()

    def on_end(self, output: str, error: str, now: float) -> list[Effect]:
        """Decide what becomes of an output whose query has ended, or could not be started. ``error``: the whole text;
        "" if there was none. Does nothing for an output that was stopped."""
        one = self._outputs[output]
        if one.state not in (State.WAITING, State.RUNNING):
            return []
        if not error and output in self._ends:
            one.state = State.DONE
            return self._tell("pipeline_output_ended", one, {"rows": one.rows, "batches": one.batches})
        error = error or STOPPED_OUTSIDE
        one.error = summary(error)
        one.lost_before, one.lost = one.lost_before + one.lost, 0
        one.recent = [at for at in one.recent if at > now - one.policy.within_s]
        fields: dict[str, object] = {"error": one.error}
        if not is_worth_restart(error):
            return self._give_up(one, fields | {"reason": "a restart does not cure this error"})
        if len(one.recent) >= one.policy.times:
            reason = f"no restart is left of {one.policy.times} in {one.policy.within_s:g} s"
            return self._give_up(one, fields | {"reason": reason})
        delay = one.policy.delay(len(one.recent))
        one.state, one.restart_at = State.WAITING, now + delay
        one.recent.append(now)
        one.restarts += 1
        return self._tell(
            "pipeline_output_restarts", one, fields | {"in_s": round(delay, 3), "restarts": one.restarts}
        )

    def on_stop(self) -> list[Effect]:
        """Stop all outputs that run or wait for their start, and return the effects."""
        effects: list[Effect] = [StopQueries()]
        for one in self._outputs.values():
            if one.state in (State.WAITING, State.RUNNING):
                one.state = State.STOPPED
                effects += self._tell("pipeline_output_stopped", one, {})
        return effects

    # --- details -----------------------------------------------------------------------------------------------

    def _give_up(self, one: _Output, fields: Mapping[str, object]) -> list[Effect]:
        """Fail an output; stop the others, too, unless they are to go on."""
        one.state = State.FAILED
        return self._tell("pipeline_output_failed", one, fields) + (self.on_stop() if self._stops else [])

    def _progress(self, one: _Output, now: float) -> list[Effect]:
        """Return the lines for the log about an output's progress since the last such line."""
        rows, one.logged_rows, one.logged_at = one.rows - one.logged_rows, one.rows, now
        return self._tell(
            "pipeline_output_progressed", one, {"rows": rows, "batch": one.batch, "lag": one.status.lag}
        )

    def _tell(self, event: str, one: _Output, fields: Mapping[str, object]) -> list[Effect]:
        """Return a line for the log about each output that the query of ``one`` writes."""
        return [Event(event, {"output": name, **fields}) for name in self._names(one.name)]

    def _names(self, output: str) -> tuple[str, ...]:
        """Return the names of all outputs that the query of an output writes."""
        return (output, *self._shared.get(output, ()))


def summary(error: str) -> str:
    """Return the text of an error as one line of at most ``MOST_CHARACTERS``: without the traces of Java and Python,
    and from the stable code on, if it has one."""
    text = error.partition("JVM stacktrace:")[0]
    code = text.find("[TIDELOG_")
    lines = [line.strip() for line in text[max(code, 0) :].splitlines()]
    kept: list[str] = []
    for line in lines:
        if line.startswith(_TRACES):
            break
        kept.append(line)
    return " ".join(filter(None, kept))[:MOST_CHARACTERS]
