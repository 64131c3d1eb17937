"""Starts a gateway: ``serve`` runs one as an async function."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.extras import install_hint
from tidelog.feature_levels import service_hello
from tidelog.net.http_pages import METRICS_PATH
from tidelog.net.link import PROTOCOL_VERSION, serve_links
from tidelog.net.transport import MAX_MESSAGE_BYTES, Pages, Transport
from tidelog.request_names import name_of_gateway
from tidelog.runtime.health import health_pages
from tidelog.runtime.metrics import MetricsPage
from tidelog.runtime.process_settings import raise_open_files
from tidelog.runtime.service import Leave, Serving, serve_in_order
from tidelog.wire.capabilities import OF_GATEWAYS
from tidelog.wire.messages import (
    Credit,
    Hello,
    ListOffset,
    Produce,
    Read,
    ReleaseProducer,
    Subscribe,
    Unsubscribe,
    UseProducer,
    Welcome,
)

from tidelog_gateway.audit.events import AuditEvents
from tidelog_gateway.audit.writer import Audit
from tidelog_gateway.clients.announcement import announce
from tidelog_gateway.clients.client_figures import ClientFigures
from tidelog_gateway.clients.connections import ClientConnections
from tidelog_gateway.clients.drain import Drain
from tidelog_gateway.config import GatewayConfig
from tidelog_gateway.console import console_pages
from tidelog_gateway.http.http_port import GatewayHttp
from tidelog_gateway.observability.metrics import described_metrics, metrics_page, reasons_not_ready, recent_metrics
from tidelog_gateway.requests.requests import KINDS, ClientRequests, FaultPlayground
from tidelog_gateway.rights.authorizer import Authorizer
from tidelog_gateway.shell import GatewayShell

if TYPE_CHECKING:
    from tidelog_gateway.rights.issuer_keys import IssuerKeys

CLIENT_OPS = frozenset(
    kind.OP
    for kind in (
        *KINDS,
        *(Credit, ListOffset, Produce, Read, ReleaseProducer, Subscribe, Unsubscribe, UseProducer),
    )
)
"""The ops that a client may send to a gateway; all others are refused."""


def wall_ms() -> int:
    """Return the wall clock in milliseconds since 1970, for the expiry of tokens and the age of delivered batches."""
    return time.time_ns() // 1_000_000


async def serve(
    config: GatewayConfig,
    *,
    transport: Transport,
    clock: Callable[[], float] = trio.current_time,
    playground: FaultPlayground | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a gateway until cancelled. Once cancelled it closes each client's link when nothing of the client is in
    flight (``clients/drain.py``), for at most ``shutdown_s`` seconds. The gateway opens its port, and reports its URL
    through ``task_status``, only when it has the cluster's metadata. ``clock`` is trio's clock. ``playground``: nodes
    in which clients may cause faults (``tidelog dev``). Raises ``ConfigError`` if the port is in use or the
    configuration cannot be applied."""
    await serve_in_order(
        partial(_run, config, transport, clock, playground), config.shutdown_s, task_status, from_start=False
    )


async def _run(
    config: GatewayConfig,
    transport: Transport,
    clock: Callable[[], float],
    playground: FaultPlayground | None,
    serving: Serving,
    task_status: trio.TaskStatus[tuple[Leave, str]],
) -> None:
    """Run the shell of a gateway and the tasks that it needs. Reports the function that drains the gateway, and its
    URL, when it accepts clients."""
    raise_open_files()  # each client is a connection
    hello = service_hello("gateway", config.node, config.cluster, config.levels)
    with serving.shielded():
        async with trio.open_nursery() as nursery:
            bits = random.SystemRandom().getrandbits
            shell = GatewayShell(
                *(transport, hello, config.controllers, config.router, config.subscriptions, clock, nursery, wall_ms),
                rack=config.rack,
                window=config.window,
                random_bits=bits,
            )
            leave, url = await _start(config, transport, shell, playground, nursery, bits)
            structlog.get_logger().info("gateway_started", node=config.node, url=url)
            task_status.started((leave, url))


