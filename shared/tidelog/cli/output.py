"""The output of all commands. Everything that is shown passes through this module and is escaped
(``tidelog.printable``).

Names, reasons and errors come from the cluster, and some of them from its clients. The escapes make them plain text
on one line of the terminal, and none is interpreted as markup of ``rich``.

Commands that print a list or a description have the option ``-o``, which prints what programs can read:

- ``json``: the whole document, with numbers and truth values as such;
- ``tsv``: a line with the names of the columns, then a line for each row. Columns are separated by tabs. A tab, a
  line break or a backslash in a value is written as ``\\t``, ``\\n`` or ``\\\\``;
- ``names``: the names of the rows, one on each line, for ``xargs``.

People get a table: by default, or with ``-o wide``, which adds ids. On a terminal that is too narrow the widest
columns are wrapped. Elsewhere columns are as wide as they need, and ``rich``, which takes time to import, is not
used."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tidelog.printable import escaped

if TYPE_CHECKING:
    from rich.console import Console

JSON, TSV, NAMES, WIDE = "json", "tsv", "names", "wide"
_MEANINGS = {
    JSON: "a document",
    TSV: "columns, after a line with their names",
    NAMES: "a name on each line, for xargs",
    WIDE: "the table for people, with ids",
}
"""Value of ``-o`` -> what it prints, for the help."""


# --- the option ------------------------------------------------------------------------------------------


def _output_option(*formats: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options ``-o`` and ``--json`` to a command, which gets the chosen format as
    its argument ``output``; "": the form for people. ``formats`` are the values of ``-o``."""
    help = f"Print {'; '.join(f'{name}: {_MEANINGS[name]}' for name in formats)}.  [default: text for people]"

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def chosen(*args: Any, as_json: bool, output: str | None, **options: Any) -> Any:
            if as_json and output not in (None, JSON):
                raise click.UsageError(f"--json means -o json, and does not go with -o {output}")
            return command(*args, output=JSON if as_json else output or "", **options)

        flag = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")(chosen)
        return click.option("-o", "--output", type=click.Choice(formats), help=help)(flag)

    return add


list_output = _output_option(JSON, TSV, NAMES, WIDE)
"""Decorator for commands that print a table: it adds ``-o`` with all formats, and ``--json``."""
rows_output = _output_option(JSON, TSV)
"""Decorator for commands that print sentences about several things: it adds ``-o json`` and ``tsv``, and
``--json``."""
names_output = _output_option(JSON, NAMES)
"""Decorator for commands that print a description of something that has parts: it adds ``-o json`` and ``names``, and
``--json``."""
result_output = _output_option(JSON)
"""Decorator for commands that print one result: it adds ``-o json``, and ``--json``."""


# --- lines and tables ------------------------------------------------------------------------------------


def say(line: str = "", *, err: bool = False) -> None:
    """Print one line on stdout, or on stderr with ``err``. Control characters in the line are escaped."""
    click.echo(escaped(line), err=err)


def say_after(head: str, line: str, **style: Any) -> None:
    """Print ``head: line`` on stdout. On a terminal the head is shown in a style: arguments of ``click.style``, such
    as ``fg="red"``."""
    click.echo(f"{click.style(escaped(head), **style)}: {escaped(line)}")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a ``Table``: its title for people and its name for programs, by default the title with underscores.
    A ``wide`` column is shown to people with ``-o wide`` only. ``right``: its cells are aligned to the right."""

    title: str
    name: str = ""
    wide: bool = False
    right: bool = False

    @property
    def key(self) -> str:
        """Return the name of the column for programs."""
        return self.name or self.title.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell that people see as ``text``, and programs as ``value``."""

    value: object
    text: object


def shown_text(cell: Cell) -> str:
    """Return the text of a cell for people, escaped."""
    return escaped(str(cell.text))


class Table:
    """A table of what a command prints, for people and for programs. ``columns`` are titles, or ``Column`` objects.
    ``names`` has the name of each row, which is the value of its first cell unless ``add`` gets another."""

    def __init__(self, *columns: str | Column) -> None:
        self.columns = [Column(escaped(column)) if isinstance(column, str) else column for column in columns]
        self.rows: list[list[Cell]] = []
        self.names: list[str] = []

    def add(self, *cells: object, name: str = "") -> None:
        """Add a row: values, or ``Cell`` objects for values that people see in other words. ``name``: that of the
        row; "": its first value."""
        row = [cell if isinstance(cell, Cell) else Cell(cell, _for_people(cell)) for cell in cells]
        assert len(row) == len(self.columns), f"{len(row)} cells for {len(self.columns)} columns"
        self.rows.append(row)
        self.names.append(name or str(row[0].value))

    def print(self, *, wide: bool = False) -> None:
        """Print the table for people on stdout, with its wide columns if ``wide``. No cell is cut."""
        shown = [number for number, column in enumerate(self.columns) if wide or not column.wide]
        columns = [self.columns[number] for number in shown]
        rows = [[shown_text(row[number]) for number in shown] for row in self.rows]
        if sys.stdout.isatty():
            _print_on_terminal(columns, rows)
        else:
            _print_in_full(columns, rows)

    def print_tsv(self) -> None:
        """Print the table for programs on stdout, as lines of values separated by tabs, after a line with the names
        of all columns."""
        lines = [[column.key for column in self.columns]]
        lines += [[_for_programs(cell.value) for cell in row] for row in self.rows]
        click.echo("\n".join("\t".join(line) for line in lines))


