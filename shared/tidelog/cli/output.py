"""The output of all commands. Everything that is shown passes through this module and is escaped
(``tidelog.printable``).

Names, reasons and errors come from the cluster, and some of them from its clients. The escapes make them plain text
on one line of the terminal, and none is interpreted as markup of ``rich``."""

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
    """Print one line on stdout, or on stderr with ``err``. Control characters in the line are escaped."""
    click.echo(escaped(line), err=err)


def as_text(cell: object, style: str = "") -> Text:
    """Return the text of ``cell``, escaped, for ``rich`` to print without interpreting markup in it. ``style`` is a
    style of ``rich``; "": none."""
    from rich.text import Text

    return Text(escaped(str(cell)), style=style)


def add_row(table: Table, *cells: object) -> None:
    """Add a row to a table of ``rich``. Each cell is escaped and shown without interpreting markup."""
    table.add_row(*map(as_text, cells))


def show(table: Table) -> None:
    """Print a table of ``rich`` on stdout."""
    from rich.console import Console

    Console().print(table)


def for_progress(text: str) -> str:
    """Return a text for the description of a progress bar, with control characters and the markup of ``rich``
    escaped."""
    from rich.markup import escape

    return escape(escaped(text))


def console(*, err: bool = False, wrap: bool = True) -> Console:
    """Return a console of ``rich``, on stdout or on stderr with ``err``, that interprets no markup. Without ``wrap``
    it does not break long lines."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=not wrap)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as a JSON text of printable characters only; others are written as escapes. ``indent`` is the
    indentation of nested values, None for a text on one line."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Print a value on stdout as one JSON text, indented by ``indent``; None: on one line."""
    click.echo(json_text(value, indent))


def _json_escape(character: str) -> str:
    """Return a character as a JSON escape ``\\uXXXX``, or as two if it needs a pair of surrogates."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
