"""From a moment to the cluster as it was then: which records of ``__timeline`` are needed, and what they come to.

Every record names the keyframe from which everything can be rebuilt. So the record before the first one that is later
than the moment leads to the keyframe before it, and what lies between is read; a chain of causes goes on backwards
from keyframe to keyframe. All of it is what any consumer can do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from tidelog.errors import refuse
from tidelog.timeline.records import Document, decode
from tidelog.timeline.replay import Past, PastTopic
from tidelog.types import TIMELINE
from tidelog.wire.messages import TopicInfo

if TYPE_CHECKING:
    from tidelog.client.log import Log

CLOCKS_DIFFER = 64
"""Records behind the first later one that are looked at: a keyframe's time is another clock's, perhaps."""
CHAIN_EVENTS = 200
"""Events of a chain, at least, if there are so many."""


class Moment(NamedTuple):
    """A moment in the timeline, and the cluster as it was."""

    at: datetime
    past: Past
    end: int
    """Offset of the first record that is later."""


class TimelineReader:
    """Reads the timeline over a connected client."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._topic: TopicInfo | None = None
        self._start = self._latest = 0

    async def moment(self, at: datetime) -> Moment:
        """The cluster as it was at that time. Raises ``UNKNOWN_TOPIC`` where no timeline is written, and
        ``OFFSET_OUT_OF_RANGE`` for what was before its beginning, or before what is kept of it."""
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
        """The events of a partition up to that moment, and what was refused of it, oldest first: back to its
        creation, to the beginning of what is kept, or ``CHAIN_EVENTS`` at least."""
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
        """Offset of the last whole keyframe that the record before ``end`` knows of; the log's beginning where it
        knows none."""
        async for _, record in self._records(end - 1, end):
            frame = record.get("keyframe")
            if frame is not None and self._start <= frame[0] < end:
                return int(frame[0])
        return self._start

    async def _records(self, start: int, end: int) -> AsyncIterator[tuple[int, Document]]:
        if start >= end:
            return
        async for record in self._log.consume(TIMELINE, start=start, end={0: end}, partitions=[0]):
            told = decode(record.value)
            if told is not None:
                yield record.offset, told


def topic_at(moment: Moment, name: str) -> PastTopic:
    """The topic of that name as it was. Raises ``UNKNOWN_TOPIC``."""
    found = moment.past.topic_named(name)
    if found is None:
        there = ", ".join(sorted(topic.name for topic in moment.past.topics.values())) or "none"
        raise refuse("UNKNOWN_TOPIC", f"there was no topic {name} at {moment.at.isoformat()}; there were {there}")
    return found


def partition_at(topic: PastTopic, number: int) -> Document:
    """A partition of it. Raises ``UNKNOWN_TOPIC``."""
    if number not in topic.partitions:
        raise refuse("UNKNOWN_TOPIC", f"{topic.name} had no partition {number}")
    return topic.partitions[number]
