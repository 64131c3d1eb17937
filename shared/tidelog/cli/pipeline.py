"""``tidelog pipeline``: runs, checks and shows a file that declares which topics go through Spark into which tables
and topics."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.connection_options import settings_of
from tidelog.cli.exit_status import DONE, FAILED, INTERRUPTED
from tidelog.cli.main import gateway_option, token_in
from tidelog.cli.output import Cell, Table, json_text, print_json, result_output, say
from tidelog.errors import ConfigError
from tidelog.printable import escaped_lines
from tidelog.quantities import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidelog.sansio.effects import Event
    from tidelog.spark.pipelines.declaration import Pipeline, Reading
    from tidelog.spark.pipelines.run import Run
    from tidelog.spark.pipelines.trial import OutputTrial

MAX_CELL = 80
"""Most characters of a value in a table of rows."""


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run and check pipelines, which read topics, compute tables with Spark, and write tables and topics."""


def _variables(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """Return the values of variables: those of the environment, and those of --set, which go before."""
    values = dict(os.environ)
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{one!r} is not NAME=VALUE.", ctx, param)
        values[name] = value
    return values


file_argument = click.argument("file", type=click.Path(path_type=Path))
set_option = click.option(
    "--set",
    "variables",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_variables,
    help="Value of the variable ${NAME} in the file; other variables are taken from the environment.",
)
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder below which the relative paths of the file are; by default that of the file.",
)
master_option = click.option(
    "--master",
    default="",
    help="Where Spark runs: local[2], spark://host:7077, k8s://…; by default local[*]. spark-submit has an option"
    " --master of its own.",
)


