"""Runs a pipeline: reads topics, computes tables by SQL or Python, writes tables and topics (``declaration.py``).

Every output, and every topic for bad records, is one streaming query with a checkpoint of its own below
``checkpoints``. A query that was stopped, or died, continues at its checkpoint. ``runner.py`` starts the queries, and
starts them again after errors that a restart may cure."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.sansio.effects import Event
from tidelog.spark.errors import translated_errors
from tidelog.spark.options import DEFAULT_GATEWAY
from tidelog.spark.pipelines import table_outputs
from tidelog.spark.pipelines.declaration import (
    AVAILABLE_NOW,
    NO_VARIABLES,
    DeclaredOutput,
    Input,
    Pipeline,
    SharedRead,
    bad_output,
    parse,
)
from tidelog.spark.pipelines.file.variables import hidden
from tidelog.spark.pipelines.restart_policy import RestartPolicy
from tidelog.spark.pipelines.security import secrets_of, without_secrets
from tidelog.spark.pipelines.source_options import is_whole, reading_options, writing_options
from tidelog.spark.pipelines.supervision import OutputStatus, Supervision

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from tidelog.spark.pipelines.runner import Runner

MAX_FILE_BYTES = 1 << 20
NO_IDENTITY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QueryOutcome:
    """What became of one output in this run: the number of rows that its queries have read, and the number of
    micro-batches with rows."""

    output: str
    rows: int
    """Number of rows that the queries read."""
    batches: int
    state: str = "done"
    """``done``, ``failed`` or ``stopped``."""
    restarts: int = 0
    error: str = ""
    """The last error; "": there was none."""


def load(file: Path, variables: Mapping[str, str] = NO_VARIABLES) -> Pipeline:
    """Read a pipeline's declaration from a TOML file and return it. ``variables`` has the values of ``${NAME}``.
    Raises ``ConfigError`` if the file cannot be read or has errors."""
    return parse(text_of(file), variables, file)


def text_of(file: Path) -> str:
    """Return the text of a pipeline's file. Raises ``ConfigError`` if it cannot be read, is larger than
    ``MAX_FILE_BYTES``, or is not UTF-8."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{file}: the file of a pipeline has at most {MAX_FILE_BYTES} bytes")
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{line}: the file is not UTF-8") from None


