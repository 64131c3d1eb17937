"""What the metadata log says: commands, and their bytes in a Raft entry.

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
    applies. ``KIND`` is its name in the log. ``time_ms`` is the wall clock of the active controller when it decided,
    for people only."""

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
    """The command to begin an incarnation of a replica server; its broker epoch is the index of this entry. ``clean``
    says that nothing which the server had acknowledged can be lost since the last incarnation."""

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
    """A part of commands that elect leaders: the rank of a server as a leader, 0 being the best, and the evidence for
    it as text (``active/server_ranks.py``). Servers of rank 0 are not listed."""

    node: NodeId
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class FenceServer(Command):
    """The command to fence a server whose session ended in this incarnation: it leaves the ISRs and leads no more."""

    KIND: ClassVar[str] = "fence_server"
    node: NodeId
    broker_epoch: int
    evidence: dict[str, str] = field(default_factory=dict)
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen. Feature level ``RANKING``."""


@dataclass(frozen=True, slots=True)
class UnfenceServer(Command):
    """The command to end the fence of a server, because a heartbeat of this incarnation came again: it may lead and
    join ISRs."""

    KIND: ClassVar[str] = "unfence_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AddTopic(Command):
    """The command to create a topic. ``replicas`` is the placement: for each partition its servers, the preferred
    leader first."""

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
    """The command to delete a topic and its data for ever."""

    KIND: ClassVar[str] = "remove_topic"
    topic_id: str


@dataclass(frozen=True, slots=True)
class ChangeIsr(Command):
    """The command to change the ISR of a partition as its leader proposed (``wire.messages.AlterIsr``). Refused if
    the partition is not at ``epoch`` any more (compare-and-set)."""

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
    """A part of ``ReplaceLeaders``: one partition, and the evidence that its leader is dead. It is passed over if the
    partition is not at these epochs any more."""

    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplaceLeaders(Command):
    """The command to elect other leaders than the server ``leader`` for these partitions, because enough members of
    their ISRs reported it dead."""

    KIND: ClassVar[str] = "replace_leaders"
    leader: NodeId
    parts: tuple[LostLeader, ...]
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen, as in ``FenceServer``."""


