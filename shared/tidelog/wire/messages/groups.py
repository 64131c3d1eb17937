"""Consumer groups: client to gateway, and gateway to the group's coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message, SequencedRequest
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class TopicShare:
    """Part: partitions of one topic, ascending. ``topic`` is its name where a server tells."""

    topic_id: str
    partitions: tuple[int, ...]
    topic: str = ""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Part: how far a group has come in a partition: ``offset`` is the next record's, ``leader_epoch`` that of the
    record before it (-1: not known). ``committed_ms`` is the coordinator's wall clock, told by it."""

    topic_id: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1


@dataclass(frozen=True, slots=True)
class JoinGroupAnswer(Message):
    """Answer: the member is in the group, in this generation, and owns this. It is to heartbeat every
    ``heartbeat_ms``."""

    generation: int
    heartbeat_ms: int
    assignment: tuple[TopicShare, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinGroup(Message):
    """Become a member, or (the same ``member`` again) have other ``topics``. ``member`` is a random name that the
    client chose for this process (KIP-1082). ``instance`` names a static member: who comes back under it within the
    session timeout has what it had, and the process that had it before is fenced."""

    OP: ClassVar[str] = "join_group"
    ANSWER: ClassVar[type[Message]] = JoinGroupAnswer
    group: str
    member: str
    topics: tuple[str, ...]
    instance: str = ""
    assignor: str = ""
    """``sticky`` or ``range``; "": the group's (``sticky`` in a new group). The last one that was named counts."""
    session_timeout_ms: int = 45_000
    """Without a heartbeat for so long the member is out."""
    rebalance_timeout_ms: int = 60_000
    """A member that does not give up in this time what it must give up is out."""
    node: str = ""
    """Name of the program, for ``describe_group``."""
    principal: str = ""
    """Whose request it is: set by the gateway since feature level 5, for the bounds per principal. "": nobody's."""


@dataclass(frozen=True, slots=True)
class GroupHeartbeatAnswer(Message):
    """Answer: what the member may own now, and its generation. What is missing it gives up (committing first), and
    then heartbeats with ``owned`` without it: only then another member gets it."""

    generation: int
    assignment: tuple[TopicShare, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupHeartbeat(Message):
    """The member lives, and owns this. With an older generation than its present one nothing is taken as given up;
    the answer tells the present one. ``UNKNOWN_MEMBER``, ``FENCED_GENERATION``, ``FENCED_INSTANCE``: it owns
    nothing any more."""

    OP: ClassVar[str] = "group_heartbeat"
    ANSWER: ClassVar[type[Message]] = GroupHeartbeatAnswer
    group: str
    member: str
    generation: int
    owned: tuple[TopicShare, ...] = ()
    instance: str = ""


@dataclass(frozen=True, slots=True)
class LeaveGroup(Message):
    """The member goes, what it owned is free at once. With ``keep`` a static member only ends its process: its share
    waits for its return until the session timeout. Who is no member has left already."""

    OP: ClassVar[str] = "leave_group"
    ANSWER: ClassVar[type[Message]] = Done
    group: str
    member: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class CommitOffsets(Message):
    """The group has come so far: all of it or nothing is taken, with a ``transaction`` when that is committed. Only
    from a member, in its present generation, for partitions that it owns or is giving up; with ``member`` "" only
    while the group has no members."""

    OP: ClassVar[str] = "commit_offsets"
    ANSWER: ClassVar[type[Message]] = Done
    group: str
    positions: tuple[GroupPosition, ...]
    member: str = ""
    generation: int = -1
    instance: str = ""
    transaction: str = ""
    """Not "": the positions are part of this application's transaction, and count when that is committed."""
    producer_id: int = 0
    producer_epoch: int = 0
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class FetchOffsetsAnswer(Message):
    """Answer: the positions that there are; a partition without one is not named."""

    positions: tuple[GroupPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets(Message):
    """How far has the group come in these partitions? Without ``parts``: in all. A group that does not exist has
    come nowhere."""

    OP: ClassVar[str] = "fetch_offsets"
    ANSWER: ClassVar[type[Message]] = FetchOffsetsAnswer
    group: str
    parts: tuple[TopicShare, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Part: a group. ``state``: ``empty`` (no members), ``moving`` (partitions are on their way from member to
    member) or ``stable``."""

    group: str
    state: str
    members: int = 0
    coordinator: str = ""


@dataclass(frozen=True, slots=True)
class ListGroupsAnswer(Message):
    """Answer: the groups, by name. ``more``: there are others behind the last one."""

    groups: tuple[GroupInfo, ...] = ()
    more: bool = False


@dataclass(frozen=True, slots=True)
class ListGroups(Message):
    """Which groups are there? A coordinator is asked for those of one ``partition`` of ``__groups``, in pages: for
    the first ``most`` (0: all) whose names come behind ``after``. -1, from a client: all."""

    OP: ClassVar[str] = "list_groups"
    ANSWER: ClassVar[type[Message]] = ListGroupsAnswer
    partition: int = -1
    after: str = ""
    most: int = 0


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Part: a member. ``leaving`` is what it is to give up, ``target`` what it is to have in the end. ``away``: a
    static member whose process has ended."""

    member: str
    generation: int
    instance: str = ""
    node: str = ""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicShare, ...] = ()
    leaving: tuple[TopicShare, ...] = ()
    target: tuple[TopicShare, ...] = ()
    session_timeout_ms: int = 0
    away: bool = False


@dataclass(frozen=True, slots=True)
class DescribeGroupAnswer(Message):
    """Answer: the group as its coordinator has it. ``generation`` is the group's, the greatest of all its members."""

    group: str
    state: str
    generation: int
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...] = ()
    positions: tuple[GroupPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeGroup(Message):
    """Who is in a group, who has what, and how far it has come. Lag is the high watermark (``metadata`` with
    ``offsets``, ``list_offset``) less the position."""

    OP: ClassVar[str] = "describe_group"
    ANSWER: ClassVar[type[Message]] = DescribeGroupAnswer
    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup(Message):
    """Forget a group without members, and its positions."""

    OP: ClassVar[str] = "delete_group"
    ANSWER: ClassVar[type[Message]] = Done
    group: str


@dataclass(frozen=True, slots=True)
class PrepareGroups(SequencedRequest):
    """A gateway wants the topic ``__groups``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_groups"
    ANSWER: ClassVar[type[Message]] = TopicCreated
