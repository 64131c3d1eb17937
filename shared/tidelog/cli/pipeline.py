"""``tidelog pipeline``: runs a file that declares which topics go through Spark into which tables and topics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from tidelog.cli.exit_status import INTERRUPTED
from tidelog.cli.output import print_json, result_output, say
from tidelog.printable import escaped_lines


@click.group()
def pipeline() -> None:
    """Run pipelines, which read topics, compute tables with Spark, and write tables and topics."""


@pipeline.command("run")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--gateway", envvar="TIDELOG_GATEWAY", default="", help="URL of a gateway, in place of the file's.")
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
def pipeline_run(file: Path, gateway: str, master: str, folder: Path | None, output: str) -> None:
    """Run the pipeline that FILE declares, until everything that is in the topics has been processed, or for ever, as
    its trigger says. A second run continues where the one before ended. -o json prints an object on one line for each
    output."""
    from tidelog.spark.pipeline import Run, load, session

    declared = load(file)
    spark = session(declared, master)
    from pyspark.errors import PySparkException

    try:
        run = Run(declared, spark, (folder or file.resolve().parent).resolve(), gateway)
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
