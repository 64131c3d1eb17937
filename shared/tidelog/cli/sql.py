"""``tidelog sql``: queries over topics, with DuckDB."""

from __future__ import annotations

import base64
import difflib
import math
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.exit_status import FAILED, INTERRUPTED, UNUSABLE
from tidelog.cli.main import connect, gateway_option
from tidelog.cli.output import JSON, TSV, Table, json_text, print_json_rows, print_tsv, rows_output, say
from tidelog.cli.progress import Bar, shown
from tidelog.cli.records.formats import text_or_b64
from tidelog.errors import ConfigError, TidelogError, refuse
from tidelog.extras import install_hint

if TYPE_CHECKING:
    import duckdb

    from tidelog.client.log import Log as AsyncLog
    from tidelog.sync import Log

TABLE_ROWS = 1000
"""Most rows that are printed as a table, whose widths depend on all of them."""
FETCH_ROWS = 2048
"""Rows that are taken from DuckDB at a time."""


@click.command()
@click.argument("query")
@click.option(
    "--values",
    type=click.Choice(["string", "raw"]),
    default="string",
    show_default=True,
    help="Keys and values are VARCHAR, or BLOB, which is printed in base64.",
)
@click.option(
    "--on-invalid",
    type=click.Choice(["raise", "null"]),
    default="raise",
    show_default=True,
    help="At a key or value that is not text in UTF-8: end with an error that names it, or take it as NULL.",
)
@click.option(
    "--memory",
    default="1GB",
    show_default=True,
    metavar="SIZE",
    help="Memory for DuckDB; beyond it the disk is used.",
)
@rows_output
@gateway_option
def sql(query: str, output: str, values: str, on_invalid: str, memory: str, gateways: tuple[str, ...]) -> None:
    """Run queries over topics, in the SQL of DuckDB, and print their results.

    \b
    tidelog sql "select count(*) from topic('orders', '-1h')"
    tidelog sql "select value->>'$.city' city, count(*) from orders group by city"

    A topic is a table: by its name (in double quotes if it has dots or dashes), with all that is committed now, or
    as topic('NAME', FROM, TO), where FROM and TO are what --from and --until are to 'consume': earliest, latest, an
    offset, or a time such as '-1h' or '2026-01-31T12:00:00'. The columns are partition, offset, timestamp, key,
    value, headers, leader_epoch and topic; only those that the query needs are read. Conditions on partition, offset
    and the earliest time bound what is read. Records pass through, and are not loaded first. 'show tables' lists the
    topics, 'describe NAME' shows the columns. Several queries have ';' between them.

    A query only reads: it reaches topics, and neither files nor the network. It needs the extra 'sql'."""
    query.encode()  # raises for an argument that is not UTF-8, which DuckDB cannot take
    try:
        import duckdb
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"tidelog sql needs {error.name}: {install_hint('sql')}") from error
    manager, form = connect(gateways), (values, values, on_invalid)
    try:
        with tempfile.TemporaryDirectory(prefix="tidelog-sql-") as folder:
            _run(manager, query, form, output, (memory, folder))
    except duckdb.Error as error:
        text, _, more = str(error).partition("\n")
        if isinstance(error, duckdb.OutOfMemoryException):
            more = f"The query needs more than --memory {memory}. Allow more, or read less: topic('NAME', FROM, TO)."
        for line in (f"tidelog: {text}", *more.splitlines(), *filter(None, [_hint(error)])):
            say(line, err=True)
        is_wrong = isinstance(error, duckdb.ProgrammingError | duckdb.NotSupportedError | duckdb.DataError)
        raise click.exceptions.Exit(UNUSABLE if is_wrong else FAILED) from None
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            say(err=True)  # ends the line with what was printed last, and ^C
        say("tidelog: interrupted: the result is not complete", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe has ended: no error message at exit


def _run(
    manager: AbstractAsyncContextManager[AsyncLog],
    query: str,
    form: tuple[str, str, str],
    output: str,
    limits: tuple[str, str],
) -> None:
    """Connect, run a query in a thread of its own, and print its result. Raises ``KeyboardInterrupt`` at Ctrl-C, also
    while DuckDB or the log is waited for. ``limits``: arguments of ``_open``."""
    from tidelog.sync import Log
    from tidelog.sync.portal import Portal

    with Log(Portal(lambda: manager)) as log, _open(*limits) as connection:
        thread = _QueryThread(lambda: _answer(log, connection, query, form, output))
        try:
            thread.start()
            thread.finish()
        except KeyboardInterrupt:
            connection.interrupt()
            log.close()  # whoever waits for records gets an error
            thread.wait()
            raise


class _QueryThread(threading.Thread):
    """A thread that runs a query, so that Ctrl-C reaches the main thread at once, whatever DuckDB waits for."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="sql", daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self._ended = threading.Event()  # Ctrl-C in Thread.join can leave a thread that runs marked as ended

    def run(self) -> None:
        """Run the query, and keep its error."""
        try:
            self._work()
        except BaseException as error:
            self._error = error
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Wait for the end of the query."""
        self._ended.wait()

    def finish(self) -> None:
        """Wait for the end of the query. Raises its error."""
        self.wait()
        if self._error is not None:
            raise self._error


def _open(memory: str, folder: str) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB in memory that reaches nothing but the tables that it gets, except for ``folder``, in which it
    puts what exceeds ``memory``. Raises ``ConfigError`` if ``memory`` is no size."""
    import duckdb

    try:
        connection = duckdb.connect(config={"memory_limit": memory, "temp_directory": folder})
    except duckdb.Error as error:
        raise ConfigError(f"--memory {memory}: {error}") from None
    for setting in (
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "python_enable_replacements = false",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


def _answer(
    log: Log, connection: duckdb.DuckDBPyConnection, query: str, form: tuple[str, str, str], output: str
) -> None:
    """Run the statements of a query and print their results. All topics are looked up before. Raises the error of a
    topic that cannot be read, and those of DuckDB."""
    import duckdb

    from tidelog.cli.sql_tables import Form, Source, TopicTable, lists_topics, name_calls, topics_in

    rewritten, sources = name_calls(query)
    try:
        statements = connection.extract_statements(rewritten)
    except duckdb.ParserException:
        connection.extract_statements(query)  # raises an error that shows what was written
        raise
    _check(statements)
    sources |= {name: Source(name) for name in topics_in(rewritten, connection) - sources.keys()}
    for source in sources.values():
        _check_topic(log, source.topic)
    bar = Bar("reading offsets")
    tables = {name: TopicTable(log, source, Form(*form), bar) for name, source in sources.items()}
    for name, table in tables.items():
        connection.register(name, table)
    try:
        for number, statement in enumerate(statements):
            if number and not output:
                say()
            if lists_topics(statement.query):
                _print_topics(log, output)
                continue
            with shown(bar):
                connection.execute(statement.query)
                columns = [name for name, *_ in connection.description or ()]
                rows = _rows(connection)
                first = list(islice(rows, 1))
            _print(output, columns, chain(first, rows))
    except duckdb.Error:
        for table in tables.values():
            if table.failure is not None:
                raise table.failure from None
        raise


def _check_topic(log: Log, topic: str) -> None:
    """Raise ``UNKNOWN_TOPIC``, with the name that was probably meant, if there is no such topic."""
    try:
        log.topics.describe(topic)
    except TidelogError as error:
        if error.code != "UNKNOWN_TOPIC":
            raise
        names = {each.name.lower(): each.name for each in log.topics.list()}
        near = difflib.get_close_matches(topic.lower(), names, 1)
        meant = f": did you mean {names[near[0]]}?" if near else ""
        raise refuse("UNKNOWN_TOPIC", f"there is no topic {topic}{meant}", topic=topic) from None


def _check(statements: list[Any]) -> None:
    """Raise ``ConfigError`` unless there is a statement, and all only read."""
    import duckdb

    if not statements or any(each.type != duckdb.StatementType.SELECT for each in statements):
        raise ConfigError("tidelog sql only reads, by queries such as: select count(*) from topic('orders', '-1h')")


def _rows(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of the result while the query computes them."""
    while rows := connection.fetchmany(FETCH_ROWS):
        yield from rows


def _hint(error: duckdb.Error) -> str:
    """Return what helps against an error of DuckDB that often comes from not knowing the tables; "" for others."""
    from tidelog.cli.sql_tables import COLUMNS

    text = str(error)
    if "Referenced column" in text and "not found" in text:
        return f"A topic has the columns {', '.join(COLUMNS)}; value->>'$.name' takes a field of a JSON value."
    if text.startswith("Parser Error") and "offset" in text.lower():
        return 'OFFSET is a word of SQL: write the column in double quotes, "offset".'
    return ""


# --- output ----------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """Return a value of DuckDB as JSON can have it: bytes in base64, headers as ``tidelog consume`` prints them,
    times in ISO 8601, others as their text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case bytes():
            return base64.b64encode(value).decode()
        case datetime():
            return value.isoformat(timespec="milliseconds" if value.microsecond % 1000 == 0 else "microseconds")
        case date() | time():
            return value.isoformat()
        case Decimal():
            return float(value)
        case list() | tuple():
            return [_plain(each) for each in value]
        case {"key": str(name), "value": bytes(data)} if len(value) == 2:
            return {"key": name, **text_or_b64("value", data)}  # a header
        case dict():
            return {str(_plain(name)): _plain(each) for name, each in value.items()}
    return str(value)


def _print_table(columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """Print the rows as a table for people, of ``TABLE_ROWS`` rows at most; say on stderr if there are more."""
    table = Table(*columns)
    for row in islice(rows, TABLE_ROWS):
        table.add(*[_shown(value) for value in row])
    table.print()
    if next(rows, None) is not None:
        say(f"tidelog: the result has more than {TABLE_ROWS} rows; -o json and -o tsv print all", err=True)


def _shown(value: Any) -> object:
    """Return what a cell shows of a value: structures as JSON."""
    plain = _plain(value)
    return json_text(plain) if isinstance(plain, list | dict) else plain


def _print_topics(log: Log, output: str) -> None:
    """Print the topics, as ``SHOW TABLES`` lists tables; for people also how to read one."""
    topics = sorted((topic.name, len(topic.partitions)) for topic in log.topics.list())
    _print(output, ["name", "partitions"], iter(topics))
    if not output:
        how = "in double quotes if it has dots or dashes; 'describe NAME' shows its columns"
        say(f"A topic is a table by its name, {how}.", err=True)


def _print(output: str, columns: list[str], rows: Iterator[tuple[Any, ...]]) -> None:
    """Print a result in the format ``output``, the value of ``-o``, as its rows come."""
    if output == JSON:
        print_json_rows(dict(zip(columns, map(_plain, row), strict=True)) for row in rows)
    elif output == TSV:
        print_tsv(columns, (map(_shown, row) for row in rows))
    else:
        _print_table(columns, rows)
