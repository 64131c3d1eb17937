"""The options that commands need which Tidelog suggests, so that they can be pasted as they are printed."""

from __future__ import annotations

import os

from tidelog.cli.main import DEFAULT_GATEWAY


def gateway_words(gateway: str) -> str:
    """Return `` --gateway URL`` for a command about the cluster of this gateway; "" if the command asks that gateway
    anyway."""
    return "" if gateway == os.environ.get("TIDELOG_GATEWAY", DEFAULT_GATEWAY) else f" --gateway {gateway}"
