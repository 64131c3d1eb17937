"""What a filter of DuckDB says about the place of a record, so that ``tidelog sql`` reads only what can match.

DuckDB hands its filters down as expressions of Arrow, which cannot be taken apart. But Arrow itself leaves out files
of a data set whose partition contradicts a filter. So a file that does not exist is made for a range, such as offsets
up to 1000, and Arrow is asked whether the filter could match in it. The ends of the range that can match are found by
halving. The answers are safe for every filter: one that says nothing about a column bounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

MOST = 2**63 - 1
LATEST_MS = 253_402_300_799_999
"""The last moment that a ``datetime`` can be, in ms since 1970."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Bounds:
    """The bounds that a filter on the columns of ``schema`` puts on partitions, offsets and times."""

    def __init__(self, filter: ds.Expression, schema: pa.Schema) -> None:
        self._filter = filter
        self._schema = schema

    def partitions(self, every: Iterable[int]) -> list[int]:
        """Return those of the partitions that can have a record that matches."""
        return [partition for partition in every if self._can_match(ds.field("partition") == partition)]

    def offsets(self) -> tuple[int, int]:
        """Return the first offset that a matching record can have, and the offset after the last one."""
        offset = ds.field("offset")
        first = _first(MOST, lambda at: self._can_match(offset <= at))
        last = MOST - _first(MOST, lambda gap: self._can_match(offset >= MOST - gap))
        return first, last + 1

    def start(self) -> datetime | None:
        """Return the first time that a matching record can have; None if the filter says nothing about it. There is
        no last time to stop at: records behind it may be earlier."""
        time, kind = ds.field("timestamp"), self._schema.field("timestamp").type
        first_ms = _first(LATEST_MS, lambda at: self._can_match(time <= pa.scalar(at, kind)))
        return _EPOCH + timedelta(milliseconds=first_ms) if first_ms else None

    def _can_match(self, rows: ds.Expression) -> bool:
        """Return whether the filter can match one of the rows for which the expression ``rows`` is true."""
        kind, nowhere = ds.IpcFileFormat(), fs.LocalFileSystem()
        fragment = kind.make_fragment("none", nowhere, partition_expression=rows)
        files = ds.FileSystemDataset([fragment], self._schema, kind, nowhere)
        return any(True for _ in files.get_fragments(self._filter))


def _first(most: int, holds: Callable[[int], Any]) -> int:
    """Return the least number from 0 on for which ``holds`` is true. It is false below that number and true from it
    on; ``most`` if it is true nowhere below."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
