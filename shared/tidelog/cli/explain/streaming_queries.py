"""Streaming queries that should have committed and have not, found by what their commits say of them.

A query that has read everything commits nothing, however long that lasts. So it is overdue only if a record that came
well before has not been read: longer ago than it takes to come to the next batch, several times over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from tidelog.client.admin.groups import GroupProgress
from tidelog.client.core.query_note import QueryNote
from tidelog.client.log import Log
from tidelog.errors import TidelogError

LEAST_OVERDUE_S = 12.0
BATCHES_OVERDUE = 3.0
"""A query is overdue after the time of this many of its batches, but at least after ``LEAST_OVERDUE_S`` seconds."""


@dataclass(frozen=True, slots=True)
class OverdueQuery:
    """A streaming query that has not committed although a record has waited for it for more than ``overdue_s``
    seconds. ``silent_s``: the age of its last commit; ``every_s``: how often it committed; ``behind``: how many
    records wait for it in the topic; ``host``: where its driver runs, or ran."""

    group: str
    topic: str
    host: str
    every_s: float
    silent_s: float
    overdue_s: float
    behind: int


def overdue_s(note: QueryNote) -> float:
    """Return for how many seconds a record may wait for a query before the query is overdue."""
    return max(LEAST_OVERDUE_S, BATCHES_OVERDUE * note.every_s)


async def find_overdue(log: Log, group: str, progress: Iterable[GroupProgress], now: float) -> list[OverdueQuery]:
    """Return the topics in which a streaming query is overdue that commits to this group; none if no query does.
    ``now`` is the time of the cluster's clocks, in seconds since 1970. Asks the leaders of partitions with a lag for
    the offset of the time before which everything should have been read."""
    found: dict[str, OverdueQuery] = {}
    for one in progress:
        note = QueryNote.from_metadata(one.metadata)
        if note is None or one.lag <= 0 or now - one.committed_ms / 1000 < (limit_s := overdue_s(note)):
            continue
        try:
            due = await log.partitions.list_offset(
                one.topic, one.partition, datetime.fromtimestamp(now - limit_s, UTC)
            )
        except TidelogError:  # its topic is gone, or it has no leader, which other findings show
            continue
        if one.offset < due.offset:
            before = found.get(one.topic)
            behind = one.lag + (before.behind if before else 0)
            silent_s = min(now - one.committed_ms / 1000, before.silent_s if before else float("inf"))
            found[one.topic] = OverdueQuery(group, one.topic, note.host, note.every_s, silent_s, limit_s, behind)
    return list(found.values())
