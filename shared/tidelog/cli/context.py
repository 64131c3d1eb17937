"""``tidelog context …``: names for clusters, and which of them commands talk to (``contexts``)."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.completion import context_names
from tidelog.cli.connection_options import given_options
from tidelog.cli.contexts import FILES, NAME, Context, Contexts, load, save
from tidelog.cli.output import Cell, Column, Table, list_output, print_for_programs, print_json, result_output, say
from tidelog.errors import ConfigError
from tidelog.net.addresses import gateway_url

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_name = click.argument("name", shell_complete=context_names)


@click.group(cls=CommandGroup)
def context() -> None:
    """Name clusters, each with its gateways, certificates and token, and choose the one that commands talk to.

    \b
    tidelog context add prod --gateway wss://log.example:9292 --ca ca.pem --token-file prod.token
    tidelog context use prod
    tidelog topics list
    tidelog topics list --context staging

    Contexts are stored in ~/.config/tidelog/contexts.toml (or below XDG_CONFIG_HOME), which only you can read; a
    token stays in its own file. 'tidelog help connection' says what counts when an option or a variable is given,
    too."""


@context.command()
@click.argument("name")
@click.option(
    "-G", "--gateway", "gateways", multiple=True, metavar="URL", help="A gateway of the cluster; repeatable."
)
@click.option("--ca", type=_FILE, help="PEM file of the authorities for the gateways' certificates (wss://).")
@click.option("--cert", type=_FILE, help="PEM file of the certificate to present.")
@click.option("--cert-key", type=_FILE, help="PEM file of the certificate's private key.")
@click.option("--token-file", type=_FILE, help="File with the bearer token to present.")
@click.option("--use", is_flag=True, help="Also use it from now on.")
@click.option("--replace", "replaces", is_flag=True, help="Replace a context of this name.")
def add(name: str, gateways: tuple[str, ...], use: bool, replaces: bool, **files: Path | None) -> None:
    """Add a context."""
    given = given_options(click.get_current_context())
    urls = gateways or given.get("gateways", ())
    if not NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} is no name for a context: use letters, digits, '.', '_', '-', at most 64")
    if not urls:
        raise click.UsageError("name a gateway of the cluster: --gateway URL")
    paths = {one: file or given.get(one) for one, file in files.items()}
    if bool(paths["cert"]) != bool(paths["cert_key"]):
        raise click.UsageError("a certificate and its key go together: give --cert and --cert-key, or neither")
    contexts = load()
    if name in contexts.by_name and not replaces:
        raise ConfigError(f"there is a context {name!r} already: --replace replaces it")
    absolute = {one: str(Path(path).absolute()) for one, path in paths.items() if path}
    contexts.by_name[name] = Context(tuple(map(gateway_url, urls)), **absolute)
    if use:
        contexts.current = name
    path = save(contexts)
    say(f"added {name} to {path}")
    say(f"in use: {name}" if use else f"'tidelog context use {name}' makes commands talk to it")


@context.command()
@click.argument("name", required=False, shell_complete=context_names)
@click.option("--none", "nothing", is_flag=True, help="Use none from now on.")
def use(name: str | None, nothing: bool) -> None:
    """Make a context the default of all commands that name no cluster."""
    if bool(name) == nothing:
        raise click.UsageError("name a context, or say --none")
    contexts = load()
    if name:
        contexts.get(name)
    contexts.current = name or ""
    save(contexts)
    say(f"in use: {name}: {' '.join(contexts.by_name[name].gateways)}" if name else "no context is in use")
    for variable in ("TIDELOG_GATEWAY", "TIDELOG_CONTEXT"):
        if os.environ.get(variable):
            say(f"{variable} is set in this shell, and takes precedence", err=True)


@context.command("list")
@list_output
def list_contexts(output: str) -> None:
    """List the contexts; * marks the one in use."""
    contexts = load()
    used = _used(contexts)
    table = Table(Column("", "in_use"), "name", "gateways", "shows")
    for name, one in contexts.by_name.items():
        shown = [what for what, file in (("token", one.token_file), ("certificate", one.cert)) if file]
        table.add(Cell(name == used, "*" if name == used else ""), name, one.gateways, shown, name=name)
    if print_for_programs(output, table, [_as_json(name, one, used) for name, one in contexts.by_name.items()]):
        return
    if contexts.by_name:
        table.print()
    else:
        say("there are no contexts: 'tidelog context add NAME --gateway URL' makes one", err=True)


@context.command("show")
@click.argument("name", required=False, shell_complete=context_names)
@result_output
def show_context(name: str | None, output: str) -> None:
    """Show a context, by default the one in use: its gateways and files. A token is not shown."""
    contexts = load()
    used = _used(contexts)
    wanted = name or used
    if not wanted:
        raise ConfigError("no context is in use: 'tidelog context use NAME' chooses one")
    found = contexts.get(wanted)
    if output:
        print_json(_as_json(wanted, found, used))
        return
    say(f"{wanted}{' (in use)' if wanted == used else ''}")
    for url in found.gateways:
        say(f"  gateway = {url}")
    for one in FILES:
        if value := getattr(found, one):
            say(f"  {one.replace('_', '-')} = {value}")


@context.command()
@_name
def remove(name: str) -> None:
    """Remove a context. The files that it names stay."""
    contexts = load()
    contexts.get(name)
    del contexts.by_name[name]
    was_used = contexts.current == name
    if was_used:
        contexts.current = ""
    save(contexts)
    say(f"removed {name}" + ("; no context is in use now" if was_used else ""))


def _used(contexts: Contexts) -> str:
    """Return the name of the context in use; "" if none is."""
    return os.environ.get("TIDELOG_CONTEXT") or contexts.current


def _as_json(name: str, context: Context, used: str) -> dict[str, Any]:
    """Return a context as an object for JSON."""
    return {"name": name, "in_use": name == used} | asdict(context)
