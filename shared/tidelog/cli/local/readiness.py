"""Asks gateways whether a cluster is ready."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tidelog.errors import TidelogError
from tidelog.net.tls import TlsOptions

LOOK_S = 0.05
"""Seconds between two checks whether the cluster is ready."""
NO_FILES = TlsOptions()
"""The TLS options of a cluster without TLS."""


async def wait_ready(
    url: str, replicas: int, check: Callable[[], None] = lambda: None, tls: TlsOptions = NO_FILES
) -> None:
    """Wait, for as long as it takes, until the gateway answers and sees at least ``replicas`` live replica servers,
    and at least one. ``check`` is called before every pause; an error that it raises ends the wait."""
    while len(await live_servers(url, tls)) < max(1, replicas):
        check()
        await trio.sleep(LOOK_S)


async def live_servers(url: str, tls: TlsOptions) -> frozenset[str]:
    """Ask a gateway which replica servers are live, and return their ids; an empty set if the gateway does not
    answer."""
    import tidelog

    try:
        async with tidelog.connect(url, connect_timeout_s=1.0, tls=tls) as log:
            status = await log.cluster.status()
    except TidelogError:
        return frozenset()
    return frozenset(server.node for server in status.servers if not server.fenced)
