"""Whether a replica server is ready: it is registered at the active controller, all its logs are open, and it may
be given leadership."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_replica.shell import ReplicaShell


def reasons_not_ready(shell: ReplicaShell) -> Sequence[str]:
    """List why this replica server is not ready (``tidelog.runtime.health``)."""
    node, node_id = shell.node, shell.node_id
    reasons = []
    if shell.is_draining:
        reasons.append(f"{node_id} is ending")
    if shell.controllers.link is None:
        reasons.append("there is no link to the active controller")
    if node.broker_epoch < 0:
        reasons.append(f"{node_id} is not registered at the controllers")
    if node.assignment.unopened:
        reasons.append(f"{node.assignment.unopened} logs are being opened")
    if shell.drained:
        reasons.append(f"{node_id} is drained: tidelog servers resume {node_id} ends that")
    return reasons