class Run:
    """One run of a pipeline in a Spark session: ``start`` starts its queries, ``finish`` waits until they have ended.
    Paths in the declaration that are not URLs are relative to ``folder``. ``gateway`` overrides the declaration's,
    unless it is "". ``identity``: the options of source and sink by which they identify themselves, such as ``ca``
    and ``token``; options in the declaration override them. ``perform`` writes the lines of the log. ``variables``:
    the values of the variables in the declaration, which are shown nowhere, as they may be secrets."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        folder: Path,
        gateway: str = "",
        identity: Mapping[str, str] = NO_IDENTITY,
        perform: Callable[[Event], None] = lambda event: None,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._folder = folder
        self._connection = {"gateway": gateway or pipeline.gateway or DEFAULT_GATEWAY, **identity}
        options = [*(one.options for one in pipeline.inputs), *(one.options for one in pipeline.outputs)]
        catalogs = [one.catalog for one in pipeline.outputs]
        self._secrets = [secret for one in (identity, *options, *catalogs) for secret in secrets_of(one)]
        self._variables = variables
        self._perform = perform
        self._rows: dict[str, dict[str, tuple[DeclaredOutput, DataFrame]]] = {}
        """The rows of each output, by the consumer group that their queries have ("": none)."""
        self._shared = {one.writes[0]: one for one in pipeline.shared_reads()}
        """The reads that outputs share, by the first of these outputs."""
        self._runner: Runner | None = None

    def start(self) -> Runner:
        """Start a streaming query for each output and each topic of bad records, and return their runner. Raises
        ``ConfigError`` for a missing Python file or function, for a table that has other columns, and for plots
        without matplotlib. An error of Spark, as in SQL, and a table that cannot be reached fail the outputs:
        ``finish`` raises it."""
        from tidelog.spark.pipelines.runner import Runner

        if self._pipeline.plots and importlib.util.find_spec("matplotlib") is None:
            raise ConfigError(f"plots need matplotlib: {install_hint('plots')}")
        outputs = [*self._pipeline.outputs, *self._bad_outputs()]
        policy = self._pipeline.restart.over(RestartPolicy())
        shared = {first: one.writes[1:] for first, one in self._shared.items()}
        further = {name for names in shared.values() for name in names}
        policies = {one.name: one.restart.over(policy) for one in outputs if one.name not in further}
        ends = [one.name for one in outputs if self._pipeline.trigger_of(one) == AVAILABLE_NOW]
        core = Supervision(policies, ends=ends, on_failure=policy.on_failure, shared=shared)
        for one in outputs:
            if one.manifest:
                self._perform(Event("pipeline_output_has_manifest", {"output": one.name}))
        self._runner = Runner(self._spark, core, self._start_query, self._perform, self.without_secrets)
        self._runner.begin()
        return self._runner

    def finish(self, runner: Runner) -> list[QueryOutcome]:
        """Wait until all queries have ended, draw the plots, and return the outcome of each output. With a time as
        trigger the queries end only when they are stopped or fail. If an output gives up, the others are stopped,
        unless ``on-failure`` says that they go on; at the end its error is raised, and nothing is drawn."""
        runner.wait()
        if runner.error is not None:
            raise runner.error
        if self._pipeline.plots:
            self._draw()
        return self.outcomes

    @property
    def statuses(self) -> tuple[OutputStatus, ...]:
        """Return what is known of each output; an empty tuple before ``start``. Other threads may ask."""
        return self._runner.statuses if self._runner is not None else ()

    @property
    def outcomes(self) -> list[QueryOutcome]:
        """Return what became of each output so far."""
        return [
            QueryOutcome(one.output, one.rows, one.batches, str(one.state), one.restarts, one.error)
            for one in self.statuses
        ]

    def without_secrets(self, text: str) -> str:
        """Return a text without the tokens, passwords and keys of the pipeline, and without the values of its
        variables."""
        return hidden(without_secrets(text, self._secrets), self._variables)

    def _draw(self) -> None:
        """Load the outputs that are tables as views, run the SQL of each plot on them, and write the pictures."""
        from tidelog.spark.pipelines import plots

        for one in self._pipeline.outputs:
            if one.parquet:
                self._spark.read.parquet(self._place(one.parquet)).createOrReplaceTempView(one.name)
            elif not one.topic:
                table_outputs.load(self._spark, one, self._place).createOrReplaceTempView(one.name)
        for plot in self._pipeline.plots:
            rows = self._spark.sql(plot.sql).limit(plots.MAX_POINTS + 1).collect()
            plots.draw(plot, [row.asDict() for row in rows], self._folder / (plot.file or f"{plot.name}.svg"))

    # --- tables --------------------------------------------------------------------------------------------

    def _bad_outputs(self) -> list[DeclaredOutput]:
        """Return the outputs that write the topics of bad records."""
        return [bad for one in self._pipeline.inputs if (bad := bad_output(one)) is not None]

    def _declare_all(self, group: str) -> dict[str, tuple[DeclaredOutput, DataFrame]]:
        """Create the views of all inputs and tables, and return each output with its rows. Queries over them keep
        their position in a consumer group ("": in none). Raises ``ConfigError`` for a missing Python file or
        function, and Spark's errors, as for an error in SQL."""
        from tidelog.spark.pipelines import views

        inputs = self._pipeline.inputs
        bad = {one.name: views.input_view(one, self._records(one, group), self._folder) for one in inputs}
        for step in self._pipeline.steps:
            views.step_view(step, self._spark, self._folder)
        rows = {one.name: (one, self._spark.table(one.table)) for one in self._pipeline.outputs}
        for output in self._bad_outputs():
            table = bad[output.table]
            assert table is not None, output.table
            rows[output.name] = output, table
        return rows

    def _records(self, declared: Input, group: str) -> DataFrame:
        """Return the records of an input as a stream, whose query keeps its position in ``group`` ("": in the group
        of the input's options, if there is one)."""
        reading = self._spark.readStream.format("tidelog")
        own = {"groupId": group} if group else {}
        for name, value in (self._connection | reading_options(declared) | own).items():
            reading = reading.option(name, value)
        return reading.load()

    def _place(self, path: str) -> str:
        """Return a path for Spark: relative paths are below the run's folder, URLs such as ``hdfs://…`` are
        unchanged."""
        return path if "://" in path else str(self._folder / path)

    # --- queries -------------------------------------------------------------------------------------------

    def _start_query(self, output: str) -> StreamingQuery:
        """Start the query of an output and return it. The first one of each group also declares all tables; where
        that fails, the next one does."""
        prefix, shared = self._pipeline.group_prefix, self._shared.get(output)
        group = f"{prefix}{shared.query if shared else output}" if prefix else ""
        if group not in self._rows:
            self._rows[group] = self._declare_all(group)
        rows = self._rows[group]
        return self._write(*rows[output]) if shared is None else self._write_shared(shared, rows, group)

    def _archive(self, declared: DeclaredOutput) -> dict[str, str]:
        """Return the option ``archive`` with the topics' ids, if an output has the records of its input as they are;
        otherwise no option. Raises ``SourceError`` if the topics cannot be looked up."""
        from tidelog.spark import options
        from tidelog.spark.read import extents

        source = next((one for one in self._pipeline.inputs if one.name == declared.table), None)
        if source is None or declared.upsert_by or not is_whole(source):
            return {}
        if source.subscribe_pattern:
            return {"archive": "true"}
        reading = options.parse(self._connection | reading_options(source), streaming=True)
        with extents.connect(reading) as client, translated_errors():
            ids = {topic: client.topics.describe(topic).topic_id for topic in reading.topics()}
        return {"archive": json.dumps(ids)}

    def _write(self, declared: DeclaredOutput, table: DataFrame) -> StreamingQuery:
        """Start the streaming query that writes ``table`` to the output's topic or table, and return the query.
        Raises ``ConfigError`` for a table of Iceberg or Delta without their packages, or with other columns."""
        from tidelog.spark.pipelines import value_columns as values

        rows = values.as_records(table, declared) if declared.topic else table
        writing = self._query(rows, declared.name, declared).outputMode(declared.mode)
        if declared.topic:
            options = self._connection | writing_options(self._pipeline, declared)
            writing = writing.format("tidelog")
        elif declared.parquet:
            options = {"path": self._place(declared.parquet)} | dict(declared.options)
            writing = writing.format("parquet").partitionBy(*declared.partition_by)
        else:
            options = table_outputs.prepared_options(
                table, declared, self._pipeline.name, self._place, self._archive(declared)
            )
            writing = writing.format(table_outputs.FORMAT)
        for name, value in options.items():
            writing = writing.option(name, value)
        return writing.start()

    def _write_shared(
        self, shared: SharedRead, rows: Mapping[str, tuple[DeclaredOutput, DataFrame]], group: str
    ) -> StreamingQuery:
        """Start the streaming query that writes all outputs of a shared read, and return it. Raises ``ConfigError``
        if a row of an output depends on more than one record, and what Spark raises for rows that no stream can
        have."""
        from tidelog.spark.pipelines import shared_reads, value_columns
        from tidelog.spark.pipelines.analysis import refuse_mode

        tables = set[str]()
        for one in shared.outputs:
            table = rows[one.name][1]
            written = value_columns.as_records(table, one) if one.topic else table
            refuse_mode(self._spark, written, one.mode)
            try:
                tables |= shared_reads.tables_needed(written, shared.source, self._pipeline)
            except ConfigError as error:
                raise ConfigError(f"[in.{shared.source.name}]: shared-by: {one.name}: {error.message}") from None
        steps = [one for one in self._pipeline.steps if one.name.lower() in tables]
        found = value_columns.checked(self._records(shared.source, group), shared.source, self._folder)
        options = {
            name: self._connection | writing_options(self._pipeline, one)
            if one.topic
            else table_outputs.prepared_options(table, one, self._pipeline.name, self._place, self._archive(one))
            for name, (one, table) in rows.items()
            if name in shared.writes
        }
        write = shared_reads.SharedWriter(shared, steps, options, self._folder)
        return self._query(found, shared.query, shared.outputs[0]).foreachBatch(write).start()

    def _query(self, rows: DataFrame, name: str, declared: DeclaredOutput) -> DataStreamWriter:
        """Return the writer of the query of this name, with its checkpoint and the trigger of an output."""
        every = self._pipeline.trigger_of(declared)
        trigger = {"availableNow": True} if every == AVAILABLE_NOW else {"processingTime": every}
        writing = rows.writeStream.queryName(f"{self._pipeline.name}.{name}").trigger(**trigger)
        return writing.option("checkpointLocation", f"{self._place(self._pipeline.checkpoints)}/{name}")
