"""Consumer groups: requests of clients to a gateway, and of a gateway to the group's coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tidelog.wire.messages.base import Done, Message, SequencedRequest
from tidelog.wire.messages.metadata import TopicCreated


@dataclass(frozen=True, slots=True)
class TopicShare:
    """Part of messages about groups and transactions: some partitions of one topic."""

    topic_id: str
    partitions: tuple[int, ...]
    """Partition numbers, ascending."""
    topic: str = ""
    """Name of the topic, in answers; "" in requests."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Part of ``CommitOffsets`` and of answers about groups: the committed position of a group in one partition."""

    topic_id: str
    partition: int
    offset: int
    """Offset of the next record to process."""
    leader_epoch: int = -1
    """Leader epoch of the record before ``offset``; -1: not known."""
    metadata: str = ""
    """Text that the committer chooses. The coordinator only keeps it."""
    committed_ms: int = -1
    """Wall clock of the coordinator at the commit, in milliseconds; -1 in requests."""
    earlier_offset: int = -1
    """In the answer to ``DescribeGroup``: a position that the group had earlier, from which the pace of its members
    follows; -1: none is known."""
    earlier_ms: int = -1
    """Wall clock of the coordinator when it had that position, in milliseconds; -1: none is known."""


@dataclass(frozen=True, slots=True)
class MemberWork:
    """Part of ``GroupHeartbeat`` and ``GroupMember``: the work of a member's application, which its client reports
    with a heartbeat. It is shown to people, and no decision depends on it."""

    idle_ms: int = -1
    """For how long the application has not asked for another record, in milliseconds, as exact as the interval of
    heartbeats. 0: it waits for records now. -1: not known."""
    topic_id: str = ""
    """Topic of the record that the application got last and has not finished; "": it has none."""
    partition: int = -1
    """Partition of that record; -1: there is none."""
    offset: int = -1
    """Offset of that record, or of the first one of its batch; -1: there is none."""
    paused: tuple[TopicShare, ...] = ()
    """Partitions that the application has paused."""
    quota_ms: int = 0
    """For how long the gateway still holds back what the client may receive, since the quota of bytes out is used up,
    in milliseconds; 0: it does not. Set by the gateway."""


@dataclass(frozen=True, slots=True)
class JoinGroupAnswer(Message):
    """Answer to ``JoinGroup``: the member belongs to the group and owns ``assignment``. It must send heartbeats from
    now on."""

    generation: int
    """Generation of the member."""
    heartbeat_ms: int
    """Interval at which the member must send heartbeats, in milliseconds."""
    assignment: tuple[TopicShare, ...] = ()
    """Partitions that the member owns."""


@dataclass(frozen=True, slots=True)
class JoinGroup(Message):
    """Request of a consumer, passed on by its gateway to the group's coordinator: become a member of a consumer
    group, which then gets partitions of ``topics``. A second request with the same ``member`` changes its topics and
    timeouts; the member keeps the partitions that it owns. The request is refused with ``GROUP_FULL`` if the group
    takes no more members."""

    OP: ClassVar[str] = "join_group"
    ANSWER: ClassVar[type[Message]] = JoinGroupAnswer
    group: str
    member: str
    """Random name that the client has chosen for this process (KIP-1082)."""
    topics: tuple[str, ...]
    """Names of the topics that the member wants to read."""
    instance: str = ""
    """Name of a static member; "": the member is not static. A process that joins under this name within the session
    timeout gets the partitions that the static member had. The process that had the name before is fenced."""
    assignor: str = ""
    """``sticky`` or ``range``; "": the assignor that the group has (``sticky`` in a new group). The assignor that was
    named last is valid for the whole group."""
    session_timeout_ms: int = 45_000
    """A member that sends no heartbeat for so many milliseconds is removed."""
    rebalance_timeout_ms: int = 60_000
    """A member that does not give up its partitions within so many milliseconds after it is asked to is removed."""
    node: str = ""
    """Name of the program, for ``DescribeGroup``."""
    principal: str = ""
    """Principal that the request counts for, in the bounds per principal; "": none. Set by the gateway since feature
    level 5."""


@dataclass(frozen=True, slots=True)
class GroupHeartbeatAnswer(Message):
    """Answer to ``GroupHeartbeat``: the partitions that the member may own now. A partition that the member owns and
    that is missing here must be given up: the member commits its position, then sends a heartbeat whose ``owned`` no
    longer has the partition. Only after that another member gets it."""

    generation: int
    """Present generation of the member."""
    assignment: tuple[TopicShare, ...] = ()
    """Partitions that the member may own now."""


