"""Checks that the rows which Spark hands to a task of a write are complete.

When a step before the sink fails, Spark 4.3 does not report that to the Python process of the sink. It ends the
stream of Arrow record batches, and an Arrow reader takes that for the end of the data. A sink that believed this
would write its remaining rows as a last, short batch: other bytes under a sequence that the next attempt uses, too.

There is one sign. After a complete stream Spark sends a number that says so; after a stream that it broke off, the
process reads the end of its input. PySpark's API does not give access to that input, so it is found on the stack, in
``pyspark.worker.main``. ``pyproject.toml`` allows the one minor version for which tests show that this holds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tidelog.spark.errors import SourceError

if TYPE_CHECKING:
    import pyarrow as pa


def check_complete(tables: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the tables unchanged, and check after the last one that Spark has ended the stream in full. Raises
    ``TIDELOG_NOT_WRITTEN`` if Spark broke the stream off, because the task has failed or was ended."""
    received = _input()
    yield from tables
    if not received.peek(1):
        raise SourceError("TIDELOG_NOT_WRITTEN", "Spark ended the task before it had handed over all of its rows")


def _input() -> Any:
    """Return the buffered reader from which the worker process reads what Spark sends, found on the call stack.
    Raises ``TIDELOG_FAILED`` if it is not found."""
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get("infile")
        if frame.f_code.co_name == "main" and hasattr(found, "peek"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise SourceError("TIDELOG_FAILED", "PySpark does not show where its rows come from: another version?")
