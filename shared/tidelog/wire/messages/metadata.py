"""The metadata of the cluster: watch them, and change topics, partitions, servers and feature levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import AdminRequest, Done, Message, Payload, SequencedRequest


@dataclass(frozen=True, slots=True)
class Watch(Message):
    """Request of a replica server or gateway to the active controller: follow the metadata. After the answer the
    controller sends the whole metadata as one ``MetadataUpdate``, then every change, in commit order."""

    OP: ClassVar[str] = "watch"
    ANSWER: ClassVar[type[Message]] = Done


@dataclass(frozen=True, slots=True)
class MetadataUpdate(Message):
    """One-way message of the active controller to a process that has sent ``Watch``: the whole metadata (``whole``),
    or one change of it. The payload is a CBOR map as in ``tidelog.cddl``; ``wire.metadata_image.apply_update``
    applies it to the receiver's image."""

    OP: ClassVar[str] = "metadata_update"
    index: int
    """Raft index of the entry that made the change, or up to which the image goes."""
    whole: bool = False
    """The payload is the whole image."""
    payload: Payload = b""
    term: int = 0
    """Raft term of the entry at ``index``; 0: the sender is of an earlier release."""


@dataclass(frozen=True, slots=True)
class TopicCreated(Message):
    """Answer to requests that create a topic: the metadata has the topic, with this id. Its partitions may need a
    moment more before they serve."""

    topic_id: str


