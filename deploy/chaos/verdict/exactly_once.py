"""Checks whether a topic holds each committed record of other topics exactly once. Each of its partitions is a copy
of one of their partitions, record by record and in order, and the key of a copy names its source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tidelog.client.log import Log

Row = tuple[str, bytes]
"""A record's place in its source, ``topic/partition/offset``, and its value."""


@dataclass(slots=True)
class Copied:
    """The result of a query that copies: rows compared, batches committed, starts of the query, and findings in
    words."""

    rows: int = 0
    """Copies that were compared."""
    batches: int = 0
    starts: int = 0
    faults: list[str] = field(default_factory=list)


async def judge(log: Log, target: str, sources: list[tuple[str, int]], copied: Copied) -> None:
    """Read the partitions of the topic ``target`` and their sources to the end, compare each pair, and add the counts
    and findings to ``copied``. Raises ``TidelogError`` if a log cannot be read."""
    for index, (topic, partition) in enumerate(sources):
        wanted = [(f"{topic}/{partition}/{offset}", value) for offset, _, value in await _rows(log, topic, partition)]
        copies = [((key or b"").decode(), value) for _, key, value in await _rows(log, target, index)]
        starts = [
            (await log.partitions.list_offset(*at, "earliest")).offset for at in ((topic, partition), (target, index))
        ]
        copied.rows += len(copies)
        copied.faults += compare(f"{target}/{index}", wanted, copies, *starts)


async def _rows(log: Log, topic: str, partition: int) -> list[tuple[int, bytes | None, bytes]]:
    found = []
    async with log.consume(topic, start="earliest", end="latest", partitions=[partition]) as reader:
        while (fetched := await reader.next_batch()) is not None:
            found += [(r.offset, r.key, r.value or b"") for r in fetched.records(topic)]
    return found


def compare(name: str, wanted: list[Row], copies: list[Row], source_start: int = 0, start: int = 0) -> list[str]:
    """Return in words what is wrong with the copies: missing, repeated, invented or changed records, or their order;
    empty if they equal the wanted records. If a log does not begin at 0, retention has deleted records: the
    comparison begins with the first record that both logs still have."""
    if source_start:
        copies = [copy for copy in copies if int(copy[0].rpartition("/")[2]) >= source_start]
    if start and copies:
        first = int(copies[0][0].rpartition("/")[2])
        wanted = [row for row in wanted if int(row[0].rpartition("/")[2]) >= first]
    if copies == wanted:
        return []
    values, times = dict(wanted), Counter(place for place, _ in copies)
    found = {
        "are missing": [place for place in values if place not in times],
        "are there more than once": [place for place, count in times.items() if count > 1],
        "are copies of nothing that is committed": [place for place in times if place not in values],
        "have another value": [place for place, value in copies if values.get(place, value) != value],
    }
    findings = [f"{name}: {len(those)} records {how}, {those[0]} among them" for how, those in found.items() if those]
    return findings or [f"{name}: the copies are in another order than the records"]
