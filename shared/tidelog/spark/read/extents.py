"""Looks up for the driver and for tasks which partitions there are, and which offsets their logs hold now."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tidelog.spark.errors import SourceError, translated_errors
from tidelog.spark.option_parsers import AtTime, Offsets, Place
from tidelog.spark.options import HowToConnect, ReadOptions
from tidelog.spark.read.data_loss import PartitionExtent
from tidelog.spark.read.ranges import Range, check_named
from tidelog.types import INTERNAL_PREFIX

if TYPE_CHECKING:
    from tidelog.sync import Log
    from tidelog.wire.messages import TopicInfo

PLAN_TIMEOUT_S = 30.0
"""Seconds that a connection to a gateway, and each request for offsets, may take before it fails: Spark does not
retry planning."""


def connect(options: HowToConnect) -> Log:
    """Connect to a gateway and return the client, which the caller closes. Connecting and each request time out after
    ``PLAN_TIMEOUT_S``. Raises ``SourceError``, such as ``TIDELOG_UNREACHABLE`` if no gateway answers."""
    import tidelog.sync

    with translated_errors():
        return tidelog.sync.connect(
            **options.how_to_connect(), connect_timeout_s=PLAN_TIMEOUT_S, request_timeout_s=PLAN_TIMEOUT_S
        )


def look_up(client: Log, options: ReadOptions) -> list[PartitionExtent]:
    """Look up the topics that the options select, and return the present extent of every partition to read, ordered
    by topic and partition. An empty list if no topic matches ``subscribePattern``. Raises ``SourceError``, such as
    ``TIDELOG_UNKNOWN_TOPIC`` for a topic or an assigned partition that does not exist."""
    with translated_errors():
        found = [(topic, _wanted(topic, options)) for topic in _topics(client, options)]
        return [extent for topic, wanted in found for extent in look_up_partitions(client, topic, wanted)]


def _topics(client: Log, options: ReadOptions) -> list[TopicInfo]:
    """Look up the selected topics, sorted by name. ``subscribePattern`` never selects an internal topic."""
    if not options.subscribe_pattern:
        return [client.topics.describe(topic) for topic in sorted(options.topics())]
    matches = re.compile(options.subscribe_pattern).fullmatch
    named = (t for t in client.topics.list() if not t.name.startswith(INTERNAL_PREFIX) and matches(t.name))
    return sorted(named, key=lambda topic: topic.name)


def _wanted(topic: TopicInfo, options: ReadOptions) -> Sequence[int]:
    """Return the numbers of the partitions of a topic that are to be read: those of ``assign``, or all. Raises
    ``TIDELOG_UNKNOWN_TOPIC`` if ``assign`` names one that does not exist."""
    count = len(topic.partitions)
    wanted = dict(options.assign).get(topic.name, tuple(range(count)))
    if missing := [partition for partition in wanted if partition >= count]:
        raise SourceError(
            "TIDELOG_UNKNOWN_TOPIC", f"{topic.name} has partitions 0 to {count - 1}; assign names {missing}"
        )
    return wanted


def look_up_partitions(client: Log, topic: TopicInfo, partitions: Sequence[int]) -> list[PartitionExtent]:
    """Look up the log start and the end of these partitions of a topic, and return their present extents, ordered by
    partition. Raises the errors of the client."""
    starts = client.partitions.list_offsets(topic, "earliest", partitions)
    ends = client.partitions.list_offsets(topic, "latest", partitions)
    compacted = "compact" in topic.config.get("cleanup", "")
    return [
        PartitionExtent(
            topic.name,
            topic.topic_id,
            p,
            starts[p].offset,
            max(starts[p].offset, ends[p].offset),
            ends[p].leader_epoch,
            compacted,
        )
        for p in sorted(starts)
    ]


def offsets_at(client: Log, found: Sequence[PartitionExtent], place: Place, name: str, beyond: str) -> str | Offsets:
    """Look up the offsets that the times of ``place`` stand for, and return them; a ``place`` without times is
    returned unchanged. A time after the last record of a partition stands for its end, or raises ``TIDELOG_OPTION``
    if ``beyond`` is ``error``. Also raises ``TIDELOG_OPTION`` if the times do not name exactly the partitions of
    ``found``. ``name`` is the option that the errors name."""
    if not isinstance(place, AtTime):
        return place
    if isinstance(place.ms, dict):
        check_named(name, place.ms, found)
    offsets: Offsets = {}
    for extent in found:
        ms = place.ms if isinstance(place.ms, int) else place.ms[extent.topic][extent.partition]
        with translated_errors():
            answer = client.partitions.list_offset(
                extent.topic, extent.partition, datetime.fromtimestamp(ms / 1000, UTC)
            )
        if answer.timestamp_ms < 0 and beyond == "error":
            raise SourceError(
                "TIDELOG_OPTION",
                f"{extent.topic}/{extent.partition}: {name} is {ms}, and no record is of that time or later; "
                "startingOffsetsByTimestampStrategy=latest begins at the end there",
            )
        offsets.setdefault(extent.topic, {})[extent.partition] = min(answer.offset, extent.end)
    return offsets


def since(client: Log, ranges: Sequence[Range], time: datetime) -> list[Range]:
    """Return the ranges without the offsets before the first record with that ``timestamp`` or a later one, in the
    same order; a range without such a record is left out. What lies behind that record is all kept, since timestamps
    may be in any order. ``time`` is in whole milliseconds. Raises ``SourceError``.

    Leaders look for the first batch whose header names a largest timestamp that is not before ``time``. Gateways
    refuse batches whose header is wrong, except for topics with ``validate_batches=false``."""
    first: dict[tuple[str, int], int] = {}
    with translated_errors():
        for name in dict.fromkeys(each.topic for each in ranges):
            topic = client.topics.describe(name)
            partitions = [each.partition for each in ranges if each.topic == name]
            answers = client.partitions.list_offsets(topic, time, partitions)
            first |= {(topic.topic_id, partition): answer.offset for partition, answer in answers.items()}
    narrowed = [
        replace(each, start=max(each.start, first.get((each.topic_id, each.partition), 0))) for each in ranges
    ]
    return [each for each in narrowed if each.start < each.end]