@dataclass(frozen=True, slots=True)
class LeaveParts(Command):
    """The command to take a server out of leadership and ISR of partitions at its own request
    (``wire.messages.HandOver``). ``lost``: its data there are lost, so it leaves in any case. ``ready``: it leaves
    nothing, and its successor has all records and leads next."""

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
    """A part of ``ElectSealed``: one partition, its next leader and the evidence. It is passed over unless the
    partition is still sealed in this leader epoch, and each server whose seal was counted is still in the same
    incarnation and in the ISR."""

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
    """The command to elect the leaders of partitions whose old leader epochs enough replicas have sealed: with commit
    rule ``quorum`` a majority, after a rescue as many as its rules need."""

    KIND: ClassVar[str] = "elect_sealed"
    parts: tuple[SealedPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeadership(Command):
    """A command that changes nothing: its answer says whether this incarnation of a server leads the partition in
    this leader epoch."""

    KIND: ClassVar[str] = "confirm_leadership"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RecordLoss(Command):
    """The command to record in the history of a partition that a server had to cut the records from ``start`` up to,
    not including, ``end`` (``wire.messages.ReportLoss``)."""

    KIND: ClassVar[str] = "record_loss"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    possible: bool = False
    """Whether it is unknown if the records were committed; if False, they were. Feature level ``POSSIBLE_LOSSES``."""


@dataclass(frozen=True, slots=True)
class NoteDoubt(Command):
    """The command to record that the tail of a server's copy, from offset ``start`` up to ``end``, is doubtful, is
    settled or is given up, as ``step`` says (``wire.messages.ReportDoubt``)."""

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
    """The command to give some settings of a topic new values, which were checked when the command was planned."""

    KIND: ClassVar[str] = "change_topic"
    topic_id: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class SetLearners(Command):
    """The command to make these servers the learners of a partition, in place of the present ones."""

    KIND: ClassVar[str] = "set_learners"
    topic_id: str
    partition: int
    learners: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SetSuccessor(Command):
    """The command to begin a transfer of leadership of a partition to ``successor``; with "" to withdraw it. Refused
    if the partition is not at this epoch any more."""

    KIND: ClassVar[str] = "set_successor"
    topic_id: str
    partition: int
    epoch: int
    successor: NodeId
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetReplicas(Command):
    """The command to begin to reassign a partition to these replicas, the preferred leader first. Refused if the
    partition is not at this epoch any more."""

    KIND: ClassVar[str] = "set_replicas"
    topic_id: str
    partition: int
    epoch: int
    replicas: tuple[NodeId, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuedMove:
    """A reassignment that waits for its turn in the queue, with the reason for which it was planned and the principal
    that asked for it."""

    topic_id: str
    partition: int
    replicas: tuple[NodeId, ...]
    reason: str = ""
    asker: str = ""

    @property
    def key(self) -> str:
        """Return the name of the move in the queue, ``topic_id/partition``: a partition has at most one."""
        return f"{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class ChangeQueue(Command):
    """The command to add reassignments to the queue of those that wait for their turn, and to remove others;
    ``clear`` removes all that were in it."""

    KIND: ClassVar[str] = "change_queue"
    add: tuple[QueuedMove, ...] = ()
    drop: tuple[str, ...] = ()
    """The keys of the moves to remove."""
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Suspend(Command):
    """The command to make partitions of a topic read-only or paused (``what``), or with ``wanted`` False writable or
    active again. No ``partitions`` stands for all."""

    KIND: ClassVar[str] = "suspend"
    topic_id: str
    partitions: tuple[int, ...]
    what: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class AddPartitions(Command):
    """The command to add partitions to a topic that has ``first`` of them; ``replicas`` is their placement, as in
    ``AddTopic``."""

    KIND: ClassVar[str] = "add_partitions"
    topic_id: str
    first: int
    replicas: tuple[tuple[NodeId, ...], ...]
    max_partitions: int = 0
    """The limit that holds for the topic's owner; 0 if none does. Feature level ``OWNERS``."""


@dataclass(frozen=True, slots=True)
class SetDraining(Command):
    """The command to begin or end the draining of a server: while it drains it leads nothing where another server
    can, and gets no new replicas."""

    KIND: ClassVar[str] = "set_draining"
    node: NodeId
    draining: bool


@dataclass(frozen=True, slots=True)
class RemoveServer(Command):
    """The command to remove a replica server from the cluster. Refused unless it is still in this incarnation,
    fenced, and without replicas. In the log its name is ``forget_server``, like that of the message that asks for
    it."""

    KIND: ClassVar[str] = "forget_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class SetLevel(Command):
    """The command to raise the feature level of the cluster to ``to``. It does nothing if the level is not lower."""

    KIND: ClassVar[str] = "set_level"
    to: int


@dataclass(frozen=True, slots=True)
class TakeProducerIds(Command):
    """The command to give away the next ``count`` producer ids, all at least ``first``. With ``count`` 0 none is
    given away, but none below ``first`` is given from now on."""

    KIND: ClassVar[str] = "take_producer_ids"
    count: int
    first: int = 0
    """The lowest id that may be given; the active controller decides it by its clock
    (``producer_ids.plan_producer_ids``) and by the ids that replica servers report. Feature level ``RECOVERY``."""


@dataclass(frozen=True, slots=True)
class NoteControllers(Command):
    """The command to record in the timeline who the controllers are and which one is active, in which term."""

    KIND: ClassVar[str] = "note_controllers"
    active: NodeId
    term: int
    members: tuple[ControllerMember, ...]


@dataclass(frozen=True, slots=True)
class ForgetEvents(Command):
    """The command to drop the events up to this number from the metadata, since they are committed in the topic
    ``__timeline``."""

    KIND: ClassVar[str] = "forget_events"
    number: int


@dataclass(frozen=True, slots=True)
class ChangeAccess(Command):
    """The command to change tokens, rules and quotas: first those named by token id, rule and principal are removed,
    then the given ones are added or put in place of those with the same name."""

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
    """The command to add a new key, which signs tickets for producer ids from now on; the one before still verifies.
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
"""How commands are written as CBOR maps and read back."""


def encode_command(command: Command) -> bytes:
    """Return the bytes of a command for the data of a Raft entry. They are never empty: empty data is Raft's
    no-op."""
    return cbor2.dumps({"kind": command.KIND} | COMMANDS.to_map(command))


def decode_command(data: bytes) -> Command:
    """Return the command in the data of a Raft entry. Raises ``ValueError`` for a kind or field that this release
    does not know: a controller must not skip what others apply."""
    values = cbor2.loads(data)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError("the metadata log holds a command of a later release: upgrade this controller")
    return COMMANDS.from_map(kind, values)
