"""A gateway as one async function."""

from __future__ import annotations

import random
from collections.abc import Callable

import structlog
import trio
from tidelog.counting import count
from tidelog.errors import TidelogError, refuse
from tidelog.link import PROTOCOL_VERSION, Link, serve_links
from tidelog.tls import CLIENT, Identity
from tidelog.transport import MAX_MESSAGE_BYTES, NO_PAGES, Transport
from tidelog.wire.messages import (
    Credit,
    Hello,
    ListOffset,
    Message,
    Produce,
    Read,
    Subscribe,
    Unsubscribe,
    Welcome,
)

from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.metrics import metrics_page
from tidelog_gateway.requests import KINDS, Requests
from tidelog_gateway.shell import Shell

CLIENT_OPS = frozenset(
    kind.OP
    for kind in (
        *KINDS,
        *(Credit, ListOffset, Produce, Read, Subscribe, Unsubscribe),
    )
)
"""The client plane: nothing else is accepted from a client."""


async def serve(
    config: GatewayConfig,
    *,
    transport: Transport,
    clock: Callable[[], float] = trio.current_time,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve clients until cancelled. Listens, and reports its URL, when it has the cluster's metadata. ``clock`` is
    trio's clock. Raises ``ConfigError`` when the port is in use."""
    hello = Hello(PROTOCOL_VERSION, "gateway", config.node, config.cluster)
    async with trio.open_nursery() as nursery:
        shell = Shell(transport, hello, config.controllers, config.router, config.subscriptions, clock, nursery)
        requests = Requests(shell, f"{config.node}/{random.SystemRandom().getrandbits(64):016x}")

        def welcome(hello: Hello) -> Welcome | TidelogError:
            cluster = shell.cluster.image.cluster
            if hello.cluster not in ("", cluster):
                return refuse("WRONG_CLUSTER", f"this is cluster {cluster!r}, not {hello.cluster!r}")
            return Welcome(
                PROTOCOL_VERSION, cluster, config.node, "gateway", MAX_MESSAGE_BYTES, config.client_max_in_flight
            )

        def authenticate(hello: Hello, identities: tuple[Identity, ...] | None) -> TidelogError | None:
            if config.authentication and not any(one.role == CLIENT for one in identities or ()):
                return refuse("UNAUTHENTICATED", f"{config.node} takes no strangers: show a client certificate")
            return None

        def on_message(link: Link, id: int | None, message: Message) -> None:
            count(shell.requests, message.OP)
            if isinstance(message, KINDS) and id is not None:
                requests.on_message(link, id, message)
            else:
                shell.on_message(link, id, message)

        await nursery.start(shell.peers.run)
        nursery.start_soon(shell.controllers.run)
        nursery.start_soon(shell.run_turns)
        while not shell.cluster.image.index:
            await shell.wait_change()
        url = await nursery.start(
            lambda task_status: serve_links(
                transport,
                config.host,
                config.port,
                welcome,
                on_message,
                allowed={"client": CLIENT_OPS},
                authenticate=authenticate,
                on_open=shell.on_open,
                on_close=shell.on_close,
                pages={"/metrics": metrics_page(shell)} if config.metrics else NO_PAGES,
                task_status=task_status,
            )
        )
        structlog.get_logger().info("gateway_started", node=config.node, url=url)
        task_status.started(url)
