"""Texts of errors in Spark, which shows users the text of an exception and nothing else.

Each text begins with a stable code, ``[TIDELOG_DATA_LOSS] …``, and ends with what the user can do.
"""

from __future__ import annotations

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
    "TIDELOG_GROUP": "the consumer group of groupId cannot be used",
    "TIDELOG_NOT_WRITTEN": "records were not acknowledged, or not committed",
    "TIDELOG_VALUE": "a row cannot be a record",
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


class SourceError(Exception):
    """An error of the Tidelog source or sink for Spark's users. Its text begins with ``code``, one of ``CODES``, in
    brackets."""

    def __init__(self, code: str, message: str) -> None:
        assert code in CODES, code
        super().__init__(f"[{code}] {message}")
        self.code = code


def translated(error: TidelogError) -> SourceError:
    """Return the ``SourceError`` for an error of the Tidelog client, with the same message. Its code is the
    counterpart of the client's code, or ``TIDELOG_FAILED`` if there is none."""
    return SourceError(_FROM_CLIENT.get(error.code, "TIDELOG_FAILED"), f"{error.message} ({error.code})")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Return a context manager that turns a client's error (``TidelogError``) of its block into the ``SourceError``
    that stands for it. Other errors pass unchanged."""
    try:
        yield
    except TidelogError as error:
        raise translated(error) from error


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
