"""Whether a controller is ready: it has a vote, and is the active one or knows which is."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_controller.controller import Controller


def reasons_not_ready(core: Controller) -> Sequence[str]:
    """List why this controller is not ready (``tidelog.runtime.health``)."""
    node = core.node_id
    reasons = []
    if core.stopping:
        reasons.append(f"{node} is ending")
    if core.founding.lost:
        reasons.append(f"{node} lost its store: tidelog controllers add {node} takes it in again")
    elif core.raft.rolled_back:
        reasons.append(f"{node} runs on an old copy of its disk: no vote until the active controller has refilled it")
    elif not core.raft.is_voter:
        reasons.append(f"{node} has no vote yet")
    if not core.active and core.raft.leader_id in (None, node):
        reasons.append("no active controller is known")
    if core.raft.disks_needed:
        reasons.append(f"nobody can be elected without the disks of {', '.join(core.raft.disks_needed)}")
    return reasons
