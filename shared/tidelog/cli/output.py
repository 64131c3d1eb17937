"""The output of all commands. Everything that is shown passes through this module and is escaped
(``tidelog.printable``).

Names, reasons and errors come from the cluster, and some of them from its clients. The escapes make them plain text
on one line of the terminal, and none is interpreted as markup of ``rich``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from tidelog.printable import escaped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def say(line: str = "", *, err: bool = False) -> None:
    """Print one line on stdout or stderr."""
    click.echo(escaped(line), err=err)


def as_text(cell: object, style: str = "") -> Text:
    """Return a text that ``rich`` prints without interpreting it."""
    from rich.text import Text

    return Text(escaped(str(cell)), style=style)


def add_row(table: Table, *cells: object) -> None:
    """Add a row of texts to a table."""
    table.add_row(*map(as_text, cells))


def show(table: Table) -> None:
    """Print a table on stdout."""
    from rich.console import Console

    Console().print(table)


def for_progress(text: str) -> str:
    """Return a text for the description of a progress bar, which is markup."""
    from rich.markup import escape

    return escape(escaped(text))


def console(*, err: bool = False, wrap: bool = True) -> Console:
    """Return a console for progress bars, and for results of ``as_text``."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=not wrap)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a JSON document of printable characters, with newlines if it is indented."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print one JSON document on stdout."""
    click.echo(json_text(value, indent))


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
