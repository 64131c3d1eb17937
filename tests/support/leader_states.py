"""A leader's side of replication for one partition with the replicas r1 (the leader), r2 and r3, without a log."""

from __future__ import annotations

from tidelog.types import PartitionState, ServerState
from tidelog_replica.replication.leader_state import LeaderState

LAG = 10.0
"""``max_lag_s`` of the topic."""


def three_servers(**broker_epochs: int) -> dict[str, ServerState]:
    known = {"r1": 1, "r2": 2, "r3": 3, **broker_epochs}
    return {node: ServerState(node, "", epoch, fenced=False) for node, epoch in known.items()}


def three_replicas(isr: str = "r1 r2 r3", epoch: int = 5) -> PartitionState:
    return PartitionState(("r1", "r2", "r3"), tuple(isr.split()), "r1", leader_epoch=2, epoch=epoch)


def leader_of_three(
    isr: str = "r1 r2 r3",
    *,
    log_end: int = 0,
    durable: int | None = None,
    high_watermark: int = 0,
    minimum: int = 2,
    known: dict[str, ServerState] | None = None,
) -> LeaderState:
    return LeaderState(
        "r1",
        1,
        three_replicas(isr),
        three_servers() if known is None else known,
        min_insync_replicas=minimum,
        max_lag_s=LAG,
        retry_s=0.5,
        high_watermark=high_watermark,
        log_end=log_end,
        durable=log_end if durable is None else durable,
        now=0.0,
    )
