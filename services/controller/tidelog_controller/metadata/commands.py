"""The commands in the metadata log, and their bytes in a Raft entry.

A command is a decision already made. Random choices, wall-clock times and the evidence behind a decision are in the
command, so that every controller that applies the same log holds the same state (``metadata/application.py``). A
command may still come to nothing when it is applied, because another came before it; it then changes nothing and its
answer is a refusal.

In an entry a command is one CBOR map: ``kind`` and the fields by name. A field with its default value is left out: so
an earlier release, which may not know the field, reads the entry as long as it says nothing new. Whether it may say
so is decided by the feature level (``tidelog.feature_levels``); and no default ever changes. A part of a command is
written as in a snapshot (``STORED`` of ``tidelog.wire.schema``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import cbor2
from tidelog.types import Acl, NodeId, Quota, Token, TopicConfig
from tidelog.wire.fields import is_later
from tidelog.wire.messages import ControllerMember, IsrMember, SuspectPart
from tidelog.wire.schema import Schema


@dataclass(frozen=True, slots=True)
class Command:
    """The base of all commands: a change of the metadata that the active controller proposes and every controller
    applies. ``KIND`` is its name in the log. ``time_ms`` is the wall clock of the active controller in milliseconds
    when it decided; no rule depends on it."""

    KIND: ClassVar[str] = ""
    time_ms: int
    asker: str = field(default="", kw_only=True)
    """The principal behind a gateway that asked for the change, for people only; "" if none did."""
    level: int = field(default=0, kw_only=True)
    """The feature level at which the cluster begins, in its first command; 0 in all others, and in those of an
    earlier release."""
    ticket_key: str = field(default="", kw_only=True, repr=False)
    """The secret of the first key for tickets, in the command with which the cluster gets it; otherwise "". Feature
    level ``TICKETS``."""


@dataclass(frozen=True, slots=True)
class RegisterServer(Command):
    """The command to begin an incarnation of a replica server. Its broker epoch is the index of this entry. ``clean``
    says that nothing that the server had acknowledged can be lost since its last incarnation. It is refused if the
    incarnation is an earlier one of the server."""

    KIND: ClassVar[str] = "register_server"
    node: NodeId
    url: str
    lives: tuple[str, ...] = ()
    """The names of the incarnations that the data directory knows, as in ``wire.messages.Register``; the last one is
    the one that begins."""
    clean: bool = False
    rack: str = ""


@dataclass(frozen=True, slots=True)
class RankedServer:
    """A part of commands that elect leaders: the rank of one server as a leader, and the reason as text
    (``active/server_ranks.py``). Rank 0 is the best; servers of rank 0 are not listed."""

    node: NodeId
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class FenceServer(Command):
    """The command to fence a server because the session of this incarnation ended: the server leaves every ISR that
    has another member, and no longer leads. It is refused if the server has begun another incarnation."""

    KIND: ClassVar[str] = "fence_server"
    node: NodeId
    broker_epoch: int
    evidence: dict[str, str] = field(default_factory=dict)
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen. Feature level ``RANKING``."""


@dataclass(frozen=True, slots=True)
class UnfenceServer(Command):
    """The command to end the fence of a server because heartbeats of this incarnation arrive again: the server may
    lead and join ISRs. It is refused if the server has begun another incarnation."""

    KIND: ClassVar[str] = "unfence_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AddTopic(Command):
    """The command to create a topic. ``replicas`` is the placement: for each partition the servers that get a
    replica, the preferred leader first. It is refused if the name is taken or none of the servers of a partition is
    live."""

    KIND: ClassVar[str] = "add_topic"
    topic_id: str
    name: str
    config: TopicConfig
    replicas: tuple[tuple[NodeId, ...], ...]
    owner: str = ""
    """The principal that owns the topic, followed by the limits that hold for it; "" if the topic has no owner.
    Feature level ``OWNERS``."""
    max_topics: int = 0
    max_partitions: int = 0


@dataclass(frozen=True, slots=True)
class RemoveTopic(Command):
    """The command to delete a topic and its data for ever. It is refused if the topic is deleted already."""

    KIND: ClassVar[str] = "remove_topic"
    topic_id: str


@dataclass(frozen=True, slots=True)
class ChangeIsr(Command):
    """The command to change the ISR of a partition to ``isr``, as its leader proposed (``wire.messages.AlterIsr``).
    It is refused if the partition is no longer at ``epoch`` (compare-and-set)."""

    KIND: ClassVar[str] = "change_isr"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LostLeader:
    """A part of ``ReplaceLeaders``: one partition, and the evidence that its leader is dead. It is skipped if the
    partition is no longer at these epochs."""

    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplaceLeaders(Command):
    """The command to elect other leaders than the server ``leader`` for the partitions in ``parts``, because enough
    members of their ISRs reported it dead."""

    KIND: ClassVar[str] = "replace_leaders"
    leader: NodeId
    parts: tuple[LostLeader, ...]
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen, as in ``FenceServer``."""


@dataclass(frozen=True, slots=True)
class LeaveParts(Command):
    """The command to take a server out of leadership and ISR of partitions, as it has requested
    (``wire.messages.HandOver``). ``lost`` says that its copies are lost, so that it leaves in any case. ``ready``
    says instead that it leaves no ISR: its successor has all records and is to lead."""

    KIND: ClassVar[str] = "leave_parts"
    node: NodeId
    broker_epoch: int
    reason: str
    parts: tuple[SuspectPart, ...]
    lost: bool
    ready: bool = False
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen, as in ``FenceServer``."""


