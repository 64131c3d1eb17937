"""``tidelog demo``: the whole main job, with real processes, on this machine."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from tidelog.cli.exit_status import DONE, FAILED
from tidelog.cli.main import run
from tidelog.cli.option_types import Quantity
from tidelog.quantities import SECONDS


@click.command()
@click.option(
    "--input",
    "source",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    help="File whose lines are the records; without it: live metrics of this host.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Folder for the report and the processes' logs.",
)
@click.option(
    "--seconds",
    type=Quantity(SECONDS, least=12, most=600, whole=True),
    default="20s",
    show_default=True,
    help="How long records flow.",
)
@click.option("--spark/--no-spark", default=True, help="Run the Spark job at the end.")
@click.option("--keep", is_flag=True, help="Keep the cluster's data.")
def demo(source: Path | None, out: Path, seconds: int, spark: bool, keep: bool) -> None:
    """Demonstrate that nothing is lost: three controllers, three replica servers and two gateways take records while
    the server that leads a partition and then the active controller are killed (SIGKILL) and restarted. Every
    acknowledged record is then looked for on every replica, and Spark reads the topic. Exit code 1 when anything was
    lost."""
    from tidelog.cli.demo.script import DemoRun

    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=out))
    try:
        ok = run(DemoRun(folder, out, source, seconds, spark).run)
    finally:
        if not keep:
            shutil.rmtree(folder)
    sys.exit(DONE if ok else FAILED)
