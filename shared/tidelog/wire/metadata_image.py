"""The cluster's metadata as bytes: the payload of ``MetadataUpdate`` (``metadata-payload`` in ``tidelog.cddl``).

A whole image is a map ``{cluster, servers, topics, access, level, ticket_keys}``.

A delta is a map ``{servers, topics, partitions, deleted, access, level, forgotten, ticket_keys}``. It has, each in
full, the servers that changed, the topics that are new or have other settings, and the partitions that changed. So
the length of a delta depends on what changed, and not on the size of the topics.

Some keys are optional:

``access``        in a delta: all of it, if any of it changed
``level``         in a delta: the feature level, if it was raised; in an image: if it is not 1
``forgotten``     in a delta: servers that were removed from the cluster, if there are any
``ticket_keys``   in a delta: all keys, if any of them changed; in an image: if there are any. Sent to gateways only

Images and deltas are decoded as strictly as headers, but may be longer: an image of 10,000 partitions is about 1 MB.
All settings of a topic are written, so that a reader with other defaults sees the same topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, field, replace
from typing import Any

import cbor2

from tidelog.errors import ProtocolError
from tidelog.types import (
    Access,
    ClusterImage,
    NodeId,
    PartitionState,
    ServerState,
    TicketKey,
    TopicConfig,
    TopicPartition,
    TopicState,
)
from tidelog.wire.cbor import loads_strict
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import MetadataUpdate
from tidelog.wire.schema import Schema, malformed


@dataclass(frozen=True, slots=True)
class ImageTopic:
    """A topic as it is encoded in images and deltas, with all its settings and partitions."""

    topic_id: str
    name: str
    config: TopicConfig
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True)
class WholeImage:
    """The whole metadata of the cluster (servers, topics, access rules, feature level, ticket keys), as it is encoded
    in the payload of a ``MetadataUpdate``."""

    cluster: str
    servers: tuple[ServerState, ...]
    topics: tuple[ImageTopic, ...]
    access: Access = field(default_factory=Access)
    level: int = 1
    ticket_keys: tuple[TicketKey, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """A change of the metadata as it is encoded in the payload of a ``MetadataUpdate``. Servers, topics and
    partitions are as they are after the change. A field that is None has not changed and is left out."""

    servers: tuple[ServerState, ...]
    topics: tuple[ImageTopic, ...]
    partitions: tuple[tuple[str, int, PartitionState], ...]
    """Topic id, partition number and state of each changed partition."""
    deleted: tuple[str, ...]
    """Ids of the topics that were deleted."""
    access: Access | None = None
    level: int | None = None
    forgotten: tuple[NodeId, ...] = ()
    ticket_keys: tuple[TicketKey, ...] | None = None


def _may_be_left_out(cls: type, known: Field[Any]) -> bool:
    """Return whether a field is left out if it has its default. All settings of a topic are always written."""
    return cls is not TopicConfig and (cls, known.name) != (WholeImage, "access")


IMAGES = Schema(malformed, _may_be_left_out, ignores_unknown=True, bounds_integers=True)


def encode_image(image: ClusterImage) -> bytes:
    """Return the CBOR of a whole metadata image: the payload of a ``MetadataUpdate``. The image's index is not part
    of it, but a field of the message."""
    topics = _sent(image.topics)
    whole = WholeImage(image.cluster, image.servers, topics, image.access, image.level, image.ticket_keys)
    return cbor2.dumps(IMAGES.to_map(whole))


def encode_delta(
    servers: Sequence[ServerState],
    topics: Sequence[TopicState],
    deleted_ids: Sequence[str],
    partitions: Sequence[tuple[TopicPartition, PartitionState]] = (),
    access: Access | None = None,
    level: int | None = None,
    forgotten: Sequence[NodeId] = (),
    ticket_keys: Sequence[TicketKey] | None = None,
) -> bytes:
    """Return the CBOR of a change of the metadata: the payload of a ``MetadataUpdate``. ``servers``, ``topics`` and
    ``partitions`` (of other topics) have their state after the change. ``access``, ``level`` and ``ticket_keys`` are
    None if unchanged; ``ticket_keys`` are sent to gateways only. ``forgotten`` are the servers that were removed."""
    delta = ImageDelta(
        servers=tuple(servers),
        topics=_sent(topics),
        partitions=tuple([(*key, state) for key, state in partitions]),
        deleted=tuple(deleted_ids),
        access=access,
        level=level,
        forgotten=tuple(forgotten),
        ticket_keys=None if ticket_keys is None else tuple(ticket_keys),
    )
    return cbor2.dumps(IMAGES.to_map(delta))


def apply_update(image: ClusterImage, update: MetadataUpdate) -> ClusterImage:
    """Return a new metadata image: ``image`` with the changes of ``update``, or the whole image that ``update`` has.
    Return ``image`` itself if ``update`` is a delta that is not newer. Raises ``ProtocolError`` if the payload is
    malformed or changes a partition that the image does not have."""
    if not update.whole and update.index <= image.index:
        return image
    content = loads_strict(payload_view(update.payload))
    if update.whole:
        whole = IMAGES.from_map(WholeImage, content)
        _check_level(whole.level)
        topics = _received(whole.topics)
        return ClusterImage(
            update.index, whole.cluster, whole.servers, topics, whole.access, whole.level, whole.ticket_keys
        )
    delta = IMAGES.from_map(ImageDelta, content)
    if any(content.get(name, name) is None for name in ("access", "level", "ticket_keys")):
        raise ProtocolError("metadata: null stands where a change belongs")
    level = image.level if delta.level is None else delta.level
    _check_level(level)
    servers = {server.node: server for server in (*image.servers, *delta.servers)}
    merged = {topic.topic_id: topic for topic in (*image.topics, *_received(delta.topics))}
    changed: dict[str, dict[int, PartitionState]] = {}
    for topic_id, number, state in delta.partitions:
        changed.setdefault(topic_id, {})[number] = state
    for topic_id, states in changed.items():
        merged[topic_id] = _with_partitions(merged.get(topic_id), states)
    for topic_id in delta.deleted:
        merged.pop(topic_id, None)
    for node in delta.forgotten:
        servers.pop(node, None)
    return replace(
        image,
        index=update.index,
        servers=tuple(servers.values()),
        topics=tuple(merged.values()),
        access=image.access if delta.access is None else delta.access,
        level=level,
        ticket_keys=image.ticket_keys if delta.ticket_keys is None else delta.ticket_keys,
    )


def _check_level(level: int) -> None:
    if level < 1:
        raise ProtocolError("metadata: level is no feature level")


def _sent(topics: Sequence[TopicState]) -> tuple[ImageTopic, ...]:
    return tuple([ImageTopic(t.topic_id, t.name, t.config, t.partitions) for t in topics])


def _received(topics: Sequence[ImageTopic]) -> tuple[TopicState, ...]:
    return tuple([TopicState(t.topic_id, t.name, t.config, t.partitions) for t in topics])


def _with_partitions(topic: TopicState | None, changed: dict[int, PartitionState]) -> TopicState:
    """Return the topic with these partitions replaced. Raises ``ProtocolError`` if the topic or a partition is not
    known."""
    if topic is None or not all([0 <= number < len(topic.partitions) for number in changed]):
        raise ProtocolError("metadata: a partition changed that no update has created")
    partitions = list(topic.partitions)
    for number, state in changed.items():
        partitions[number] = state
    return replace(topic, partitions=tuple(partitions))
