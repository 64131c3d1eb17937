"""The description of the cluster for clients: its topics, partitions and servers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from tidelog.wire.messages.base import Message, StableOffset


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Part of ``TopicInfo``: leader, replicas and state of a partition as the gateway knows them, and its offsets if
    the request asked for them."""

    partition: int
    replicas: tuple[str, ...]
    """Replica servers, the preferred leader first."""
    isr: tuple[str, ...]
    leader: str
    """Server that leads the partition; "": none."""
    leader_epoch: int
    epoch: int
    """Epoch of the partition: one more with every change of leader, ISR or replicas."""
    log_start: int = -1
    """First offset that the log still has; -1 unless the request had ``offsets``."""
    high_watermark: int = -1
    """The high watermark; -1 unless the request had ``offsets``."""
    elr: tuple[str, ...] = ()
    """Eligible leader replicas (KIP-966)."""
    learners: tuple[str, ...] = ()
    """Servers that copy the log and count for neither commit rule nor ISR."""
    successor: str = ""
    """Server that leadership is being transferred to; "": none."""
    target: tuple[str, ...] = ()
    """Replicas that a reassignment in progress leads to; empty: none is in progress."""
    read_only: bool = False
    """The leader accepts no batches."""
    paused: bool = False
    """The servers have closed the log."""
    sealing: bool = False
    """The partition has no leader until enough replicas have reported how far their logs reach."""
    doubtful: tuple[str, ...] = ()
    """Members of ISR or ELR whose logs have a doubtful tail. They count as away until that is settled."""
    stable: StableOffset | None = None
    """The last stable offset, if it is below the high watermark. None unless the request had ``offsets``."""
    bytes: int = -1
    """Size of the leader's log on its disk; -1 unless the request had ``offsets``."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Part of ``MetadataAnswer``: a topic, with its settings and partitions, as the gateway knows it."""

    topic_id: str
    name: str
    config: dict[str, str]
    """Settings of the topic as texts, by name of a ``TopicConfig`` field."""
    partitions: tuple[PartitionInfo, ...]


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Part of ``MetadataAnswer``: a replica server, with its address and state, as the gateway knows it."""

    node: str
    url: str
    broker_epoch: int
    """Number of the server's present incarnation."""
    fenced: bool
    """The server leads nothing and joins no ISR, because it has not registered yet or its session has ended."""
    rack: str = ""
    """Rack of the server; "": none is set."""
    draining: bool = False
    """The server is being drained (``DrainServer``)."""


@dataclass(frozen=True, slots=True)
class GatewayInfo:
    """Part of ``MetadataAnswer`` and ``GatewaysAnswer``: a gateway, with the URL that it advertises."""

    node: str
    url: str
    """``ws://…`` or ``wss://…``, under which clients reach the gateway."""


@dataclass(frozen=True, slots=True)
class MetadataAnswer(Message):
    """Answer to ``Metadata``, from a gateway: topics and servers of the cluster as the gateway knows them, and its
    gateways. A topic that was asked for by name and does not exist is left out."""

    cluster: str
    """Id of the cluster."""
    index: int
    """Raft index of the newest change that the answer includes."""
    topics: tuple[TopicInfo, ...]
    servers: tuple[ServerInfo, ...]
    gateways: tuple[GatewayInfo, ...] = ()
    """Gateways that clients may go on at, 64 at most, the gateway that answers included; each was connected to the
    active controller a few seconds ago. Empty: none advertises a URL, or the gateway does not know."""


@dataclass(frozen=True, slots=True)
class Metadata(Message):
    """Request of a client to its gateway: describe the servers, topics and partitions of the cluster, as far as the
    client may see them."""

    OP: ClassVar[str] = "metadata"
    ANSWER: ClassVar[type[Message]] = MetadataAnswer
    topics: tuple[str, ...] = ()
    """Names of the topics to describe."""
    all_topics: bool = False
    """Describe every topic."""
    offsets: bool = False
    """Also ask the leaders for log start and high watermark."""
    consistency: str = "linearizable"
    """How fresh these offsets are. ``linearizable``: each leader proves that it still leads, so no offset is older
    than the request. ``eventual``: offsets as the leaders know them, which takes one request to each server instead
    of several for each partition; partitions without a leader are not waited for."""
    topic_ids: tuple[str, ...] = ()
    """Ids of more topics to describe."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Part of ``RefusalAnswer``: an error that a client has got, with the facts that decided."""

    error_id: str
    time_ms: int
    """Wall clock of the gateway, in milliseconds since 1970."""
    op: str
    """Operation that was refused."""
    code: str
    message: str = ""
    principal: str = ""
    """Principal that asked; "": it was not known yet."""
    remote: str = ""
    """Address of the client."""
    program: str = ""
    """Name that the client gave in its hello."""
    detail: dict[str, str] = field(default_factory=dict)
    """Facts of the error, by name."""
    facts: dict[str, str] = field(default_factory=dict)
    """What the request named, and what the gateway then knew of the partition: ``leader``, ``leader_epoch``, ``isr``,
    ``min_insync_replicas`` …"""


@dataclass(frozen=True, slots=True)
class RefusalAnswer(Message):
    """Answer to ``DescribeRefusal``: the refusal with that id. None: the gateway does not keep it, or it went to
    another principal and the client may not describe the cluster."""

    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class DescribeRefusal(Message):
    """Request of a client to the gateway that an error came from: describe the refusal with this id. A gateway keeps
    the last ones of each principal in memory, and shows them to that principal, and to those who may describe the
    cluster."""

    OP: ClassVar[str] = "describe_refusal"
    ANSWER: ClassVar[type[Message]] = RefusalAnswer
    error_id: str
