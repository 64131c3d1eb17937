"""What the invariants see of one partition on one replica server: the one place that knows the server's insides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidelog.types import TopicPartition
from tidelog_replica.log.log import Log
from tidelog_replica.node import ReplicaNode
from tidelog_replica.partition import Partition


@dataclass(frozen=True, slots=True)
class View:
    """One partition on one server, now."""

    log: Log
    leads: bool
    leader_epoch: int
    """The leader epoch in which this server acts; -1 when it has no role."""
    epoch: int
    high_watermark: int
    maximal_isr: tuple[str, ...]
    """Empty unless it leads."""
    isr: tuple[str, ...] = ()
    """The controller's ISR, as far as it knows; empty unless it leads."""
    replicas: tuple[str, ...] = ()
    """Likewise."""
    in_quorum: bool = False
    """It leads, and that ISR is not below ``min_insync_replicas``; under commit rule ``quorum`` it is a majority."""


def views(node: ReplicaNode) -> Iterator[tuple[TopicPartition, View]]:
    """All partitions that the server has opened and that have not failed: nobody vouches for the others."""
    for key, partition in node.partitions.items():
        if partition.offline is None:
            yield key, view(partition)


def view(partition: Partition) -> View:
    """See ``View``."""
    log, leading, following = partition.log, partition.leading, partition.following
    if leading is not None:
        leader = leading.core
        config, isr = partition.config, leader.isr
        majority = len(leader.replicas) // 2 + 1 if config.commit_rule == "quorum" else 0
        enough = len(isr) >= max(config.min_insync_replicas, majority)
        hw, replicas = leader.high_watermark, leader.replicas
        return View(log, True, leader.leader_epoch, leader.epoch, hw, leader.maximal_isr, isr, replicas, enough)
    if following is not None:
        return View(log, False, following.core.leader_epoch, -1, following.high_watermark, ())
    return View(log, False, -1, -1, partition.high_watermark, ())
