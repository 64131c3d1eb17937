"""Lets Spark analyse the SQL of a pipeline, with streams that have the inputs' columns and no records. Nothing is
read, written or run, and no cluster is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidelog.errors import ConfigError
from tidelog.spark.errors import SourceError, error_in
from tidelog.spark.pipelines import value_columns, views
from tidelog.spark.pipelines.declaration import DeclaredOutput, Pipeline, Plot, Reading, Step
from tidelog.spark.pipelines.file import toml_lines
from tidelog.spark.pipelines.file.sql_names import tables_of
from tidelog.spark.pipelines.file.toml_settings import Fault
from tidelog.spark.pipelines.shared_reads import tables_needed
from tidelog.spark.read import arrow
from tidelog.spark.write.columns import check_columns
from tidelog.tables.columns import parse_partition_field

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = re.compile(r"[;,]?\s*\(?line (\d+),? pos(?:ition)? \d+\)?")
LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""The loggers to which PySpark writes every error of a query, with the trace of the JVM."""
_STATE = re.compile(r"\s*SQLSTATE: \w+")


class Analysis:
    """The analysis of one pipeline in a Spark session, in which it creates the pipeline's views. Schema files are
    below ``folder``. ``faults`` has what is wrong; ``left_out`` the names of the computed tables that were not
    analysed, each with the reason."""

    def __init__(self, reading: Reading, spark: SparkSession, folder: Path) -> None:
        self.faults: list[Fault] = []
        self.left_out: dict[str, str] = {}
        self._pipeline: Pipeline = reading.pipeline
        self._lines = reading.lines
        self._faulty = reading.faulty
        self._spark = spark
        self._folder = folder
        self._tables: dict[str, DataFrame] = {}

    def run(self) -> None:
        """Analyse all inputs, tables, outputs and plots."""
        with muted():
            self._inputs()
            self._steps()
            for output in self._pipeline.outputs:
                table = self._tables.get(output.table.lower())
                if table is not None and ("out", output.name) not in self._faulty:
                    self._output(output, table)
            self._plots()

    def _inputs(self) -> None:
        for one in self._pipeline.inputs:
            if ("in", one.name) in self._faulty:
                continue
            wants = {name.lower(): value for name, value in one.options.items()}.get("includeheaders", "false")
            columns = arrow.DDL_HEADERS if wants.lower() == "true" else arrow.DDL
            where, records = f"[in.{one.name}]", empty_stream(self._spark, columns)
            with self._reported(("in", one.name, "schema"), where):
                if one.schema:
                    StructType.fromDDL(one.schema)  # tells more of a wrong schema than from_json does
                views.input_view(replace(one, watermark=None), records, self._folder)
                with self._reported(("in", one.name, "watermark"), where):
                    views.input_view(one, records, self._folder)
                    self._tables[one.name.lower()] = self._spark.table(one.name)

    def _steps(self) -> None:
        names = {one.name.lower() for part in (self._pipeline.inputs, self._pipeline.steps) for one in part}
        for step in self._pipeline.steps:
            unknown = [one.name for one in tables_of(step.sql) if one.name in names and one.name not in self._tables]
            if step.python:
                self.left_out[step.name] = "is made by a Python function, which is not run"
            elif unknown:
                self.left_out[step.name] = f"reads {', '.join(unknown)}"
            elif ("table", step.name) not in self._faulty:
                self._step(step)

    def _step(self, step: Step) -> None:
        where = f"[table.{step.name}]"
        with self._reported(("table", step.name, "sql"), where):
            self._spark.sql(step.sql)
            with self._reported(("table", step.name, "watermark"), where):
                views.step_view(step, self._spark, self._folder)
                self._tables[step.name.lower()] = self._spark.table(step.name)

    def _output(self, output: DeclaredOutput, table: DataFrame) -> None:
        """Analyse what an output does with its table: key, columns of records, folders, and the mode."""
        where, path = f"[out.{output.name}]", ("out", output.name)
        columns = {name.lower() for name in table.columns}
        for number, name in enumerate(output.partition_by):
            try:
                column = name if output.parquet else parse_partition_field(name).column
            except ValueError as error:
                text = f"{where}: partition-by: {error}"
            else:
                if column.lower() in columns:
                    continue
                text = f"{where}: partition-by: there is no column {column}; there are {', '.join(table.columns)}"
            self.faults.append(Fault(self._lines.of((*path, "partition-by", number)), text))
        rows = table
        with self._reported((*path, "key" if output.key else "from"), where):
            rows = value_columns.as_records(table, output) if output.topic else table
            if output.topic:
                check_columns({one.name: one.dataType.simpleString() for one in rows.schema.fields}, True)
        with self._reported((*path, "mode" if output.mode != "append" else "from"), where):
            refuse_mode(self._spark, rows, output.mode)
        self._share(output, rows)

    def _share(self, output: DeclaredOutput, rows: DataFrame) -> None:
        """Find out whether the rows of an output are such that it can share the read of an input, if it is to."""
        for source in self._pipeline.inputs:
            if output.name in source.shared_by:
                try:
                    tables_needed(rows, source, self._pipeline)
                except ConfigError as error:
                    path: toml_lines.Path = ("in", source.name, "shared-by", source.shared_by.index(output.name))
                    text = f"[in.{source.name}]: shared-by: {output.name}: {error.message}"
                    self.faults.append(Fault(self._lines.of(path), text))

    def _plots(self) -> None:
        """Analyse the plots over the outputs' tables, which take the place of views with the same names."""
        known = set()
        for output in self._pipeline.outputs:
            table = self._tables.get(output.table.lower())
            if not output.topic and table is not None:
                known.add(output.name.lower())
                self._spark.createDataFrame([], table.schema).createOrReplaceTempView(output.name)
        folders = {output.name.lower() for output in self._pipeline.outputs if not output.topic}
        for plot in self._pipeline.plots:
            if ("plot", plot.name) not in self._faulty and all(
                one.name in known for one in tables_of(plot.sql) if one.name in folders
            ):
                self._plot(plot)

    def _plot(self, plot: Plot) -> None:
        with self._reported(("plot", plot.name, "sql"), f"[plot.{plot.name}]"):
            columns = self._spark.sql(plot.sql).columns
            for key, name in (("x", plot.x), ("y", plot.y), ("by", plot.by)):
                if name and name not in columns:
                    text = f"[plot.{plot.name}]: {key}: the query has no column {name}; it has {', '.join(columns)}"
                    self.faults.append(Fault(self._lines.of(("plot", plot.name, key)), text))

    @contextmanager
    def _reported(self, path: toml_lines.Path, where: str) -> Iterator[None]:
        """Add an error that is raised within to ``faults``, at its line in the text at ``path``."""
        try:
            yield
        except (PySparkException, SourceError) as error:
            line, text = explained(error)
            self.faults.append(Fault(self._lines.within(path, line), f"{where}: {text}"))
        except ConfigError as error:  # of a schema or an expression of an input, whose name the text has
            self.faults.append(Fault(self._lines.of(path), error.message))


