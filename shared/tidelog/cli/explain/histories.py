"""Asks for the histories of many partitions, for commands that show a whole cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.wire.messages import HistoryEntry, PartitionInfo, TopicInfo

MOST_ASKED = 500
"""Most partitions whose histories are requested; partitions with problems come first."""
ASK_S = 5.0
"""Longest time in seconds that all requests together may take."""
Histories = Mapping[tuple[str, int], tuple[HistoryEntry, ...]]
"""Histories of partitions, by topic name and partition."""


async def ask_histories(log: Log, topics: Sequence[TopicInfo]) -> Histories:
    """Ask the controllers for the histories of the partitions of these topics, and return them. At most
    ``MOST_ASKED`` partitions are asked for, those with problems first. Histories that do not arrive within ``ASK_S``,
    or fail, are left out."""
    places = [(topic, p) for topic in topics for p in topic.partitions]
    places.sort(key=lambda place: _is_sound(place[1]))
    wanted: dict[str, list[int]] = {}
    for topic, p in places[:MOST_ASKED]:
        wanted.setdefault(topic.name, []).append(p.partition)
    found: dict[tuple[str, int], tuple[HistoryEntry, ...]] = {}
    with trio.move_on_after(ASK_S):
        for topic in topics:
            if topic.name in wanted:
                try:
                    histories = await log.partitions.histories(topic, wanted[topic.name])
                except TidelogError:
                    continue  # deleted meanwhile; or no controller answers, which the rest of the output shows
                found |= {(topic.name, partition): entries for partition, entries in histories.items()}
    return found


def _is_sound(partition: PartitionInfo) -> bool:
    """Return whether a partition has a leader and no doubtful tail."""
    return bool(partition.leader) and not partition.doubtful
