"""The options that say which cluster a command talks to, and as whom: ``--gateway``, ``--context``, ``--ca``,
``--cert``, ``--cert-key`` and ``--token-file``.

They mean the same before and after the name of a command: ``tidelog --gateway URL topics list`` is ``tidelog topics
list --gateway URL``. If an option stands at several levels, the last counts. They are explained once, by ``tidelog
help connection``; the help of a command has one line that says so.

For each value, the first of these that has it counts:

1. the option,
2. the environment variable,
3. the context in use: that of ``TIDELOG_CONTEXT``, or of ``tidelog context use``,
4. the default.

A token is for its own cluster, so a context counts as a whole or not at all. If ``--gateway`` or ``TIDELOG_GATEWAY``
names a cluster, the context in use does not count. With ``--context`` only that context and the options count, and no
environment variable; ``--context`` and ``--gateway`` together are refused.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from tidelog.errors import ConfigError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEFAULT_GATEWAY = "ws://127.0.0.1:9292"
PRECEDENCE = (
    "They stand before or after the command: 'tidelog --gateway URL topics list' is 'tidelog topics list --gateway "
    "URL'. For each value the first of these counts: the option; the environment variable; the context in use "
    "(TIDELOG_CONTEXT, or 'tidelog context use'); the default. A token is for its own cluster. So where --gateway or "
    "TIDELOG_GATEWAY names a gateway, the context in use does not count; with --context only that context and the "
    "options count, and no environment variable."
)
"""The rules of the module for users, in ``tidelog help connection`` and ``docs/cli.md``."""
LINE = "The cluster; 'tidelog help connection' lists what else every command takes."
"""Help of ``--gateway`` in the help of a command."""


class _Kind(NamedTuple):
    """One of the options: its declarations, the value's name in help, its environment variable and its help."""

    declarations: tuple[str, ...]
    metavar: str
    variable: str
    help: str


OPTIONS = {
    "gateways": _Kind(
        ("-G", "--gateway"),
        "URL",
        "TIDELOG_GATEWAY",
        f"A gateway of the cluster; may be given several times: another is tried when one does not answer. host:port "
        f"means ws://host:port.  [default: {DEFAULT_GATEWAY}]",
    ),
    "context": _Kind(
        ("-C", "--context"),
        "NAME",
        "TIDELOG_CONTEXT",
        "A name for gateways and the files below: 'tidelog context add' makes one.  [default: that in use]",
    ),
    "ca": _Kind(
        ("--ca",),
        "FILE",
        "TIDELOG_CLIENT_CA",
        "PEM file of the authorities for the gateways' certificates (wss://).  [default: the system's]",
    ),
    "cert": _Kind(("--cert",), "FILE", "TIDELOG_CLIENT_CERT", "PEM file of the certificate to present."),
    "cert_key": _Kind(("--cert-key",), "FILE", "TIDELOG_CLIENT_KEY", "PEM file of the certificate's private key."),
    "token_file": _Kind(
        ("--token-file",),
        "FILE",
        "TIDELOG_CLIENT_TOKEN_FILE",
        "File with the bearer token to present; without it, TIDELOG_TOKEN is the token.",
    ),
}
"""The options by the field that they set: the order of the help."""


