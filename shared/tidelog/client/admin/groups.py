"""What a client can do about consumer groups without being a member. ``Log`` has all of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from tidelog.client.consumer import Where
from tidelog.client.consumers import check_partitions
from tidelog.errors import TidelogError
from tidelog.types import Position, TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupInfo,
    GroupPosition,
    ListGroups,
    ListGroupsAnswer,
    ListOffset,
    Message,
    OffsetAnswer,
    TopicInfo,
)

A = TypeVar("A", bound=Message)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group has come in one partition. -1 is "not known", or, for ``offset``, "nowhere yet"."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int
    high_watermark: int
    member: str = ""
    """Who has it; "" for nobody."""
    committed_ms: int = -1

    @property
    def lag(self) -> int:
        """Offsets that are committed in the log and not processed by the group; -1: not known."""
        return -1 if -1 in (self.offset, self.high_watermark) else max(0, self.high_watermark - self.offset)


class Grouping(ABC):
    """The part of ``Log`` that describes and changes consumer groups."""

    @abstractmethod
    async def _ask(self, request: Message, answer: type[A], *, again: bool = True) -> A:
        """A request and its answer."""

    @abstractmethod
    async def describe(self, topic: str, *, offsets: bool = False) -> TopicInfo:
        """Describe one topic."""

    @abstractmethod
    async def topics(self) -> tuple[TopicInfo, ...]:
        """Describe every topic."""

    @abstractmethod
    async def _each(self, ask: Callable[[int], Awaitable[T]], partitions: Iterable[int]) -> dict[int, T]:
        """Ask for every one at once."""

    @abstractmethod
    async def _positions(
        self, topic: TopicInfo, where: Where, partitions: list[int], isolation: str = "committed"
    ) -> dict[int, Position]:
        """A place in each of these partitions."""

    async def groups(self) -> tuple[GroupInfo, ...]:
        """Every consumer group, by name."""
        return (await self._ask(ListGroups(), ListGroupsAnswer)).groups

    async def describe_group(self, group: str) -> DescribeGroupAnswer:
        """Who is in a group, who has what, and how far it has come. Raises ``UNKNOWN_GROUP``."""
        return await self._ask(DescribeGroup(group), DescribeGroupAnswer)

    async def group_progress(self, group: str) -> tuple[Progress, ...]:
        """Position and lag of every partition that the group has come to or that a member has, by topic. Raises
        ``UNKNOWN_GROUP``."""
        described = await self.describe_group(group)
        names = {topic.topic_id: topic.name for topic in await self.topics()}
        found = {TopicPartition(at.topic_id, at.partition): at for at in described.positions}
        holders: dict[TopicPartition, str] = {}
        for member in described.members:
            for share in (*member.assignment, *member.leaving):
                names.setdefault(share.topic_id, share.topic)
                holders.update(
                    {TopicPartition(share.topic_id, p): member.instance or member.member for p in share.partitions}
                )
        keys = sorted({*found, *holders}, key=lambda key: (names.get(key.topic_id, ""), key))
        ends = await self._ends(keys)
        return tuple(
            Progress(
                names.get(key.topic_id, ""),
                *key,
                at.offset if at is not None else -1,
                at.leader_epoch if at is not None else -1,
                ends.get(key, -1),
                holders.get(key, ""),
                at.committed_ms if at is not None else -1,
            )
            for key in keys
            for at in [found.get(key)]
        )

    async def _ends(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """High watermarks, as far as anyone can tell: a topic may be gone, a partition offline."""
        ends: dict[TopicPartition, int] = {}

        async def one(number: int) -> None:
            key = wanted[number]
            try:
                ends[key] = (await self._ask(ListOffset(*key, "latest"), OffsetAnswer)).offset
            except TidelogError as error:
                if error.code in ("UNREACHABLE", "CLOSED"):
                    raise

        wanted = list(keys)
        await self._each(one, range(len(wanted)))
        return ends

    async def fetch_offsets(self, group: str, topic: str) -> dict[int, Position]:
        """How far the group has come in a topic; partitions without a position are not there. Raises
        ``UNKNOWN_TOPIC``."""
        found = await self.describe(topic)
        answer = await self._ask(FetchOffsets(group), FetchOffsetsAnswer)
        return {
            at.partition: Position(at.leader_epoch, at.offset)
            for at in answer.positions
            if at.topic_id == found.topic_id
        }

    async def find_positions(
        self, topic: str, where: Where, partitions: Iterable[int] | None = None
    ) -> dict[int, Position]:
        """A place in each partition of a topic, or of these. Raises ``UNKNOWN_TOPIC``."""
        found = await self.describe(topic)
        wanted = sorted(set(range(len(found.partitions)) if partitions is None else partitions))
        check_partitions(found, wanted)
        return await self._positions(found, where, wanted)

    async def reset_group(self, group: str, topic: str, positions: Mapping[int, Position | int]) -> None:
        """Have the group go on there. Raises ``GROUP_NOT_EMPTY`` while it has members, ``UNKNOWN_TOPIC``,
        ``INVALID_GROUP``."""
        found = await self.describe(topic)
        check_partitions(found, positions)
        parts = tuple(
            GroupPosition(found.topic_id, p, at, -1)
            if isinstance(at, int)
            else GroupPosition(found.topic_id, p, at.offset, at.leader_epoch)
            for p, at in sorted(positions.items())
        )
        await self._ask(CommitOffsets(group, parts), Done)

    async def delete_group(self, group: str) -> None:
        """Forget a group and its positions. Raises ``UNKNOWN_GROUP``, ``GROUP_NOT_EMPTY``."""
        await self._ask(DeleteGroup(group), Done, again=False)