@dataclass(frozen=True, slots=True)
class GroupHeartbeat(Message):
    """Request of a consumer, passed on by its gateway to the group's coordinator, at intervals: the member is alive,
    and owns these partitions. Members that send none within their session timeout are removed. After
    ``UNKNOWN_MEMBER``, ``FENCED_GENERATION`` or ``FENCED_INSTANCE`` the member owns nothing any more."""

    OP: ClassVar[str] = "group_heartbeat"
    ANSWER: ClassVar[type[Message]] = GroupHeartbeatAnswer
    group: str
    member: str
    generation: int
    """Generation that the member knows. If its present generation is newer, the heartbeat gives up no partition, and
    the answer has the present one."""
    owned: tuple[TopicShare, ...] = ()
    """Partitions that the member owns."""
    instance: str = ""
    """Name of the static member; "": the member is not static."""
    work: MemberWork | None = None
    """What the application does, for ``DescribeGroup``; None: the client does not report it."""


@dataclass(frozen=True, slots=True)
class LeaveGroup(Message):
    """Request of a consumer, passed on by its gateway to the group's coordinator: leave the group. The partitions of
    the member are free at once. A request for a member that the group does not have succeeds."""

    OP: ClassVar[str] = "leave_group"
    ANSWER: ClassVar[type[Message]] = Done
    group: str
    member: str
    keep: bool = False
    """The process of a static member ends, but the member stays. Its partitions wait for its return until the session
    timeout."""


@dataclass(frozen=True, slots=True)
class CommitOffsets(Message):
    """Request of a consumer, passed on by its gateway to the group's coordinator: commit positions of the group, all
    of them or none. A member may commit only in its present generation, and only partitions that it owns or is giving
    up; otherwise the commit is refused with ``FENCED_GENERATION``."""

    OP: ClassVar[str] = "commit_offsets"
    ANSWER: ClassVar[type[Message]] = Done
    group: str
    positions: tuple[GroupPosition, ...]
    member: str = ""
    """Member that commits. "": none; this is allowed only while the group has no members."""
    generation: int = -1
    """Present generation of the member; -1 without ``member``."""
    instance: str = ""
    """Name of the static member; "": the member is not static."""
    transaction: str = ""
    """Transactional id (``app``) whose transaction the positions are part of. They take effect when that transaction
    is committed. "": they take effect at once."""
    producer_id: int = 0
    """Producer id of the transaction; 0 without one."""
    producer_epoch: int = 0
    """Producer epoch of the transaction; 0 without one."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class FetchOffsetsAnswer(Message):
    """Answer to ``FetchOffsets``: the committed positions of the group. A partition without a committed position is
    left out."""

    positions: tuple[GroupPosition, ...] = ()


@dataclass(frozen=True, slots=True)
class FetchOffsets(Message):
    """Request of a consumer, passed on by its gateway to the group's coordinator: get the committed positions of a
    group. The answer is empty if the group does not exist."""

    OP: ClassVar[str] = "fetch_offsets"
    ANSWER: ClassVar[type[Message]] = FetchOffsetsAnswer
    group: str
    parts: tuple[TopicShare, ...] = ()
    """Partitions to answer; empty: all partitions in which the group has a position."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """Part of ``ListGroupsAnswer``: a consumer group, with its state and coordinator."""

    group: str
    state: str
    """``empty``: the group has no members. ``moving``: partitions are being moved between members. ``stable``:
    neither."""
    members: int = 0
    """Number of members."""
    coordinator: str = ""
    """Replica server that coordinates the group."""
    positions: tuple[GroupPosition, ...] | None = None
    """Position of the group in the partition that ``ListGroups`` names; empty: it has none there. None: no partition
    is named, the client may not describe the group, or the gateway or the coordinator is of an earlier release."""


@dataclass(frozen=True, slots=True)
class ListGroupsAnswer(Message):
    """Answer to ``ListGroups``: consumer groups, sorted by name, and whether there are more."""

    groups: tuple[GroupInfo, ...] = ()
    more: bool = False
    """There are more groups after the last one."""


@dataclass(frozen=True, slots=True)
class ListGroups(Message):
    """Request of a client to its gateway: list all consumer groups of the cluster. The gateway sends it on to each
    coordinator, page by page, for the groups of one partition of ``__groups``."""

    OP: ClassVar[str] = "list_groups"
    ANSWER: ClassVar[type[Message]] = ListGroupsAnswer
    partition: int = -1
    """Partition of ``__groups`` that the groups belong to; -1, from a client: all groups."""
    after: str = ""
    """Answer only groups whose names sort after this one."""
    most: int = 0
    """How many groups to answer at most; 0: all."""
    topic_id: str = ""
    """Answer the position that each group has in a partition of this topic, too; "": no position."""
    topic_partition: int = -1
    """That partition; -1 without ``topic_id``."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """Part of ``DescribeGroupAnswer``: a member of the group, with the partitions that it owns, gives up and will
    get."""

    member: str
    generation: int
    """Generation of the member."""
    instance: str = ""
    """Name of the static member; "": the member is not static."""
    node: str = ""
    """Name of the program."""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicShare, ...] = ()
    """Partitions that the member owns."""
    leaving: tuple[TopicShare, ...] = ()
    """Partitions that the member must give up."""
    target: tuple[TopicShare, ...] = ()
    """Partitions that the member gets in the end."""
    session_timeout_ms: int = 0
    away: bool = False
    """The process of this static member has ended."""
    heard_ms: int = -1
    """Time since the last heartbeat, in milliseconds; -1: none has come to this coordinator."""
    leaving_ms: int = -1
    """Time since the member was asked to give up ``leaving``, in milliseconds; -1: it need not give up any."""
    work: MemberWork | None = None
    """What the application did at the last heartbeat; None: not known."""
    joined_ms: int = -1
    """Wall clock of the coordinator when the member joined, or when a new coordinator first heard of it, in
    milliseconds; -1: not known."""
    advanced_ms: int = -1
    """Wall clock of the coordinator when the member last moved a position forward, in milliseconds; -1: not since
    ``joined_ms``."""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Part of ``DescribeGroupAnswer``: something that happened to a member of the group."""

    event: str
    """``joined``, ``left``, ``expelled_silent`` (no heartbeat for its session timeout), ``expelled_slow`` (it did not
    give up partitions within its rebalance timeout), or ``commit_refused``."""
    time_ms: int
    """Wall clock of the coordinator, in milliseconds; the first time, if ``times`` is above 1."""
    member: str
    node: str = ""
    """Name of its program; "": not known."""
    code: str = ""
    """Error code of a refused commit."""
    times: int = 1
    """How often it happened within a few seconds."""
    timeout_ms: int = 0
    """The timeout that an expelled member exceeded, in milliseconds; 0: it was not expelled."""
    advanced: bool = False
    """The member that left or was expelled had moved a position forward since it joined."""


