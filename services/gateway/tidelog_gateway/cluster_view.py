"""The cluster as this gateway knows it: the metadata image with the look-ups that routing needs.

The image only moves forward: an update with an older index than the one held (a watch that came up at a controller
which lags behind) is ignored, so a gateway never routes by an older leader epoch after a newer one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidelog.types import (
    ClusterImage,
    NodeId,
    PartitionState,
    ServerState,
    TopicPartition,
    TopicState,
    changed_partitions,
)
from tidelog.wire.messages import GatewayInfo


class ClusterView:
    """The newest metadata image that the gateway has, with indexes by server, topic id and topic name. It begins
    empty, and each ``update`` replaces it."""

    def __init__(self, rack: str = "") -> None:
        """``rack``: the rack of this gateway; "": none."""
        self._rack = rack
        self.image = ClusterImage()
        self.gateways: tuple[GatewayInfo, ...] = ()
        """The gateways that clients are told of, as the active controller has named them last."""
        self.servers: dict[NodeId, ServerState] = {}
        self._by_id: dict[str, TopicState] = {}
        self._by_name: dict[str, TopicState] = {}

    def update(self, image: ClusterImage) -> list[TopicPartition]:
        """Replace the image by a newer one. Return the partitions that were created, deleted or got another leader or
        leader epoch, in the order of the image, deleted ones last. An older image is ignored, and the list is empty.
        """
        if image.index < self.image.index:
            return []
        self.image = image
        self.servers = {server.node: server for server in image.servers}
        before = self._by_id
        self._by_id = {topic.topic_id: topic for topic in image.topics}
        self._by_name = {topic.name: topic for topic in image.topics}
        changed: list[TopicPartition] = []
        for topic in image.topics:
            old = before.get(topic.topic_id)
            if old is not topic:
                changed.extend(_moved(topic, old))
        for topic_id, old in before.items():
            if topic_id not in self._by_id:
                changed.extend(TopicPartition(topic_id, index) for index in range(len(old.partitions)))
        return changed

    def topic(self, topic_id: str) -> TopicState | None:
        """Return the topic with this id; None if there is none."""
        return self._by_id.get(topic_id)

    def validates(self, topic_id: str) -> bool:
        """Return whether the topic is known and its configuration has the gateway check the bodies of batches."""
        topic = self.topic(topic_id)
        return topic is not None and topic.config.validate_batches

    def topic_named(self, name: str) -> TopicState | None:
        """Return the topic that has this name now; None if there is none."""
        return self._by_name.get(name)

    def state(self, topic_id: str, partition: int) -> PartitionState | None:
        """Return the metadata of a partition; None if there is no such partition."""
        topic = self._by_id.get(topic_id)
        if topic is None or not 0 <= partition < len(topic.partitions):
            return None
        return topic.partitions[partition]

    def knows_better(self, topic_id: str, partition: int, code: str) -> bool:
        """Return whether a server's refusal ``code`` contradicts the metadata of the gateway, so that the server's
        metadata must be older: the server says that the topic is unknown, paused or read-only, and it is not. False
        for any other code, and if the gateway does not know the partition."""
        state = self.state(topic_id, partition)
        if state is None:
            return False
        expected = {"UNKNOWN_TOPIC": False, "TOPIC_PAUSED": state.paused, "TOPIC_READ_ONLY": state.read_only}
        return not expected.get(code, True)

    def has_leaders(self, topic_id: str) -> bool:
        """Return whether the topic is known and each of its partitions has a leader that is not fenced."""
        topic = self._by_id.get(topic_id)
        return topic is not None and all(self.is_live(state.leader) for state in topic.partitions)

    def copies(self, state: PartitionState) -> list[NodeId]:
        """Return the servers from which readers may read a partition instead of its leader: in-sync replicas and
        learners that are not fenced. If any of them, or the leader, is in the gateway's rack, those in other racks
        are left out. An empty list if only the leader may serve readers."""
        fit = [node for node in (*state.isr, *state.learners) if node != state.leader and self.is_live(node)]
        near = [node for node in fit if self._is_near(node)]
        return near if near or self._is_near(state.leader) else fit

    def _is_near(self, node: NodeId | None) -> bool:
        return bool(self._rack) and node in self.servers and self.servers[node].rack == self._rack

    def is_live(self, node: NodeId | None) -> bool:
        """Return whether the metadata contain this replica server and it is not fenced. False for None."""
        server = self.servers.get(node) if node is not None else None
        return server is not None and not server.fenced


def _moved(topic: TopicState, old: TopicState | None) -> Iterable[TopicPartition]:
    """Yield the partitions of a topic that are new, or have another leader or leader epoch than in ``old``, the
    topic's former state; None: the topic is new."""
    known = old.partitions if old is not None else ()
    for index in changed_partitions(old, topic):
        state, was = topic.partitions[index], known[index] if index < len(known) else None
        if was is None or was.leader != state.leader or was.leader_epoch != state.leader_epoch:
            yield TopicPartition(topic.topic_id, index)
