"""Retention: which of a log's closed segments have had their time.

A log loses its oldest segments, whole ones, for one of three reasons (any of them is enough, each may be off):

    age        the newest record of the segment is older than ``retention_ms``
    bytes      without the segment the log still holds ``retention_bytes``
    records    without the segment the log still holds ``retention_records``

Never the segment that is written, and never one that holds a record at or past the high watermark: what is not
committed everywhere may still be fetched or cut. Age stops at the first segment that is too young. A timestamp of
the future makes no segment young: it counts as that of the last write to the segment's file
(``Segment.newest_ms``). The clock is the wall clock of the server that decides, which is the leader;
followers take its log start over, so clocks that disagree cost nothing but time (D9).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tidelog.types import TopicConfig


class Extent(NamedTuple):
    """A segment in numbers."""

    base: int
    end: int
    bytes: int
    max_timestamp: int
    """Of its newest record, ms since 1970; -1 where it has none. For retention it is not later than the segment was
    written."""
    since_ms: int | None = None
    """When a check of this server first saw a record in it, by the wall clock (ms); None: not known."""


def log_start(segments: Sequence[Extent], high_watermark: int, config: TopicConfig, now_ms: int) -> int:
    """Where the log should begin: the base of one of its ``segments``, of which the last is the one that is
    written."""
    total_bytes = sum(segment.bytes for segment in segments)
    total_records = segments[-1].end - segments[0].base
    for segment in segments[:-1]:
        total_bytes -= segment.bytes
        total_records -= segment.end - segment.base
        if segment.end > high_watermark or not (
            0 <= config.retention_ms < now_ms - segment.max_timestamp
            or 0 <= config.retention_bytes <= total_bytes
            or 0 <= config.retention_records <= total_records
        ):
            return segment.base
    return segments[-1].base
