"""What a streaming query reports of a micro-batch: rows, and how far it is behind the ends of the logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tidelog.spark.progress import lag, reports_of

NO_LAGS: Mapping[tuple[str, int], int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The report of one micro-batch, or of a trigger that found nothing to do, which has no rows."""

    batch: int
    """Number of the micro-batch."""
    rows: int
    """Number of rows that were read."""
    lags: Mapping[tuple[str, int], int] = field(default_factory=lambda: NO_LAGS)
    """(Topic, partition) -> number of offsets between the end of the batch and the end of the log."""
    lost: int = 0
    """Number of offsets that the source has passed over since the query was started, because they are gone."""


def batch_report(batch: int, rows: int, sources: Sequence[Mapping[str, Any]]) -> BatchReport:
    """Return the report of a micro-batch with this number and number of rows. ``sources`` are Spark's reports of the
    query's sources; one that is not of the Tidelog source adds nothing. A partition that several sources read has the
    largest of its lags."""
    lags = {(topic, number): n for topic, parts in lag({"sources": sources}).items() for number, n in parts.items()}
    return BatchReport(batch, rows, lags, sum(latest["lost"] for latest in reports_of(sources)))
