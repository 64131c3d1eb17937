"""``tidelog pipeline``: runs a file that declares which topics go through Spark into which tables and topics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tidelog.cli.command_group import CommandGroup
from tidelog.cli.connection_options import settings_of
from tidelog.cli.exit_status import INTERRUPTED
from tidelog.cli.main import gateway_option, token_in
from tidelog.cli.output import print_json, result_output, say
from tidelog.printable import escaped_lines


@click.group(cls=CommandGroup)
def pipeline() -> None:
    """Run pipelines, which read topics, compute tables with Spark, and write tables and topics."""


@pipeline.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--master",
    default="",
    help="Where Spark runs: local[2], spark://host:7077, k8s://…; default local[*]. spark-submit says it itself.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where relative paths of the file are; default the file's folder.",
)
@result_output
@gateway_option
def pipeline_run(file: Path, master: str, folder: Path | None, output: str, gateways: tuple[str, ...]) -> None:
    """Run the pipeline that FILE declares, until everything that is in the topics has been processed, or for ever, as
    its trigger says. A second run continues where the one before ended. A gateway that the file names goes before the
    context in use; --gateway, --context and TIDELOG_GATEWAY go before the file. -o json prints an object on one line
    for each output."""
    from tidelog.spark.pipeline import Run, load, session

    declared = load(file)
    named = tuple(declared.gateway.split(",")) if declared.gateway else ()
    settings = settings_of(click.get_current_context(), named)
    shown = {"ca": settings.ca, "cert": settings.cert, "key": settings.cert_key}
    shown["token"] = token_in(settings.token_file) or settings.token
    identity = {name: value for name, value in shown.items() if value}
    spark = session(declared, master)
    from pyspark.errors import PySparkException

    try:
        place = (folder or file.resolve().parent).resolve()
        run = Run(declared, spark, place, ",".join(settings.gateways), identity)
        outcomes = run.finish(run.start())
    except PySparkException as error:
        raise click.ClickException(escaped_lines(str(error).partition("JVM stacktrace:")[0].strip())) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        spark.stop()
    for outcome in outcomes:
        if output:
            print_json(asdict(outcome), indent=None)
        else:
            say(f"{outcome.output}: {outcome.rows} rows in {outcome.batches} batches")
