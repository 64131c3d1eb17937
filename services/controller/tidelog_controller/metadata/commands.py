"""What the metadata log says: commands, and their bytes in a Raft entry.

A command is a decision already made. Random choices, wall-clock times and the evidence behind a decision are in the
command, so that every controller that applies the same log holds the same state (``metadata/application.py``). A
command may still come to nothing when it is applied, because another came before it; it then changes nothing and its
answer is a refusal.

In an entry a command is one CBOR map: ``kind`` and the fields by name. A field that is as it is by default is left
out: so an earlier release, which may not know it, reads the entry as long as it says nothing new. Whether it may say
so is the feature level's to decide (``tidelog.feature_levels``); and no default ever changes. A part of a command is
written as in a snapshot (``STORED`` of ``tidelog.wire.schema``).
"""

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
    """Base of all. ``time_ms`` is the wall clock of the active controller when it decided; for people only."""

    KIND: ClassVar[str] = ""
    time_ms: int
    asker: str = field(default="", kw_only=True)
    """Who wants it: somebody behind a gateway; for people only."""
    level: int = field(default=0, kw_only=True)
    """The feature level at which the cluster begins whose first command this is; 0: it is not, or an earlier release
    wrote it."""
    ticket_key: str = field(default="", kw_only=True, repr=False)
    """Secret of the ticket key that the cluster gets with this command, if it has none yet. Feature level
    ``TICKETS``."""


@dataclass(frozen=True, slots=True)
class RegisterServer(Command):
    """A life of a replica server begins. Its broker epoch is the index of this entry."""

    KIND: ClassVar[str] = "register_server"
    node: NodeId
    url: str
    lives: tuple[str, ...] = ()
    """As in ``wire.messages.Register``."""
    clean: bool = False
    rack: str = ""


@dataclass(frozen=True, slots=True)
class RankedServer:
    """Part: the rank of a server as a leader, 0 being the best, and the evidence for it in words
    (``active/server_ranks.py``). Servers of rank 0 are not listed."""

    node: NodeId
    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class FenceServer(Command):
    """The session of this life ended."""

    KIND: ClassVar[str] = "fence_server"
    node: NodeId
    broker_epoch: int
    evidence: dict[str, str] = field(default_factory=dict)
    ranks: tuple[RankedServer, ...] = ()
    """The ranks by which new leaders are chosen. Feature level ``RANKING``."""


@dataclass(frozen=True, slots=True)
class UnfenceServer(Command):
    """A fenced life was heard of again."""

    KIND: ClassVar[str] = "unfence_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AddTopic(Command):
    """Create a topic; ``replicas`` is the placement, one tuple a partition, preferred leader first."""

    KIND: ClassVar[str] = "add_topic"
    topic_id: str
    name: str
    config: TopicConfig
    replicas: tuple[tuple[NodeId, ...], ...]
    owner: str = ""
    """The principal whose topic it is, with the bounds that hold for it. Feature level ``OWNERS``."""
    max_topics: int = 0
    max_partitions: int = 0


@dataclass(frozen=True, slots=True)
class RemoveTopic(Command):
    """Delete a topic for ever."""

    KIND: ClassVar[str] = "remove_topic"
    topic_id: str


@dataclass(frozen=True, slots=True)
class ChangeIsr(Command):
    """A leader's proposal, as it came (``wire.messages.AlterIsr``): compare-and-set on ``epoch``."""

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
    """One partition of ``ReplaceLeaders``: only if it is still at these epochs."""

    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReplaceLeaders(Command):
    """Enough ISR members reported ``leader`` dead for these partitions."""

    KIND: ClassVar[str] = "replace_leaders"
    leader: NodeId
    parts: tuple[LostLeader, ...]
    ranks: tuple[RankedServer, ...] = ()
    """As in ``FenceServer``."""


@dataclass(frozen=True, slots=True)
class LeaveParts(Command):
    """A server's request, as it came (``wire.messages.HandOver``)."""

    KIND: ClassVar[str] = "leave_parts"
    node: NodeId
    broker_epoch: int
    reason: str
    parts: tuple[SuspectPart, ...]
    lost: bool
    ready: bool = False
    ranks: tuple[RankedServer, ...] = ()
    """As in ``FenceServer``."""


@dataclass(frozen=True, slots=True)
class SealedPart:
    """One partition of ``ElectSealed``: only if it is still being sealed in this leader epoch, and every one of those
    whose seals were counted is still in the same life and in the ISR."""

    topic_id: str
    partition: int
    leader_epoch: int
    leader: NodeId
    sealed_by: tuple[IsrMember, ...]
    evidence: dict[str, str] = field(default_factory=dict)
    above: int = -1
    """The new leader epoch is beyond this one, which a replica knows, too. Feature level ``RECOVERY``."""