@pipeline.command("run")
@file_argument
@master_option
@folder_option
@set_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="",
    help="Show /healthz and /metrics at this address, while it runs; PORT alone is at 127.0.0.1. Others must not"
    " reach it: the pages have no authentication.",
)
@result_output
@gateway_option
def pipeline_run(
    file: Path,
    master: str,
    folder: Path | None,
    variables: dict[str, str],
    listen: str,
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Run the pipeline that FILE declares, until everything that is in the topics has been processed, or for ever, as
    its trigger says. A second run continues where the one before ended. A gateway that the file names goes before the
    context in use; --gateway, --context and TIDELOG_GATEWAY go before the file. An output whose query fails is
    started again, as [restart] in the file says. The log is on stderr. -o json prints an object on one line for each
    output.

    Exit codes: 0 all outputs are done; 1 an output has given up, or Spark has ended; 2 wrong usage or configuration;
    130 interrupted, by Ctrl-C or SIGTERM."""
    from tidelog.runtime import logs
    from tidelog.sansio.effects import Event
    from tidelog.spark.pipelines.run import Run
    from tidelog.spark.pipelines.session import session
    from tidelog.spark.pipelines.status.status_pages import StatusPages

    reading, place = _read(file, variables), _place(file, folder)
    declared = reading.pipeline
    gateway, identity = _connection(declared, place)
    address = _address(listen) if listen else None
    logs.configure()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs what it raises
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pages = StatusPages(declared.name)
    with _interruptible(), ExitStack() as stack:
        shown = {}
        if address is not None:
            from tidelog.spark.pipelines.status.status_port import status_port

            shown = {"status": stack.enter_context(status_port(*address, pages.pages))}
        logs.perform(Event("pipeline_started", {"pipeline": declared.name} | shown))
        spark = session(declared, master)
        stack.callback(_end, spark)
        run = Run(declared, spark, place, gateway, identity, logs.perform, reading.secrets)
        pages.show(lambda: run.statuses)
        _finish(run, output, declared.name, logs.perform)


@pipeline.command("check")
@file_argument
@folder_option
@set_option
@click.option("--no-spark", is_flag=True, help="Do not start Spark: the SQL is not analysed, and the check is quick.")
@result_output
def pipeline_check(file: Path, folder: Path | None, variables: dict[str, str], no_spark: bool, output: str) -> None:
    """Check the pipeline that FILE declares, without a cluster, and without running anything. Every fault is
    reported with its line. Spark, if it is installed, analyses the SQL with the columns of the inputs, which takes
    seconds. Python functions are looked for, but not run."""
    from tidelog.spark.pipelines.check import check, with_faults
    from tidelog.spark.pipelines.run import text_of

    reading = check(text_of(file), variables, _place(file, folder))
    missing = "--no-spark" if no_spark else ""
    if not no_spark and reading.pipeline.inputs:
        try:
            found, missing = _analysed(reading, _place(file, folder))
            reading = with_faults(reading, found)
        except ConfigError as error:
            missing = error.message
    errors = reading.errors()
    if output:
        shown = [asdict(fault) for fault in reading.faults]
        print_json({"file": str(file), "faults": shown, "sql_analysed": not missing, "not_analysed_because": missing})
    else:
        for fault in reading.faults:
            say(fault.shown(file))
        if missing:
            say(f"{file}: the SQL was not analysed: {missing}", err=True)
        if not errors:
            say(f"{file}: no errors in {_parts(reading.pipeline)}")
    if errors:
        raise click.exceptions.Exit(FAILED)


@pipeline.command("try")
@file_argument
@click.option(
    "--records",
    type=click.IntRange(1, 100_000),
    default=100,
    show_default=True,
    help="How many records to read of each input.",
)
@click.option(
    "--rows",
    type=click.IntRange(0, 1000),
    default=10,
    show_default=True,
    help="How many rows of each output to show.",
)
@folder_option
@set_option
@result_output
@gateway_option
def pipeline_try(
    file: Path,
    records: int,
    rows: int,
    folder: Path | None,
    variables: dict[str, str],
    output: str,
    gateways: tuple[str, ...],
) -> None:
    """Show what each output of the pipeline that FILE declares would get from the first records of the topics, and
    write nothing. It runs on this machine, on one core. Windows are shown though later records may change them. -o
    json prints an object on one line for each output."""
    from tidelog.spark.pipelines.file.variables import hidden
    from tidelog.spark.pipelines.session import short_session

    reading = _read(file, variables)
    declared = reading.pipeline
    gateway, identity = _connection(declared, _place(file, folder))
    connection = {"gateway": gateway, **identity} if gateway else identity
    with _interruptible(), short_session(declared, declared.spark) as spark:
        from tidelog.spark.pipelines.trial import trial

        results = trial(declared, spark, _place(file, folder), connection, records, rows)
    for one in results:
        shown = replace(one, error=hidden(one.error, reading.secrets))
        if output:
            print_json(asdict(shown), indent=None)
        else:
            _show(shown)
    if any(one.error for one in results):
        raise click.exceptions.Exit(FAILED)


@pipeline.command("graph")
@file_argument
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write; default stdout.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["svg", "mermaid", "text"]),
    default="svg",
    show_default=True,
    help="A picture; a diagram for Markdown; a line for each part.",
)
@folder_option
def pipeline_graph(file: Path, out: Path | None, form: str, folder: Path | None) -> None:
    """Draw the pipeline that FILE declares: its topics, tables, outputs and plots, and what comes from what. It needs
    neither Spark nor a cluster, and no values of variables, which are shown as ${NAME}."""
    from tidelog.spark.pipelines.graph import parts, picture, texts

    reading = _read(file, None)
    sources = {}
    for step in reading.pipeline.steps:
        name = step.python.rpartition(":")[0]
        path = _place(file, folder) / name
        if name and path.is_file():
            sources[name] = path.read_text(errors="replace")
    graph = parts.graph_of(reading.pipeline, sources)
    drawn = {"svg": picture.svg, "mermaid": texts.mermaid, "text": texts.lines}[form](graph)
    if out is None:
        for line in drawn.splitlines():
            say(line)
        return
    try:
        out.write_text(drawn, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{out}: {error.strerror}") from None


def _show(one: OutputTrial) -> None:
    """Print what an output would get, for people: a line about it, and a table of its first rows."""
    if one.error:
        say(f"{one.output} ({one.destination}): {one.error}")
        return
    say(f"{one.output} ({one.destination}): {counted(one.rows, 'row')}")
    if one.first:
        table = Table(*one.columns)
        for row in one.first:
            table.add(*(Cell(value, _short(value)) for value in row), name=" ")
        table.print()


def _short(value: Any) -> str:
    """Return a value of a row as a short text."""
    text = "null" if value is None else value if isinstance(value, str) else json_text(value)
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"


def _analysed(reading: Reading, folder: Path) -> tuple[list[Any], str]:
    """Return the faults that Spark finds in the SQL of a pipeline, and why some of it was not analysed, or ""."""
    from tidelog.spark.pipelines.session import settings_of_sql, short_session

    with _interruptible(), short_session(reading.pipeline, settings_of_sql(reading.pipeline)) as spark:
        from tidelog.spark.pipelines.analysis import Analysis

        analysis = Analysis(reading, spark, folder)
        analysis.run()
    return analysis.faults, "; ".join(f"{name} {why}" for name, why in analysis.left_out.items())


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the command with the status of an interruption if Ctrl-C is pressed within."""
    try:
        yield
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


def _parts(declared: Pipeline) -> str:
    """Return the numbers of parts of a pipeline, in words."""
    tables = f"{counted(len(declared.steps), 'table')}, " if declared.steps else ""
    return f"{counted(len(declared.inputs), 'input')}, {tables}{counted(len(declared.outputs), 'output')}"


def _read(file: Path, variables: dict[str, str] | None) -> Reading:
    """Return the declaration of a file that has no errors. Raises ``ConfigError`` with all of them if it has some."""
    from tidelog.spark.pipelines.declaration import read
    from tidelog.spark.pipelines.run import text_of

    reading = read(text_of(file), variables)
    if errors := reading.errors():
        raise ConfigError("\n".join(fault.shown(file) for fault in errors))
    return reading


def _place(file: Path, folder: Path | None) -> Path:
    """Return the folder of relative paths."""
    return (folder or file.resolve().parent).resolve()


def _connection(declared: Pipeline, place: Path) -> tuple[str, dict[str, str]]:
    """Return the gateways of a pipeline, separated by commas, and the options by which it identifies itself to them:
    those of the command line, the environment or a context go before those of the file. Files that the pipeline names
    are below ``place``."""
    named = tuple(declared.gateway.split(",")) if declared.gateway else ()
    settings = settings_of(click.get_current_context(), named)
    shown = {"ca": settings.ca, "cert": settings.cert, "key": settings.cert_key}
    shown["token"] = token_in(settings.token_file) or settings.token
    identity = declared.security.identity(place, {name: value for name, value in shown.items() if value})
    return ",".join(settings.gateways), identity


def _finish(run: Run, output: str, name: str, perform: Callable[[Event], None]) -> None:
    """Run the pipeline ``name`` to its end, and print what became of each output. Ends the command if an output has
    failed, or if the pipeline is interrupted."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from tidelog.sansio.effects import Event
    from tidelog.spark.errors import SourceError, error_in

    status, error = DONE, ""
    try:
        run.finish(run.start())
    except KeyboardInterrupt:
        status = INTERRUPTED
    except ConfigError as failure:
        raise ConfigError(run.without_secrets(failure.message)) from None
    except (PySparkException, SourceError) as failure:
        status = FAILED
        error = str(error_in(failure) or str(failure).partition("JVM stacktrace:")[0].strip())
    except (Py4JError, ConnectionError) as failure:
        status, error = FAILED, f"Spark failed, or its process has ended: {failure}".partition("\n")[0]
    failed = [one.output for one in run.statuses if one.state == "failed"]
    perform(Event("pipeline_ended", {"pipeline": name, "failed": failed, "exit_code": status}))
    for outcome in run.outcomes:
        if output:
            print_json(asdict(outcome), indent=None)
        else:
            ended = "" if outcome.state == "done" else f"; {outcome.state}"
            batches = "1 batch" if outcome.batches == 1 else f"{outcome.batches} batches"
            say(f"{outcome.output}: {counted(outcome.rows, 'row')} read in {batches}{ended}")
    if error:
        raise click.ClickException(escaped_lines(run.without_secrets(error)))
    if status:
        raise click.exceptions.Exit(status)


def _end(spark: SparkSession) -> None:
    """End the session of Spark, if its process still runs."""
    from py4j.protocol import Py4JError

    with suppress(Py4JError, ConnectionError):
        spark.stop()


def _address(text: str) -> tuple[str, int]:
    """Return the host and port of ``HOST:PORT`` or ``PORT``. Raises ``ConfigError``."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise ConfigError(f"--listen is HOST:PORT or PORT, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)
