"""The names that methods of ``Log`` had before administration stood behind attributes.

They stay for one release: each emits ``DeprecationWarning`` and calls the method that took its place. Four
attributes have names that were methods, and can still be called: ``log.topics()``, ``log.groups()``,
``log.access()`` and ``log.transactions()``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

OLD_NAMES = {
    "create_topic": "topics.create",
    "delete_topic": "topics.delete",
    "configure_topic": "topics.alter",
    "grow_topic": "topics.grow",
    "describe": "topics.describe",
    "set_learners": "partitions.set_learners",
    "set_read_only": "partitions.set_read_only",
    "pause": "partitions.pause",
    "resume": "partitions.resume",
    "transfer": "partitions.transfer",
    "reassign": "partitions.reassign",
    "cancel_reassignment": "partitions.cancel_reassignment",
    "plan_rebalance": "partitions.plan_rebalance",
    "rebalance": "partitions.rebalance",
    "cancel_rebalance": "partitions.cancel_rebalance",
    "waiting_moves": "partitions.waiting_moves",
    "history": "partitions.history",
    "histories": "partitions.histories",
    "list_offset": "partitions.list_offset",
    "list_offsets": "partitions.list_offsets",
    "find_positions": "partitions.find_positions",
    "digest": "partitions.digest",
    "read_copy": "partitions.read_copy",
    "compare_replicas": "partitions.compare_replicas",
    "compare_copies": "partitions.compare_copies",
    "describe_group": "groups.describe",
    "group_progress": "groups.progress",
    "fetch_offsets": "groups.fetch_offsets",
    "reset_group": "groups.reset",
    "delete_group": "groups.delete",
    "describe_transactions": "transactions.describe",
    "abort_transaction": "transactions.abort",
    "settle_transaction": "transactions.settle",
    "create_token": "access.create_token",
    "rotate_token": "access.rotate_token",
    "revoke_token": "access.revoke_token",
    "revoke_tokens_of": "access.revoke_tokens_of",
    "rotate_ticket_keys": "access.rotate_ticket_keys",
    "alter_acls": "access.alter_acls",
    "drop_inherited_security": "access.drop_inherited_security",
    "alter_quotas": "access.alter_quotas",
    "status": "cluster.status",
    "quorum": "cluster.quorum",
    "metrics": "cluster.metrics",
    "add_controller": "cluster.add_controller",
    "remove_controller": "cluster.remove_controller",
    "features": "cluster.features",
    "raise_level": "cluster.raise_level",
    "forget_server": "cluster.forget_server",
    "drain": "cluster.drain_server",
    "scrub_server": "cluster.scrub_server",
    "play": "cluster.play",
    "played_messages": "cluster.played_messages",
}
"""Former name of a method of ``Log`` -> attribute and method that replace it."""
CALLED = {"topics": "list", "groups": "list", "access": "describe", "transactions": "list"}
"""Attributes that were methods of ``Log``, and the methods that replace them."""

L = TypeVar("L", bound=type)


def keep_old_names(log: L) -> L:
    """Add the old method names to class ``Log``, and return the class. Each of them emits ``DeprecationWarning`` and
    calls the new method."""
    for old, new in OLD_NAMES.items():
        setattr(log, old, _renamed(old, new, attrgetter(new)))
    return log


def keep_old_call(part: str) -> Callable[[L], L]:
    """Return a decorator for the class of the attribute ``part`` of ``Log``, a key of ``CALLED``. It makes the
    attribute callable, as the method of that name was: the call emits ``DeprecationWarning`` and calls the method
    that ``CALLED`` names."""

    def decorate(kind: L) -> L:
        method = CALLED[part]
        setattr(kind, "__call__", _renamed(part, f"{part}.{method}", attrgetter(method)))  # noqa: B010
        return kind

    return decorate


def _renamed(old: str, new: str, find: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a method that emits ``DeprecationWarning`` and calls the method that ``find`` returns for its object."""

    def call(self: Any, *args: Any, **details: Any) -> Any:
        warnings.warn(f"log.{old}() is now log.{new}()", DeprecationWarning, stacklevel=2)
        return find(self)(*args, **details)

    call.__name__ = old
    call.__doc__ = f"The old name of ``log.{new}``; it goes with the next release."
    return call