@dataclass(frozen=True, slots=True)
class ElectSealed(Command):
    """Commit rule ``quorum``: majorities have sealed the old epochs of these partitions."""

    KIND: ClassVar[str] = "elect_sealed"
    parts: tuple[SealedPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeadership(Command):
    """Changes nothing; its answer says whether that life leads in that leader epoch at this place in the log."""

    KIND: ClassVar[str] = "confirm_leadership"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RecordLoss(Command):
    """A follower's report, as it came (``wire.messages.ReportLoss``)."""

    KIND: ClassVar[str] = "record_loss"
    node: NodeId
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    possible: bool = False
    """Whether it is not known if the records were committed; if False, they were. Feature level
    ``POSSIBLE_LOSSES``."""


@dataclass(frozen=True, slots=True)
class NoteDoubt(Command):
    """A server's report about the tail of its copy, as it came (``wire.messages.ReportDoubt``)."""

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
    """New values of some settings; they were checked against what does not change."""

    KIND: ClassVar[str] = "change_topic"
    topic_id: str
    values: dict[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class SetLearners(Command):
    """The learners of a partition."""

    KIND: ClassVar[str] = "set_learners"
    topic_id: str
    partition: int
    learners: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class SetSuccessor(Command):
    """Leadership is to go to ``successor``; "": it stays where it is after all. Only if the partition is still in
    this epoch."""

    KIND: ClassVar[str] = "set_successor"
    topic_id: str
    partition: int
    epoch: int
    successor: NodeId
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetReplicas(Command):
    """These are to be the replicas, the preferred leader first. Only if the partition is still in this epoch."""

    KIND: ClassVar[str] = "set_replicas"
    topic_id: str
    partition: int
    epoch: int
    replicas: tuple[NodeId, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueuedMove:
    """Part: a reassignment that waits for its turn, and why it was planned."""

    topic_id: str
    partition: int
    replicas: tuple[NodeId, ...]
    reason: str = ""
    asker: str = ""

    @property
    def key(self) -> str:
        """Its name in the queue."""
        return f"{self.topic_id}/{self.partition}"


@dataclass(frozen=True, slots=True)
class ChangeQueue(Command):
    """Moves that are to wait for their turn from now on, or no more; ``clear``: none that waited does."""

    KIND: ClassVar[str] = "change_queue"
    add: tuple[QueuedMove, ...] = ()
    drop: tuple[str, ...] = ()
    """Keys."""
    clear: bool = False


@dataclass(frozen=True, slots=True)
class Suspend(Command):
    """``what`` is ``read_only`` or ``paused``: these partitions (none: all of the topic) are to be so, or not."""

    KIND: ClassVar[str] = "suspend"
    topic_id: str
    partitions: tuple[int, ...]
    what: str
    wanted: bool


@dataclass(frozen=True, slots=True)
class AddPartitions(Command):
    """A topic that has ``first`` partitions gets more; ``replicas`` is their placement, as in ``AddTopic``."""

    KIND: ClassVar[str] = "add_partitions"
    topic_id: str
    first: int
    replicas: tuple[tuple[NodeId, ...], ...]
    max_partitions: int = 0
    """The bound that holds for the topic's owner. Feature level ``OWNERS``."""


@dataclass(frozen=True, slots=True)
class SetDraining(Command):
    """Whether a server is to lead nothing and to get no replicas."""

    KIND: ClassVar[str] = "set_draining"
    node: NodeId
    draining: bool


@dataclass(frozen=True, slots=True)
class RemoveServer(Command):
    """A replica server is none of the cluster any more; only if it is in that life, fenced, and holds nothing."""

    KIND: ClassVar[str] = "forget_server"
    node: NodeId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class SetLevel(Command):
    """The cluster is at this feature level from now on, if it was at a lower one."""

    KIND: ClassVar[str] = "set_level"
    to: int


@dataclass(frozen=True, slots=True)
class TakeProducerIds(Command):
    """Give away the next ``count`` producer ids. With ``count`` 0: none below ``first`` is given from now on."""

    KIND: ClassVar[str] = "take_producer_ids"
    count: int
    first: int = 0
    """None below this one; the active controller decides by its clock (``recovery.first_free_id``) and by what
    replica servers report. Feature level ``RECOVERY``."""


@dataclass(frozen=True, slots=True)
class NoteControllers(Command):
    """Who the controllers are and which is active, for the timeline."""

    KIND: ClassVar[str] = "note_controllers"
    active: NodeId
    term: int
    members: tuple[ControllerMember, ...]


@dataclass(frozen=True, slots=True)
class ForgetEvents(Command):
    """The events up to this number are in the topic ``__timeline`` for good."""

    KIND: ClassVar[str] = "forget_events"
    number: int


@dataclass(frozen=True, slots=True)
class ChangeAccess(Command):
    """Who may do what: what goes, by token id, rule and principal; then what comes, or takes its place."""

    KIND: ClassVar[str] = "change_access"
    drop_tokens: tuple[str, ...] = ()
    tokens: tuple[Token, ...] = ()
    drop_acls: tuple[Acl, ...] = ()
    acls: tuple[Acl, ...] = ()
    drop_quotas: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    drop_heirs: bool = False
    """Nobody inherits ``security`` any more. Feature level ``SECURITY``."""


@dataclass(frozen=True, slots=True)
class AddTicketKey(Command):
    """The cluster has a new key for tickets from now on, which signs; the one before still verifies. Feature level
    ``TICKETS``."""

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

COMMANDS = Schema(
    ValueError,
    lambda cls, field: issubclass(cls, Command) or is_later(field),
    ignores_unknown=False,
    bounds_integers=False,
)


def encode_command(command: Command) -> bytes:
    """The command as the data of a Raft entry; never empty (empty is Raft's no-op)."""
    return cbor2.dumps({"kind": command.KIND} | COMMANDS.to_map(command))


def decode_command(data: bytes) -> Command:
    """The command in a Raft entry. Raises ``ValueError`` for one that this release does not know: a controller
    must not skip what others apply."""
    values = cbor2.loads(data)
    kind = KINDS.get(values.pop("kind", ""))
    if kind is None:
        raise ValueError("the metadata log holds a command of a later release: upgrade this controller")
    return COMMANDS.from_map(kind, values)
