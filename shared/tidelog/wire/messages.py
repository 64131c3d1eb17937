"""Every message of the protocol, as frozen dataclasses: the one place where their fields are said.

On the wire (``codec.py``, ``tidelog.cddl``) a message is one WebSocket binary message holding a CBOR sequence:
the header, a map with text keys, and, where ``payload`` is not empty, one byte string that never passes a CBOR
encoder or decoder. A field equal to its default is left out. Field types: ``int`` (0 <= x < 2**63, or -1 where
the default is -1), ``bool``, ``str``, ``bytes``, ``dict[str, str]``, ``X | None``, and tuples of these or of
*part* dataclasses (a part is a map inside the header).

- a request: ``{op, id, …}``; its answer: ``{re, …}`` or ``{re, error: {code, message, …}}``; the answer's class
  is the request's ``ANSWER``;
- a one-way message: ``{op, …}``.

A request with ``client`` and ``sequence`` (from 1) is done at most once: the same again gets the same answer.
``asker`` says who wants it, for the histories; a gateway sets it, whatever its client says.

Several parts share one payload: each part's ``size`` says how many bytes are its own, in the order of the parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.types import Acl, Buffer, Quota

ABSENT = "absent"
"""Metadata key of a field that may be left out on the wire but has no default in Python, since fields without a
default follow it. Its value is what a missing field means; the same value is not sent."""

Payload = Buffer | list[Buffer]
"""Bulk bytes of a message: one buffer, or several that are sent one after the other without joining them."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all. ``OP`` is the text of ``op``; answers have none."""

    OP: ClassVar[str] = ""
    ANSWER: ClassVar[type[Message] | None] = None
    """Class of the answer; None for one-way messages and answers."""


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """Part: an error as it travels; see ``tidelog.errors``."""

    code: str
    message: str = ""
    unknown_outcome: bool = False
    detail: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done(Message):
    """Answer: it was done; nothing more to say."""


# --- session ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome(Message):
    """Answer to hello: who answers, and its limits."""

    version: int
    cluster: str
    node: str
    role: str
    max_message_bytes: int
    max_in_flight: int
    nonce: bytes = b""
    """32 random bytes, where the services have a secret (``wire.proof``)."""
    proof: bytes = field(default=b"", repr=False)
    """That the sender has the secret."""


@dataclass(frozen=True, slots=True)
class Hello(Message):
    """First message of every connection. ``cluster`` "" means: whichever this is."""

    OP: ClassVar[str] = "hello"
    ANSWER: ClassVar[type[Message]] = Welcome
    version: int
    role: str
    """``client``, ``gateway``, ``replica`` or ``controller``: decides which ops are allowed."""
    node: str
    cluster: str = ""
    token: str = field(default="", repr=False)
    """A client's bearer token: says who it is. Never logged."""
    level_min: int = 1
    level_max: int = 1
    """The feature levels that a service understands (``tidelog.feature_levels``); of a client they say nothing."""
    nonce: bytes = b""
    """32 random bytes of a service that has a secret (``wire.proof``)."""
    url: str = ""
    """Likewise: where it connects to."""


@dataclass(frozen=True, slots=True)
class Prove(Message):
    """One-way, after welcome and before all else, where the services have a secret: the one that connects has it."""

    OP: ClassVar[str] = "prove"
    proof: bytes = field(repr=False)


# --- controller: replica servers -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered(Message):
    """Answer: this life's broker epoch; metadata below ``index`` must be ignored."""

    broker_epoch: int
    index: int
    session_timeout_ms: int
    cluster: str
    term: int = 0
    """Raft's, of the entry at ``index``."""


@dataclass(frozen=True, slots=True)
class Register(Message):
    """A replica server starts a life. ``cluster`` is what its data directory says, "" for a new one.

    ``lives`` are the names of the directory's last registered life and of those begun since, this one last: where
    the controller knows another last life, the directory was wiped, or restored from an old copy. ``clean``: nothing
    that was written is lost (shut down in order, or the operating system has run on since)."""

    OP: ClassVar[str] = "register"
    ANSWER: ClassVar[type[Message]] = Registered
    node: str
    url: str
    cluster: str = ""
    lives: tuple[str, ...] = ()
    clean: bool = False
    rack: str = ""
    index: int = 0
    """The newest metadata that the server has seen, in this life or before. Where the controllers do not have this
    entry, the metadata have gone back: ``METADATA_WENT_BACK``."""
    term: int = 0
    """Raft's, of that entry; 0: not known."""
    producer_id: int = 0
    """The highest producer id that the server knows from its logs; 0: none."""
    older_lives: tuple[str, ...] = ()
    """Lives before ``lives``, oldest first, that were registered: metadata that went back know one of them."""
    uncertain_lives: tuple[str, ...] = ()
    """The same, but something that was not flushed may have been lost since."""


@dataclass(frozen=True, slots=True)
class FollowerLag:
    """Part: how far a replica is behind its leader, over all partitions that the sender leads: in records, and how
    long ago it had everything of the worst one."""

    node: str
    lag_records: int = 0
    lag_ms: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """Keeps a session alive; also ends a fence that an expired session left behind. Every few seconds it tells how
    the followers lag. ``FENCED_BROKER_EPOCH`` means that a later life registered."""

    OP: ClassVar[str] = "heartbeat"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    lags: tuple[FollowerLag, ...] = ()
    index: int = 0
    """As in ``Register``."""
    term: int = 0
    """Likewise."""
    producer_id: int = 0
    """Likewise, every few seconds; else 0."""


@dataclass(frozen=True, slots=True)
class IsrMember:
    """Part: a proposed member of the ISR, in the life in which the leader saw it (KIP-903)."""

    node: str
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class AlterIsrAnswer(Message):
    """Answer: the partition's state after the change."""

    epoch: int
    isr: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AlterIsr(Message):
    """A leader proposes an ISR: compare-and-set on ``epoch`` (KIP-497). ``STALE_EPOCH`` when it has moved on."""

    OP: ClassVar[str] = "alter_isr"
    ANSWER: ClassVar[type[Message]] = AlterIsrAnswer
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    isr: tuple[IsrMember, ...]
    cause: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuspectPart:
    """Part: one partition whose leader a follower cannot reach."""

    topic_id: str
    partition: int
    epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLeader(Message):
    """An ISR member reports ``leader`` dead, for the partitions that it follows there."""

    OP: ClassVar[str] = "report_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    leader: str
    reason: str
    parts: tuple[SuspectPart, ...]


@dataclass(frozen=True, slots=True)
class HandOver(Message):
    """A server asks to be taken out of leadership and ISR of partitions, in favour of others (KIP-501; also an
    orderly shutdown). Where nobody else can take over all stays as it is; but not with ``lost``: what the server
    held of them is damaged, it leaves ISR and ELR in any case, and every part gets a newer epoch. ``lost`` is refused
    with ``STALE_EPOCH``, whole, where a part has moved on. With ``ready`` the server leaves nothing: it leads, has
    taken no batch since it heard of a successor, and that one has everything now and is to lead."""

    OP: ClassVar[str] = "hand_over"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    reason: str
    parts: tuple[SuspectPart, ...]
    lost: bool = False
    ready: bool = False


