"""What a replica of each partition weighs, for ``tidelog partitions rebalance --by``: its size, or its traffic.

The size is that of the leader's copy on its disk. The traffic is what is written to the partition: the number of
records that the high watermark passes between two looks, times the average size of a record in that log, divided by
the time between the looks. A partition whose leader does not answer has no weight, so it is not moved to even out
load."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from tidelog.client.log import Log
from tidelog.wire.messages import PartitionWeight, TopicInfo

UNITS = {"count": "", "bytes": "B", "traffic": "B/s"}
"""Value of ``--by`` -> the unit of its weights."""
LOOK_S = 3.0
"""Seconds between the two measurements of traffic."""


def sizes(topics: Sequence[TopicInfo]) -> tuple[PartitionWeight, ...]:
    """Return the size in bytes of one replica of each partition as that partition's weight. Partitions whose size is
    0 or not known are left out."""
    return tuple(
        PartitionWeight(topic.name, one.partition, one.bytes)
        for topic in topics
        for one in topic.partitions
        if one.bytes > 0
    )


def rates(before: Sequence[TopicInfo], after: Sequence[TopicInfo], seconds: float) -> tuple[PartitionWeight, ...]:
    """Return the bytes per second that are written to one replica of each partition as that partition's weight.
    ``before`` and ``after`` are descriptions of all topics with the ends of their logs, requested ``seconds`` apart.
    Partitions without traffic, and new ones, are left out."""
    ends = {(topic.topic_id, one.partition): one.high_watermark for topic in before for one in topic.partitions}
    weights = []
    for topic in after:
        for one in topic.partitions:
            end, records = ends.get((topic.topic_id, one.partition), -1), one.high_watermark - one.log_start
            if end >= 0 and one.high_watermark > end and one.bytes > 0 and records > 0:
                rate = (one.high_watermark - end) * one.bytes / records / seconds
                weights.append(PartitionWeight(topic.name, one.partition, round(rate)))
    return tuple(weights)


async def weigh_partitions(log: Log, by: str) -> tuple[PartitionWeight, ...]:
    """Ask the cluster for the weights of all partitions, and return them. ``by`` is ``bytes``, ``traffic``, or
    ``count``, for which the tuple is empty: each replica then weighs 1. Traffic takes ``LOOK_S`` seconds to
    measure."""
    if by == "count":
        return ()
    names = [topic.name for topic in await log.topics.list()]
    before, began = [await log.topics.describe(name, offsets=True) for name in names], trio.current_time()
    if by == "bytes":
        return sizes(before)
    await trio.sleep(LOOK_S)
    return rates(
        before, [await log.topics.describe(name, offsets=True) for name in names], trio.current_time() - began
    )
