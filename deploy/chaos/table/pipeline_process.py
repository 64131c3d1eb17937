"""The pipeline of a run with a table: ``tidelog pipeline run`` in a process of its own. Whenever it ends it is
started again on its checkpoint, as a supervisor would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import trio
from chaos.table.object_store import BUCKET
from chaos.workload.spark_processes import SparkProgram

TOPIC = "events"
OUTPUT = "lake"
MASTER = "local[2,8]"
"""Spark's master: two tasks at a time; a task that fails is tried seven times more."""
PAUSE_S = 0.5
"""Seconds between an end of the pipeline and its next start."""
SPARK = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
RESTART = {"times": 1000, "within": "10m", "delay": "500ms", "max-delay": "2s"}
"""An outage of the store is longer than the restarts that a pipeline has by default."""


def declaration(
    format: str, trigger: str, batch: int, folder: Path, gateways: str, options: Mapping[str, str]
) -> str:
    """Return the file of the pipeline: every record of the topic, as it is, into one table of the object store."""
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"s3://{BUCKET}/warehouse"}
    table = (
        f'iceberg = "shop.events"\ncatalog = {_inline(catalog)}'
        if format == "iceberg"
        else f'delta = "s3://{BUCKET}/events"'
    )
    return f"""name = "chaos"
trigger = "{trigger}"
gateway = "{gateways}"
[spark]
{_lines(SPARK)}
[restart]
{_lines(RESTART)}
[in.events]
topic = "{TOPIC}"
options = {{ maxOffsetsPerTrigger = {batch} }}
[out.{OUTPUT}]
from = "events"
{table}
options = {_inline(options)}
"""


def _lines(values: Mapping[str, str | int]) -> str:
    return "\n".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items())


def _inline(values: Mapping[str, str]) -> str:
    return f"{{ {', '.join(f'{json.dumps(name)} = {json.dumps(value)}' for name, value in values.items())} }}"


class PipelineProcess:
    """The pipeline and its process. ``declared`` returns the file for a trigger."""

    def __init__(self, folder: Path, declared: Callable[[str], str]) -> None:
        self.program = SparkProgram(folder, folder / "checkpoints" / OUTPUT)
        self._file = folder / "chaos.toml"
        self._declared = declared
        self._stopping = False

    async def run(self) -> None:
        """Start the pipeline, and again after each end, until ``stop``. If cancelled, its processes are killed."""
        try:
            while not self._stopping:
                await self.program.run(self._command("1 second"))
                await trio.sleep(PAUSE_S)
        finally:
            self.program.kill_all()

    async def stop(self) -> None:
        """End the pipeline by SIGTERM, and do not start it again."""
        self._stopping = True
        await self.program.stop()

    async def finish(self) -> None:
        """Run the pipeline until it has processed everything that is in the topic. Raises ``RuntimeError`` if it
        fails."""
        try:
            if await self.program.run(self._command("available-now")) != 0:
                raise RuntimeError(f"the last run of the pipeline failed: {self.program.reason()}")
        finally:
            self.program.kill_all()

    def _command(self, trigger: str) -> list[str]:
        """Write the pipeline's file, and return the command that runs it."""
        self._file.write_text(self._declared(trigger))
        return [sys.executable, "-m", "tidelog.cli", "pipeline", "run", str(self._file), "--master", MASTER]
