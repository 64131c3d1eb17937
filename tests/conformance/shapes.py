"""Conversions that the Python drivers share, between JSON and the library's objects."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from tidelog import Ack, ConsumerOptions, DeliveryFailed, Position, ProducerOptions, Record, TidelogError
from tidelog.types import Acl, Quota
from tidelog.wire.messages import AccessAnswer, DescribeGroupAnswer, TopicInfo

Json = dict[str, Any]
FEATURES = ["zstd", "lz4", "expected_offset", "discover", "groups", "access"]
REFUSALS = (TidelogError, TypeError, ValueError)
"""The exceptions that count as an answer of the library; any other is a bug of the driver and ends it."""


def bytes_of(text: str | None) -> bytes | None:
    """Decode bytes from base64."""
    return None if text is None else b64decode(text)


def text_of(data: bytes | None) -> str | None:
    """Encode bytes as base64."""
    return None if data is None else b64encode(data).decode()


def place_of(place: Any) -> Any:
    """Return the start or end of a consumer from JSON."""
    if not isinstance(place, dict):
        return place
    if "timestamp_ms" in place:
        return datetime.fromtimestamp(place["timestamp_ms"] / 1000, UTC)
    return {int(partition): Position(*at) for partition, at in place["positions"].items()}


def sending(record: Json) -> tuple[bytes | None, Json]:
    """Return the value of a record and the other arguments of ``send``."""
    more = {name: record[name] for name in ("partition", "timestamp_ms", "expected_offset") if name in record}
    if "key" in record:
        more["key"] = bytes_of(record["key"])
    if "headers" in record:
        more["headers"] = [(name, bytes_of(content)) for name, content in record["headers"]]
    return bytes_of(record["value"]), more


def connecting(command: Json) -> Json:
    """Return the arguments of ``connect``. A busy machine may be slow to answer a request."""
    given = {name: command[name] for name in ("urls", "connect_timeout_s", "token") if name in command}
    return {"request_timeout_s": 60.0, **given}


def creating(command: Json) -> Json:
    """Return the arguments of ``create_topic``."""
    return {
        name: command[name] for name in ("partitions", "replication_factor", "config", "exist_ok") if name in command
    }


def consuming(command: Json) -> Json:
    """Return the arguments of ``consume``."""
    given = {name: place_of(command[name]) for name in ("start", "end") if name in command}
    if "partitions" in command:
        given["partitions"] = command["partitions"]
    return given | {"options": ConsumerOptions(**command.get("options", {}))}


def joining(command: Json) -> Json:
    """Return the arguments of ``consume`` for a member of a group."""
    given = {"start": place_of(command["start"])} if "start" in command else {}
    return given | {"group": command["group"], "options": ConsumerOptions(**command.get("options", {}))}


def shares(command: Json) -> list[tuple[str, int]]:
    """Return the partitions of a member."""
    return [(topic, partition) for topic, partition in command["partitions"]]


def seeking(command: Json) -> list[Any]:
    """Return the arguments of a member's ``seek``."""
    if "at" in command:
        return [place_of(command["at"]), *shares(command)]
    return [{(topic, partition): Position(*at) for topic, partition, at in command["positions"]}]


def producing(command: Json) -> ProducerOptions:
    """Return the options of a producer."""
    return ProducerOptions(**command.get("options", {}))


def described(topic: TopicInfo) -> Json:
    """Return a topic as JSON."""
    names = ("partition", "leader", "leader_epoch", "isr", "replicas", "log_start", "high_watermark")
    partitions = [{name: getattr(partition, name) for name in names} for partition in topic.partitions]
    return {"name": topic.name, "topic_id": topic.topic_id, "partitions": partitions}


def acked(ack: Ack) -> Json:
    """Return an acknowledgement as JSON."""
    return {
        "partition": ack.partition,
        "offset": ack.offset,
        "leader_epoch": ack.leader_epoch,
        "durability": ack.durability,
    }


def received(record: Record) -> Json:
    """Return a record that was read as JSON."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": text_of(record.key),
        "value": text_of(record.value),
        "headers": [[name, text_of(content)] for name, content in record.headers],
    }


def positioned(positions: dict[int, Position]) -> Json:
    """Return the positions of a consumer as JSON."""
    return {"positions": {str(partition): list(at) for partition, at in positions.items()}}


def grouped(group: DescribeGroupAnswer) -> Json:
    """Return a group as JSON."""
    positions = [[at.topic_id, at.partition, at.offset, at.leader_epoch] for at in group.positions]
    members = len(group.members)
    return {"state": group.state, "coordinator": group.coordinator, "members": members, "positions": positions}


def rules(command: Json) -> Json:
    """Return the arguments of ``alter_acls``."""
    return {name: [Acl(**rule) for rule in command[name]] for name in ("add", "remove") if name in command}


def quotas(command: Json) -> list[Quota]:
    """Return the quotas of a command ``alter_quotas``."""
    return [Quota(**quota) for quota in command["quotas"]]


def permitted(access: AccessAnswer) -> Json:
    """Return tokens, rules and quotas as JSON."""
    tokens = [{"token_id": token.token_id, "principal": token.principal} for token in access.tokens]
    return {"tokens": tokens, "acls": [*map(asdict, access.acls)], "quotas": [*map(asdict, access.quotas)]}


def refused(error: Exception) -> Json:
    """Return an error as JSON."""
    if not isinstance(error, TidelogError):
        return {"code": "INVALID_ARGUMENT", "message": str(error), "retriable": False, "unknown_outcome": False}
    told: Json = {
        "code": error.code,
        "message": error.message,
        "retriable": error.retriable,
        "unknown_outcome": error.unknown_outcome,
        "detail": error.detail,
    }
    return told | ({"failed": error.failed} if isinstance(error, DeliveryFailed) else {})
