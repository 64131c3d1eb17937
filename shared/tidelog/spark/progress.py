"""What a streaming query still has to read, from the progress that Spark reports of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any


def lag(query: Any) -> dict[str, dict[int, int]]:
    """Return how many records a streaming query has left to read, by topic and partition: the offsets between the
    batch that it ran last and the ends of the logs when that batch was planned. ``query`` is a ``StreamingQuery``, or
    one of its progress reports (``lastProgress``, ``recentProgress``, ``QueryProgressEvent.progress``). Sources of
    other formats are left out; the result is empty before the first report. If several sources of the query read a
    partition, the largest lag counts. Spark reports after each batch, and every 10 s while nothing comes."""
    progress = getattr(query, "lastProgress", query)
    found: dict[str, dict[int, int]] = {}
    for latest in reports_of(progress["sources"] if progress else ()):
        for name, topic in latest["topics"].items():
            lags = found.setdefault(name, {})
            for partition, end in topic["partitions"].items():
                lags[int(partition)] = max(lags.get(int(partition), 0), end["behind"])
    return found


def reports_of(sources: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield what each Tidelog source has reported (``reportLatestOffset``). ``sources`` are Spark's reports of the
    sources of a query."""
    for source in sources:
        latest = source["latestOffset"]
        if isinstance(latest, str):
            with suppress(ValueError):  # other sources have texts of their own
                latest = json.loads(latest)
        if isinstance(latest, dict) and "behind" in latest:
            yield latest