@dataclass(frozen=True, slots=True)
class SealPart:
    """Part: this replica takes nothing of leader epochs below ``leader_epoch`` any more; its log ends at ``end``,
    durably, and its last record is of ``last_epoch`` (-1: none)."""

    topic_id: str
    partition: int
    leader_epoch: int
    end: int
    last_epoch: int = -1
    highest_epoch: int = -1
    """The highest leader epoch that this replica knows somebody to have led in; -1: none."""
    could_follow: tuple[str, ...] = ()
    """Where this replica led in ``highest_epoch``, in this very process: the servers, itself included, of which one
    could be elected after it."""


@dataclass(frozen=True, slots=True)
class Seal(Message):
    """What an election needs to know with commit rule ``quorum``, and after a rescue with each. With a majority's
    seals the one with the greatest (``last_epoch``, ``end``) leads; after a rescue as ``docs/operations.md`` says."""

    OP: ClassVar[str] = "seal"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    parts: tuple[SealPart, ...]


@dataclass(frozen=True, slots=True)
class ConfirmLeader(Message):
    """A leader that no follower can vouch for asks, through Raft, whether it still leads in that leader epoch."""

    OP: ClassVar[str] = "confirm_leader"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ReportLoss(Message):
    """A replica had to cut the records ``start`` to ``end`` to agree with its leader, after an unclean election or
    under commit rule ``leader``. Kept in the partition's history. An earlier controller ignores ``possible``, and
    records all of them as committed."""

    OP: ClassVar[str] = "report_loss"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    start: int
    end: int
    possible: bool = False
    """Whether the records lay above every high watermark that the replica knew: then they may have been committed.
    If False, they were."""


@dataclass(frozen=True, slots=True)
class ReportDoubt(Message):
    """The log of a copy is whole up to some offset, and may or may not have held more (feature level 4). ``step``:

    ``doubtful``   whole batches follow a bad one at ``start``, the last ends at ``end``: where the sender is in ISR
                   or ELR it is treated as away from now on
    ``settled``    the sender is whole again up to ``start``; nobody in ISR and ELR holds the records from there to
                   ``end``, which may have been committed. It counts again
    ``given_up``   another leads; the sender cuts its log at ``start``, and is in neither ISR nor ELR

    Every step that is not refused begins a newer epoch. ``STALE_EPOCH`` where the partition has moved on."""

    OP: ClassVar[str] = "report_doubt"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int
    step: str
    start: int
    end: int


# --- controller: metadata --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Watch(Message):
    """Send all metadata now (one ``MetadataUpdate`` with the whole image), then every change, in commit order."""

    OP: ClassVar[str] = "watch"
    ANSWER: ClassVar[type[Message]] = Done


@dataclass(frozen=True, slots=True)
class MetadataUpdate(Message):
    """One-way, on a watch. ``payload`` is a CBOR map as in ``tidelog.cddl``: the whole image when ``whole``, else
    the servers and topics that changed (each entire) and the ids of deleted topics. ``wire.image`` applies it."""

    OP: ClassVar[str] = "metadata_update"
    index: int
    whole: bool = False
    payload: Payload = b""
    term: int = 0
    """Raft's, of the entry at ``index``; 0: an earlier release sent this."""


