"""What the invariants see of one partition on one replica server; the only module that knows the server's insides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tidelog_replica.node import ReplicaNode
from tidelog_replica.partition.leader_replica import LeaderReplica
from tidelog_replica.partition.partition import Partition
from tidelog_replica.storage.log import Log

from tidelog.types import TopicConfig, TopicPartition


class View(NamedTuple):
    """The state of one partition on one server, after a step."""

    log: Log
    start: int
    end: int
    durable: int
    leads: bool
    leader_epoch: int
    """The leader epoch in which this server acts; -1 without a role."""
    epoch: int
    high_watermark: int
    maximal_isr: tuple[str, ...]
    """The maximal ISR; empty unless it leads."""
    isr: tuple[str, ...] = ()
    """The controller's ISR as the leader knows it; empty unless it leads."""
    replicas: tuple[str, ...] = ()
    """The replicas as the leader knows them; empty unless it leads."""
    in_quorum: bool = False
    """Whether it leads and the ISR has at least ``min_insync_replicas`` members; under commit rule ``quorum`` also a
    majority."""


def glances(node: ReplicaNode) -> Iterator[tuple[TopicPartition, tuple[Any, ...]]]:
    """Yield the fields of a ``View`` for all open partitions of a server that have not failed."""
    for key, partition in node.partitions.items():
        if partition.offline is None:
            yield key, glance(partition)


def glance(partition: Partition) -> tuple[Any, ...]:
    """Return the fields of a ``View`` as a tuple, cheap enough for every partition after every step."""
    log, role = partition.log, partition.role
    if isinstance(role, LeaderReplica):
        core = role.core
        isr, enough = core.isr, _is_enough(core.isr, core.replicas, partition.config)
        who = (True, core.leader_epoch, core.epoch, core.high_watermark, core.maximal_isr, isr, core.replicas, enough)
        return (log, log.start, log.end, log.durable, *who)
    epoch = -1 if role is None else role.core.leader_epoch
    return (log, log.start, log.end, log.durable, False, epoch, -1, partition.high_watermark, (), (), (), False)


def view(partition: Partition) -> View:
    """Return the ``View`` of a partition."""
    return View._make(glance(partition))


def last_words(partition: Partition, before: View) -> View | None:
    """Return the view of a partition that led before its last step and failed in it, with the HW and ISR that it had
    then; None if it has not failed."""
    state = partition.state
    if partition.offline is None:
        return None
    if state is None or state.leader_epoch != before.leader_epoch:
        return before
    enough = _is_enough(state.isr, state.replicas, partition.config)
    return before._replace(
        high_watermark=partition.high_watermark, isr=state.isr, replicas=state.replicas, in_quorum=enough
    )


def _is_enough(isr: tuple[str, ...], replicas: tuple[str, ...], config: TopicConfig) -> bool:
    majority = len(replicas) // 2 + 1 if config.commit_rule == "quorum" else 0
    return len(isr) >= config.min_insync_replicas and len(isr) >= majority
