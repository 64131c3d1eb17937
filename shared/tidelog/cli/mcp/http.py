"""Serves the tools over streamable HTTP, at the path ``/mcp``.

The port is for programs on this machine. A web page in a browser must not reach it, not even one whose name was made
to lead to this address (DNS rebinding). So only requests are answered whose ``Host`` is this address, or one that the
options name, and that have no ``Origin``, as programs that are not browsers send them. Sessions are not kept: each
request is answered by itself, with the rights of the token in its ``Authorization`` header.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from mcp.server.transport_security import TransportSecuritySettings

from tidelog.cli.mcp.calls import ToolCalls
from tidelog.cli.mcp.server import mcp_server

PATH = "/mcp"
"""Path of the one endpoint."""
MAX_BODY = 1 << 20
"""Most bytes of a request."""
IDLE_S = 30
"""Seconds after which a connection without a request is closed."""
READ_S = 90
"""Seconds after which a connection is closed if nothing comes, also while a call is answered."""
MAX_REQUESTS = 64
"""Most requests at a time; more are refused with 503."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def allowed_hosts(host: str, names: Sequence[str]) -> list[str]:
    """Return the values of ``Host`` that are answered: those of the listening address, with any port, and the names
    that the options give, with and without a port."""
    literal = f"[{host}]" if ":" in host else host
    own = ["127.0.0.1", "localhost", "[::1]"] if host in ("127.0.0.1", "localhost", "::1") else [literal]
    return [one for name in (*own, *names) for one in (name, f"{name}:*")]


def application(calls: ToolCalls, version: str, hosts: Sequence[str]) -> Application:
    """Return the ASGI application that answers requests for the tools."""
    security = TransportSecuritySettings(allowed_hosts=list(hosts))
    return bounded(
        mcp_server(calls, version, over_http=True).streamable_http_app(
            streamable_http_path=PATH,
            json_response=True,
            stateless_http=True,
            max_request_body_size=MAX_BODY,
            transport_security=security,
        )
    )


def bounded(inner: Application) -> Application:
    """Return an application that refuses every method but POST with 405, since a GET would hold a connection for
    messages that this server never sends, and refuses with 503 what is more than ``MAX_REQUESTS`` at a time."""
    limit = trio.CapacityLimiter(MAX_REQUESTS)

    async def refuse(status: int, send: Send) -> None:
        headers = [(b"allow", b"POST"), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await inner(scope, receive, send)
        elif scope["method"] != "POST":
            await refuse(405, send)
        elif limit.available_tokens == 0:
            await refuse(503, send)
        else:
            async with limit:
                await inner(scope, receive, send)

    return answer


async def serve_http(
    app: Application, host: str, port: int, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the application at an address until cancelled. Reports the URL of the endpoint once it listens."""
    config = Config()
    config.bind = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    config.accesslog = None
    config.loglevel = "WARNING"
    config.keep_alive_timeout, config.read_timeout = IDLE_S, READ_S
    config.graceful_timeout = 0.0
    config.h11_max_incomplete_size = 64 << 10
    config.alpn_protocols = ["http/1.1"]
    untyped: Any = app  # the SDK's types and those of hypercorn name the same messages differently
    async with trio.open_nursery() as nursery:
        bound: list[str] = await nursery.start(lambda task_status: serve(untyped, config, task_status=task_status))
        task_status.started(bound[0] + PATH)
