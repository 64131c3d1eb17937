"""Topics, the cluster and the positions of groups over HTTP: each request is one message of a client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import (
    CommitOffsets,
    CreateTopic,
    DeleteTopic,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupPosition,
    Metadata,
    MetadataAnswer,
    TopicCreated,
)

from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.parameters import choice, topic_name
from tidelog_gateway.http.record_bodies import parse_object
from tidelog_gateway.http.request_head import RequestHead
from tidelog_gateway.http.responses import HttpError, Response, ok
from tidelog_gateway.shell import GatewayShell

_TOPIC_FIELDS: dict[str, type] = {"name": str, "partitions": int, "replication_factor": int, "config": dict}
_POSITION_FIELDS: dict[str, type] = {
    "topic": str,
    "partition": int,
    "offset": int,
    "leader_epoch": int,
    "metadata": str,
}
MAX_POSITIONS = 1000
MAX_NUMBER = 2**31 - 1


class Administration:
    """The part of the port that answers requests about topics, groups and the cluster. There is one for each
    gateway."""

    def __init__(self, shell: GatewayShell) -> None:
        self._shell = shell

    async def describe_cluster(self, link: HttpLink) -> Response:
        """Return the cluster, its replica servers, and the names of its topics, as far as the client may see them."""
        found = await link.call(Metadata(all_topics=True), MetadataAnswer)
        servers = [asdict(server) for server in found.servers]
        topics = [topic.name for topic in found.topics]
        return ok({"cluster": found.cluster, "index": found.index, "servers": servers, "topics": topics})

    async def list_topics(self, link: HttpLink) -> Response:
        """Return the topics that the client may see, with their ids and numbers of partitions."""
        found = await link.call(Metadata(all_topics=True), MetadataAnswer)
        topics = [{"name": t.name, "topic_id": t.topic_id, "partitions": len(t.partitions)} for t in found.topics]
        return ok({"topics": topics})

    async def describe_topic(self, link: HttpLink, head: RequestHead, names: Mapping[str, str]) -> Response:
        """Return a topic with its settings and partitions; with ``offsets=true`` also what its leaders report."""
        name = topic_name(names)
        offsets = choice(head.query, "offsets", ("false", "true")) == "true"
        found = await link.call(Metadata(topics=(name,), offsets=offsets), MetadataAnswer)
        if not found.topics:
            raise refuse("UNKNOWN_TOPIC", f"there is no {name}")
        return ok(asdict(found.topics[0]))

    async def create_topic(self, link: HttpLink, body: bytes) -> Response:
        """Create a topic, and answer when it takes records."""
        given = parse_object(body, _TOPIC_FIELDS)
        if "name" not in given:
            raise HttpError(400, "the body names the topic: name")
        name = topic_name({"topic": given["name"]})
        config = given.get("config", {})
        if not all(isinstance(value, str) for value in config.values()):
            raise HttpError(400, "the settings in config are texts")
        partitions, copies = given.get("partitions", 1), given.get("replication_factor", 1)
        if not (1 <= partitions <= MAX_NUMBER and 1 <= copies <= MAX_NUMBER):
            raise HttpError(400, "partitions and replication_factor are numbers from 1 on")
        made = await link.call(CreateTopic(name, partitions, copies, config), TopicCreated)
        return ok({"name": name, "topic_id": made.topic_id}, 201, (("location", f"/v1/topics/{name}"),))

    async def delete_topic(self, link: HttpLink, names: Mapping[str, str]) -> Response:
        """Delete a topic with its records."""
        await link.call(DeleteTopic(topic_name(names)), Done)
        return Response(204, content_type="")

    async def get_positions(self, link: HttpLink, names: Mapping[str, str]) -> Response:
        """Return the committed positions of a group, in the topics that the client may see."""
        found = await link.call(FetchOffsets(names["group"]), FetchOffsetsAnswer)
        return ok({"group": names["group"], "positions": [self._position(at) for at in found.positions]})

    async def set_positions(self, link: HttpLink, names: Mapping[str, str], body: bytes) -> Response:
        """Commit positions of a group that has no members."""
        given = parse_object(body, {"positions": list})
        positions = given.get("positions", [])
        if not 1 <= len(positions) <= MAX_POSITIONS:
            raise HttpError(400, f"the body has 1 to {MAX_POSITIONS} positions")
        commit = CommitOffsets(names["group"], tuple(map(self._group_position, positions)))
        try:
            await link.call(commit, Done)
        except TidelogError as error:
            raise _unknown_topic() if error.code == "UNKNOWN_TOPIC" else error from None
        return Response(204, content_type="")

    def _position(self, at: GroupPosition) -> dict[str, Any]:
        """Return a committed position as a document."""
        topic = self._shell.cluster.topic(at.topic_id)
        return {
            "topic": "" if topic is None else topic.name,
            "partition": at.partition,
            "offset": at.offset,
            "leader_epoch": at.leader_epoch,
            "metadata": at.metadata,
            "committed_ms": at.committed_ms,
        }

    def _group_position(self, given: Any) -> GroupPosition:
        """Return the position that a document describes. Raises ``HttpError`` if it is malformed."""
        if not isinstance(given, dict) or not {"topic", "partition", "offset"} <= set(given) <= set(_POSITION_FIELDS):
            raise HttpError(400, "a position has topic, partition and offset, and may have leader_epoch and metadata")
        if any(type(value) is not _POSITION_FIELDS[name] for name, value in given.items()):
            raise HttpError(400, "topic and metadata of a position are texts, the others numbers")
        if not (0 <= given["partition"] <= MAX_NUMBER and 0 <= given["offset"] < 2**63):
            raise HttpError(400, "partition and offset of a position are not negative")
        if not -1 <= given.get("leader_epoch", -1) <= MAX_NUMBER:
            raise HttpError(400, "leader_epoch is -1, if it is not known, or a number")
        topic = self._shell.cluster.topic_named(topic_name({"topic": given["topic"]}))
        if topic is None:
            raise _unknown_topic()
        where = topic.topic_id, given["partition"], given["offset"]
        return GroupPosition(*where, given.get("leader_epoch", -1), given.get("metadata", ""))


def _unknown_topic() -> TidelogError:
    """Return the refusal of positions in a topic that does not exist, or that the client may not know of."""
    return refuse("UNKNOWN_TOPIC", "there is no such topic as one of the positions names")
