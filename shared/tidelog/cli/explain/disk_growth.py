"""How fast the disks fill: the rate at which topics grow from which nothing is ever deleted.

Retention is off unless a topic sets it, so such a topic grows until the disk is full. The rate of each server is the
number of records that its partitions of these topics get per second, measured between two looks at their high
watermarks, times the average size of a record in the batches that the servers took from producers. Topics with
retention or compaction are left out: a few seconds do not show how much of them is deleted again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import trio

from tidelog.client.log import Log
from tidelog.errors import TidelogError
from tidelog.types import TopicConfig
from tidelog.wire.messages import TopicInfo

LOOK_S = 3.0
"""Seconds between the two measurements."""
MOST_PARTITIONS = 1000
"""Most partitions that are measured."""
_UNLIMITED = {
    name: str(getattr(TopicConfig(), name)) for name in ("retention_ms", "retention_bytes", "retention_records")
}
"""The settings of retention with the values that delete nothing."""


@dataclass(frozen=True, slots=True)
class Growth:
    """The measured growth of topics from which nothing is ever deleted. ``rates`` are the bytes per second that each
    server's disk gets of them; ``topics`` are the names of those that grow, the fastest first."""

    rates: Mapping[str, float] = field(default_factory=dict)
    topics: tuple[str, ...] = ()


def keeps_everything(topic: TopicInfo) -> bool:
    """Return whether no record of the topic is ever deleted or compacted."""
    return topic.config.get("cleanup") == "delete" and all(
        topic.config.get(name) == text for name, text in _UNLIMITED.items()
    )


def record_bytes(metrics: Mapping[str, Mapping[str, float]]) -> float:
    """Return the average size in bytes of a record, over all batches that these servers took from producers; 0 if
    they took none. ``metrics`` has the metrics of each server."""
    sums = [
        sum(values.get(f"tidelog_replica_produced_{unit}_total", 0.0) for values in metrics.values())
        for unit in ("bytes", "records")
    ]
    return sums[0] / sums[1] if sums[1] else 0.0


def growth_between(
    before: Sequence[TopicInfo], after: Sequence[TopicInfo], seconds: float, bytes_per_record: float
) -> Growth:
    """Return the growth of topics between two descriptions of them with the ends of their logs, requested ``seconds``
    apart. Each new record counts ``bytes_per_record`` on every server that has a replica or a learner of the
    partition."""
    ends = {
        (t.topic_id, p.partition): p.high_watermark for t in before for p in t.partitions if p.high_watermark >= 0
    }
    rates: dict[str, float] = {}
    by_topic: dict[str, float] = {}
    for topic in after:
        for partition in topic.partitions:
            end = ends.get((topic.topic_id, partition.partition), partition.high_watermark)
            rate = max(0, partition.high_watermark - end) * bytes_per_record / seconds
            if rate:
                by_topic[topic.name] = by_topic.get(topic.name, 0.0) + rate
                for node in (*partition.replicas, *partition.learners):
                    rates[node] = rates.get(node, 0.0) + rate
    return Growth(rates, tuple(sorted(by_topic, key=lambda name: -by_topic[name])))


async def measure_growth(log: Log, topics: Sequence[TopicInfo], bytes_per_record: float) -> Growth:
    """Measure for ``LOOK_S`` seconds how fast the topics grow from which nothing is ever deleted, and return their
    growth. ``bytes_per_record`` is the average size of a record. Returns an empty ``Growth`` if a request fails, and
    without measuring if there are no such topics or the size is 0."""
    names, partitions = [], 0
    for topic in topics:
        partitions += len(topic.partitions)
        if keeps_everything(topic) and partitions <= MOST_PARTITIONS:
            names.append(topic.name)
    if not names or not bytes_per_record:
        return Growth()
    try:
        before, began = [await log.topics.describe(name, offsets=True) for name in names], trio.current_time()
        await trio.sleep(LOOK_S)
        after = [await log.topics.describe(name, offsets=True) for name in names]
    except TidelogError:  # a topic was deleted meanwhile; other findings show every other cause
        return Growth()
    return growth_between(before, after, trio.current_time() - began, bytes_per_record)
