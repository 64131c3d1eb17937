"""Readiness of a gateway: it gets metadata updates and accepts new clients."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.shell import GatewayShell


def reasons_not_ready(shell: GatewayShell, drain: Drain) -> Sequence[str]:
    """List why this gateway is not ready (``tidelog.runtime.health``). A gateway does not listen before it has the
    metadata."""
    reasons = []
    if drain.begun.is_set():
        reasons.append("this gateway is ending")
    if shell.controllers.link is None:
        reasons.append("there is no link to the active controller")
    return reasons
