"""``tidelog table``: compacts and expires the tables that pipelines write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.option_types import Quantity
from tidelog.cli.output import print_json, result_output, say
from tidelog.errors import ConfigError
from tidelog.printable import escaped_lines
from tidelog.quantities import BYTES, SECONDS
from tidelog.tables.committer import MIN_EXPIRY_S

if TYPE_CHECKING:
    from tidelog.tables.tables import LogTable

MIB = 1 << 20


@click.group(cls=CommandGroup)
def table() -> None:
    """Look after tables of Iceberg, Delta, and Parquet with a manifest, also while a pipeline writes to them."""


def _addressed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments and options that say which table is meant."""
    for add in (
        click.option(
            "--storage",
            multiple=True,
            metavar="NAME=VALUE",
            help="Option of the object store, such as s3.endpoint=URL.",
        ),
        click.option(
            "--catalog",
            multiple=True,
            metavar="NAME=VALUE",
            help="Property of an Iceberg catalog, as pyiceberg names it, such as type=rest, uri=URL, name=NAME.",
        ),
        click.argument("place", metavar="TABLE"),
        click.argument("format", type=click.Choice(["iceberg", "delta", "parquet"])),
    ):
        command = add(command)
    return command


@table.command("compact")
@_addressed
@click.option(
    "--target-size",
    type=Quantity(BYTES, least=MIB, whole=True),
    default="128MiB",
    show_default=True,
    metavar="SIZE",
    help="Files that are smaller are joined to files of about this size.",
)
@result_output
def table_compact(
    format: str, place: str, catalog: tuple[str, ...], storage: tuple[str, ...], target_size: int, output: str
) -> None:
    """Join the small files of each partition of TABLE. The rows stay the same, and so do the markers by which
    pipelines commit each batch once. The old files are deleted by 'tidelog table expire'. TABLE is NAMESPACE.TABLE of
    Iceberg, otherwise a folder or a URL. The format parquet is a table with a manifest."""
    with _opened(format, place, catalog, storage) as opened:
        done = opened.compact(target_size)
    if output:
        print_json(asdict(done), indent=None)
    else:
        say(f"{done.removed} files joined to {done.added}")


@table.command("expire")
@_addressed
@click.option(
    "--older-than",
    type=Quantity(SECONDS, least=MIN_EXPIRY_S),
    default="7d",
    show_default=True,
    metavar="TIME",
    help="Age at which old snapshots are deleted, and files that no pipeline has committed. Queries that began"
    " before that may miss files.",
)
@result_output
def table_expire(
    format: str, place: str, catalog: tuple[str, ...], storage: tuple[str, ...], older_than: float, output: str
) -> None:
    """Delete old snapshots of TABLE, and files that no snapshot has. A pipeline that is behind still commits each
    batch once. TABLE is NAMESPACE.TABLE of Iceberg, otherwise a folder or a URL. The format parquet is a table with a
    manifest."""
    with _opened(format, place, catalog, storage) as opened:
        done = opened.expire(older_than)
    if output:
        print_json(asdict(done), indent=None)
    else:
        say(f"{done.snapshots} snapshots and {done.files} files deleted")


@contextmanager
def _opened(format: str, place: str, catalog: tuple[str, ...], storage: tuple[str, ...]) -> Iterator[LogTable]:
    """Open a table for the block. Errors of its library, its storage and its catalog end the command."""
    from tidelog.tables.tables import TableAddress, open_table

    address = TableAddress(format, place, _pairs(catalog, "--catalog"), _pairs(storage, "--storage"))
    try:
        opened = open_table(address)
        try:
            yield opened
        finally:
            opened.close()
    except ConfigError:
        raise
    except Exception as error:  # the libraries of the formats have errors of their own
        raise click.ClickException(escaped_lines(f"{place}: {error}")) from None


def _pairs(given: tuple[str, ...], option: str) -> dict[str, str]:
    """Return NAME=VALUE options as a map. Ends the command with a usage error for another text."""
    for text in given:
        if "=" not in text:
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}")
    return {name: value for name, _, value in (text.partition("=") for text in given)}
