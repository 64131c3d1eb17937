"""Runs a pipeline: reads topics, computes tables by SQL or Python, writes tables and topics (``declaration.py``).

``tidelog pipeline run FILE`` runs it, or ``spark-submit …/tidelog/spark/pipeline.py FILE``. Every output, and every
topic for bad records, is one streaming query with a checkpoint of its own below ``checkpoints``. A query that was
stopped, or died, continues at its checkpoint."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.spark.declaration import AVAILABLE_NOW, DeclaredOutput, Input, Pipeline, Step, parse
from tidelog.spark.options import DEFAULT_GATEWAY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NO_IDENTITY: Mapping[str, str] = MappingProxyType({})
UTC = {"spark.sql.session.timeZone": "UTC"}
"""Settings by which a pipeline means the same on every machine. The pipeline's own settings override them."""
QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
"""Settings of a session that was not started by spark-submit. The pipeline's own settings override them."""


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """The number of rows that the query of one output has read in this run, and the number of micro-batches."""

    output: str
    rows: int
    """Number of rows that the query read."""
    batches: int


def load(file: Path) -> Pipeline:
    """Read a pipeline's declaration from a TOML file and return it. Raises ``ConfigError`` if the file cannot be read
    or has errors."""
    try:
        return parse(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None


def session(pipeline: Pipeline, master: str) -> SparkSession:
    """Return the running Spark session, or a new one on ``master`` ("": this machine, all cores) with the pipeline's
    settings and, outside of spark-submit, little logging. Under spark-submit the master is that of spark-submit. Sets
    ``PYSPARK_PYTHON`` and, for a local master, ``SPARK_LOCAL_IP`` in the environment if they are not set. Raises
    ``ConfigError`` if Spark or Java is not installed, or if ``master`` is given under spark-submit."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise ConfigError(f"Spark is not installed: {install_hint('spark')}")
    if not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        raise ConfigError("Spark needs Java 17, which is not here: apt-get install openjdk-17-jre-headless")
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(pipeline.name)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted and master:
        raise ConfigError(f"the master is for spark-submit to say: spark-submit --master {master} …")
    if not submitted:
        master = master or "local[*]"
        builder = builder.master(master)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for name, value in {**UTC, **({} if submitted else QUIET), **pipeline.spark}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


class Run:
    """One run of a pipeline in a Spark session: ``start`` starts its queries, ``finish`` waits until they have ended.
    Paths in the declaration that are not URLs are relative to ``folder``. ``gateway`` overrides the declaration's,
    unless it is "". ``identity``: the options of source and sink by which they identify themselves, such as ``ca``
    and ``token``; options in the declaration override them."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        folder: Path,
        gateway: str = "",
        identity: Mapping[str, str] = NO_IDENTITY,
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._folder = folder
        self._connection = {"gateway": gateway or pipeline.gateway or DEFAULT_GATEWAY, **identity}

    def start(self) -> list[StreamingQuery]:
        """Create the views of all inputs and tables, start a streaming query for each output and each topic of bad
        records, and return the queries. Raises ``ConfigError`` for a missing Python file or function, for a Delta
        output without Delta, and for plots without matplotlib; errors in SQL raise Spark's errors."""
        if self._pipeline.plots and importlib.util.find_spec("matplotlib") is None:
            raise ConfigError(f"plots need matplotlib: {install_hint('plots')}")
        bad = {one.name: self._declare(one) for one in self._pipeline.inputs}
        for step in self._pipeline.steps:
            self._view(step.name, self._made(step), step)
        queries = [self._write(one, self._spark.table(one.table)) for one in self._pipeline.outputs]
        for one in self._pipeline.inputs:
            if (rows := bad[one.name]) is not None:
                output = DeclaredOutput(f"{one.name}-bad", one.name, topic=one.bad, value="raw")
                queries.append(self._write(output, rows))
        return queries

    def finish(self, queries: list[StreamingQuery]) -> list[QueryOutcome]:
        """Wait until all queries have ended, draw the plots, and return the outcome of each query. With a time as
        trigger the queries end only when they are stopped or fail. If a query fails, the others are stopped and its
        error is raised, and nothing is drawn."""
        try:
            for query in queries:
                query.awaitTermination()
        finally:
            for query in queries:
                query.stop()
        if self._pipeline.plots:
            self._draw()
        return [_outcome(query) for query in queries]

    def _draw(self) -> None:
        """Load the Parquet and Delta outputs as views, run the SQL of each plot on them, and write the pictures."""
        from tidelog.spark import plots

        for one in self._pipeline.outputs:
            if not one.topic:
                kind, path = ("parquet", one.parquet) if one.parquet else ("delta", one.delta)
                self._spark.read.format(kind).load(self._place(path)).createOrReplaceTempView(one.name)
        for plot in self._pipeline.plots:
            rows = self._spark.sql(plot.sql).limit(plots.MAX_POINTS + 1).collect()
            plots.draw(plot, [row.asDict() for row in rows], self._folder / (plot.file or f"{plot.name}.svg"))

    # --- tables --------------------------------------------------------------------------------------------

    def _declare(self, declared: Input) -> DataFrame | None:
        """Create the view of an input. Return the rows of its bad records, for the sink, if the input names a topic
        for them; otherwise None."""
        from tidelog.spark import value_columns as values

        reading = self._spark.readStream.format("tidelog")
        options = {"subscribe": declared.topic, "startingOffsets": "earliest"} | self._connection
        options |= dict(declared.options)
        for name, value in options.items():
            reading = reading.option(name, value)
        rows = reading.load()
        if declared.value == "raw":
            self._view(declared.name, rows, declared)
            return None
        found = values.parsed(rows, declared)
        self._view(declared.name, values.good(found, declared), declared)
        return values.bad(found) if declared.bad else None

    def _view(self, name: str, table: DataFrame, declared: Input | Step) -> None:
        """Register a table as a view under ``name``, with the watermark of its declaration if there is one."""
        if declared.watermark is not None:
            table = table.withWatermark(declared.watermark.column, declared.watermark.delay)
        table.createOrReplaceTempView(name)

    def _made(self, step: Step) -> DataFrame:
        """Return the table of a step: the result of its SQL, or of the Python function that it names. Raises
        ``ConfigError`` if the file or the function does not exist."""
        if step.sql:
            return self._spark.sql(step.sql)
        file, _, function = step.python.rpartition(":")
        path = self._folder / file
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ConfigError(f"[table.{step.name}]: there is no {path}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if make is None:
            raise ConfigError(f"[table.{step.name}]: {path} has no function {function}")
        table: DataFrame = make(self._spark)
        return table

    def _place(self, path: str) -> str:
        """Return a path for Spark: relative paths are below the run's folder, URLs such as ``hdfs://…`` are
        unchanged."""
        return path if "://" in path else str(self._folder / path)

    # --- queries -------------------------------------------------------------------------------------------

    def _write(self, declared: DeclaredOutput, table: DataFrame) -> StreamingQuery:
        """Start the streaming query that writes ``table`` to the output's topic, Parquet or Delta folder, and return
        the query. Raises ``ConfigError`` if Delta is not installed."""
        from tidelog.spark import value_columns as values

        rows = values.as_records(table, declared) if declared.topic else table
        writing = rows.writeStream.queryName(f"{self._pipeline.name}.{declared.name}").outputMode("append")
        writing = writing.option("checkpointLocation", f"{self._place(self._pipeline.checkpoints)}/{declared.name}")
        if declared.topic:
            delivery = {"delivery": self._pipeline.delivery} if self._pipeline.delivery else {}
            options = {"topic": declared.topic} | self._connection | delivery | dict(declared.options)
            writing = writing.format("tidelog")
        else:
            if declared.delta and importlib.util.find_spec("delta") is None:
                raise ConfigError(f"[out.{declared.name}]: Delta is not installed: pip install delta-spark")
            options = {"path": self._place(declared.parquet or declared.delta)} | dict(declared.options)
            writing = writing.format("parquet" if declared.parquet else "delta").partitionBy(*declared.partition_by)
        for name, value in options.items():
            writing = writing.option(name, value)
        every = self._pipeline.trigger
        trigger = {"availableNow": True} if every == AVAILABLE_NOW else {"processingTime": every}
        return writing.trigger(**trigger).start()


def _outcome(query: StreamingQuery) -> QueryOutcome:
    """Return the outcome of a query that has ended, as far as Spark remembers its progress."""
    done = [progress for progress in query.recentProgress if progress["numInputRows"]]
    name = str(query.name).rpartition(".")[2]
    return QueryOutcome(name, sum(progress["numInputRows"] for progress in done), len(done))


if __name__ == "__main__":
    from tidelog.cli import main

    main(["pipeline", "run", *sys.argv[1:]])
