"""Finds the records of ``__timeline`` that a moment needs, and computes the cluster's state at that moment.

Every record names the keyframe from which everything can be rebuilt. So the last record before the moment leads to a
keyframe, and the records between are read. A chain of causes is followed backwards from keyframe to keyframe. Any
consumer could do the same.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import refuse
from tidelog.timeline.records import Document, decode, is_repeat
from tidelog.timeline.replay import Past, PastTopic
from tidelog.types import TIMELINE
from tidelog.wire.messages import TopicInfo

if TYPE_CHECKING:
    from tidelog.client.log import Log

CLOCKS_DIFFER = 64
"""Records behind the first later one that are also examined, because the time of a keyframe may be another
clock's."""
CHAIN_EVENTS = 200
"""Least number of events of a chain, if there are that many."""


class Moment(NamedTuple):
    """A moment in the timeline, and the cluster at that moment."""

    at: datetime
    past: Past
    end: int
    """Offset of the first record that is later."""


class TimelineReader:
    """Reads the timeline by a connected client."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._topic: TopicInfo | None = None
        self._start = self._latest = 0

    async def moment(self, at: datetime) -> Moment:
        """Return the cluster at that time. Raises ``UNKNOWN_TOPIC`` if no timeline is written, and
        ``OFFSET_OUT_OF_RANGE`` for a time before its beginning or before its retention."""
        topic = self._topic = await self._log.topics.describe(TIMELINE)
        self._start = (await self._log.partitions.list_offsets(topic, "earliest", [0]))[0].offset
        self._latest = (await self._log.partitions.list_offsets(topic, "latest", [0]))[0].offset
        at_ms = round(at.timestamp() * 1000)
        later = datetime.fromtimestamp((at_ms + 1) / 1000, UTC)
        end = min((await self._log.partitions.list_offsets(topic, later, [0]))[0].offset, self._latest)
        if end <= self._start:
            raise refuse("OFFSET_OUT_OF_RANGE", f"the timeline holds nothing of {at.isoformat()} or before")
        past, last = Past(), end
        async for offset, record in self._records(
            await self._keyframe_before(end), min(end + CLOCKS_DIFFER, self._latest)
        ):
            if offset >= end:
                if record["type"] != "event":
                    continue
                if record["time_ms"] > at_ms:
                    break
                last = offset + 1
            past.take(record)
        return Moment(at, past, last)

    async def chain(self, moment: Moment, topic: PastTopic, partition: int) -> list[Document]:
        """Return the events and refusals of a partition up to that moment, oldest first. They reach back to its
        creation, to the beginning of retention, or over ``CHAIN_EVENTS`` at least."""
        chain: list[Document] = []
        end = moment.end
        while end > self._start and len(chain) < CHAIN_EVENTS:
            begin = await self._keyframe_before(end)
            found = [
                record
                async for _, record in self._records(begin, end)
                if record["type"] in ("event", "refused")
                and (record.get("topic_id"), record.get("partition")) == (topic.topic_id, partition)
            ]
            chain = found + chain
            if any(record["kind"] == "created" for record in found):
                break
            end = begin
        return chain

    async def _keyframe_before(self, end: int) -> int:
        """Return the offset of the last whole keyframe that the record before ``end`` names; the log's start if it
        names none."""
        async for _, record in self._records(end - 1, end):
            frame = record.get("keyframe")
            if frame is not None and self._start <= frame[0] < end:
                return int(frame[0])
        return self._start

    async def _records(self, start: int, end: int) -> AsyncIterator[tuple[int, Document]]:
        if start >= end:
            return
        last = 0
        async for record in self._log.consume(TIMELINE, start=start, end={0: end}, partitions=[0]):
            told = decode(record.value)
            if told is not None and not is_repeat(told, last):
                last = max(last, told["event"])
                yield record.offset, told


def topic_at(moment: Moment, name: str) -> PastTopic:
    """Return the topic of that name at the moment. Raises ``UNKNOWN_TOPIC``."""
    found = moment.past.topic_named(name)
    if found is None:
        there = ", ".join(sorted(topic.name for topic in moment.past.topics.values())) or "none"
        raise refuse("UNKNOWN_TOPIC", f"there was no topic {name} at {moment.at.isoformat()}; there were {there}")
    return found


def partition_at(topic: PastTopic, number: int) -> Document:
    """Return a partition of a topic at the moment. Raises ``UNKNOWN_TOPIC``."""
    if number not in topic.partitions:
        raise refuse("UNKNOWN_TOPIC", f"{topic.name} had no partition {number}")
    return topic.partitions[number]
