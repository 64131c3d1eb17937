"""Strategies for property tests: any message of the protocol with values of the right types."""

from __future__ import annotations

import typing
from typing import Any

from hypothesis import strategies as st
from tidelog.errors import CODES
from tidelog.wire.fields import MAX_INT, is_payload, lowest_of, optional_of, typed_fields

CHOICES: dict[str, tuple[object, ...]] = {
    "Hello.role": ("client", "gateway", "replica", "controller"),
    "Welcome.role": ("client", "gateway", "replica", "controller"),
    "ProcessLevels.role": ("controller", "replica", "gateway"),
    "Play.act": ("", "kill", "pause", "cut", "heal", "record", "stop"),
    "PlayedNode.state": ("running", "paused", "cut", "killed"),
    "ProducePart.acks": (0, 1, 2),
    "ListOffset.at": ("earliest", "latest", "timestamp"),
    "ControllerInfo.role": ("leader", "follower", "candidate", "unknown"),
    "TopicConfig.flush": ("fsync", "interval", "os"),
    "TopicConfig.commit_rule": ("isr", "leader", "quorum"),
    "TopicConfig.cleanup": ("delete", "compact", "compact,delete"),
    "Read.consistency": ("eventual", "bounded", "linearizable"),
    "Metadata.consistency": ("linearizable", "eventual"),
    "Subscribe.consistency": ("eventual", "bounded", "linearizable"),
    "Subscribe.read_from": ("leader", "any"),
    "Read.isolation": ("committed", "uncommitted"),
    "ListOffset.isolation": ("committed", "uncommitted"),
    "Subscribe.isolation": ("committed", "uncommitted"),
    "JoinGroup.assignor": ("", "range", "sticky"),
    "DescribeGroupAnswer.assignor": ("", "range", "sticky"),
    "TransactionInfo.state": ("open", "prepared", "committing", "aborting", "committed", "aborted"),
    "DescribeGroupAnswer.state": ("empty", "moving", "stable"),
    "GroupInfo.state": ("empty", "moving", "stable"),
}
"""The values of fields that the protocol lists; the annotation only says ``str`` or ``int``."""


def instances(cls: type) -> st.SearchStrategy[Any]:
    """Return a strategy for instances of a message class, without payloads."""
    return st.builds(
        cls,
        **{
            field.name: values(hint, lowest_of(field), f"{cls.__name__}.{field.name}")
            for field, hint in typed_fields(cls)
            if not is_payload(hint)
        },
    )


def values(hint: Any, lowest: int, name: str) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a field."""
    if name in CHOICES:
        return st.sampled_from(CHOICES[name])
    inner = optional_of(hint)
    if inner is not None:
        return st.none() | values(inner, lowest, name)
    if hint is int:
        return st.integers(lowest, MAX_INT)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(typing.get_args(hint)[0], 0, ""), max_size=3).map(tuple)
    simple: dict[Any, st.SearchStrategy[Any]] = {bool: st.booleans(), str: st.text(max_size=10)}
    simple[bytes] = st.binary(max_size=10)
    simple[dict[str, str]] = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
    simple[dict[str, int]] = st.dictionaries(st.text(max_size=5), st.integers(0, MAX_INT), max_size=2)
    if hint is str and name == "ErrorInfo.code":
        return st.sampled_from(sorted(CODES))
    return simple[hint] if hint in simple else instances(hint)