def show(output: str, table: Table, document: Any) -> None:
    """Print a list in the format ``output`` (the value of ``-o``): ``document`` as JSON, or the table."""
    if not print_for_programs(output, table, document):
        table.print(wide=output == WIDE)


def print_for_programs(output: str, table: Table, document: Any) -> bool:
    """Print ``document`` as JSON, the table as lines of columns, or the names of its rows, if ``output`` is the
    format ``json``, ``tsv`` or ``names``. Returns whether it is; otherwise nothing is printed, and the command prints
    text for people."""
    if output == JSON:
        print_json(document)
    elif output == TSV:
        table.print_tsv()
    elif output == NAMES:
        click.echo("".join(f"{escaped(name)}\n" for name in table.names), nl=False)
    return output in (JSON, TSV, NAMES)


def _for_people(value: object) -> str:
    """Return the text of a value in a table for people: lists as words, and "" for None."""
    if value is None:
        return ""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _for_programs(value: object) -> str:
    """Return the text of a value in a line of columns: truth values as in JSON, lists with commas, maps as JSON, and
    "" for None. Tabs, line breaks and backslashes are escaped."""
    if isinstance(value, bool | dict):
        text = json_text(value)
    elif isinstance(value, list | tuple):
        text = ",".join(map(str, value))
    else:
        text = "" if value is None else str(value)
    return escaped(text.replace("\\", "\\\\"))


def _print_on_terminal(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on a terminal. Where it is too wide, the widest columns are wrapped, in words if they can be."""
    from rich.cells import cell_len
    from rich.table import Table as TerminalTable
    from rich.text import Text

    terminal = console()
    lines = [[column.title for column in columns], *rows]
    natural = [max(cell_len(line[number]) for line in lines) for number in range(len(columns))]
    titles = [max(map(cell_len, column.title.split()), default=1) for column in columns]
    gap = 2 if sum(titles) + 2 * (len(columns) - 1) <= terminal.width else 1
    widths = fitted(natural, titles, terminal.width - gap * (len(columns) - 1))
    table = TerminalTable(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.title, justify="right" if column.right else "left", width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    terminal.print(table)


def fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return the widths of columns that have ``room`` characters together: those that they would have, the widest
    made narrower until all fit. None gets narrower than its ``least`` width, unless these do not fit, nor than 1."""
    widths = list(natural)
    bounds = least if sum(least) <= room else [1] * len(widths)
    while sum(widths) > room and (wider := [n for n, width in enumerate(widths) if width > bounds[n]]):
        widths[max(wider, key=widths.__getitem__)] -= 1
    return widths


def _print_in_full(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with columns as wide as their widest cell, two spaces apart."""
    lines = [[column.title for column in columns], *rows]
    widths = [max(len(line[number]) for line in lines) for number in range(len(columns))]
    padded = [
        [
            cell.rjust(width) if column.right else cell.ljust(width)
            for column, cell, width in zip(columns, line, widths, strict=True)
        ]
        for line in lines
    ]
    click.echo("\n".join("  ".join(line).rstrip() for line in padded))


# --- texts for rich and for programs ---------------------------------------------------------------------


def console(*, err: bool = False) -> Console:
    """Return a console of ``rich``, on stdout or on stderr with ``err``, that interprets no markup."""
    from rich.console import Console

    return Console(stderr=err, highlight=False, markup=False, emoji=False)


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


def print_json_rows(rows: Iterable[Any]) -> None:
    """Print an array of values on stdout as one JSON text, a value on each line, as they come."""
    separator = "["
    for row in rows:
        click.echo(separator + json_text(row), nl=False)
        separator = ",\n"
    click.echo("[]" if separator == "[" else "]")


def print_tsv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print lines of values separated by tabs on stdout, as they come, after a line with the names of the columns."""
    click.echo("\t".join(map(_for_programs, columns)))
    for row in rows:
        click.echo("\t".join(map(_for_programs, row)))


def _json_escape(character: str) -> str:
    """Return a character as a JSON escape ``\\uXXXX``, or as two if it needs a pair of surrogates."""
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