@dataclass(frozen=True, slots=True)
class MovedPosition:
    """Part of ``DescribeGroupAnswer``: a position that a member had committed, and that a client that is no member
    has set to another place since, by ``tidelog groups reset`` for example. No longer reported once it was put back,
    or a minute after members have passed the place from where it was set back."""

    topic_id: str
    partition: int
    before: int
    """Position that the members had committed."""
    after: int
    """Position that was set instead."""
    time_ms: int
    """Wall clock of the coordinator, in milliseconds."""
    passed_ms: int = -1
    """Wall clock of the coordinator when a member had passed the place from where the position was set back; -1: not
    yet."""


@dataclass(frozen=True, slots=True)
class DescribeGroupAnswer(Message):
    """Answer to ``DescribeGroup``: state, members and committed positions of a group, as its coordinator has them."""

    group: str
    state: str
    """``empty``, ``moving`` or ``stable``, as in ``GroupInfo``."""
    generation: int
    """Generation of the group, which is the greatest of its members."""
    assignor: str
    coordinator: str
    """Replica server that coordinates the group."""
    members: tuple[GroupMember, ...] = ()
    positions: tuple[GroupPosition, ...] = ()
    events: tuple[GroupEvent, ...] = ()
    """The last events of members, the oldest first, as far as this coordinator remembers them."""
    moved: tuple[MovedPosition, ...] = ()
    time_ms: int = -1
    """Wall clock of the coordinator, in milliseconds, for comparison with the other times; -1: not known."""


@dataclass(frozen=True, slots=True)
class DescribeGroup(Message):
    """Request of a client, passed on by its gateway to the group's coordinator: describe the members of a group,
    their partitions, and the group's committed positions. The lag of a position is the high watermark (``Metadata``
    with ``offsets``, or ``ListOffset``) minus the position. The request is refused with ``UNKNOWN_GROUP`` if the
    group does not exist."""

    OP: ClassVar[str] = "describe_group"
    ANSWER: ClassVar[type[Message]] = DescribeGroupAnswer
    group: str


@dataclass(frozen=True, slots=True)
class DeleteGroup(Message):
    """Request of a client, passed on by its gateway to the group's coordinator: delete a group and its committed
    positions. The request is refused with ``GROUP_NOT_EMPTY`` while the group has members, and with ``UNKNOWN_GROUP``
    if it does not exist."""

    OP: ClassVar[str] = "delete_group"
    ANSWER: ClassVar[type[Message]] = Done
    group: str


@dataclass(frozen=True, slots=True)
class PrepareGroups(SequencedRequest):
    """Request of a gateway to the active controller, before its first request about a group: create the topic
    ``__groups``. Does nothing if the topic exists; the answer has its id in any case."""

    OP: ClassVar[str] = "prepare_groups"
    ANSWER: ClassVar[type[Message]] = TopicCreated
