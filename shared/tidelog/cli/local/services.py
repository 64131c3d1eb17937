"""``tidelog controller|replica|gateway``: runs one service in the foreground."""

from __future__ import annotations

import runpy
import sys

import click

_PASS = {"ignore_unknown_options": True, "help_option_names": []}


def _run(service: str, arguments: tuple[str, ...]) -> None:
    """Run the main module of a service with these arguments in this process, until the service ends."""
    sys.argv = [f"tidelog {service}", *arguments]
    runpy.run_module(f"tidelog_{service}", run_name="__main__")


@click.command(context_settings=_PASS, short_help="Run a controller.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def controller(arguments: tuple[str, ...]) -> None:
    """Run a controller in the foreground, until a signal ends it; --help lists its settings."""
    _run("controller", arguments)


@click.command(context_settings=_PASS, short_help="Run a replica server.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def replica(arguments: tuple[str, ...]) -> None:
    """Run a replica server in the foreground, until a signal ends it; --help lists its settings."""
    _run("replica", arguments)


@click.command(context_settings=_PASS, short_help="Run a gateway.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def gateway(arguments: tuple[str, ...]) -> None:
    """Run a gateway in the foreground, until a signal ends it; --help lists its settings."""
    _run("gateway", arguments)
