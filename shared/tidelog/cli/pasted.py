"""The options that a command needs when Tidelog suggests it, so that users can paste it as it is printed."""

from __future__ import annotations

from tidelog.cli.connection_options import usual_gateways


def gateway_words(gateway: str) -> str:
    """Return `` --gateway URL`` for a command about the cluster of this gateway; "" if the command asks that gateway
    anyway. Raises ``ConfigError`` if the context in use cannot be read."""
    return "" if usual_gateways() == (gateway,) else f" --gateway {gateway}"
