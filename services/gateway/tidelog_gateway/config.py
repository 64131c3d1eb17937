"""Configuration of a gateway."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidelog.errors import ConfigError

from tidelog_gateway.core.settings import RouterSettings, SubscriptionSettings

_ROUTER = RouterSettings()
_SUBSCRIPTIONS = SubscriptionSettings()


def _setting(help: str, default: Any) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Read once, at the start. Raises ``ConfigError`` that names all faults."""

    node: str = _setting("Name of this gateway, unique in the cluster.", "g1")
    cluster: str = _setting("Id of the cluster; empty: whichever the controllers belong to.", "")
    host: str = _setting("Address to listen on.", "127.0.0.1")
    port: int = _setting("Port to listen on; 0 takes a free one.", 9292)
    controllers: tuple[str, ...] = _setting("URLs of the controllers.", ("ws://127.0.0.1:9192",))
    client_max_in_flight: int = _setting("Batches that a client is told to have in flight at most.", 1024)
    client_max_bytes: int = _setting("Bytes held for one client until they are acked.", _ROUTER.client_max_bytes)
    total_max_bytes: int = _setting("Bytes held for all clients until they are acked.", _ROUTER.total_max_bytes)
    server_max_bytes: int = _setting("Bytes in flight to one replica server.", _ROUTER.server_max_bytes)
    client_max_subscriptions: int = _setting(
        "Open subscriptions of one client.", _SUBSCRIPTIONS.client_max_subscriptions
    )
    read_max_wait_ms: int = _setting(
        "How long a subscription's read waits at the end of the log.", _SUBSCRIPTIONS.read_max_wait_ms
    )
    log_json: bool | None = _setting("Log as JSON; unset: unless on a terminal.", None)

    def __post_init__(self) -> None:
        faults = []
        if not self.node:
            faults.append("node: must not be empty")
        if not 0 <= self.port < 65536:
            faults.append(f"port = {self.port}: must be from 0 to 65535")
        if not self.controllers:
            faults.append("controllers: name at least one")
        for name in ("client_max_in_flight", "client_max_subscriptions", "read_max_wait_ms"):
            if getattr(self, name) < 1:
                faults.append(f"{name} = {getattr(self, name)}: must be at least 1")
        for name in ("client_max_bytes", "total_max_bytes", "server_max_bytes"):
            if getattr(self, name) < 2 << 20:
                faults.append(f"{name} = {getattr(self, name)}: must hold two of the largest batches (2 MiB)")
        if self.server_max_bytes > 32 << 20:
            faults.append(f"server_max_bytes = {self.server_max_bytes}: a link holds at most 32 MiB")
        if faults:
            raise ConfigError("\n".join(faults))

    @property
    def router(self) -> RouterSettings:
        """The router's part of it."""
        return RouterSettings(
            server_max_bytes=self.server_max_bytes,
            client_max_bytes=self.client_max_bytes,
            total_max_bytes=self.total_max_bytes,
        )

    @property
    def subscriptions(self) -> SubscriptionSettings:
        """The subscriptions' part of it."""
        return SubscriptionSettings(
            client_max_subscriptions=self.client_max_subscriptions, read_max_wait_ms=self.read_max_wait_ms
        )
