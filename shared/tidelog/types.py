"""The words of the protocol as types: what every service and client shares.

The vocabulary is that of ``docs/architecture.md``. An *offset* is a record, an *index* a Raft entry, a
*position* a byte. Every bound is half-open: an "end" is the next offset. *epoch* is the partition's version
(+1 on every change of leader, ISR or replica set); *leader epoch* changes only with the leader and is stamped
on every batch; *broker epoch* is one life of one replica server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

NodeId = str
"""Name of a process of the cluster, unique in it: ``c1``, ``r2``, ``g1``."""

Buffer = bytes | bytearray | memoryview

TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What a topic name may be, besides ``.`` and ``..``. No path is ever made from it: folders use topic ids."""


class TopicPartition(NamedTuple):
    """Identifies one partition for ever: a topic created again under the same name has another id."""

    topic_id: str
    partition: int


class Acks(IntEnum):
    """When a produce is answered: at once, durable on the leader, or committed (see ``docs/architecture.md``)."""

    NONE = 0
    LEADER = 1
    ALL = 2


class Position(NamedTuple):
    """A place in a partition: the offset wanted next and the leader epoch of the record before it.

    ``leader_epoch`` is -1 where it is not known; no divergence is then noticed (KIP-320).
    """

    leader_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Settings of a topic, held in the metadata. On the wire and on the command line they are texts."""

    min_insync_replicas: int = 1
    """An ``all`` produce is refused and the HW frozen while the ISR is smaller than this."""
    flush: str = "fsync"
    """``fsync``: durable before it counts; ``interval``: every ``flush_interval_ms``; ``os``: when the OS likes."""
    flush_interval_ms: int = 1000
    segment_max_bytes: int = 64 << 20
    max_batch_bytes: int = 1 << 20
    replica_max_lag_ms: int = 10_000
    """A follower not caught up for this long leaves the ISR."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """What the controller's metadata says of one partition."""

    replicas: tuple[NodeId, ...]
    """In preferred order: the first is the preferred leader."""
    isr: tuple[NodeId, ...]
    leader: NodeId | None
    leader_epoch: int
    epoch: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """What the controller's metadata says of one topic."""

    topic_id: str
    name: str
    config: TopicConfig = field(default_factory=TopicConfig)
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the controller's metadata says of one replica server."""

    node: NodeId
    url: str
    broker_epoch: int
    fenced: bool
    """A fenced server leads nothing and joins no ISR: it has not registered yet, or its session ended."""


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole metadata as replica servers and gateways see it after Raft index ``index``."""

    index: int = 0
    cluster: str = ""
    servers: tuple[ServerState, ...] = ()
    topics: tuple[TopicState, ...] = ()
