"""A coordinator of consumer groups with its log and its answers to members, for tests."""

from __future__ import annotations

from typing import Any

from tidelog.errors import TidelogError
from tidelog.wire.messages import (
    CommitOffsets,
    DescribeGroup,
    DescribeGroupAnswer,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupPosition,
    JoinGroup,
    Message,
    TopicShare,
)
from tidelog_replica.config import GroupSettings
from tidelog_replica.coordinators.groups.coordinator import GroupCoordinator
from tidelog_replica.coordinators.groups.group import Topic, Topics
from tidelog_replica.coordinators.groups.records import Entry, StoredGroups
from tidelog_replica.counters import ReplicaCounts

ORDERS = Topic("id-orders", "orders", 4)
SETTINGS = GroupSettings(
    max_groups=2, max_members=3, max_topics=2, max_metadata_bytes=5, max_joins_per_s=10, offsets_retention_ms=1000
)


class Desk:
    """A coordinator, its log, and the last assignment of each member."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wall_ms = 5000
        self.topics = Topics([ORDERS])
        self.counts = ReplicaCounts()
        self.log: list[Entry] = []
        self.told: dict[str, tuple[int, set[int]]] = {}
        """The last generation and partitions of ``orders`` sent to each member."""
        self.core = GroupCoordinator("r1", SETTINGS, self.topics, self.counts)
        self.core.load_records(StoredGroups(), self.now)

    def ask(self, message: Message) -> Any:
        """Send a request to the coordinator, write its log entries, and return the answer."""
        answer = self.core.handle(message, self.now, self.wall_ms)
        self.log += self.core.take_entries()
        return answer

    def refused(self, message: Message) -> str:
        """Send a request that must be refused without a log entry, and return the error code."""
        before = len(self.log)
        answer = self.ask(message)
        assert isinstance(answer, TidelogError) and len(self.log) == before
        return answer.code

    def join(self, member: str, *topics: str, **fields: Any) -> set[int]:
        """Let a member join with these topics, and return its partitions."""
        return self._take(member, self.ask(JoinGroup("g", member, topics or ("orders",), **fields)))

    def heartbeat(self, member: str, owned: set[int] | None = None, generation: int = -1, **fields: Any) -> set[int]:
        """Send a heartbeat of a member and return its partitions. By default it owns its last assignment."""
        told = self.told[member]
        share = TopicShare(ORDERS.topic_id, tuple(sorted(told[1] if owned is None else owned)))
        generation = told[0] if generation < 0 else generation
        return self._take(member, self.ask(GroupHeartbeat("g", member, generation, (share,), **fields)))

    def _take(self, member: str, answer: Any) -> set[int]:
        assert not isinstance(answer, TidelogError), answer
        self.told[member] = answer.generation, {n for share in answer.assignment for n in share.partitions}
        return self.told[member][1]

    def commit(self, member: str, partition: int, offset: int = 7, generation: int = -1, **fields: Any) -> Any:
        """Commit a position of a member and return the answer."""
        generation = self.told[member][0] if generation < 0 else generation
        position = GroupPosition(ORDERS.topic_id, partition, offset, 3)
        return self.ask(CommitOffsets("g", (position,), member, generation, **fields))

    def settle(self, *members: str) -> None:
        """Send three heartbeats of each member, so that all give up and get their partitions."""
        for _ in range(3):
            for member in members:
                self.heartbeat(member)

    def advance(self, seconds: float) -> None:
        """Let time pass from deadline to deadline."""
        until = self.now + seconds
        while (due := self.core.deadline()) is not None and due <= until:
            self.now = due
            self.core.on_tick(self.now, self.wall_ms)
            self.log += self.core.take_entries()
        self.now = until

    def fail_over(self) -> None:
        """Replace the coordinator by a new one that has read the log."""
        stored = StoredGroups()
        for key, value in self.log:
            stored.add_record(key, value)
        self.core = GroupCoordinator("r2", SETTINGS, self.topics, self.counts)
        self.core.load_records(stored, self.now)
        self.log += self.core.take_entries()

    def describe(self) -> DescribeGroupAnswer:
        """Return the description of the group."""
        answer = self.ask(DescribeGroup("g"))
        assert isinstance(answer, DescribeGroupAnswer)
        return answer

    def offsets(self) -> dict[int, int]:
        """Return the committed offset of each partition."""
        answer = self.ask(FetchOffsets("g"))
        assert isinstance(answer, FetchOffsetsAnswer)
        return {position.partition: position.offset for position in answer.positions}


def code(answer: Any) -> str:
    """Return the code of an error; "" for any other answer."""
    return answer.code if isinstance(answer, TidelogError) else ""
