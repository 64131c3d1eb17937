"""What the controllers agree on, and what one command did to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.errors import TidelogError
from tidelog.types import (
    Access,
    ClusterImage,
    NodeId,
    PartitionState,
    ServerState,
    TicketKey,
    TopicOwner,
    TopicPartition,
    TopicState,
    later,
)
from tidelog.wire.messages import HistoryEntry, Message

from tidelog_controller.metadata.commands import QueuedMove
from tidelog_controller.metadata.timeline_state import PendingTimeline


@dataclass(frozen=True, slots=True)
class MetadataState:
    """Everything the cluster agrees on, after entry ``index``. Never changed in place: ``apply`` makes a new one."""

    cluster: str
    index: int = 0
    servers: dict[NodeId, ServerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    """By topic id."""
    names: dict[str, str] = field(default_factory=dict)
    """Topic ids by topic name."""
    history: dict[str, tuple[tuple[HistoryEntry, ...], ...]] = field(default_factory=dict)
    """By topic id, then partition: the last ``HISTORY_LENGTH`` changes, oldest first."""
    next_producer_id: int = 1
    """0 means "not idempotent" in a batch header."""
    earlier_lives: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)
    """By server: the last lives of its data directory before the present one, oldest first."""
    timeline: PendingTimeline = field(default_factory=PendingTimeline)
    """What happened, until it is in the topic ``__timeline``."""
    queue: dict[str, QueuedMove] = field(default_factory=dict)
    """By ``QueuedMove.key``: reassignments that wait for their turn, in that order."""
    access: Access = field(default_factory=Access)
    level: int = 0
    """Feature level; 0 until the first command, which says at which the cluster begins."""
    ticket_keys: tuple[TicketKey, ...] = later(())
    """Keys of producer tickets, oldest first (``ticket_keys.py``)."""
    owners: tuple[TopicOwner, ...] = later(())
    """Of the topics that have one (``owners.py``)."""

    def image(self, *, secrets: bool = False) -> ClusterImage:
        """What watchers see of it. ``secrets``: with the keys of tickets, which gateways need."""
        servers, topics = tuple(self.servers.values()), tuple(self.topics.values())
        keys = self.ticket_keys if secrets else ()
        return ClusterImage(self.index, self.cluster, servers, topics, self.access, max(self.level, 1), keys)

    def partition(self, topic_id: str, partition: int) -> PartitionState | None:
        """One partition, or None when there is no such topic or partition."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def is_live(self, node: NodeId) -> bool:
        """Registered and not fenced: may lead and may join an ISR."""
        server = self.servers.get(node)
        return server is not None and not server.fenced

    def in_life(self, node: NodeId, broker_epoch: int) -> bool:
        """Whether ``broker_epoch`` is the server's present life, fenced or not."""
        server = self.servers.get(node)
        return server is not None and server.broker_epoch == broker_epoch


@dataclass(frozen=True, slots=True)
class Applied:
    """What one command did: the new state, the answer to whoever asked, and what changed."""

    state: MetadataState
    answer: Message | TidelogError
    servers: tuple[ServerState, ...] = ()
    topics: tuple[TopicState, ...] = ()
    deleted_ids: tuple[str, ...] = ()
    changes: tuple[tuple[TopicPartition, HistoryEntry], ...] = ()
    """The history entries that were added, in order."""
    access: Access | None = None
    """All of it, where anything of it changed."""
    level: int | None = None
    """Where it was raised."""
    forgotten: tuple[NodeId, ...] = ()
    """Servers that are gone."""
    ticket_keys: tuple[TicketKey, ...] | None = None
    """All of them, where any of them changed."""

    @property
    def visible(self) -> bool:
        """Whether watchers must hear of it."""
        news = (self.servers, self.topics, self.deleted_ids, self.forgotten, self.ticket_keys)
        return any(news) or self.access is not None or self.level is not None
