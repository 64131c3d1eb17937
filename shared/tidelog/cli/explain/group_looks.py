"""What consumer groups are doing: members, positions, pace and what happened lately, for ``tidelog doctor``.

A group's coordinator knows its members and positions, and what happened to them lately. How much there is to read is
known to the leaders: they are asked for the ends of the partitions, and for the first record that is younger than
``LATE_S``. A position below that record is *late*: a record has waited there for longer. All times are those of the
coordinator's clock, or of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import trio

from tidelog.errors import TidelogError
from tidelog.explain.group import SILENT_SHARE

if TYPE_CHECKING:
    from tidelog.client.log import Log
    from tidelog.wire.messages import (
        DescribeGroupAnswer,
        GroupEvent,
        GroupMember,
        GroupPosition,
        MovedPosition,
        PartitionInfo,
        TopicInfo,
    )

LATE_S = 10.0
"""Seconds that a record may wait for the group before its position counts as late: two of the usual intervals between
commits (``auto_commit_s``)."""
HEARD_S = 6.0
"""Seconds since the last sign of life of a member for which it counts as running: two of the usual intervals between
heartbeats (``groups.heartbeat_ms``)."""
MOST_GROUPS = 50
"""Most consumer groups that are looked at."""
MOST_LATE = 8
"""Most partitions of a topic, those with the largest lag, that are asked which record is late."""
_STEADY = 0.9
"""A group whose pace is this share of the rate of new records keeps up: the rest is noise of the measurement."""


@dataclass(frozen=True, slots=True)
class PartitionLook:
    """What a group does in one partition. Offsets are -1 where they are not known."""

    topic: str
    partition: int
    position: int
    committed_ms: int
    end: int
    """End of what readers of committed records can read."""
    log_start: int
    fresh: int = -1
    """Offset of the first record that is younger than ``LATE_S``."""
    earlier: int = -1
    """An earlier position of the group."""
    earlier_ms: int = -1
    member: str = ""
    """Member that owns the partition; "": none does."""
    leader: str = ""
    retention: str = ""
    """Settings of the topic's retention, in words."""

    @property
    def name(self) -> str:
        """Return the partition as ``TOPIC/NUMBER``."""
        return f"{self.topic}/{self.partition}"

    @property
    def lag(self) -> int:
        """Return how many records there are to read; 0 if that is not known."""
        return max(0, self.end - self.position) if self.position >= 0 else 0

    @property
    def is_late(self) -> bool:
        """Return whether a record has waited at the position for longer than ``LATE_S``."""
        return self.lag > 0 and 0 <= self.position < self.fresh

    @property
    def written_s(self) -> float:
        """Return how many records were written per second in the last ``LATE_S``; 0 if that is not known."""
        return max(0, self.end - self.fresh) / LATE_S if self.fresh >= 0 else 0.0

    def processed_s(self, now_ms: int) -> float:
        """Return how many records the group has processed per second since its earlier position; 0 if none is
        known."""
        if self.earlier_ms < 0 or now_ms <= self.earlier_ms:
            return 0.0
        return max(0, self.position - self.earlier) * 1000 / (now_ms - self.earlier_ms)

    def falls_behind(self, now_ms: int) -> bool:
        """Return whether records wait ever longer: one is late already, more are written than processed, and what
        waits takes longer than ``LATE_S`` at the present pace."""
        pace = self.processed_s(now_ms)
        return self.is_late and pace < _STEADY * self.written_s and self.lag > LATE_S * pace


@dataclass(frozen=True, slots=True)
class GroupLook:
    """What a consumer group is doing, as its coordinator and the leaders of its partitions say. ``now_ms`` is the
    coordinator's clock, with which all times are compared; -1 if it is of an earlier release, and tells nothing of
    ``events`` and paces."""

    group: str
    members: tuple[GroupMember, ...] = ()
    partitions: tuple[PartitionLook, ...] = ()
    events: tuple[GroupEvent, ...] = ()
    moved: tuple[tuple[str, MovedPosition], ...] = ()
    """Positions moved by a client that is no member, each after the name of its partition."""
    now_ms: int = -1
    coordinator: str = ""

    @property
    def lag(self) -> int:
        """Return how many records there are to read in all partitions."""
        return sum(one.lag for one in self.partitions)

    def heard_s(self, member: GroupMember) -> float:
        """Return the seconds since the coordinator last had a sign of life of a member: a heartbeat, or a position
        that it moved forward; -1 if that is not known."""
        ages = [member.heard_ms, self.now_ms - member.advanced_ms if member.advanced_ms >= 0 else -1]
        return min((age / 1000 for age in ages if age >= 0), default=-1.0)

    def program(self, member: str) -> str:
        """Return a member's name for sentences: with its program, if that is known."""
        known = [(m.member, m.node) for m in self.members] + [(e.member, e.node) for e in reversed(self.events)]
        node = next((node for name, node in known if name == member and node), "")
        return f"{member} ({node})" if node else member


