"""Whether a cluster is ready, as its gateways see it."""

from __future__ import annotations

from collections.abc import Callable

import trio

from tidelog.errors import TidelogError
from tidelog.net.tls import TlsOptions

LOOK_S = 0.05
"""Pause between two checks whether it is ready."""
NO_FILES = TlsOptions()


async def wait_ready(
    url: str, replicas: int, check: Callable[[], None] = lambda: None, tls: TlsOptions = NO_FILES
) -> None:
    """Wait until the gateway answers and sees this many replica servers as live. ``check`` is called now and then."""
    while len(await live_servers(url, tls)) < max(1, replicas):
        check()
        await trio.sleep(LOOK_S)


async def live_servers(url: str, tls: TlsOptions) -> frozenset[str]:
    """Return the replica servers that the gateway sees as live; none if it does not answer."""
    import tidelog

    try:
        async with tidelog.connect(url, connect_timeout_s=1.0, tls=tls) as log:
            status = await log.cluster.status()
    except TidelogError:
        return frozenset()
    return frozenset(server.node for server in status.servers if not server.fenced)