@dataclass(frozen=True, slots=True)
class TopicCreated(Message):
    """Answer: the topic is in the metadata; its partitions may need a moment to serve."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class CreateTopic(Message):
    """Create a topic. ``config`` maps names of ``TopicConfig`` fields to texts."""

    OP: ClassVar[str] = "create_topic"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: dict[str, str] = field(default_factory=dict)
    client: str = ""
    sequence: int = 0
    asker: str = ""
    principal: str = field(default="", repr=False)
    """Owner of the topic, as in ``JoinGroup``. The audit names it anyway."""


@dataclass(frozen=True, slots=True)
class DeleteTopic(Message):
    """Delete the topic of this name and all its data."""

    OP: ClassVar[str] = "delete_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class AlterTopic(Message):
    """Change settings of a topic; those that are not named stay."""

    OP: ClassVar[str] = "alter_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    config: dict[str, str]
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class AlterLearners(Message):
    """Set the learners of a partition: servers that copy its log without a part in commit rule or ISR."""

    OP: ClassVar[str] = "alter_learners"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    learners: tuple[str, ...] = ()
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class GrowTopic(Message):
    """Give a topic more partitions: ``partitions`` in all. Those that there are keep their records and numbers. New
    ones have as many replicas as most of those have."""

    OP: ClassVar[str] = "grow_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: int
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class SetReadOnly(Message):
    """Have the leaders of these partitions (none: all of the topic) take no batches, or take them again. Answered
    when it is so in the metadata: a leader that has not heard of it yet may take one more."""

    OP: ClassVar[str] = "set_read_only"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    read_only: bool = True
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class PauseTopic(Message):
    """Have the servers close the logs of these partitions (none: all of the topic), and open them again with
    ``pause`` false. Answered as ``SetReadOnly``; what is committed stays."""

    OP: ClassVar[str] = "pause_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    pause: bool = True
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class TransferLeader(Message):
    """Have ``server``, which is in sync, lead a partition ("": the preferred replica). Answered when it has begun:
    the leader takes no more batches, and hands over when the other has everything; or it is given up after a while,
    with nothing lost. The metadata and the history say which."""

    OP: ClassVar[str] = "transfer_leader"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    server: str = ""
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class Reassign(Message):
    """Have these servers be the replicas of a partition, the preferred leader first. Answered when it has begun: new
    ones copy as learners, join, and then the others go. Takes the place of a reassignment in progress."""

    OP: ClassVar[str] = "reassign"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    replicas: tuple[str, ...]
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class CancelReassignment(Message):
    """Go back to the replicas that there were when the reassignment began; one that waits for its turn is dropped."""

    OP: ClassVar[str] = "cancel_reassignment"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class DrainServer(Message):
    """Have a replica server lead nothing where another can, and get no new replicas, until ``drain`` is false."""

    OP: ClassVar[str] = "drain_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str
    drain: bool = True
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class ForgetServer(Message):
    """A replica server that is down and has no copy of anything is none of the cluster any more. From feature level 2
    on."""

    OP: ClassVar[str] = "forget_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class ProcessLevels:
    """Part: the feature levels that a process understands; ``level_max`` 0: it is not in touch with the active
    controller, and what it understands is not known."""

    role: str
    node: str
    level_min: int = 0
    level_max: int = 0


@dataclass(frozen=True, slots=True)
class FeaturesAnswer(Message):
    """Answer: the cluster's feature level, and what the controllers, replica servers and gateways understand."""

    level: int
    processes: tuple[ProcessLevels, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeFeatures(Message):
    """At which feature level is the cluster, and who understands which?"""

    OP: ClassVar[str] = "describe_features"
    ANSWER: ClassVar[type[Message]] = FeaturesAnswer


@dataclass(frozen=True, slots=True)
class RaiseLevel(Message):
    """Raise the cluster to this feature level, for good. ``UNSUPPORTED_LEVEL``, with the names of all processes that
    do not understand it or are not in touch; those that are ``left_behind`` may be down, and are refused until they
    understand it. ``dry_run``: only say whether it can be."""

    OP: ClassVar[str] = "raise_level"
    ANSWER: ClassVar[type[Message]] = Done
    level: int
    left_behind: tuple[str, ...] = ()
    dry_run: bool = False
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """Part: a reassignment that would even out the load, and why."""

    name: str
    partition: int
    replicas: tuple[str, ...]
    target: tuple[str, ...]
    reason: str = ""
    evidence: str = ""
    """The figures behind the reason, in words."""


@dataclass(frozen=True, slots=True)
class PartitionWeight:
    """Part: what one replica of a partition weighs."""

    name: str
    partition: int
    weight: int


@dataclass(frozen=True, slots=True)
class RebalancePlan(Message):
    """Answer: reassignments, none of them begun; and those of earlier rebalances that wait for their turn. ``unit``:
    the unit of the weights by which they were planned; "" if replicas were counted."""

    moves: tuple[PlannedMove, ...] = ()
    waiting: tuple[PlannedMove, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class PlanRebalance(Message):
    """Which reassignments would spread the replicas over racks and servers? Nothing is changed. ``empty_drained``:
    also away from servers that are being drained. ``weights``: what a replica of each partition weighs, in ``unit``
    (``B`` or ``B/s``); the plan evens out their sums, and a partition that is not named weighs 0. Without ``unit``
    each replica weighs 1."""

    OP: ClassVar[str] = "plan_rebalance"
    ANSWER: ClassVar[type[Message]] = RebalancePlan
    empty_drained: bool = False
    weights: tuple[PartitionWeight, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Rebalance(Message):
    """Do what ``plan_rebalance`` answers, a few reassignments per server at a time. Answered when all of it waits for
    its turn. ``cancel``: instead, nothing waits any more; what has begun goes on."""

    OP: ClassVar[str] = "rebalance"
    ANSWER: ClassVar[type[Message]] = Done
    empty_drained: bool = False
    cancel: bool = False
    client: str = ""
    sequence: int = 0
    asker: str = ""
    weights: tuple[PartitionWeight, ...] = ()
    """As in ``PlanRebalance``."""
    unit: str = ""
    """As in ``PlanRebalance``."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Part: one change of a partition and why it happened. ``time_ms`` is the active controller's wall clock."""

    time_ms: int
    epoch: int
    leader_epoch: int
    event: str
    cause: str
    leader: str = ""
    isr: tuple[str, ...] = ()
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistoryAnswer(Message):
    """Answer: the partition's changes, oldest first."""

    entries: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class History(Message):
    """Why is this partition as it is?"""

    OP: ClassVar[str] = "history"
    ANSWER: ClassVar[type[Message]] = HistoryAnswer
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ControllerInfo:
    """Part: a controller as its peers see it."""

    node: str
    url: str
    role: str
    """``leader`` (the active controller), ``follower``, ``candidate`` or ``unknown``."""
    voter: bool = True
    match: int = -1
    """Its log agrees with the active controller's up to this index; -1 where that is not known."""
    lost: bool = False
    """Its store is not the one that the configuration knows: without a vote until it is added again."""
    rolled_back: bool = False
    """Its disk is an old copy: its store lacks entries that it had acknowledged. It does not vote and does not count
    until the leader has refilled it."""
    refill_to: int = 0
    """It counts again when its log agrees with the leader's up to this index; 0 while no leader refills it."""


@dataclass(frozen=True, slots=True)
class QuorumAnswer(Message):
    """Answer: the Raft group as this controller sees it."""

    active: str
    term: int
    commit_index: int
    controllers: tuple[ControllerInfo, ...]
    gateways: tuple[str, ...] = ()
    """Names of the gateways that are connected to this controller; all are to the active one."""
    disks_needed: tuple[str, ...] = ()
    """Nobody can be elected without these controllers, with the disks that they had: others run on an old copy."""


@dataclass(frozen=True, slots=True)
class DescribeQuorum(Message):
    """Who is the active controller? Answered by any controller."""

    OP: ClassVar[str] = "describe_quorum"
    ANSWER: ClassVar[type[Message]] = QuorumAnswer


@dataclass(frozen=True, slots=True)
class AddController(Message):
    """Take a controller into the group: a learner first, a voter as soon as it has caught up. One that is there
    already with a lost store begins again. ``CHANGE_IN_PROGRESS`` while another change is; ``QUORUM_AT_RISK``
    where it would leave fewer live voters than a majority."""

    OP: ClassVar[str] = "add_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    url: str
    asker: str = ""


@dataclass(frozen=True, slots=True)
class RemoveController(Message):
    """Take a controller out of the group; errors as with ``AddController``."""

    OP: ClassVar[str] = "remove_controller"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    asker: str = ""


@dataclass(frozen=True, slots=True)
class ProducerIds(Message):
    """Answer: the ids first .. first + count - 1 are the asker's alone."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(Message):
    """Reserve producer ids, through Raft."""

    OP: ClassVar[str] = "allocate_producer_ids"
    ANSWER: ClassVar[type[Message]] = ProducerIds
    count: int
    client: str = ""
    sequence: int = 0
    share: int = -1
    """Not -1: all of these ids are to belong to this share (``tidelog.types.share_of``)."""


# --- controller: access (``tidelog.acl``) -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PutToken(Message):
    """There is a bearer token with this SHA-256 (hexadecimal) now; its owner has made it. ``lifetime_ms`` -1: it
    never expires. With ``replaces`` another token ends, in ``grace_ms``, and this one has the same principal."""

    OP: ClassVar[str] = "put_token"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str
    digest: str = field(repr=False)
    principal: str = ""
    lifetime_ms: int = -1
    replaces: str = ""
    grace_ms: int = 0
    client: str = ""
    sequence: int = 0
    spared: tuple[str, ...] = ()
    """Principals that the request must not be about: the superusers, where who asks is none. For gateways to say."""


@dataclass(frozen=True, slots=True)
class RevokeTokens(Message):
    """A token ends now, and with it the connections that were opened with it; or all of a principal."""

    OP: ClassVar[str] = "revoke_tokens"
    ANSWER: ClassVar[type[Message]] = Done
    token_id: str = ""
    principal: str = ""
    client: str = ""
    sequence: int = 0
    spared: tuple[str, ...] = ()
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class AlterAcls(Message):
    """These rules are gone, then those are there. A rule that is there or gone already is no fault. With
    ``drop_inherited`` nobody has ``security`` any more but by a rule that says so; since feature level 5."""

    OP: ClassVar[str] = "alter_acls"
    ANSWER: ClassVar[type[Message]] = Done
    add: tuple[Acl, ...] = ()
    remove: tuple[Acl, ...] = ()
    client: str = ""
    sequence: int = 0
    drop_inherited: bool = False


@dataclass(frozen=True, slots=True)
class AlterQuotas(Message):
    """What these principals may have from now on; all -1: whatever it likes."""

    OP: ClassVar[str] = "alter_quotas"
    ANSWER: ClassVar[type[Message]] = Done
    quotas: tuple[Quota, ...] = ()
    client: str = ""
    sequence: int = 0
    spared: tuple[str, ...] = ()
    """As in ``PutToken``."""


@dataclass(frozen=True, slots=True)
class RotateTicketKeys(Message):
    """The cluster is to sign producer tickets with a new key (``tidelog.tickets``). Tickets of the key before stay
    valid, those of older keys do not. Since feature level 4."""

    OP: ClassVar[str] = "rotate_ticket_keys"
    ANSWER: ClassVar[type[Message]] = Done
    client: str = ""
    sequence: int = 0
    asker: str = ""


@dataclass(frozen=True, slots=True)
class TokenInfo:
    """Part: a token, without anything that would help to use it. ``expires_ms`` -1: never."""

    token_id: str
    principal: str
    created_ms: int = 0
    expires_ms: int = -1


@dataclass(frozen=True, slots=True)
class AccessAnswer(Message):
    """Answer: who may do what."""

    tokens: tuple[TokenInfo, ...] = ()
    acls: tuple[Acl, ...] = ()
    quotas: tuple[Quota, ...] = ()
    heirs: tuple[str, ...] = ()
    """Principals, as rules name them, whose right to administer the cluster includes ``security``."""


@dataclass(frozen=True, slots=True)
class DescribeAccess(Message):
    """Who may do what, as the gateway knows it? ``authorization`` of the gateway decides whether it is heeded."""

    OP: ClassVar[str] = "describe_access"
    ANSWER: ClassVar[type[Message]] = AccessAnswer


@dataclass(frozen=True, slots=True)
class PrepareAudit(Message):
    """A gateway wants the topic ``__audit``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_audit"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    client: str = ""
    sequence: int = 0


# --- controller: Raft (one-way; the core correlates) -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acked:
    """Part: the store ``store`` of a controller has acknowledged the entry ``index`` of term ``term``, durably. A
    store that lacks it is an old copy."""

    store: str
    index: int
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    """Raft §5.2; ``pre`` is the pre-vote of Ongaro's dissertation §9.6. ``transfer``: the leader itself wants this
    election (dissertation §3.10), so having heard from it is no reason to refuse. ``store`` is the candidate's; it
    has heard of ``acked``, and all of that is committed."""

    OP: ClassVar[str] = "request_vote"
    term: int
    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False
    store: str = ""
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class Vote(Message):
    """Answer to a (pre-)vote request. ``store`` names the voter's storage: one that was lost and made anew has no
    vote until the configuration says so. ``rolled_back``: it is an old copy, and votes for nobody. ``acked`` as in
    ``RequestVote``: a new leader knows what a majority remembers."""

    OP: ClassVar[str] = "vote"
    term: int
    granted: bool
    pre: bool = False
    store: str = ""
    rolled_back: bool = False
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendEntries(Message):
    """Raft §5.3, also the heartbeat. ``payload``: CBOR array of [term, data], or [term, [data]] for a configuration.
    ``round`` numbers the leader's heartbeats: the answer names it (ReadIndex, dissertation §6.4). ``acked`` comes
    with heartbeats; what it says of the receiver's own store need not be committed. A receiver that has answered with
    ``refill_id`` counts again when its log agrees with the leader's up to ``refill_to``."""

    OP: ClassVar[str] = "append_entries"
    term: int
    prev_index: int
    prev_term: int
    commit: int
    payload: Payload = b""
    round: int = 0
    acked: tuple[Acked, ...] = ()
    refill_id: int = 0
    refill_to: int = 0


@dataclass(frozen=True, slots=True)
class AppendResult(Message):
    """``match`` is the last index known to agree when ``ok``, else a hint where to try next (with its term).
    ``store`` as in ``Vote``; ``round`` is that of the message answered. ``refill_id``: the store is an old copy, and
    this random number stands for its being refilled; 0: it is none."""

    OP: ClassVar[str] = "append_result"
    term: int
    ok: bool
    match: int
    hint_term: int = 0
    round: int = 0
    store: str = ""
    refill_id: int = 0


@dataclass(frozen=True, slots=True)
class ControllerMember:
    """Part: a controller in the configuration. ``store`` is its storage, "" while it is not known; only that store
    votes. Without ``voter`` it is a learner: it gets the log and counts for nothing."""

    node: str
    url: str = ""
    voter: bool = True
    store: str = ""


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """Raft §7: a follower needs entries that the leader has compacted away. ``payload`` is a piece of the snapshot
    from byte ``offset`` on, b"" in a heartbeat; the whole has ``size`` bytes and CRC-32 ``crc``, and stands for all
    up to ``index`` with ``last_term`` and the configuration ``members``. ``acked`` as in ``AppendEntries``."""

    OP: ClassVar[str] = "install_snapshot"
    term: int
    index: int
    last_term: int
    size: int
    crc: int
    members: tuple[ControllerMember, ...]
    offset: int = 0
    payload: Payload = b""
    round: int = 0
    acked: tuple[Acked, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotResult(Message):
    """The receiver has the snapshot of ``index`` up to byte ``offset``; once it has it all it says so with an
    ``AppendResult``. ``refill_id`` as there."""

    OP: ClassVar[str] = "snapshot_result"
    term: int
    index: int
    offset: int
    round: int = 0
    store: str = ""
    refill_id: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Leadership transfer (dissertation §3.10): the leader of ``term`` asks the receiver to stand at once."""

    OP: ClassVar[str] = "timeout_now"
    term: int


@dataclass(frozen=True, slots=True)
class Meet(Message):
    """Between controllers of which one has an empty store. While the cluster is founded each tells its ``store``,
    what it has heard of the receiver's (``yours``), and the names of all ``stores`` that it has heard of, its own
    included, by node. With ``founded`` the sender has been founded: ``yours`` is the receiver's store as its
    configuration says, and ``members`` the configuration at the beginning of its log."""

    OP: ClassVar[str] = "meet"
    store: str
    yours: str = ""
    founded: bool = False
    members: tuple[ControllerMember, ...] = ()
    stores: dict[str, str] = field(default_factory=dict)


# --- replica: between replica servers --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FetchPart:
    """Part: what a follower wants of one partition."""

    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    """Next offset wanted: the follower's log end."""
    last_epoch: int = -1
    """Leader epoch of the record before ``offset``; -1 when there is none."""
    durable: int = 0
    """Everything below it is on the follower's stable storage."""
    stamp: int = 0
    """The greatest that came with an answer or notice of this leader epoch: this fetch was sent after that."""
    readers: bool = False
    """Readers wait at the follower: it wants to be notified when the HW moves, too."""


@dataclass(frozen=True, slots=True)
class FetchedPart:
    """Part: what the leader has. Leader epoch and HW are there always, also without data."""

    topic_id: str
    partition: int
    leader_epoch: int
    high_watermark: int
    log_start: int
    size: int = 0
    diverging_epoch: int = -1
    """Not -1: the logs part ways; this epoch ends at ``diverging_end`` on the leader (KIP-279)."""
    diverging_end: int = -1
    confirmed_ms: int = -1
    """How long ago it was last proved that nobody else led: until then the HW misses nothing. -1: not yet."""
    stamp: int = 0
    """Says when this left; the follower's next fetch names it."""
    error: ErrorInfo | None = None
    compacted_to: int = 0
    """With data: below it every record is gone from the leader's log that a later one below it replaces or deletes;
    0 where that is not above the offset wanted."""
    tombstones_to: int = 0
    """With data: below it tombstones may be gone, too; 0 where that is not above the offset wanted."""


@dataclass(frozen=True, slots=True)
class NewsPart:
    """Part: of this partition the follower has not shown yet that it knows all that there is."""

    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class FetchAnswer(Message):
    """Answer: whole batches per part, from the offset wanted, one part's after the other's."""

    parts: tuple[FetchedPart, ...]
    news: tuple[NewsPart, ...] | None = None
    """All partitions that the follower has to ask for, where it wanted to know; None: it may be any."""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class Fetch(Message):
    """A follower asks a leader server for partitions that it follows there. Answered at once; a part without data
    leaves a data waiter behind, which ``notify`` wakes."""

    OP: ClassVar[str] = "fetch"
    ANSWER: ClassVar[type[Message]] = FetchAnswer
    node: str
    broker_epoch: int
    max_bytes: int
    parts: tuple[FetchPart, ...]
    news: bool = False
    """Which partitions are to be asked for besides? One question a while does for all that idle."""


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """One-way, an idle follower to the leader: so far goes its log now that it has written, or flushed, what came
    with a notify. Where there is more it is notified again. Since feature level 3."""

    OP: ClassVar[str] = "progress"
    node: str
    broker_epoch: int
    parts: tuple[FetchPart, ...]


@dataclass(frozen=True, slots=True)
class NotifyPart:
    """Part: this partition has news. With ``size`` it carries them: whole batches from where the follower's log
    ended when it last asked."""

    topic_id: str
    partition: int
    leader_epoch: int
    high_watermark: int = -1
    size: int = 0
    stamp: int = 0
    """As in ``FetchedPart``."""


@dataclass(frozen=True, slots=True)
class Notify(Message):
    """One-way, leader to an idle follower: fetch now."""

    OP: ClassVar[str] = "notify"
    parts: tuple[NotifyPart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class EpochPart:
    """Part: where does ``epoch`` end on the leader of ``leader_epoch``?"""

    topic_id: str
    partition: int
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """Part: the largest epoch <= the one asked that the leader knows, and where it ends; -1, -1 for none. Where that
    is below ``log_start`` the leader knows none any more: it only says that the one asked ended before there."""

    topic_id: str
    partition: int
    epoch: int = -1
    end_offset: int = -1
    log_start: int = 0
    error: ErrorInfo | None = None


@dataclass(frozen=True, slots=True)
class EpochOffsetAnswer(Message):
    """Answer, one part for each asked, in that order."""

    parts: tuple[EpochEnd, ...]


@dataclass(frozen=True, slots=True)
class EpochOffset(Message):
    """The LeaderEpoch offset request (KIP-101, KIP-279)."""

    OP: ClassVar[str] = "epoch_offset"
    ANSWER: ClassVar[type[Message]] = EpochOffsetAnswer
    node: str
    broker_epoch: int
    parts: tuple[EpochPart, ...]


@dataclass(frozen=True, slots=True)
class LogSnapshotAnswer(Message):
    """Answer: what a copy that begins at ``log_start`` cannot learn from the records: the leader epoch of the record
    before it, the hash chain up to it, and, as payload, the producers' state there."""

    log_start: int
    last_epoch: int = -1
    chain: bytes = b""
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class LogSnapshot(Message):
    """A follower whose log ends before the leader's begins starts its copy over."""

    OP: ClassVar[str] = "log_snapshot"
    ANSWER: ClassVar[type[Message]] = LogSnapshotAnswer
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class TailRead(Message):
    """Answer: whether the batch is whole there; if so, it and perhaps those behind it are the payload. ``leads``: the
    sender leads the partition in the leader epoch that was asked for."""

    found: bool
    leads: bool = False
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadTail(Message):
    """A replica whose log has a doubtful tail asks another replica, in whatever role, for the batch that begins at
    ``offset`` (feature level 4). ``epoch``: of which leader epoch it must be; -1: any. ``last_epoch``: of the record
    before it, so that both logs are the same up to there (log matching); -1: there is none."""

    OP: ClassVar[str] = "read_tail"
    ANSWER: ClassVar[type[Message]] = TailRead
    node: str
    broker_epoch: int
    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    epoch: int = -1
    last_epoch: int = -1


# --- data: client to gateway, and gateway to replica -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducePart:
    """Part: one batch. ``id`` is chosen by the sender, unique on its connection, and named by the ack."""

    id: int
    topic_id: str
    partition: int
    acks: int
    timeout_ms: int = field(metadata={ABSENT: -1})
    """How long the sender waits for the ack; 0: not at all. Absent or -1: for the gateway's ``ack_timeout_s``, which
    is 5 s unless set."""
    size: int
    leader_epoch: int = -1
    """-1 from a client; the gateway sets what it knows, and a leader of another epoch refuses."""
    expected_offset: int = -1
    """Not -1: append only if the log ends exactly here (``UNEXPECTED_OFFSET`` otherwise)."""
    transaction: str = ""
    """A batch of a transaction: the name of its application. Only with acks all."""


@dataclass(frozen=True, slots=True)
class Produce(Message):
    """One-way: batches, each acked by its own id in a later ``Produced``. Batches of one partition are appended
    and acked in the order in which they were sent."""

    OP: ClassVar[str] = "produce"
    parts: tuple[ProducePart, ...]
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ProduceAck:
    """Part: the fate of one batch. ``offset`` is the batch's base offset."""

    id: int
    offset: int = -1
    leader_epoch: int = -1
    durability: str = ""
    """What was reached: ``received``, ``leader`` or ``all``, then ``/`` and the flush policy: ``all/fsync``."""
    duplicate: bool = False
    """The batch had been written by an earlier try; ``offset`` is that one's."""
    error: ErrorInfo | None = None
    throttle_ms: int = 0
    """Of gateways to clients: for how long nothing more should be sent for this partition, since its leader is slow
    and the principal has used up its share. Batches that are sent in spite of that wait at the gateway."""


@dataclass(frozen=True, slots=True)
class Produced(Message):
    """One-way: acks, as many as are ready."""

    OP: ClassVar[str] = "produced"
    acks: tuple[ProduceAck, ...]


@dataclass(frozen=True, slots=True)
class ReadAnswer(Message):
    """Answer: whole batches that hold ``offset`` and what follows, below the HW. Empty when ``max_wait_ms`` passed
    without news. The first batch may begin before ``offset``: the reader skips."""

    leader_epoch: int
    high_watermark: int = -1
    """-1: a new leader does not know it yet; the payload is committed all the same. So it never goes back."""
    log_start: int = 0
    payload: Payload = b""
    compacted_to: int = 0
    """How far the log was compacted when this was read, for a replica that fills a hole: below it every record is
    gone that a later one below it replaces or deletes."""
    tombstones_to: int = 0
    """Below it tombstones may be gone, too."""
    needed: int = 0
    """Bytes of the first batch, where that is more than the ``hard_limit`` of the read allows."""


@dataclass(frozen=True, slots=True)
class Read(Message):
    """Read committed batches from a position (KIP-320: ``last_epoch`` is the epoch of the record before it).

    ``consistency``: ``eventual``: what is known to be committed; ``bounded``: everything committed until
    ``max_staleness_ms`` ago, or ``STALE_REPLICA``; ``linearizable``: everything committed before the request came;
    only a leader can tell. With ``any_replica`` a follower or learner may answer."""

    OP: ClassVar[str] = "read"
    ANSWER: ClassVar[type[Message]] = ReadAnswer
    topic_id: str
    partition: int
    offset: int
    last_epoch: int = -1
    leader_epoch: int = -1
    max_bytes: int = 1 << 20
    max_wait_ms: int = 0
    consistency: str = "eventual"
    max_staleness_ms: int = -1
    any_replica: bool = False
    isolation: str = "committed"
    """``committed``: below the last stable offset, and of an aborted transaction there is nothing but the offsets;
    ``uncommitted``: everything below the HW."""
    hard_limit: bool = False
    """The answer never has more than ``max_bytes``: it is empty where the first batch is larger. Otherwise a batch
    comes in any case. For gateways; a gateway ignores what its client says here."""


@dataclass(frozen=True, slots=True)
class StableOffset:
    """Part: the last stable offset of a partition, where it is below the HW: readers of what is committed wait there
    for a transaction."""

    offset: int
    producer_id: int
    """Of the transaction that begins there."""
    producer_epoch: int
    """-1: the marker of the transaction is in the leader's log, and not committed yet."""
    age_ms: int
    """For so long the leader has seen the last stable offset there. It counts anew in each leader epoch."""


@dataclass(frozen=True, slots=True)
class OffsetAnswer(Message):
    """Answer: an offset, and the epoch and timestamp (-1: none) of the record there or before it. ``stable``: told
    with the HW (``latest``, ``uncommitted``), where the last stable offset is below it."""

    offset: int
    leader_epoch: int = -1
    timestamp_ms: int = -1
    stable: StableOffset | None = None
    bytes: int = -1
    """Size of the log on the disk of the server that answers, without indexes; told with ``earliest``."""


@dataclass(frozen=True, slots=True)
class ListOffset(Message):
    """``at``: ``earliest`` (log start), ``latest`` (HW), ``timestamp`` (first record at or after ``timestamp_ms``,
    which has to be given; HW if there is none). A replica server answers a timestamp with the beginning of the first
    batch that has such a record; a gateway finds the record in it. The HW is told when the leader has proved that it
    still leads."""

    OP: ClassVar[str] = "list_offset"
    ANSWER: ClassVar[type[Message]] = OffsetAnswer
    topic_id: str
    partition: int
    at: str
    timestamp_ms: int = -1
    leader_epoch: int = -1
    isolation: str = "committed"
    """With ``committed`` the last stable offset takes the place of the HW."""


@dataclass(frozen=True, slots=True)
class DigestEntry:
    """Part: the hash chain of one log up to the last end of a batch at or below the ``offset`` asked."""

    offset: int
    boundary: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class EpochStart:
    """Part: a leader epoch, and the offset at which it begins in a log."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class DigestAnswer(Message):
    """Answer: this replica's log. Below ``comparable_from`` it was compacted: replicas may differ there. Everything
    below ``durable`` is on its stable storage, as the topic's flush policy has it. ``epochs``: the last 64.
    ``role_epoch``: the leader epoch in which this replica leads, or follows with a log that is known to agree with
    the leader's up to the high watermark; -1: there is none."""

    log_start: int
    log_end: int
    high_watermark: int
    leader_epoch: int = -1
    comparable_from: int = 0
    entries: tuple[DigestEntry, ...] = ()
    durable: int = -1
    epochs: tuple[EpochStart, ...] = ()
    role_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Digest(Message):
    """Hash chain of the log of replica server ``node`` at each of ``offsets``."""

    OP: ClassVar[str] = "digest"
    ANSWER: ClassVar[type[Message]] = DigestAnswer
    node: str
    topic_id: str
    partition: int
    offsets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyRead(Message):
    """Answer: batches of this replica's log, as they are on its disk. ``next_offset``: where to go on; the offset of
    the request if nothing is synced there, or the log changed while it was read. ``bytes``: the size of the batches.
    The payload holds the fingerprint of each batch (``tidelog.batch.fingerprints``)."""

    log_start: int
    high_watermark: int
    next_offset: int
    bytes: int
    payload: Payload = b""


@dataclass(frozen=True, slots=True)
class ReadCopy(Message):
    """Have replica server ``node`` read batches of its copy from its disk, checking each, from ``offset`` on and
    below its high watermark: about ``max_bytes`` (1 MiB at most), and a batch at least, if there is one."""

    OP: ClassVar[str] = "read_copy"
    ANSWER: ClassVar[type[Message]] = CopyRead
    node: str
    topic_id: str
    partition: int
    offset: int
    max_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class ScrubStatus(Message):
    """Answer: how far the scrubber of a replica server is. ``round``: the number of the round that began last, 0 for
    none; ``running``: it has not ended, or copies are still compared with those of other servers; ``left``:
    partitions that are still to be checked; ``segments`` and ``bytes``: checked in it so far."""

    round: int
    running: bool
    left: int = 0
    segments: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ScrubServer(Message):
    """How far the scrubber of replica server ``node`` is. With ``begin`` it first starts a new round, and gives up
    one that is under way."""

    OP: ClassVar[str] = "scrub_server"
    ANSWER: ClassVar[type[Message]] = ScrubStatus
    node: str
    begin: bool = False


@dataclass(frozen=True, slots=True)
class DifferingCopies:
    """Part: copies of a partition that differ. ``odd``: those that differ from a majority of the replicas; empty if
    no majority agrees. ``compared``: all that were compared. ``start`` to ``end``: the offsets between which the
    first difference lies. ``below``: it lies below ``start``, the log start of some replica, and no server repairs it
    by itself."""

    topic_id: str
    partition: int
    odd: tuple[str, ...]
    compared: tuple[str, ...]
    start: int
    end: int
    below: bool = False


@dataclass(frozen=True, slots=True)
class UnreadablePlace:
    """Part: a batch in a log that no reader can decode, though its CRC is right. ``producer_id`` is at most
    2^63 - 1, whatever the batch says."""

    topic_id: str
    partition: int
    base_offset: int
    last_offset: int
    producer_id: int


@dataclass(frozen=True, slots=True)
class MetricsAnswer(Message):
    """Answer: a server's metrics in Prometheus' text format (docs/metrics.md), its version, its wall clock (ms).
    ``unreadable``: of a replica server, where its scrubber saw batches that no reader can decode; the first few of
    each partition. ``differing``: partitions whose copies differ, with a copy on this server."""

    page: str
    version: str = ""
    time_ms: int = -1
    unreadable: tuple[UnreadablePlace, ...] = ()
    differing: tuple[DifferingCopies, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeMetrics(Message):
    """What the replica server ``node`` counts, or the active controller of that name; "": who is asked."""

    OP: ClassVar[str] = "describe_metrics"
    ANSWER: ClassVar[type[Message]] = MetricsAnswer
    node: str = ""


# --- gateway: clients ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Part: a partition as the gateway knows it. ``high_watermark``/``log_start`` are -1 unless asked for."""

    partition: int
    replicas: tuple[str, ...]
    isr: tuple[str, ...]
    leader: str
    leader_epoch: int
    epoch: int
    log_start: int = -1
    high_watermark: int = -1
    elr: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()
    successor: str = ""
    target: tuple[str, ...] = ()
    """A reassignment to these replicas is in progress."""
    read_only: bool = False
    paused: bool = False
    sealing: bool = False
    """Nobody leads before enough replicas have reported how far their logs reach."""
    doubtful: tuple[str, ...] = ()
    stable: StableOffset | None = None
    """Told with ``offsets``, where the last stable offset is below the HW."""
    bytes: int = -1
    """Told with ``offsets``: size of the leader's copy on its disk."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Part: a topic as the gateway knows it."""

    topic_id: str
    name: str
    config: dict[str, str]
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Part: a replica server as the gateway knows it."""

    node: str
    url: str
    broker_epoch: int
    fenced: bool
    rack: str = ""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class MetadataAnswer(Message):
    """Answer: the cluster. Topics asked for by name that do not exist are simply not there."""

    cluster: str
    index: int
    topics: tuple[TopicInfo, ...]
    servers: tuple[ServerInfo, ...]


@dataclass(frozen=True, slots=True)
class Metadata(Message):
    """What does the cluster look like? ``all_topics``: every topic; ``offsets``: ask the leaders for log start and
    HW too."""

    OP: ClassVar[str] = "metadata"
    ANSWER: ClassVar[type[Message]] = MetadataAnswer
    topics: tuple[str, ...] = ()
    all_topics: bool = False
    offsets: bool = False


@dataclass(frozen=True, slots=True)
class ProducerId(Message):
    """Answer: the ids ``producer_id`` to ``producer_id + count - 1`` are the asker's alone, at epoch 0. An older
    gateway gives one id, whatever is asked for."""

    producer_id: int
    count: int = 1
    ticket: str = field(default="", repr=False)
    """Shows that the asker may write under each of these ids; to be presented with ``UseProducer``. "": the cluster
    is below feature level 4, and needs none."""
    window: int = 0
    """Batches that may be in flight under an id on one partition; one more is refused with ``OVERLOADED``. 0: a
    gateway of an earlier release, which means ``PRODUCER_WINDOW``."""


@dataclass(frozen=True, slots=True)
class ProducerTicket(Message):
    """Answer: a ticket for the same ids, signed by the cluster's newest key. It takes the place of the one that was
    presented, and is valid for longer. "": the gateway needs none."""

    ticket: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class UseProducer(Message):
    """Present the ticket of a producer id. For the life of this connection, or until ``ReleaseProducer``, batches may
    be written under the id at that epoch. Produces that follow on the same connection need not wait for the answer.
    Raises ``INVALID_TICKET``, ``UNKNOWN_TICKET_KEY`` and ``OVERLOADED`` (too many ids on one connection)."""

    OP: ClassVar[str] = "use_producer"
    ANSWER: ClassVar[type[Message]] = ProducerTicket
    producer_id: int
    producer_epoch: int
    ticket: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReleaseProducer(Message):
    """Nothing more is written under this id on this connection. It makes room for another id."""

    OP: ClassVar[str] = "release_producer"
    ANSWER: ClassVar[type[Message]] = Done
    producer_id: int


@dataclass(frozen=True, slots=True)
class InitProducer(Message):
    """A producer wants to be idempotent; or a program with many producers wants ``count`` ids (1 to
    ``MAX_TASKS``)."""

    OP: ClassVar[str] = "init_producer"
    ANSWER: ClassVar[type[Message]] = ProducerId
    count: int = 1


@dataclass(frozen=True, slots=True)
class Subscribe(Message):
    """Push batches from a position, as long as there is credit (bytes). ``sub`` is the client's number for it."""

    OP: ClassVar[str] = "subscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int
    topic_id: str
    partition: int
    offset: int
    credit: int
    last_epoch: int = -1
    read_from: str = "leader"
    """``leader``, or ``any`` replica that the gateway thinks is best."""
    consistency: str = "eventual"
    max_staleness_ms: int = -1
    isolation: str = "committed"


@dataclass(frozen=True, slots=True)
class Credit(Message):
    """One-way: the client has room for so many more bytes."""

    OP: ClassVar[str] = "credit"
    sub: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Unsubscribe(Message):
    """Nothing is delivered on ``sub`` after the answer."""

    OP: ClassVar[str] = "unsubscribe"
    ANSWER: ClassVar[type[Message]] = Done
    sub: int


@dataclass(frozen=True, slots=True)
class Delivery(Message):
    """One-way: whole batches on a subscription; the first may begin before the position. With ``error`` it is the
    subscription's last message."""

    OP: ClassVar[str] = "delivery"
    sub: int
    high_watermark: int = -1
    error: ErrorInfo | None = None
    payload: Payload = b""


# --- consumer groups: client to gateway, and gateway to the group's coordinator ---------------------------


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
class PrepareGroups(Message):
    """A gateway wants the topic ``__groups``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_groups"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    client: str = ""
    sequence: int = 0


# --- transactions: client to gateway, and gateway to the application's coordinator -------------------------


@dataclass(frozen=True, slots=True)
class TransactionBegun(Message):
    """Answer: the transaction is open; its batches carry this producer id and epoch."""

    producer_id: int
    producer_epoch: int
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """Set by the gateway; see ``ProducerId``."""


@dataclass(frozen=True, slots=True)
class BeginTransaction(Message):
    """Open a transaction of the application ``app``, which has one at a time: an earlier one that is still open is
    aborted, and who wrote it fenced. ``owner`` is a random name of this transaction: the same again gets the same
    answer. With ``staged`` (a random name, too) it is a staged one: an application has many of these at a time."""

    OP: ClassVar[str] = "begin_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionBegun
    app: str
    owner: str
    staged: str = ""
    timeout_ms: int = 60_000
    """Not ended in this time it is aborted."""
    producer_id: int = 0
    """One that nobody has used: set by the gateway, taken where one is needed."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionEnded(Message):
    """Answer: how the transaction ended, which is decided for good. Without ``pending`` a commit is visible: every
    partition of it has the marker."""

    committed: bool = False
    pending: tuple[TopicShare, ...] = ()
    """Partitions that did not have the marker of the commit when the coordinator's ``visible_wait_ms`` was over:
    readers of what is committed wait there. The same request again waits again. A server of an earlier release never
    names any."""


@dataclass(frozen=True, slots=True)
class EndTransaction(Message):
    """Commit a transaction, or abort it. Aborting what is committed does nothing, and is answered with that;
    committing what is aborted is refused with ``TRANSACTION_ABORTED``."""

    OP: ClassVar[str] = "end_transaction"
    ANSWER: ClassVar[type[Message]] = TransactionEnded
    app: str
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class PrepareTransaction(Message):
    """A staged transaction has everything: it waits for ``commit_staged`` now, for as long as the coordinator's
    ``staged_timeout_ms``."""

    OP: ClassVar[str] = "prepare_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class StagedCommitted(Message):
    """Answer: the batch is committed. ``repeated``: it was before; what this request named is not part of it, and is
    aborted, unless it was named then."""

    repeated: bool = False
    pending: tuple[TopicShare, ...] = ()
    """As of ``end_transaction``: partitions without a marker of one of the transactions that were named."""


@dataclass(frozen=True, slots=True)
class CommitStaged(Message):
    """Commit all these staged transactions of an application together, as its batch number ``batch``; once. Where one
    of them is not prepared (any more) nothing is committed: ``UNKNOWN_TRANSACTION``. ``alone``: what else it has
    staged nobody will commit, so that is aborted then."""

    OP: ClassVar[str] = "commit_staged"
    ANSWER: ClassVar[type[Message]] = StagedCommitted
    app: str
    batch: int
    staged: tuple[str, ...]
    alone: bool = False
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class AbortStaged(Message):
    """Abort these staged transactions, but for those that are committed or not known."""

    OP: ClassVar[str] = "abort_staged"
    ANSWER: ClassVar[type[Message]] = Done
    app: str
    staged: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskProducer(Message):
    """Answer: the batches of the task carry this producer id and epoch, and its records this timestamp (ms since
    1970). From a coordinator to a gateway, ``producer_id`` 0 means that the application needs a block of ids: the
    gateway asks again with one."""

    producer_id: int
    producer_epoch: int
    timestamp_ms: int
    ticket: str = field(default="", repr=False)
    """As in ``ProducerId``: set by the gateway."""
    window: int = 0
    """Set by the gateway; see ``ProducerId``."""


@dataclass(frozen=True, slots=True)
class InitTaskProducer(Message):
    """Ask for the producer of task ``task`` of the numbered batch ``batch`` of the application ``app``. The answer
    is the same for every attempt of the task, as long as ``batch`` is the application's latest. A greater number
    begins the next batch: from then on leaders refuse what tasks of the one before still send (``FENCED_PRODUCER``).
    A smaller number is refused with ``FENCED_PRODUCER``. Since feature level 4."""

    OP: ClassVar[str] = "init_task_producer"
    ANSWER: ClassVar[type[Message]] = TaskProducer
    app: str
    owner: str
    """Name of the sequence of batches, as the id of a checkpoint. An application belongs to the owner that asked
    first; any other is refused with ``INVALID_TRANSACTION``."""
    batch: int
    task: int
    """0 to ``MAX_TASKS`` - 1."""
    first_id: int = 0
    """First of ``MAX_TASKS`` ids that nobody has used: set by the gateway when the coordinator has asked for them."""
    principal: str = ""
    """As in ``JoinGroup``."""


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """Part: a transaction. ``state``: ``open``, ``prepared`` (staged, and waits for its commit), ``committing``,
    ``aborting`` (decided, and leaders have yet to hear of it), ``committed`` or ``aborted``."""

    app: str
    state: str
    producer_id: int
    producer_epoch: int
    staged: str = ""
    """Of a staged one: its name."""
    partitions: int = 0
    """How many it has written to."""
    since_ms: int = -1
    """Wall clock: since when it is in that state."""
    until_ms: int = -1
    """Wall clock: then it is aborted, unless it has ended before."""
    parts: tuple[TopicShare, ...] = ()
    """The partitions; told with ``app`` only."""
    pending: tuple[TopicShare, ...] = ()
    """Of one that is decided: partitions that are not known to have its marker. Told with ``app`` only."""


@dataclass(frozen=True, slots=True)
class ListTransactionsAnswer(Message):
    """Answer: the transactions, by application."""

    transactions: tuple[TransactionInfo, ...] = ()
    batches: tuple[int, ...] = ()
    """With ``app``: the newest of the batches that it has committed of what it staged, rising."""
    more: bool = False
    """Without ``app``: there are others, of applications behind the last one."""


@dataclass(frozen=True, slots=True)
class ListTransactions(Message):
    """Which transactions are not at their end? With ``app``: those of that application, and its last one."""

    OP: ClassVar[str] = "list_transactions"
    ANSWER: ClassVar[type[Message]] = ListTransactionsAnswer
    app: str = ""
    partition: int = -1
    """Of ``__transactions``: from a gateway to its leader; -1: of all, or the one that ``app`` belongs to."""
    after: str = ""
    """Without ``app``: those of applications behind this one."""
    most: int = 0
    """Without ``app``: so many, and the others of the last application; 0: all."""


@dataclass(frozen=True, slots=True)
class SettleTransaction(Message):
    """End a *hanging* transaction in one partition: one that is open in the log, and that no coordinator has. Refused
    with ``INVALID_TRANSACTION`` while a coordinator has a transaction of that producer, and with
    ``UNKNOWN_TRANSACTION`` unless it is the one that keeps the last stable offset where it is. Since feature level
    4."""

    OP: ClassVar[str] = "settle_transaction"
    ANSWER: ClassVar[type[Message]] = Done
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class EnrolPartition(Message):
    """A leader asks the coordinator, before it takes the first batch of a transaction: is it open? The partition is
    part of it from then on."""

    OP: ClassVar[str] = "enrol_partition"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    app: str
    producer_id: int
    producer_epoch: int
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class WriteMarker(Message):
    """A coordinator tells a leader how a transaction has ended: it writes that into the log, once, and takes nothing
    of the transaction any more. Answered when the marker is committed."""

    OP: ClassVar[str] = "write_marker"
    ANSWER: ClassVar[type[Message]] = Done
    node: str
    topic_id: str
    partition: int
    producer_id: int
    producer_epoch: int
    commit: bool


@dataclass(frozen=True, slots=True)
class PrepareTransactions(Message):
    """A gateway wants the topic ``__transactions``; it is created where there is none yet."""

    OP: ClassVar[str] = "prepare_transactions"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    client: str = ""
    sequence: int = 0


# --- development -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlayedNode:
    """Part: a node that faults can be played with. ``state``: ``running``, ``paused``, ``cut`` or ``killed``."""

    node: str
    state: str


@dataclass(frozen=True, slots=True)
class PlayedMessage:
    """Part: what one service said to another. ``op``: that of the request, of an answer, too ("" where the request
    was not heard); ``words``: what it holds, for people, perhaps cut off."""

    time_ms: int
    sender: str
    receiver: str
    op: str = ""
    answer: bool = False
    words: str = ""


@dataclass(frozen=True, slots=True)
class PlayAnswer(Message):
    """Answer: the nodes, as they are now; to ``stop`` the messages that were heard, in order."""

    nodes: tuple[PlayedNode, ...] = ()
    messages: tuple[PlayedMessage, ...] = ()


@dataclass(frozen=True, slots=True)
class Play(Message):
    """Have something happen to a node of a cluster that ``tidelog dev`` runs; all others answer ``UNSUPPORTED``.

    ``act``: ``kill``: it ends at once; ``pause``: it is silent, its connections stay; ``cut``: its connections break
    and nobody reaches it; ``heal``: it runs and is reached again; "": nothing, the answer tells what is so. Without a
    node: ``record``: listen from now on to what the services say to each other; ``stop``: no more, and tell it."""

    OP: ClassVar[str] = "play"
    ANSWER: ClassVar[type[Message]] = PlayAnswer
    node: str = ""
    act: str = ""
