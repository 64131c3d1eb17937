"""Finds the records of ``__timeline`` that a moment needs, and computes the cluster's state at that moment.

Every record names the keyframe from which everything can be rebuilt. So the last record before the moment leads to a
keyframe, and the records between are read. A chain of causes is followed backwards from keyframe to keyframe. Any
consumer could do the same."""

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
"""Number of records behind the first later one that are also examined, because the time of a keyframe may be another
clock's."""
CHAIN_EVENTS = 200
"""Number of events after which a chain is not followed further back."""


class Moment(NamedTuple):
    """A moment in time, with the state of the cluster at that moment as the timeline shows it."""

    at: datetime
    past: Past
    end: int
    """Offset of the first record of the timeline that is later than the moment."""


class TimelineReader:
    """A reader of the timeline topic that uses a connected client. Call ``moment`` first: it looks up where the topic
    begins and ends."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._topic: TopicInfo | None = None
        self._start = self._latest = 0

    async def moment(self, at: datetime) -> Moment:
        """Read the timeline from the last keyframe before ``at``, and return the state of the cluster at that time.
        Raises ``UNKNOWN_TOPIC`` if no timeline is written, and ``OFFSET_OUT_OF_RANGE`` for a time before the oldest
        record that retention has left."""
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
            past.apply_record(record)
        return Moment(at, past, last)

    async def chain(self, moment: Moment, topic: PastTopic, partition: int) -> list[Document]:
        """Read the events and refusals of a partition up to the moment, and return them, oldest first. They reach
        back to the partition's creation, or to the topic's log start, or there are at least ``CHAIN_EVENTS`` of
        them."""
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
        """Read the record before offset ``end``, and return the offset of the keyframe that it names; the log start
        if it names none that is still in the log."""
        async for _, record in self._records(end - 1, end):
            frame = record.get("keyframe")
            if frame is not None and self._start <= frame[0] < end:
                return int(frame[0])
        return self._start

    async def _records(self, start: int, end: int) -> AsyncIterator[tuple[int, Document]]:
        """Yield (offset, record) of the timeline from offset ``start`` up to ``end`` (exclusive). Records of a later
        format and repeated events are left out."""
        if start >= end:
            return
        last = 0
        async for record in self._log.consume(TIMELINE, start=start, end={0: end}, partitions=[0]):
            document = decode(record.value)
            if document is not None and not is_repeat(document, last):
                last = max(last, document["event"])
                yield record.offset, document


def topic_at(moment: Moment, name: str) -> PastTopic:
    """Return the topic that had this name at the moment. Raises ``UNKNOWN_TOPIC``, whose message names the topics
    that existed, if there was none."""
    found = moment.past.topic_named(name)
    if found is None:
        there = ", ".join(sorted(topic.name for topic in moment.past.topics.values())) or "none"
        raise refuse("UNKNOWN_TOPIC", f"there was no topic {name} at {moment.at.isoformat()}; there were {there}")
    return found


def partition_at(topic: PastTopic, number: int) -> Document:
    """Return the state of a partition of a topic of the past, as the records describe it. Raises ``UNKNOWN_TOPIC`` if
    the topic had no such partition."""
    if number not in topic.partitions:
        raise refuse("UNKNOWN_TOPIC", f"{topic.name} had no partition {number}")
    return topic.partitions[number]