@dataclass(frozen=True, slots=True)
class CreateTopic(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: create a topic with a number of
    partitions, and choose the servers of their replicas. The request is refused with ``TOPIC_EXISTS`` if there is a
    topic of that name."""

    OP: ClassVar[str] = "create_topic"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    name: str
    partitions: int = 1
    replication_factor: int = 1
    """Replicas of each partition."""
    config: dict[str, str] = field(default_factory=dict)
    """Settings of the topic as texts, by name of a ``TopicConfig`` field. Each setting that is absent has its
    default."""
    principal: str = field(default="", repr=False, kw_only=True)
    """Principal that owns the topic, as in ``JoinGroup``. An audit event names the principal in any case."""


@dataclass(frozen=True, slots=True)
class DeleteTopic(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: delete the topic of this name. Servers
    then delete all its data. The request is refused with ``UNKNOWN_TOPIC`` if there is no such topic, and with
    ``FORBIDDEN`` for the cluster's own topics."""

    OP: ClassVar[str] = "delete_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str


@dataclass(frozen=True, slots=True)
class AlterTopic(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: change the settings of a topic that
    ``config`` names. Other settings stay as they are. The request is refused with ``UNKNOWN_TOPIC`` if there is no
    such topic, or with ``INVALID_CONFIG`` for an invalid setting."""

    OP: ClassVar[str] = "alter_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class AlterLearners(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: replace the learners of a partition. A
    learner is a server that copies the log and counts for neither commit rule nor ISR. The request is refused with
    ``UNKNOWN_TOPIC`` if there is no such topic, or with ``INVALID_CONFIG`` for servers that cannot be learners."""

    OP: ClassVar[str] = "alter_learners"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    learners: tuple[str, ...] = ()
    """All learners that the partition is to have; empty: none."""


@dataclass(frozen=True, slots=True)
class GrowTopic(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: add partitions to a topic. The
    partitions that exist keep their records and numbers. Each new partition has as many replicas as most of them
    have. The request is refused with ``UNKNOWN_TOPIC`` if there is no such topic, with ``INVALID_CONFIG`` if the
    topic would not grow, and with ``INVALID_REPLICATION_FACTOR`` if too few servers are live."""

    OP: ClassVar[str] = "grow_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: int
    """How many partitions the topic is to have in all."""


@dataclass(frozen=True, slots=True)
class SetReadOnly(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: make partitions read-only, or writable
    again. The leader of a read-only partition accepts no batches. The answer comes when the metadata has the change;
    a leader that does not know of it yet may accept one more batch. Unknown topics and partitions are refused with
    ``UNKNOWN_TOPIC``."""

    OP: ClassVar[str] = "set_read_only"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    """Numbers of the partitions; empty: all partitions of the topic."""
    read_only: bool = True
    """False: make the partitions writable again."""


@dataclass(frozen=True, slots=True)
class PauseTopic(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: pause partitions, or resume them.
    Servers close the logs of a paused partition; committed records stay. The answer comes when the metadata has the
    change; servers may learn of it a little later. Unknown topics and partitions are refused with
    ``UNKNOWN_TOPIC``."""

    OP: ClassVar[str] = "pause_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    """Numbers of the partitions; empty: all partitions of the topic."""
    pause: bool = True
    """False: open the logs again."""


@dataclass(frozen=True, slots=True)
class TransferLeader(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: transfer the leadership of a partition
    to another server. The answer comes when the transfer has begun. From then on the leader accepts no more batches,
    and it hands over when the other server has everything. If that takes too long, the old leader goes on, and
    nothing is lost. A server that is not in the ISR is refused with ``NOT_IN_SYNC`` or ``NOT_REPLICA``."""

    OP: ClassVar[str] = "transfer_leader"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    server: str = ""
    """Server in the ISR that is to lead; "": the preferred replica."""


@dataclass(frozen=True, slots=True)
class Reassign(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: move a partition to other replicas. The
    answer comes when the reassignment has begun. The new replicas copy the log as learners and then join; after that
    the other replicas leave. A reassignment of the partition that is already in progress is replaced. Servers that
    cannot be replicas are refused with ``INVALID_REPLICAS``."""

    OP: ClassVar[str] = "reassign"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    replicas: tuple[str, ...]
    """Servers that are to be the replicas of the partition, the preferred leader first."""


@dataclass(frozen=True, slots=True)
class CancelReassignment(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: cancel the reassignment of a partition,
    which goes back to the replicas that it had before. A reassignment that still waits for its turn is dropped. The
    request is refused with ``NO_REASSIGNMENT`` if the partition has none."""

    OP: ClassVar[str] = "cancel_reassignment"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int


@dataclass(frozen=True, slots=True)
class DrainServer(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: drain a replica server, or end that. A
    server that is drained leads no partition that another server can lead, and gets new replicas only if there are
    too few others that run. The request is refused with ``UNKNOWN_SERVER`` if no such server is registered."""

    OP: ClassVar[str] = "drain_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str
    drain: bool = True
    """False: the server leads and gets replicas again."""


@dataclass(frozen=True, slots=True)
class ForgetServer(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: remove a replica server from the
    metadata. The request is refused with ``SERVER_IN_USE`` unless the server is down and holds no replica. Since
    feature level 2."""

    OP: ClassVar[str] = "forget_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str


@dataclass(frozen=True, slots=True)
class ProcessLevels:
    """Part of ``FeaturesAnswer``: the lowest and highest feature level that one process understands."""

    role: str
    """``controller``, ``replica`` or ``gateway``."""
    node: str
    level_min: int = 0
    level_max: int = 0
    """Highest level. 0: the process has no connection to the active controller, so its levels are not known."""


@dataclass(frozen=True, slots=True)
class FeaturesAnswer(Message):
    """Answer to ``DescribeFeatures``: the feature level of the cluster, and the levels that each controller, replica
    server and gateway understands."""

    level: int
    processes: tuple[ProcessLevels, ...] = ()


@dataclass(frozen=True, slots=True)
class DescribeFeatures(Message):
    """Request of a client, passed on by its gateway to the active controller: report the feature level of the
    cluster, and the levels that each process understands."""

    OP: ClassVar[str] = "describe_features"
    ANSWER: ClassVar[type[Message]] = FeaturesAnswer


@dataclass(frozen=True, slots=True)
class RaiseLevel(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: raise the feature level of the cluster,
    for good. The request is refused with ``UNSUPPORTED_LEVEL`` if any process does not understand the level or has no
    connection to the active controller; the error names these processes."""

    OP: ClassVar[str] = "raise_level"
    ANSWER: ClassVar[type[Message]] = Done
    level: int
    left_behind: tuple[str, ...] = ()
    """Names of processes that may be down. The cluster refuses them until they understand the level."""
    dry_run: bool = False
    """Check whether the level can be raised, and change nothing."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """Part of ``RebalancePlan``: one reassignment that would even out the load, from the present replicas of a
    partition to others."""

    name: str
    """Name of the topic."""
    partition: int
    replicas: tuple[str, ...]
    """Replicas of the partition now."""
    target: tuple[str, ...]
    """Replicas that the partition would have."""
    reason: str = ""
    """Why the reassignment is planned."""
    evidence: str = ""
    """The figures behind the reason, as text."""


@dataclass(frozen=True, slots=True)
class PartitionWeight:
    """Part of ``PlanRebalance`` and ``Rebalance``: how much one replica of a partition weighs when the load is evened
    out."""

    name: str
    """Name of the topic."""
    partition: int
    weight: int
    """Weight in the ``unit`` of the request."""


@dataclass(frozen=True, slots=True)
class RebalancePlan(Message):
    """Answer to ``PlanRebalance``: reassignments that would even out the load, none of which has begun, and those of
    earlier rebalances that still wait."""

    moves: tuple[PlannedMove, ...] = ()
    """The reassignments of the plan."""
    waiting: tuple[PlannedMove, ...] = ()
    """Reassignments of earlier rebalances that wait for their turn."""
    unit: str = ""
    """Unit of the weights that the plan evens out; "": it counts replicas."""


@dataclass(frozen=True, slots=True)
class PlanRebalance(Message):
    """Request of a client, passed on by its gateway to the active controller: plan reassignments that would spread
    the replicas evenly over racks and servers. Nothing is changed."""

    OP: ClassVar[str] = "plan_rebalance"
    ANSWER: ClassVar[type[Message]] = RebalancePlan
    empty_drained: bool = False
    """Also move replicas away from servers that are being drained."""
    weights: tuple[PartitionWeight, ...] = ()
    """Weight of a replica of each partition, in ``unit``. The plan evens out the sums of the weights. A partition
    that is not listed weighs 0."""
    unit: str = ""
    """``B`` or ``B/s``; "": each replica weighs 1."""


@dataclass(frozen=True, slots=True)
class Rebalance(AdminRequest):
    """Request of a client, passed on by its gateway to the active controller: carry out the reassignments that
    ``PlanRebalance`` would answer, a few per server at a time. The answer comes when all of them wait for their
    turn."""

    OP: ClassVar[str] = "rebalance"
    ANSWER: ClassVar[type[Message]] = Done
    empty_drained: bool = False
    cancel: bool = False
    """Start nothing. Instead, drop all reassignments that wait for their turn; those that have begun go on."""
    weights: tuple[PartitionWeight, ...] = field(default=(), kw_only=True)
    """As in ``PlanRebalance``."""
    unit: str = field(default="", kw_only=True)
    """As in ``PlanRebalance``."""


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Part of ``HistoryAnswer``: one change of a partition's leader, ISR or replicas, with its time and cause."""

    time_ms: int
    """Wall clock of the active controller, in milliseconds."""
    epoch: int
    """Epoch of the partition after the change."""
    leader_epoch: int
    """Leader epoch of the partition after the change."""
    event: str
    cause: str
    leader: str = ""
    """Leader after the change; "": none."""
    isr: tuple[str, ...] = ()
    """ISR after the change."""
    evidence: dict[str, str] = field(default_factory=dict)
    """The figures behind the cause, as texts, by name."""


@dataclass(frozen=True, slots=True)
class HistoryAnswer(Message):
    """Answer to ``History``: the latest changes of a partition, oldest first."""

    entries: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class History(Message):
    """Request of a client, passed on by its gateway to the active controller: describe the latest changes of a
    partition's leader, ISR and replicas, each with its cause."""

    OP: ClassVar[str] = "history"
    ANSWER: ClassVar[type[Message]] = HistoryAnswer
    topic_id: str
    partition: int


@dataclass(frozen=True, slots=True)
class ProducerIds(Message):
    """Answer to ``AllocateProducerIds``: the producer ids ``first`` to ``first + count - 1``, which the cluster gives
    to nobody else."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(SequencedRequest):
    """Request of a gateway to the active controller: reserve ``count`` consecutive producer ids for the gateway's
    clients."""

    OP: ClassVar[str] = "allocate_producer_ids"
    ANSWER: ClassVar[type[Message]] = ProducerIds
    count: int
    share: int = field(default=-1, kw_only=True)
    """Share that all of these ids are to belong to (``tidelog.types.share_of``); -1: any."""
