"""Checks of group requests that need no state of the group. Every function raises ``TidelogError`` or does
nothing."""

from __future__ import annotations

from tidelog.errors import refuse
from tidelog.types import TOPIC_NAME, TopicPartition
from tidelog.wire.messages import CommitOffsets, JoinGroup

from tidelog_replica.config import GroupSettings
from tidelog_replica.coordinators.groups.assignors import ASSIGNORS
from tidelog_replica.coordinators.groups.group import Topics

NAME_MAX_BYTES = 249
MAX_POSITIONS = 10_000
"""Most positions in one request to commit."""


def check_name(group: str) -> None:
    """Check that ``group`` is a valid group name: 1 to 249 of the characters that topic names may have. Raises
    ``INVALID_GROUP``."""
    if not TOPIC_NAME.fullmatch(group):
        raise refuse("INVALID_GROUP", f"{group[:50]!r} is no group name: use 1 to 249 of A-Z a-z 0-9 . _ -")


def _check_text(text: str, what: str) -> None:
    """Check that ``text`` has 1 to ``NAME_MAX_BYTES`` bytes and only printable characters. Raises ``INVALID_GROUP``,
    in whose text ``what`` names the field."""
    if not text or len(text.encode()) > NAME_MAX_BYTES or not text.isprintable():
        raise refuse("INVALID_GROUP", f"{what} is {text[:50]!r}: it must be 1 to {NAME_MAX_BYTES} printable bytes")


def check_join(asked: JoinGroup, limits: GroupSettings) -> None:
    """Check that the names, the subscription, the assignor and the time-outs of a request to join are valid and
    within the limits. Raises ``INVALID_GROUP``, or ``INVALID_TOPIC`` for a bad topic name."""
    check_name(asked.group)
    _check_text(asked.member, "member")
    if asked.instance:
        _check_text(asked.instance, "instance")
    if len(asked.node.encode()) > NAME_MAX_BYTES:
        raise refuse("INVALID_GROUP", f"node is longer than {NAME_MAX_BYTES} bytes")
    if not 1 <= len(asked.topics) <= limits.max_topics or len(set(asked.topics)) < len(asked.topics):
        raise refuse("INVALID_GROUP", f"a member subscribes to 1 to {limits.max_topics} topics, to each once")
    for name in asked.topics:
        if not TOPIC_NAME.fullmatch(name):
            raise refuse("INVALID_TOPIC", f"{name[:50]!r} is no topic name")
    if asked.assignor and asked.assignor not in ASSIGNORS:
        raise refuse(
            "INVALID_GROUP", f"assignor is {asked.assignor[:50]!r}: it must be one of {', '.join(ASSIGNORS)}"
        )
    least, most = limits.session_min_ms, limits.session_max_ms
    for what, value in (("session", asked.session_timeout_ms), ("rebalance", asked.rebalance_timeout_ms)):
        if not least <= value <= most:
            raise refuse("INVALID_GROUP", f"{what}_timeout_ms is {value}: it must be from {least} to {most}")


def check_commit(asked: CommitOffsets, limits: GroupSettings, topics: Topics) -> None:
    """Check that a commit has a valid group name and 1 to ``MAX_POSITIONS`` positions, of existing partitions, with
    metadata within the limit. Raises ``INVALID_GROUP`` or ``UNKNOWN_TOPIC``. Whether the member may commit the
    positions is not checked."""
    check_name(asked.group)
    if not 1 <= len(asked.positions) <= MAX_POSITIONS:
        raise refuse("INVALID_GROUP", f"1 to {MAX_POSITIONS} positions are committed at a time")
    for position in asked.positions:
        if len(position.metadata.encode()) > limits.max_metadata_bytes:
            raise refuse("INVALID_GROUP", f"metadata is longer than {limits.max_metadata_bytes} bytes")
        if not topics.has(TopicPartition(position.topic_id, position.partition)):
            raise refuse("UNKNOWN_TOPIC", f"no partition {position.topic_id}/{position.partition}")
