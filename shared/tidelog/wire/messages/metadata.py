"""The metadata of the cluster: watch them, describe them, and change topics, partitions, servers and levels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import AdminRequest, Done, Message, Payload, SequencedRequest
from tidelog.wire.messages.data import StableOffset


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
class CreateTopic(AdminRequest):
    """Create a topic. ``config`` maps names of ``TopicConfig`` fields to texts."""

    OP: ClassVar[str] = "create_topic"
    ANSWER: ClassVar[type[Message]] = TopicCreated
    name: str
    partitions: int = 1
    replication_factor: int = 1
    config: dict[str, str] = field(default_factory=dict)
    principal: str = field(default="", repr=False, kw_only=True)
    """Owner of the topic, as in ``JoinGroup``. The audit names it anyway."""


@dataclass(frozen=True, slots=True)
class DeleteTopic(AdminRequest):
    """Delete the topic of this name and all its data."""

    OP: ClassVar[str] = "delete_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str


@dataclass(frozen=True, slots=True)
class AlterTopic(AdminRequest):
    """Change settings of a topic; those that are not named stay."""

    OP: ClassVar[str] = "alter_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    config: dict[str, str]


@dataclass(frozen=True, slots=True)
class AlterLearners(AdminRequest):
    """Set the learners of a partition: servers that copy its log without a part in commit rule or ISR."""

    OP: ClassVar[str] = "alter_learners"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    learners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrowTopic(AdminRequest):
    """Give a topic more partitions: ``partitions`` in all. Those that there are keep their records and numbers. New
    ones have as many replicas as most of those have."""

    OP: ClassVar[str] = "grow_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: int


@dataclass(frozen=True, slots=True)
class SetReadOnly(AdminRequest):
    """Have the leaders of these partitions (none: all of the topic) take no batches, or take them again. Answered
    when it is so in the metadata: a leader that has not heard of it yet may take one more."""

    OP: ClassVar[str] = "set_read_only"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class PauseTopic(AdminRequest):
    """Have the servers close the logs of these partitions (none: all of the topic), and open them again with
    ``pause`` false. Answered as ``SetReadOnly``; what is committed stays."""

    OP: ClassVar[str] = "pause_topic"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partitions: tuple[int, ...] = ()
    pause: bool = True


@dataclass(frozen=True, slots=True)
class TransferLeader(AdminRequest):
    """Have ``server``, which is in sync, lead a partition ("": the preferred replica). Answered when it has begun:
    the leader takes no more batches, and hands over when the other has everything; or it is given up after a while,
    with nothing lost. The metadata and the history say which."""

    OP: ClassVar[str] = "transfer_leader"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    server: str = ""


@dataclass(frozen=True, slots=True)
class Reassign(AdminRequest):
    """Have these servers be the replicas of a partition, the preferred leader first. Answered when it has begun: new
    ones copy as learners, join, and then the others go. Takes the place of a reassignment in progress."""

    OP: ClassVar[str] = "reassign"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CancelReassignment(AdminRequest):
    """Go back to the replicas that there were when the reassignment began; one that waits for its turn is dropped."""

    OP: ClassVar[str] = "cancel_reassignment"
    ANSWER: ClassVar[type[Message]] = Done
    name: str
    partition: int


@dataclass(frozen=True, slots=True)
class DrainServer(AdminRequest):
    """Have a replica server lead nothing where another can, and get no new replicas, until ``drain`` is false."""

    OP: ClassVar[str] = "drain_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str
    drain: bool = True


@dataclass(frozen=True, slots=True)
class ForgetServer(AdminRequest):
    """A replica server that is down and has no copy of anything is none of the cluster any more. From feature level 2
    on."""

    OP: ClassVar[str] = "forget_server"
    ANSWER: ClassVar[type[Message]] = Done
    server: str


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
class RaiseLevel(AdminRequest):
    """Raise the cluster to this feature level, for good. ``UNSUPPORTED_LEVEL``, with the names of all processes that
    do not understand it or are not in touch; those that are ``left_behind`` may be down, and are refused until they
    understand it. ``dry_run``: only say whether it can be."""

    OP: ClassVar[str] = "raise_level"
    ANSWER: ClassVar[type[Message]] = Done
    level: int
    left_behind: tuple[str, ...] = ()
    dry_run: bool = False


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
class Rebalance(AdminRequest):
    """Do what ``plan_rebalance`` answers, a few reassignments per server at a time. Answered when all of it waits for
    its turn. ``cancel``: instead, nothing waits any more; what has begun goes on."""

    OP: ClassVar[str] = "rebalance"
    ANSWER: ClassVar[type[Message]] = Done
    empty_drained: bool = False
    cancel: bool = False
    weights: tuple[PartitionWeight, ...] = field(default=(), kw_only=True)
    """As in ``PlanRebalance``."""
    unit: str = field(default="", kw_only=True)
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
class ProducerIds(Message):
    """Answer: the ids first .. first + count - 1 are the asker's alone."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class AllocateProducerIds(SequencedRequest):
    """Reserve producer ids, through Raft."""

    OP: ClassVar[str] = "allocate_producer_ids"
    ANSWER: ClassVar[type[Message]] = ProducerIds
    count: int
    share: int = field(default=-1, kw_only=True)
    """Not -1: all of these ids are to belong to this share (``tidelog.types.share_of``)."""


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
