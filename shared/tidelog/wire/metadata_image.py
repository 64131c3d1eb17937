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
from dataclasses import asdict, replace
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
from tidelog.wire.codec import from_map, payload_view, to_map
from tidelog.wire.messages import MetadataUpdate


def encode_image(image: ClusterImage) -> bytes:
    """Encode the whole image, except for its index, which is a field of ``MetadataUpdate``."""
    servers = [to_map(server) for server in image.servers]
    topics, access = [_topic(t) for t in image.topics], to_map(image.access)
    level = {"level": image.level} if image.level != 1 else {}
    keys = {"ticket_keys": [to_map(key) for key in image.ticket_keys]} if image.ticket_keys else {}
    whole = {"cluster": image.cluster, "servers": servers, "topics": topics, "access": access, **level, **keys}
    return cbor2.dumps(whole)


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
    """Encode a change of the metadata: servers, topics, and partitions of other topics, as they are after the change;
    the ids of deleted topics; access control; the feature level; removed servers; and, for gateways only, the ticket
    keys."""
    delta: dict[str, Any] = {
        "servers": [to_map(server) for server in servers],
        "topics": [_topic(topic) for topic in topics],
        "partitions": [[*key, to_map(state)] for key, state in partitions],
        "deleted": list(deleted_ids),
    }
    if access is not None:
        delta["access"] = to_map(access)
    if level is not None:
        delta["level"] = level
    if forgotten:
        delta["forgotten"] = list(forgotten)
    if ticket_keys is not None:
        delta["ticket_keys"] = [to_map(key) for key in ticket_keys]
    return cbor2.dumps(delta)


def apply_update(image: ClusterImage, update: MetadataUpdate) -> ClusterImage:
    """Return the image after ``update``. A delta that the image already holds, because its index is not newer,
    changes nothing. Raises ``ProtocolError`` if the payload is malformed."""
    if not update.whole and update.index <= image.index:
        return image
    content = loads_strict(payload_view(update.payload))
    if type(content) is not dict:
        raise ProtocolError("metadata: not a map")
    servers = tuple([from_map(ServerState, server) for server in _items(content, "servers")])
    topics = tuple([_read_topic(topic) for topic in _items(content, "topics")])
    if update.whole:
        cluster = content.get("cluster")
        if type(cluster) is not str:
            raise ProtocolError("metadata: cluster is no text")
        access = from_map(Access, content.get("access", {}))
        level, keys = _level(content, 1), _ticket_keys(content, ())
        return ClusterImage(update.index, cluster, servers, topics, access, level, keys)
    deleted, forgotten = _items(content, "deleted"), _items(content, "forgotten") if "forgotten" in content else []
    if not all([type(name) is str for name in (*deleted, *forgotten)]):
        raise ProtocolError("metadata: deleted holds ids of topics, forgotten names of servers, which are texts")
    merged_servers = {server.node: server for server in (*image.servers, *servers)}
    merged_topics = {topic.topic_id: topic for topic in (*image.topics, *topics)}
    for topic_id, changed in _read_partitions(content).items():
        merged_topics[topic_id] = _with_partitions(merged_topics.get(topic_id), changed)
    for topic_id in deleted:
        merged_topics.pop(topic_id, None)
    for node in forgotten:
        merged_servers.pop(node, None)
    return replace(
        image,
        index=update.index,
        servers=tuple(merged_servers.values()),
        topics=tuple(merged_topics.values()),
        access=from_map(Access, content["access"]) if "access" in content else image.access,
        level=_level(content, image.level),
        ticket_keys=_ticket_keys(content, image.ticket_keys),
    )


def _level(content: dict[Any, Any], default: int) -> int:
    level = content.get("level", default)
    if type(level) is not int or level < 1:
        raise ProtocolError("metadata: level is no feature level")
    return level


def _ticket_keys(content: dict[Any, Any], default: tuple[TicketKey, ...]) -> tuple[TicketKey, ...]:
    if "ticket_keys" not in content:
        return default
    return tuple([from_map(TicketKey, key) for key in _items(content, "ticket_keys")])


def _topic(topic: TopicState) -> dict[str, Any]:
    return {
        "topic_id": topic.topic_id,
        "name": topic.name,
        "config": asdict(topic.config),
        "partitions": [to_map(partition) for partition in topic.partitions],
    }


def _read_topic(content: object) -> TopicState:
    if type(content) is not dict or type(content.get("topic_id")) is not str or type(content.get("name")) is not str:
        raise ProtocolError("metadata: a topic is a map with topic_id and name")
    config = from_map(TopicConfig, content.get("config"))
    partitions = tuple([from_map(PartitionState, partition) for partition in _items(content, "partitions")])
    return TopicState(content["topic_id"], content["name"], config, partitions)


def _read_partitions(content: dict[Any, Any]) -> dict[str, dict[int, PartitionState]]:
    """Return the changed partitions, by topic id and number."""
    changed: dict[str, dict[int, PartitionState]] = {}
    for item in _items(content, "partitions"):
        if type(item) is not list or [type(part) for part in item[:2]] != [str, int] or len(item) < 3:
            raise ProtocolError("metadata: a changed partition is [topic id, number, state]")
        changed.setdefault(item[0], {})[item[1]] = from_map(PartitionState, item[2])
    return changed


def _with_partitions(topic: TopicState | None, changed: dict[int, PartitionState]) -> TopicState:
    if topic is None or not all([0 <= number < len(topic.partitions) for number in changed]):
        raise ProtocolError("metadata: a partition changed that nobody has told of")
    partitions = list(topic.partitions)
    for number, state in changed.items():
        partitions[number] = state
    return replace(topic, partitions=tuple(partitions))


def _items(content: dict[Any, Any], key: str) -> list[Any]:
    items = content.get(key)
    if type(items) is not list:
        raise ProtocolError(f"metadata: {key} is no array")
    return items
