"""A group coordinator in memory that assigns partitions as the test says, and keeps the rules of
``docs/protocol.md``, "Consumer groups"."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidelog.client.core.group_member import shares
from tidelog.errors import refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    DescribeGroupAnswer,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupHeartbeat,
    GroupHeartbeatAnswer,
    GroupInfo,
    GroupMember,
    GroupPosition,
    JoinGroup,
    JoinGroupAnswer,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    Message,
    TopicShare,
)


@dataclass
class Member:
    """A member of the group: its join request and the partitions that it owns."""

    join: JoinGroup
    owned: set[TopicPartition] = field(default_factory=set)
    generation: int = 0


class FakeGroup:
    """One group. Every change of the target assignment is a new generation; a partition goes to another member only
    after its owner has given it up."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        self.members: dict[str, Member] = {}
        self.wanted: dict[TopicPartition, str] = {}
        """The member (its instance) that each partition is assigned to."""
        self.positions: dict[TopicPartition, GroupPosition] = {}
        self.commits: list[tuple[str, int, GroupPosition]] = []
        """All commits (member, generation, position) in their order."""
        self.generation = 1
        self.heartbeat_ms = 20
        self.left: list[LeaveGroup] = []

    def give(self, to: str, keys: Iterable[TopicPartition]) -> None:
        """Assign these partitions to the member with this instance from now on."""
        self.wanted.update(dict.fromkeys(keys, to))
        self.generation += 1

    def holder(self, key: TopicPartition) -> str | None:
        """Return the member that owns a partition; None if there is none."""
        return next((name for name, member in self.members.items() if key in member.owned), None)

    def share(self, name: str) -> tuple[TopicShare, ...]:
        """Give a member all assigned partitions that no other member owns, and return its assignment."""
        member = self.members[name]
        mine = {key for key, to in self.wanted.items() if to == member.join.instance}
        mine = {key for key in mine if self.holder(key) in (None, name)}
        member.owned |= mine
        member.generation = self.generation
        found = shares(mine)
        return tuple(TopicShare(share.topic_id, share.partitions, self.names[share.topic_id]) for share in found)

    def answer(self, message: Message) -> Message:
        """Return the answer of the coordinator to a request. Raises its error."""
        match message:
            case JoinGroup(member=name):
                self.members.setdefault(name, Member(message)).join = message
                share = self.share(name)
                return JoinGroupAnswer(self.generation, self.heartbeat_ms, share)
            case GroupHeartbeat(member=name, generation=generation, owned=owned):
                member = self.known(name)
                if generation == member.generation == self.generation:
                    kept = {TopicPartition(s.topic_id, p) for s in owned for p in s.partitions}
                    wanted = {key for key, to in self.wanted.items() if to == member.join.instance}
                    member.owned &= kept | wanted
                return GroupHeartbeatAnswer(self.generation, self.share(name))
            case LeaveGroup(member=name):
                self.left.append(message)
                self.members.pop(name, None)
                return Done()
            case CommitOffsets(positions=positions, member=""):
                if self.members:
                    raise refuse("GROUP_NOT_EMPTY", "it has members")
                self.positions.update({TopicPartition(at.topic_id, at.partition): at for at in positions})
                return Done()
            case CommitOffsets(positions=positions, member=name, generation=generation):
                member = self.known(name)
                keys = [TopicPartition(at.topic_id, at.partition) for at in positions]
                if generation != self.generation or not member.owned >= set(keys):
                    raise refuse("FENCED_GENERATION", f"it is generation {self.generation}")
                self.positions.update(zip(keys, positions, strict=True))
                self.commits += [(name, generation, at) for at in positions]
                return Done()
            case FetchOffsets(parts=parts):
                keys = [TopicPartition(s.topic_id, p) for s in parts for p in s.partitions] or list(self.positions)
                return FetchOffsetsAnswer(tuple(self.positions[key] for key in keys if key in self.positions))
            case ListGroups():
                return ListGroupsAnswer(
                    (GroupInfo("g", "stable" if self.members else "empty", len(self.members), "r1"),)
                )
            case DescribeGroup(group=group):
                if group != "g":
                    raise refuse("UNKNOWN_GROUP", f"there is no group {group}")
                members = tuple(
                    GroupMember(name, one.generation, one.join.instance, assignment=self.share(name))
                    for name, one in self.members.items()
                )
                state = "stable" if members else "empty"
                positions = tuple(self.positions.values())
                return DescribeGroupAnswer(group, state, self.generation, "sticky", "r1", members, positions)
            case DeleteGroup():
                if self.members:
                    raise refuse("GROUP_NOT_EMPTY", "it has members")
                self.positions.clear()
                return Done()
        raise refuse("UNSUPPORTED", message.OP)

    def known(self, name: str) -> Member:
        """Return a member. Raises ``UNKNOWN_MEMBER``."""
        if name not in self.members:
            raise refuse("UNKNOWN_MEMBER", f"there is no member {name}")
        return self.members[name]
