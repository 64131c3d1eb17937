"""Texts of errors in Spark, which shows users the text of an exception and nothing else.

Each text begins with a stable code, ``[TIDELOG_DATA_LOSS] …``, and ends with what the user can do. A program that has
caught an exception of Spark gets code and text back by ``error_in``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tidelog.errors import TidelogError, UnreadableBatch

CODES = {
    "TIDELOG_OPTION": "an option is unknown, malformed, or contradicts another",
    "TIDELOG_SCHEMA": "the columns are not those that the source has, or that the sink takes",
    "TIDELOG_UNREACHABLE": "no gateway answered in time",
    "TIDELOG_UNKNOWN_TOPIC": "a topic or partition does not exist",
    "TIDELOG_TOPIC_CHANGED": "a topic was deleted and created again while it was read",
    "TIDELOG_DATA_LOSS": "records that were asked for are not in the log",
    "TIDELOG_CORRUPT": "a batch is damaged, or cannot be decoded",
    "TIDELOG_APP_ID": "the appId is that of another query, or of this one with another checkpoint",
    "TIDELOG_MODE": "the output mode does not fit the rows or the topic",
    "TIDELOG_GROUP": "the consumer group of groupId cannot be used",
    "TIDELOG_NOT_WRITTEN": "records were not acknowledged, or not committed",
    "TIDELOG_VALUE": "a row cannot be a record, or a record does not fit the columns of its input",
    "TIDELOG_VERSION": "this version of PySpark lacks what the read or write needs",
    "TIDELOG_TABLE_SCHEMA": "the columns do not fit the table",
    "TIDELOG_TABLE_APP": "another query, or an earlier checkpoint, writes to the table under this appId",
    "TIDELOG_HISTORY": "the table of history cannot stand in for the beginning of the log",
    "TIDELOG_FAILED": "the cluster refused for another reason, which the text names",
}
"""Every code of a ``SourceError``, with its meaning."""

_FROM_CLIENT = {
    "UNREACHABLE": "TIDELOG_UNREACHABLE",
    "REQUEST_TIMED_OUT": "TIDELOG_UNREACHABLE",
    "UNKNOWN_TOPIC": "TIDELOG_UNKNOWN_TOPIC",
    "OFFSET_OUT_OF_RANGE": "TIDELOG_DATA_LOSS",
    "LOG_TRUNCATED": "TIDELOG_DATA_LOSS",
    "CORRUPT_BATCH": "TIDELOG_CORRUPT",
    "UNKNOWN_TRANSACTION": "TIDELOG_NOT_WRITTEN",
    "TRANSACTION_ABORTED": "TIDELOG_NOT_WRITTEN",
    "FENCED_PRODUCER": "TIDELOG_NOT_WRITTEN",
}


_SHOWN = re.compile(
    r"\[(TIDELOG_[A-Z_]+)\] (?!'?, )(.*?)\s*"
    r"(?=\n\nThe above exception was |\nTraceback \(most| SQLSTATE: |\n\tat |\n\nJVM stacktrace:|\Z)",
    re.DOTALL,
)
"""A code and its text in what Spark shows, up to what Spark and Python have put behind it. A code with a comma behind
it is no error: an expression in a plan, which Spark shows with errors of SQL, has it as a literal."""


class SourceError(Exception):
    """An error of the Tidelog source or sink for Spark's users. Its text begins with ``code``, one of ``CODES``, in
    brackets.

    Spark shows users what Python prints for an exception of a worker: the exception's cause, the trace, and the
    exception's text at its end. So the ``__cause__`` of a ``SourceError`` is always an exception with the same text,
    and no trace: users read the text first. It is a property, since Spark removes the cause of an exception in a
    task."""

    def __init__(self, code: str, message: str) -> None:
        assert code in CODES, code
        super().__init__(f"[{code}] {message}")
        self.code = code

    @property
    def __cause__(self) -> BaseException:
        return Summary(str(self))

    @__cause__.setter
    def __cause__(self, cause: BaseException | None) -> None:
        pass


class Summary(Exception):
    """The text of a ``SourceError``, which Python prints before the trace of that error."""


def error_in(error: BaseException | str) -> SourceError | None:
    """Return the error of the Tidelog source or sink that an exception of Spark, or its text, shows; None if it shows
    none. What Spark and Python have put around the error is left out."""
    found = _SHOWN.search(str(error))
    return SourceError(*found.groups()) if found is not None and found[1] in CODES else None


def translated(error: TidelogError) -> SourceError:
    """Return the ``SourceError`` for an error of the Tidelog client, with the same message. Its code is the
    counterpart of the client's code, or ``TIDELOG_FAILED`` if there is none."""
    if error.code == "INVALID_TRANSACTION" and "owner" in error.detail:
        return SourceError(
            "TIDELOG_APP_ID",
            f"{error.message} ({error.code}). An appId goes with one checkpoint and one sink: another counts its "
            "batches from 0 as well, so that its rows would be taken for written. Give another appId",
        )
    return SourceError(_FROM_CLIENT.get(error.code, "TIDELOG_FAILED"), f"{error.message} ({error.code})")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Return a context manager that turns a client's error (``TidelogError``) of its block into the ``SourceError``
    that stands for it. Other errors pass unchanged."""
    try:
        yield
    except TidelogError as error:
        raise translated(error) from error


def check_pyspark(what: str, *needed: int) -> None:
    """Raise ``TIDELOG_VERSION`` if the running PySpark is older than the release ``needed``, such as ``4, 2``.
    ``what`` is the plural that the text says needs it."""
    from pyspark import __version__

    if tuple(map(int, __version__.split(".")[: len(needed)])) < needed:
        release = ".".join(map(str, needed))
        raise SourceError("TIDELOG_VERSION", f"{what} need PySpark {release} or newer; this is {__version__}")


def unreadable(error: UnreadableBatch) -> SourceError:
    """Return the ``TIDELOG_CORRUPT`` error for a batch that cannot be decoded. Its text names the topic, partition
    and offset and the reason. It advises to skip the batch, or, if the bytes were damaged between server and client,
    to try again."""
    step = f"Read from offset {error.next_offset}, or set onUnreadable=skip to go on with what can be read."
    if error.is_damaged:
        step = "Its bytes were damaged on the way: Spark's next attempt reads them again."
    return SourceError("TIDELOG_CORRUPT", f"{error.place}, cannot be read: {error.why}. {step}")


def data_loss(topic: str, partition: int, start: int, end: int, parts: list[tuple[int, int, str]]) -> SourceError:
    """Return the ``TIDELOG_DATA_LOSS`` error for a requested range of offsets, from ``start`` up to, not including,
    ``end``, some of which are gone. ``parts`` divide that range: each is (first offset, end offset, what became of
    these offsets). The error's text lists all of them."""
    ranges = "; ".join(f"{_offsets(first, after)}: {what}" for first, after, what in parts)
    return SourceError(
        "TIDELOG_DATA_LOSS",
        f"{topic}/{partition}: {_offsets(start, end)} cannot all be read. {ranges}. Read from another offset, or set "
        "failOnDataLoss=false to go on with what is there.",
    )


def _offsets(first: int, end: int) -> str:
    return f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