def is_silent(member: GroupMember) -> bool:
    """Return whether a member is called silent, as ``tidelog why group`` calls it: the process of this static member
    has ended, or no heartbeat came for ``SILENT_SHARE`` of its session timeout. Heartbeats come at least three times
    as often as that timeout."""
    return member.away or 0 < member.session_timeout_ms * SILENT_SHARE < member.heard_ms


class TopicsRead:
    """The topics that groups read, with the ends of their partitions. Each topic is asked for once, however many
    groups are looked at side by side."""

    def __init__(self, log: Log, topics: tuple[TopicInfo, ...]) -> None:
        self._log = log
        self._names = {topic.topic_id: topic.name for topic in topics}
        self._known: dict[str, TopicInfo | None] = {}
        self._asks: dict[str, trio.Lock] = {}

    async def describe(self, topic_id: str) -> TopicInfo | None:
        """Return a topic; None if it is gone, or its leaders do not answer."""
        if topic_id not in self._names:
            return None
        async with self._asks.setdefault(topic_id, trio.Lock()):
            if topic_id not in self._known:
                self._known[topic_id] = await self._ask(self._names[topic_id])
            return self._known[topic_id]

    async def _ask(self, name: str) -> TopicInfo | None:
        try:
            return await self._log.topics.describe(name, offsets=True)
        except TidelogError:  # it was deleted meanwhile; other findings show every other cause
            return None


async def look_at_group(log: Log, group: str, topics: TopicsRead) -> GroupLook:
    """Return what a group does. Raises ``TidelogError`` if its coordinator does not answer, or the group is gone."""
    described = await log.groups.describe(group)
    read = {
        topic_id: await topics.describe(topic_id) for topic_id in sorted({at.topic_id for at in described.positions})
    }
    return await _look(log, described, read)


async def _look(log: Log, described: DescribeGroupAnswer, topics: Mapping[str, TopicInfo | None]) -> GroupLook:
    """Return what a group does in the partitions of known topics in which it has a position."""
    owners = {
        (share.topic_id, number): member.member
        for member in described.members
        for share in (*member.assignment, *member.leaving)
        for number in share.partitions
    }
    by_topic: dict[str, list[GroupPosition]] = {}
    for at in described.positions:
        by_topic.setdefault(at.topic_id, []).append(at)
    looks: list[PartitionLook] = []
    for topic_id, positions in by_topic.items():
        topic = topics.get(topic_id)
        if topic is None:
            continue
        states = {one.partition: one for one in topic.partitions}
        behind = [at for at in positions if at.partition in states and at.offset < readable_end(states[at.partition])]
        behind.sort(key=lambda at: at.offset - readable_end(states[at.partition]))
        fresh = await _fresh(log, topic, described.time_ms, [at.partition for at in behind[:MOST_LATE]])
        for at in positions:
            if (state := states.get(at.partition)) is not None:
                owner = owners.get((topic_id, at.partition), "")
                looks.append(_of_partition(topic, state, at, owner, fresh.get(at.partition, -1)))
    named = {topic_id: topic.name for topic_id, topic in topics.items() if topic is not None}
    moved = tuple((f"{named[one.topic_id]}/{one.partition}", one) for one in described.moved if one.topic_id in named)
    return GroupLook(
        *(described.group, described.members, tuple(looks), described.events, moved),
        *(described.time_ms, described.coordinator),
    )


def readable_end(state: PartitionInfo) -> int:
    """Return the end of what readers of committed records can read: the last stable offset, or the high watermark."""
    return state.high_watermark if state.stable is None else state.stable.offset


def _of_partition(topic: TopicInfo, state: PartitionInfo, at: GroupPosition, owner: str, fresh: int) -> PartitionLook:
    settings = ("retention_ms", "retention_bytes", "retention_records")
    retention = ", ".join(f"{name}={topic.config[name]}" for name in settings if topic.config.get(name, "-1") != "-1")
    return PartitionLook(
        *(topic.name, at.partition, at.offset, at.committed_ms, readable_end(state), state.log_start, fresh),
        *(at.earlier_offset, at.earlier_ms, owner, state.leader, retention),
    )


async def _fresh(log: Log, topic: TopicInfo, now_ms: int, partitions: list[int]) -> dict[int, int]:
    """Return the offset of the first record that is younger than ``LATE_S``, by partition; nothing of those whose
    leaders do not answer, or if the coordinator's time is not known."""
    if now_ms < 0 or not partitions:
        return {}
    try:
        since = datetime.fromtimestamp(now_ms / 1000 - LATE_S, UTC)
        found = await log.partitions.list_offsets(topic, since, partitions)
    except TidelogError:  # a leader does not answer, which other findings show
        return {}
    return {number: at.offset for number, at in found.items()}
