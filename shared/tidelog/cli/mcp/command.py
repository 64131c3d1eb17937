"""``tidelog mcp``: lets agents ask about the cluster, through the Model Context Protocol."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

import click
import trio

from tidelog.cli.connection_options import given_options, settings_of
from tidelog.cli.main import connect, gateway_option, run
from tidelog.cli.output import say
from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.net.origins import is_loopback

if TYPE_CHECKING:
    from tidelog.cli.mcp.calls import ToolCalls
    from tidelog.client.log import Log


def _address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Return the host and port of the option ``--listen``; None if it is not given. A callback of click. Raises
    ``click.BadParameter`` for another text."""
    if value is None:
        return None
    host, separator, port = value.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (separator and host and port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise click.BadParameter(f"{value!r} is not HOST:PORT, such as 127.0.0.1:9300")
    return host, int(port)


@click.command()
@click.option(
    "--listen",
    metavar="HOST:PORT",
    callback=_address,
    help="Serve streamable HTTP at this address, such as 127.0.0.1:9300, instead of stdin and stdout.",
)
@click.option(
    "--allow-host",
    "names",
    metavar="NAME",
    multiple=True,
    help="With --listen: also answer requests for this name of a host; repeatable. An address that is not of this"
    " machine alone needs one.",
)
@click.option("--allow-writes", "writes", is_flag=True, help="Also offer the tools that change the cluster.")
@gateway_option
def mcp(listen: tuple[str, int] | None, names: tuple[str, ...], writes: bool, gateways: tuple[str, ...]) -> None:
    """Let agents ask about the cluster, through the Model Context Protocol (MCP): one client over stdin and stdout,
    or with --listen 127.0.0.1:9300 several at http://127.0.0.1:9300/mcp.

    \b
    tidelog mcp
    tidelog mcp --context prod --allow-writes
    tidelog mcp --listen 127.0.0.1:9300

    Agents get tools to examine the cluster, topics, records, consumer groups, the history of partitions, and earlier
    times. They read only, unless --allow-writes. Over stdin and stdout the tools have the rights of the token or
    certificate of this command. With --listen each caller has the rights of the token in its own header
    'Authorization: Bearer TOKEN'; a caller without one is unknown to the gateway.

    docs/mcp.md has the tools, the set-up of common clients, and what to know about security."""
    if names and listen is None:
        raise click.UsageError("--allow-host is for --listen")
    if listen is not None:
        _check_identity(listen[0], names)
    try:
        import hypercorn  # noqa: F401
        import mcp_types  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"the packages of the protocol are missing ({error.name}): {install_hint('mcp')}") from None
    from tidelog.cli.mcp.calls import ToolCalls
    from tidelog.cli.mcp.server import TOOLS, serve_stdio

    def connected(token: str | None) -> AbstractAsyncContextManager[Log]:
        return connect(gateways, token=token)

    calls = ToolCalls(TOOLS, connected, writes)
    if listen is None:
        run(lambda: serve_stdio(calls, _version()))
    else:
        host, port = listen
        run(lambda: _serve_http(calls, host, port, names))


def _check_identity(host: str, names: tuple[str, ...]) -> None:
    """Check the options of a server over HTTP. Raises ``ConfigError`` if an option gives the server an identity, or
    if it listens for other machines without the name by which they reach it. Prints a line if the environment or a
    context has an identity, which is not used."""
    given = given_options(click.get_current_context())
    if "token_file" in given or "cert" in given:
        raise ConfigError("--token-file and --cert are not for --listen: each caller presents its own token")
    if not is_loopback(host) and not names:
        raise ConfigError(f"{host} is open to other machines: name the host that they ask for with --allow-host")
    settings = settings_of(click.get_current_context())
    if settings.token or settings.token_file or settings.cert:
        say("the token or certificate of the environment or context is not used: callers present their own", err=True)


async def _serve_http(calls: ToolCalls, host: str, port: int, names: tuple[str, ...]) -> None:
    """Serve HTTP until the process is interrupted. Prints the URL once the port is open."""
    from tidelog.cli.mcp.http import allowed_hosts, application, serve_http

    app = application(calls, _version(), allowed_hosts(host, names))
    async with trio.open_nursery() as nursery:
        url = await nursery.start(lambda task_status: serve_http(app, host, port, task_status=task_status))
        say(f"serving at {url}")


def _version() -> str:
    """Return the version of the installed package ``tidelog``, or "0"."""
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "0"