def empty_stream(spark: SparkSession, columns: str) -> DataFrame:
    """Return a stream with the given columns, written as in SQL, of which only the analyser ever sees anything."""
    fields = StructType.fromDDL(columns).fields
    nothing = [f.lit(None).cast(one.dataType).alias(one.name) for one in fields]
    return spark.readStream.format("rate").load().select(*nothing)


def refuse_mode(spark: SparkSession, rows: DataFrame, mode: str) -> None:
    """Raise Spark's ``AnalysisException`` if a streaming query cannot write these rows in an output mode, as Spark
    does at the start of the query: such as ``append`` with an aggregation without a watermark."""
    jvm = spark._jvm
    assert jvm is not None, "no session of a Spark Connect server"
    output_mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, mode.capitalize())()
    plan = rows._jdf.queryExecution().analyzed()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, output_mode)


def explained(error: Exception) -> tuple[int, str]:
    """Return the line in its SQL that an error of Spark names (1 if it names none), and the first line of its text:
    what follows is the query, its plan and the trace of the JVM. Of an error of source or sink only their own text
    is returned."""
    place = _PLACE.search(str(error))
    if (own := error_in(error)) is not None:
        return 1, _STATE.sub("", str(own).partition("\n")[0]).strip()
    first = str(error).strip().split("\n", 1)[0]
    return int(place[1]) if place else 1, _STATE.sub("", _PLACE.sub("", first)).strip().rstrip(";")


@contextmanager
def muted() -> Iterator[None]:
    """Keep PySpark from logging the errors within, which are reported in another way."""
    loggers = [PySparkLogger.getLogger(name) for name in LOGGERS]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled
