"""The client on trio: ``tidelog.connect``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from math import inf
from typing import TYPE_CHECKING

import trio

from tidelog.client.log import DEFAULT_URL, NO_FILES, Log, open_log
from tidelog.client.loop import GatewayLink, Handler, LoopEvent, WallClock, Work, refuse_other_roles, wall_ms
from tidelog.errors import TidelogError
from tidelog.net.link import connect_link
from tidelog.net.tls import TlsFiles, TlsOptions
from tidelog.net.transport import Transport
from tidelog.wire.messages import Hello

if TYPE_CHECKING:
    from tidelog.tracing import Tracing


class TrioLoop:
    """The client's ``Loop`` on trio, which opens its links over ``transport``."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.now = trio.current_time
        self.sleep = trio.sleep
        self.checkpoint = trio.lowlevel.checkpoint

    def event(self) -> LoopEvent:
        """Return a new ``trio.Event`` that is not set."""
        return trio.Event()

    async def wait(self, event: LoopEvent, deadline: float = inf) -> None:
        """Wait until the event is set or ``deadline`` (``trio.current_time``) has passed, whichever is first."""
        if deadline == inf:  # a scope of its own costs as much as the waking
            await event.wait()
            return
        with trio.CancelScope(deadline=deadline):
            await event.wait()

    async def gather(self, calls: Iterable[Work]) -> None:
        """Run all calls concurrently, and return when all have returned. The first ``TidelogError`` cancels the
        others and is raised, not in an exception group."""
        errors: list[TidelogError] = []

        async def one(call: Work) -> None:
            try:
                await call()
            except TidelogError as error:
                errors.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(one, call)
        if errors:
            raise errors[0]

    @asynccontextmanager
    async def tasks(self) -> AsyncIterator[Callable[[Work], None]]:
        """Run tasks beside the block: each call ``start(work)`` of the yielded function starts one. All are cancelled
        at the end of the block. A cancellation of the block would reach all tasks of its nursery at once, in any
        order, so each task has a shield, which is removed when the block has ended. An exception of the block is
        raised as it is, not in an exception group."""
        failure: Exception | None = None
        scopes: set[trio.CancelScope] = set()

        async def run(work: Work, scope: trio.CancelScope) -> None:
            try:
                with scope:
                    await work()
            finally:
                scopes.discard(scope)

        def start(work: Work) -> None:
            scope = trio.CancelScope(shield=True)
            scopes.add(scope)
            nursery.start_soon(run, work, scope)

        async with trio.open_nursery() as nursery:
            try:
                yield start
            except Exception as error:
                failure = error  # raised below, bare: a nursery would wrap it in a group
            finally:
                for scope in scopes:
                    scope.cancel()
        if failure is not None:
            raise failure

    def shielded(self) -> AbstractContextManager[object]:
        """Return a cancel scope whose waits are not interrupted by a cancellation from outside."""
        return trio.CancelScope(shield=True)

    def open_link(self, url: str, hello: Hello, handler: Handler) -> AbstractAsyncContextManager[GatewayLink]:
        """Return a context manager that opens a link to a gateway over the transport and closes it at the end of the
        block. ``handler`` is called with the messages that arrive."""
        return connect_link(self._transport, url, hello, handler, trust=refuse_other_roles)


def connect(
    urls: str | Iterable[str] = DEFAULT_URL,
    *,
    connect_timeout_s: float = 10.0,
    request_timeout_s: float = 30.0,
    tls: TlsOptions = NO_FILES,
    token: str = "",
    name: str = "client",
    transport: Transport | None = None,
    clock: WallClock = wall_ms,
    tracing: Tracing | None = None,
    discover: bool = True,
    operator: bool = False,
) -> AbstractAsyncContextManager[Log]:
    """Return the context manager that connects to any of the gateways, and to another one when it is lost, and yields
    a ``Log``: ``async with tidelog.connect("ws://127.0.0.1:9292") as log``. ``host:port`` means ``ws://host:port``.
    Times are in seconds; ``request_timeout_s`` is how long a request may take, including reconnections.

    ``tls``: certificates to trust at URLs with ``wss:``, and the certificate to show. ``token``: the bearer token
    that identifies this client. ``name``: how the histories of the cluster name this client if it has neither token
    nor certificate. ``tracing``: make producers begin spans and put their context into records
    (``tidelog.tracing.Tracing``). ``discover``: go on at other gateways, too, which the cluster names, if those of
    ``urls`` cannot be reached (docs/protocol.md). ``operator``: for programs that look after the cluster; a gateway
    that is full lets a few of them in all the same (docs/security.md). Entering raises ``Unreachable`` if no gateway
    can be reached within ``connect_timeout_s``, and ``UNAUTHENTICATED`` if the token is invalid or missing. The call
    raises ``ConfigError`` without a URL, for a text that is none, or if the files of ``tls`` cannot be read.
    """
    if transport is None:
        from tidelog.net.websocket.transport import WebSocketTransport

        transport = WebSocketTransport(tls=TlsFiles(tls))
    loop = TrioLoop(transport)
    return open_log(
        urls,
        loop,
        connect_timeout_s,
        request_timeout_s,
        token,
        name,
        clock,
        tracing,
        discover=discover,
        operator=operator,
    )