class ConnectionOption(click.Option):
    """One of the options of the module. The help of a command shows one line for all of them, at ``--gateway``."""

    def __init__(self, declarations: Sequence[str] = (), *, field: str, exposed: bool = False) -> None:
        """``field``: key of ``OPTIONS``, which defines the option; ``declarations`` are empty. ``exposed``: the
        command gets the gateways that count as the argument ``gateways``."""
        kind = OPTIONS[field]
        super().__init__(
            [*declarations, *kind.declarations, field if exposed else f"connection_{field}"],
            metavar=kind.metavar,
            envvar=kind.variable,
            show_envvar=True,
            multiple=field == "gateways",
            is_eager=field == "context",  # it is known when the gateways are looked up
            expose_value=exposed,
            callback=self._keep,
            shell_complete=_context_names if field == "context" else None,
            help=kind.help,
        )
        self.field = field

    def _keep(self, ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        """Store the value for ``settings_of``, and return it; for an exposed option return the gateways that count. A
        callback of click."""
        assert self.name is not None
        if value:
            source = ctx.get_parameter_source(self.name)
            _layer(ctx, "environment" if source is ParameterSource.ENVIRONMENT else "options")[self.field] = value
        return settings_of(ctx).gateways if self.expose_value else value

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of the help of a command; None for all options but ``--gateway``."""
        return ("-G, --gateway URL", LINE) if self.field == "gateways" else None

    def full_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """Return the two columns that explain the option."""
        record = super().get_help_record(ctx)
        assert record is not None
        return record


class ConnectionSettings(NamedTuple):
    """What the options, the environment and the contexts say about the connection of a command. A file or token that
    nothing gives is ""."""

    gateways: tuple[str, ...]
    ca: str
    cert: str
    cert_key: str
    token_file: str
    token: str
    """The token itself, from ``TIDELOG_TOKEN``; "" if a file holds it."""


def given_options(ctx: click.Context) -> dict[str, Any]:
    """Return the values that the command line gives, at any level, by field of ``OPTIONS``; others are missing."""
    return dict(_layer(ctx, "options"))


def settings_of(ctx: click.Context, named: tuple[str, ...] = ()) -> ConnectionSettings:
    """Return what counts for a command whose options are parsed, by the rules of the module. ``named``: gateways that
    a file of the command names; they count if no option, context of an option or variable names others. Raises
    ``ConfigError`` if both a gateway and a context are given as options, if a context that counts does not exist, or
    if the file with the contexts is broken."""
    options, environment = _layer(ctx, "options"), _layer(ctx, "environment")
    if named:
        environment = {"gateways": named} | environment
    token = os.environ.get("TIDELOG_TOKEN", "")
    outside = environment | ({"token": token} if token else {})
    if "context" in options and "gateways" in options:
        raise ConfigError("--context and --gateway both name a cluster: give one of them")
    if "context" in options:
        layers = [options, _context(options["context"])]
    elif "gateways" in options or "gateways" in environment:
        layers = [options, outside]
    else:
        layers = [options, outside, _context(environment.get("context", ""))]
    found: dict[str, Any] = {"gateways": (DEFAULT_GATEWAY,), "token_file": "", "token": ""}
    for layer in reversed(layers):
        if "token_file" in layer or "token" in layer:  # one of them replaces the other, of any layer below
            found |= {"token_file": "", "token": ""}
        found |= layer
    if found["token_file"]:
        found["token"] = ""
    return ConnectionSettings(*[found.get(field, "") for field in ConnectionSettings._fields])


def usual_gateways() -> tuple[str, ...]:
    """Return the gateways that a command talks to without any option: those of the environment, of the context in
    use, or the default. Raises what ``settings_of`` raises."""
    if named := os.environ.get("TIDELOG_GATEWAY", "").split():
        return tuple(named)
    return tuple(_context(os.environ.get("TIDELOG_CONTEXT", "")).get("gateways", (DEFAULT_GATEWAY,)))


def _context(name: str) -> dict[str, Any]:
    """Return the values of a context, by field; "" is the one in use. An empty map if none is in use. Raises
    ``ConfigError`` if there is no such context."""
    from tidelog.cli.contexts import load

    contexts = load()
    name = name or contexts.current
    if not name:
        return {}
    found = contexts.get(name)
    return {field: value for field in OPTIONS if (value := getattr(found, field, ""))}


def _layer(ctx: click.Context, name: str) -> dict[str, Any]:
    """Return the map, shared by all levels of the running command, of what the options or the environment give."""
    layer: dict[str, Any] = ctx.meta.setdefault(f"{__name__}.{name}", {})
    return layer


def _context_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the completions of a context's name for the shell; none if the contexts cannot be read."""
    from tidelog.cli.completion import context_names

    return context_names(ctx, param, incomplete)
