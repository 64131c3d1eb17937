"""Whether a controller is ready: it has a vote, and is the active one or knows which is."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_controller.core.controller import Controller


def why_not_ready(core: Controller) -> Sequence[str]:
    """See ``tidelog.health``."""
    node = core.node_id
    reasons = []
    if core.stopping:
        reasons.append(f"{node} is ending")
    if core.founding.lost:
        reasons.append(f"{node} lost its store: tidelog controllers add {node} takes it in again")
    elif not core.raft.is_voter:
        reasons.append(f"{node} has no vote yet")
    if not core.active and core.raft.leader_id in (None, node):
        reasons.append("no active controller is known")
    return reasons