async def _start(
    config: GatewayConfig,
    transport: Transport,
    shell: GatewayShell,
    playground: FaultPlayground | None,
    nursery: trio.Nursery,
    bits: Callable[[int], int],
) -> tuple[Leave, str]:
    """Start all tasks of a gateway and, once it has the metadata, accept clients. Return the function that drains the
    gateway, and its URL. ``bits`` returns a number of so many random bits."""
    name = name_of_gateway(config.node, bits(64))
    figures = ClientFigures.of(config.connections)
    page = metrics_page(shell, figures, transport.tls) if config.metrics else None
    recent = recent_metrics(shell)
    metrics = None if page is None else partial(described_metrics, page, recent, figures, wall_ms)
    requests = ClientRequests(shell, name, playground, metrics)
    issuer_keys = _issuer_keys(config, shell)

    def welcome(hello: Hello) -> Welcome | TidelogError:
        cluster = shell.cluster.image.cluster
        if hello.cluster not in ("", cluster):
            return refuse("WRONG_CLUSTER", f"this is cluster {cluster!r}, not {hello.cluster!r}")
        most = MAX_MESSAGE_BYTES, config.client_max_in_flight
        limits = config.limits
        return Welcome(
            PROTOCOL_VERSION, cluster, config.node, "gateway", *most, capabilities=OF_GATEWAYS, limits=limits
        )

    await nursery.start(shell.peers.run)
    nursery.start_soon(shell.controllers.run)
    nursery.start_soon(shell.run_turns)
    nursery.start_soon(recent.run)
    while not shell.cluster.image.index:
        await shell.wait_change()
    # The audit shows this name to its readers, who must not learn ``name``.
    incarnation = f"{config.node}/{bits(64):016x}"
    journal = AuditEvents(incarnation, config.node, config.audit_failures_s, shell.clock()) if config.audit else None
    audit = Audit(shell, journal, wall_ms)
    drain = Drain(shell)
    if issuer_keys is not None:
        nursery.start_soon(issuer_keys.run)
    authorizer = Authorizer(config.authorizer, issuer_keys)
    connections = ClientConnections(shell, requests, authorizer, audit, wall_ms, drain, config.connections, figures)
    nursery.start_soon(connections.run)
    nursery.start_soon(audit.run)
    url = await nursery.start(
        lambda task_status: serve_links(
            transport,
            config.host,
            config.port,
            welcome,
            connections.on_message,
            allowed={"client": CLIENT_OPS},
            authenticate=connections.authenticate,
            on_open=connections.on_open,
            on_close=connections.on_close,
            pages=_pages(config, page, shell, drain),
            http=GatewayHttp(shell, connections, "https" if config.tls_cert else "http"),
            origins=config.allowed_origins,
            hosts=config.allowed_hosts,
            until=drain.begun,
            task_status=task_status,
        )
    )
    nursery.start_soon(announce, shell, config.advertised(url), drain.begun)
    return drain.leave, url


def _issuer_keys(config: GatewayConfig, shell: GatewayShell) -> IssuerKeys | None:
    """Return the source of the configured OpenID Connect issuer's keys; None if no issuer is configured. Raises
    ``ConfigError`` if a package that it needs is not installed."""
    rules = config.oidc_rules
    if rules is None:
        return None
    try:
        from tidelog_gateway.rights.issuer_keys import IssuerKeys
    except ImportError as error:
        raise ConfigError(f"oidc.issuer needs the package joserfc: {install_hint('oidc')}") from error
    return IssuerKeys(rules, config.oidc.jwks, config.oidc.ca, shell.clock)


def _pages(config: GatewayConfig, metrics: MetricsPage | None, shell: GatewayShell, drain: Drain) -> Pages:
    """Return the pages that the gateway serves over HTTP, by path: health, and the metrics and the console if they
    are on."""
    return {
        **health_pages(partial(reasons_not_ready, shell, drain)),
        **({} if metrics is None else {METRICS_PATH: metrics}),
        **(console_pages() if config.console else {}),
    }