@dataclass(frozen=True, slots=True)
class SealedPart:
    """A part of ``ElectSealed``: one partition, its next leader, the servers whose seals were counted, and the
    evidence. It is skipped unless the partition is still sealed in this leader epoch, and each counted server is
    still in the same incarnation and in the ISR."""

    topic_id: str
    partition: int
    leader_epoch: int
    leader: NodeId
    sealed_by: tuple[IsrMember, ...]
    evidence: dict[str, str] = field(default_factory=dict)
    above: int = -1
    """The new leader epoch is greater than this one, which a replica knows; -1 if there is none. Feature level
    ``RECOVERY``."""


@dataclass(frozen=True, slots=True)
class ElectSealed(Command):
    """The command to elect the leaders of partitions whose old leader epochs enough replicas have sealed. With commit
    rule ``quorum`` these are a majority; after a rescue ``rules/recovery.py`` says how many."""

    KIND: ClassVar[str] = "elect_sealed"
    parts: tuple[SealedPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeadership(Command):
    """A command that changes nothing. Its answer is ``Done`` if this incarnation of the server leads the partition in
    this leader epoch, otherwise an error."""

    KIND: ClassVar[str] = "confirm_leadership"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RecordLoss(Command):
    """The command to record in the history of a partition that a server had to cut the records from offset ``start``
    up to, not including, ``end`` (``wire.messages.ReportLoss``)."""

    KIND: ClassVar[str] = "record_loss"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    possible: bool = False
    """Whether it is unknown if the records were committed; False: they were committed. Feature level
    ``POSSIBLE_LOSSES``."""


@dataclass(frozen=True, slots=True)
class NoteDoubt(Command):
    """The command to record the state of the tail of a server's copy, from offset ``start`` up to, not including,
    ``end``: doubtful, settled or given up, as ``step`` says (``wire.messages.ReportDoubt``)."""

    KIND: ClassVar[str] = "note_doubt"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    step: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ChangeTopic(Command):
    """The command to give some settings of a topic new values, which were checked when the command was planned. It is
    refused if the topic is deleted."""

    KIND: ClassVar[str] = "change_topic"
    topic_id: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class SetLearners(Command):
    """The command to make the servers in ``learners`` the learners of a partition, in place of the present ones. It
    is refused if the topic is deleted."""

    KIND: ClassVar[str] = "set_learners"
    topic_id: str
    partition: int
    learners: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SetSuccessor(Command):
    """The command to begin a transfer of the leadership of a partition to ``successor``, or with "" to withdraw one.
    It is refused if the partition is no longer at this epoch, or if the successor cannot lead."""

    KIND: ClassVar[str] = "set_successor"
    topic_id: str
    partition: int
    epoch: int
    successor: NodeId
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetReplicas(Command):
    """The command to begin to reassign a partition to the servers in ``replicas``, the preferred leader first. It is
    refused if the partition is no longer at this epoch, or if the servers cannot be its replicas."""

    KIND: ClassVar[str] = "set_replicas"
    topic_id: str
    partition: int
    epoch: int
    replicas: tuple[NodeId, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuedMove:
    """A reassignment of one partition to the servers in ``replicas`` that waits in the queue until it may begin, with
    the reason for which it was planned and the principal that asked for it."""

    topic_id: str
    partition: int
    replicas: tuple[NodeId, ...]
    reason: str = ""
    asker: str = ""

    @property
    def key(self) -> str:
        """Return the key of the move in the queue, ``topic_id/partition``. A partition has at most one move there."""
        return f"{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class ChangeQueue(Command):
    """The command to add the moves in ``add`` to the queue of reassignments, and to remove those in ``drop``. With
    ``clear`` all present moves are removed first."""

    KIND: ClassVar[str] = "change_queue"
    add: tuple[QueuedMove, ...] = ()
    drop: tuple[str, ...] = ()
    """The keys of the moves to remove."""
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Suspend(Command):
    """The command to make partitions of a topic read-only or paused, as ``what`` says; with ``wanted`` False,
    writable or active again. An empty ``partitions`` stands for all partitions. It is refused if the topic is
    deleted."""

    KIND: ClassVar[str] = "suspend"
    topic_id: str
    partitions: tuple[int, ...]
    what: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class AddPartitions(Command):
    """The command to append partitions to a topic that has ``first`` of them now. ``replicas`` is their placement, as
    in ``AddTopic``. It is refused if the topic has another number of partitions by then."""

    KIND: ClassVar[str] = "add_partitions"
    topic_id: str
    first: int
    replicas: tuple[tuple[NodeId, ...], ...]
    max_partitions: int = 0
    """The limit that holds for the topic's owner; 0 if none does. Feature level ``OWNERS``."""


@dataclass(frozen=True, slots=True)
class SetDraining(Command):
    """The command to begin or end the draining of a server. A server that drains leads nothing that another server
    can lead, and gets new replicas only if there are too few others that run. It is refused if the server is not
    registered."""

    KIND: ClassVar[str] = "set_draining"
    node: NodeId
    draining: bool


@dataclass(frozen=True, slots=True)
class RemoveServer(Command):
    """The command to remove a replica server from the cluster. It is refused unless the server is still in this
    incarnation, fenced, and without replicas. Its name in the log is ``forget_server``, like that of the message that
    asks for it."""

    KIND: ClassVar[str] = "forget_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class SetLevel(Command):
    """The command to raise the feature level of the cluster to ``to``. It does nothing if the level is ``to`` or
    higher."""

    KIND: ClassVar[str] = "set_level"
    to: int


@dataclass(frozen=True, slots=True)
class TakeProducerIds(Command):
    """The command to give away the next ``count`` producer ids, none of them below ``first``. With ``count`` 0 no id
    is given away, but ids below ``first`` are skipped for good."""

    KIND: ClassVar[str] = "take_producer_ids"
    count: int
    first: int = 0
    """The lowest id that may be given; the active controller decides it by its clock
    (``producer_ids.plan_producer_ids``) and by the ids that replica servers report. Feature level ``RECOVERY``."""


@dataclass(frozen=True, slots=True)
class NoteControllers(Command):
    """The command to record in the timeline the members of the group of controllers, and which one is active in which
    term."""

    KIND: ClassVar[str] = "note_controllers"
    active: NodeId
    term: int
    members: tuple[ControllerMember, ...]


@dataclass(frozen=True, slots=True)
class ForgetEvents(Command):
    """The command to drop the events up to ``number`` from the metadata, since they are committed in the topic
    ``__timeline``."""

    KIND: ClassVar[str] = "forget_events"
    number: int


@dataclass(frozen=True, slots=True)
class ChangeAccess(Command):
    """The command to change tokens, rules and quotas. First those are removed that ``drop_tokens`` (token ids),
    ``drop_acls`` (rules) and ``drop_quotas`` (principals) name. Then the given ones are added; one with the name of a
    present one replaces it."""

    KIND: ClassVar[str] = "change_access"
    drop_tokens: tuple[str, ...] = ()
    tokens: tuple[Token, ...] = ()
    drop_acls: tuple[Acl, ...] = ()
    acls: tuple[Acl, ...] = ()
    drop_quotas: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    drop_heirs: bool = False
    """Whether principals that had the right ``security`` only by inheritance lose it. Feature level ``SECURITY``."""


@dataclass(frozen=True, slots=True)
class AddTicketKey(Command):
    """The command to add a key that signs tickets for producer ids from now on. Tickets of the key before stay valid.
    Feature level ``TICKETS``."""

    KIND: ClassVar[str] = "add_ticket_key"
    secret: str = field(repr=False)


KINDS: dict[str, type[Command]] = {
    kind.KIND: kind
    for kind in (
        RegisterServer,
        FenceServer,
        UnfenceServer,
        AddTopic,
        RemoveTopic,
        ChangeIsr,
        ReplaceLeaders,
        LeaveParts,
        ElectSealed,
        ConfirmLeadership,
        NoteDoubt,
        RecordLoss,
        ChangeTopic,
        SetLearners,
        SetSuccessor,
        SetReplicas,
        Suspend,
        AddPartitions,
        SetDraining,
        RemoveServer,
        SetLevel,
        ChangeQueue,
        TakeProducerIds,
        NoteControllers,
        ForgetEvents,
        ChangeAccess,
        AddTicketKey,
    )
}
"""The class of each command by its name in the log."""

COMMANDS = Schema(
    ValueError,
    lambda cls, field: issubclass(cls, Command) or is_later(field),
    ignores_unknown=False,
    bounds_integers=False,
)
"""The schema by which commands are written as CBOR maps and read back."""


def encode_command(command: Command) -> bytes:
    """Return a command as bytes, a CBOR map, for the data of a Raft entry. The bytes are never empty: empty data is
    Raft's no-op."""
    return cbor2.dumps({"kind": command.KIND} | COMMANDS.to_map(command))


def decode_command(data: bytes) -> Command:
    """Return the command in the data of a Raft entry. Raises ``ValueError`` for a kind or field that this release
    does not know, since a controller must not skip what other controllers apply."""
    values = cbor2.loads(data)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError("the metadata log holds a command of a later release: upgrade this controller")
    return COMMANDS.from_map(kind, values)
