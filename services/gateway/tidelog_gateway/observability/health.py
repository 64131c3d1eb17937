"""Readiness of a gateway: it gets metadata updates and accepts new clients."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.shell import GatewayShell


def reasons_not_ready(shell: GatewayShell, drain: Drain) -> Sequence[str]:
    """Return why this gateway is not ready for clients, one sentence each: it is draining, or has no link to the
    active controller. Empty if it is ready."""
    reasons = []
    if drain.begun.is_set():
        reasons.append("this gateway is ending")
    if shell.controllers.link is None:
        reasons.append("there is no link to the active controller")
    return reasons
