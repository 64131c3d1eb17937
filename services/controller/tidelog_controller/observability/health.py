"""Whether a controller is ready: it has a vote, and is the active controller or knows which one is."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_controller.controller import Controller


def reasons_not_ready(core: Controller) -> Sequence[str]:
    """Return the reasons why this controller is not ready, as text for people; an empty list if it is
    (``tidelog.runtime.health``)."""
    node, raft = core.node_id, core.metadata_log.raft
    reasons = []
    if core.metadata_log.stopping:
        reasons.append(f"{node} is ending")
    if core.metadata_log.bootstrap.lost:
        reasons.append(f"{node} lost its store: tidelog controllers add {node} takes it in again")
    elif raft.rolled_back:
        reasons.append(f"{node} runs on an old copy of its disk: no vote until the active controller has refilled it")
    elif not raft.is_voter:
        reasons.append(f"{node} has no vote yet")
    if not core.active and raft.leader_id in (None, node):
        reasons.append("no active controller is known")
    if raft.disks_needed:
        reasons.append(f"nobody can be elected without the disks of {', '.join(raft.disks_needed)}")
    return reasons
