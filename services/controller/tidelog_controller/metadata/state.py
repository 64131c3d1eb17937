"""The metadata on which the controllers agree, and the outcome of one command."""

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
    """All metadata of the cluster after entry ``index`` of the log. An object never changes: applying a command makes
    a new one."""

    cluster: str
    index: int = 0
    servers: dict[NodeId, ServerState] = field(default_factory=dict)
    topics: dict[str, TopicState] = field(default_factory=dict)
    """Topics by topic id."""
    names: dict[str, str] = field(default_factory=dict)
    """Topic ids by topic name."""
    history: dict[str, tuple[tuple[HistoryEntry, ...], ...]] = field(default_factory=dict)
    """By topic id, then partition: the last ``HISTORY_LENGTH`` changes, oldest first."""
    next_producer_id: int = 1
    """The lowest producer id that was not given yet. It begins with 1: 0 in a batch header means that the producer is
    not idempotent."""
    earlier_lives: dict[NodeId, tuple[str, ...]] = field(default_factory=dict)
    """By server: the names of the last incarnations of its data directory before the present one, oldest first."""
    timeline: PendingTimeline = field(default_factory=PendingTimeline)
    """The events that are not in the topic ``__timeline`` for certain yet."""
    queue: dict[str, QueuedMove] = field(default_factory=dict)
    """Reassignments that wait for their turn, in that order, by ``QueuedMove.key``."""
    access: Access = field(default_factory=Access)
    level: int = 0
    """The feature level; 0 until the first command, which sets it."""
    ticket_keys: tuple[TicketKey, ...] = later(())
    """Keys of producer tickets, oldest first (``metadata/rules/ticket_keys.py``)."""
    owners: tuple[TopicOwner, ...] = later(())
    """The owners of those topics that have one (``metadata/rules/owners.py``)."""

    def image(self, *, secrets: bool = False) -> ClusterImage:
        """Return the part of the metadata that is sent to watchers. With ``secrets`` it includes the ticket keys,
        which only gateways may have."""
        servers, topics = tuple(self.servers.values()), tuple(self.topics.values())
        keys = self.ticket_keys if secrets else ()
        return ClusterImage(self.index, self.cluster, servers, topics, self.access, max(self.level, 1), keys)

    def partition(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the state of one partition; None if the topic or the partition does not exist."""
        topic = self.topics.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def is_live(self, node: NodeId) -> bool:
        """Return whether the server is registered and not fenced, so that it may lead and join an ISR; False for an
        unknown one."""
        server = self.servers.get(node)
        return server is not None and not server.fenced

    def is_incarnation(self, node: NodeId, broker_epoch: int) -> bool:
        """Return whether ``broker_epoch`` is that of the server's present incarnation, whether it is fenced or not.
        False for an unknown server."""
        server = self.servers.get(node)
        return server is not None and server.broker_epoch == broker_epoch


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of one command: the new state, the answer to the request behind the command, and what changed."""

    state: MetadataState
    answer: Message | TidelogError
    servers: tuple[ServerState, ...] = ()
    topics: tuple[TopicState, ...] = ()
    deleted_ids: tuple[str, ...] = ()
    changes: tuple[tuple[TopicPartition, HistoryEntry], ...] = ()
    """The history entries that were added, in order, each with its partition."""
    access: Access | None = None
    """All tokens, rules and quotas if any of them changed; otherwise None."""
    level: int | None = None
    """The new feature level if it was raised; otherwise None."""
    forgotten: tuple[NodeId, ...] = ()
    """Servers that were removed."""
    ticket_keys: tuple[TicketKey, ...] | None = None
    """All keys of tickets if any of them changed; otherwise None."""

    @property
    def visible(self) -> bool:
        """Return whether the command changed anything that is sent to watchers."""
        news = (self.servers, self.topics, self.deleted_ids, self.forgotten, self.ticket_keys)
        return any(news) or self.access is not None or self.level is not None
