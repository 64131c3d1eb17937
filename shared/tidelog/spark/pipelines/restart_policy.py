"""When the query of an output is started again after an error: the settings ``[restart]`` of a pipeline, and which
errors are worth another try. Pure.

A restart loses nothing and writes nothing twice, since a query goes on at its checkpoint. So an error is worth a
restart unless it says that the same would fail again: an option, a schema or an SQL expression is wrong, records are
gone, a topic is another one, a value cannot be converted. The text of the error decides: it has the stable code of
Tidelog (``tidelog.spark.errors``), the code of the client in brackets, or the SQLSTATE of Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from tidelog.errors import CODES
from tidelog.quantities import SECONDS, parse
from tidelog.spark.pipelines.file.toml_settings import Grammar, OneOf

STOP, GO_ON = "stop", "go-on"
MOST_RESTARTS = 1_000_000

_LASTING = frozenset(
    (
        "TIDELOG_OPTION",
        "TIDELOG_SCHEMA",
        "TIDELOG_DATA_LOSS",
        "TIDELOG_TOPIC_CHANGED",
        "TIDELOG_UNKNOWN_TOPIC",
        "TIDELOG_CORRUPT",
        "TIDELOG_GROUP",
        "TIDELOG_VALUE",
        "TIDELOG_APP_ID",
        "TIDELOG_MODE",
        "TIDELOG_VERSION",
        "TIDELOG_HISTORY",
        "TIDELOG_TABLE_SCHEMA",
        "TIDELOG_TABLE_APP",
    )
)
"""Codes of errors that a restart does not cure."""
_PASSING = frozenset(("TIDELOG_UNREACHABLE",))
"""Codes of errors that are worth a restart whatever else the text says of the client's error."""
_LASTING_REFUSALS = frozenset(("SEQUENCE_CONFLICT", "FENCED_PRODUCER", "FORBIDDEN", "UNAUTHENTICATED"))
"""Codes of the client that a restart does not cure, though the code of Tidelog alone would be worth one."""
_LASTING_STATES = ("0A", "21", "22", "23", "2B", "42", "46")
"""Classes of SQLSTATEs of Spark's errors that a restart does not cure: features that do not exist, data that cannot
be converted, constraints, and what is wrong in the SQL text."""
_LASTING_TEXTS = (
    "stopped SparkContext",
    "SparkContext was shut down",
    "SparkContext has been shutdown",
    "sources in the checkpoint offsets and now there are",
    "_SCHEMA_NOT_COMPATIBLE]",
)
"""Texts without a telling code: Spark has ended, or the query is another one than that of its checkpoint."""
_WORKER_LOST = ("Python worker failed to connect back", "Python worker exited unexpectedly", "Accept timed out")
"""Spark could not start one of its Python processes in time, as on a busy machine, or lost one."""
_CODE = re.compile(r"\[(TIDELOG_[A-Z_]+)\]")
_CLIENT_CODE = re.compile(r"\(([A-Z]+(?:_[A-Z]+)*)\)")
_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How often, and after which delays, the query of an output is started again. The delay doubles with each restart
    in a row, from ``delay_s`` up to ``max_delay_s``. Times are in seconds."""

    times: int = 10
    """Restarts within ``within_s`` at most; 0: none."""
    within_s: float = 600.0
    delay_s: float = 1.0
    max_delay_s: float = 60.0
    reset_after_s: float = 300.0
    """A query that still makes progress so long after its start has cured: earlier restarts count no more."""
    on_failure: str = STOP
    """What becomes of the other outputs when one has given up: ``stop`` ends them and the pipeline, ``go-on`` lets
    them run."""

    def delay(self, restarts: int) -> float:
        """Return the seconds to wait before a restart, if there were so many restarts in a row before it."""
        return min(self.max_delay_s, self.delay_s * 2.0 ** min(restarts, 64))


def _seconds(text: str) -> float:
    """Return a time of more than 0 seconds, such as ``30s`` or, as Spark writes it, ``10 minutes``. Raises
    ``ValueError``."""
    seconds = float(parse(re.sub(r"\b(second|minute|hour|day)s?\b", lambda found: found[1][0], text), SECONDS))
    if not 0.001 <= seconds <= 1e9:
        raise ValueError(text)
    return seconds


def _refuse_time(text: str) -> str:
    """Return what a time should be, and is not; "" if it is one."""
    try:
        _seconds(text)
    except ValueError:
        return f"a time such as 30s, 5m or 10 minutes, not {text!r}"
    return ""


Time = Annotated[str, Grammar(_refuse_time)]


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """The settings ``[restart]`` of a pipeline, or the setting ``restart`` of an output; "" and None: not given."""

    times: int | None = None
    """Restarts within ``within`` at most; 0: none. Default 10."""
    within: Time = ""
    """Default ``10m``."""
    delay: Time = ""
    """Delay before the first restart, which doubles with each one in a row. Default ``1s``."""
    max_delay: Time = ""
    """Default ``1m``."""
    reset_after: Time = ""
    """A query that still makes progress so long after its start has cured. Default ``5m``."""
    on_failure: Annotated[str, OneOf((STOP, GO_ON))] = ""
    """For the whole pipeline: when an output has given up, ``stop`` (default) ends it, ``go-on`` lets the others
    run."""

    def over(self, base: RestartPolicy) -> RestartPolicy:
        """Return the policy of these settings; those that are not given are of ``base``."""
        return RestartPolicy(
            base.times if self.times is None else self.times,
            _seconds(self.within) if self.within else base.within_s,
            _seconds(self.delay) if self.delay else base.delay_s,
            _seconds(self.max_delay) if self.max_delay else base.max_delay_s,
            _seconds(self.reset_after) if self.reset_after else base.reset_after_s,
            self.on_failure or base.on_failure,
        )

    def faults(self) -> list[str]:
        """Return what is wrong with the settings together; an empty list if nothing is."""
        faults = []
        if self.times is not None and not 0 <= self.times <= MOST_RESTARTS:
            faults.append(f"times is a whole number from 0 to {MOST_RESTARTS}, not {self.times}")
        policy = self.over(RestartPolicy())
        if policy.max_delay_s < policy.delay_s:
            faults.append("max-delay is not less than delay")
        return faults


def is_worth_restart(error: str) -> bool:
    """Return whether a query that ended with this error may succeed when it is started again. ``error`` is the whole
    text, with the texts of the errors that caused it."""
    if any(text in error for text in _LASTING_TEXTS):
        return False
    codes = set(_CODE.findall(error))
    if codes & _LASTING:
        return False
    if codes & _PASSING or any(text in error for text in _WORKER_LOST):
        return True
    of_client = {code for code in _CLIENT_CODE.findall(error) if code in CODES}
    if "TIDELOG_NOT_WRITTEN" in codes:
        return not of_client & _LASTING_REFUSALS
    if "TIDELOG_FAILED" in codes:
        return any(CODES[code].retriable for code in of_client)
    return not any(state.startswith(_LASTING_STATES) for state in _STATE.findall(error))
