"""Streaming queries that should have committed and have not, found by what their commits say of them.

A query that has read everything commits nothing, however long that lasts. So it is overdue only if a record that came
well before has not been read: longer ago than it takes to come to the next batch, several times over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from tidelog.client.admin.groups import GroupProgress
from tidelog.client.core.query_note import QueryNote
from tidelog.client.log import Log
from tidelog.explain.inquiry import Asked, Inquiry
from tidelog.wire.messages import OffsetAnswer

LEAST_OVERDUE_S = 12.0
BATCHES_OVERDUE = 3.0
"""A query is overdue after the time of this many of its batches, but at least after ``LEAST_OVERDUE_S`` seconds."""
MOST_ASKED = 8
"""Most partitions of a topic, those with the largest lag, whose leaders are asked what should have been read."""


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
    the offset of the time before which everything should have been read: side by side, and in each topic of no more
    than ``MOST_ASKED`` partitions, those with the largest lag. A partition without an answer is not overdue."""
    notes: dict[GroupProgress, QueryNote] = {}
    for one in progress:
        note = QueryNote.from_metadata(one.metadata)
        if note is not None and one.lag > 0 and now - one.committed_ms / 1000 >= overdue_s(note):
            notes[one] = note
    waiting: dict[str, list[GroupProgress]] = {}
    for one in sorted(notes, key=lambda one: -one.lag):
        waiting.setdefault(one.topic, []).append(one)
    inquiry = Inquiry()
    asked: dict[GroupProgress, Asked[OffsetAnswer]] = {}
    for topic, places in waiting.items():
        for one in places[:MOST_ASKED]:
            since = datetime.fromtimestamp(now - overdue_s(notes[one]), UTC)
            ask = partial(log.partitions.list_offset, topic, one.partition, since)
            asked[one] = inquiry.ask(f"{topic}/{one.partition}", ask)
    await inquiry.run()
    found: list[OverdueQuery] = []
    for topic, places in waiting.items():
        overdue = [one for one in places if one in asked and one.offset < _offset(asked[one])]
        if overdue:
            silent_s = min(now - one.committed_ms / 1000 for one in overdue)
            note = notes[overdue[0]]
            behind = sum(one.lag for one in places)
            found.append(OverdueQuery(group, topic, note.host, note.every_s, silent_s, overdue_s(note), behind))
    return found


def _offset(asked: Asked[OffsetAnswer]) -> int:
    """Return the offset that was asked for; -1 if no leader answered, for example because the topic is gone."""
    return asked.value.offset if asked.value is not None else -1
