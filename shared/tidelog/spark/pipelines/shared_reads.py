"""One streaming query that reads an input once, and writes several outputs and the input's bad records.

Spark hands it each micro-batch as a table that has an end (``foreachBatch``). The records are decoded once and kept
for the time of the batch. Then each output is computed from them and written, one after another, under an application
of its own and with the batch's number: an output that has the batch already does not get it again. This is right only
for outputs whose rows depend on one record each, so the plans of all others are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog.errors import ConfigError
from tidelog.spark.errors import SourceError, error_in
from tidelog.spark.pipelines import value_columns, views
from tidelog.spark.pipelines.declaration import DeclaredOutput, Input, Pipeline, SharedRead, Step
from tidelog.spark.pipelines.table_outputs import FORMAT
from tidelog.spark.sink import QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BY_RECORD = frozenset(
    {"CTERelationDef", "CTERelationRef", "EventTimeWatermark", "Filter", "Generate", "Join", "MapInArrow"}
    | {"MapInPandas", "Project", "RebalancePartitions", "Repartition", "RepartitionByExpression", "ResolvedHint"}
    | {"SubqueryAlias", "Union", "View", "WithCTE"}
)
"""Steps of Spark's plans that make rows of one record each; ``Join`` only with a table that is no stream."""


def tables_needed(rows: DataFrame, source: Input, pipeline: Pipeline) -> set[str]:
    """Return the names, in lower case, of the tables of a pipeline that the rows of an output are computed from, the
    input included. Raises ``ConfigError`` if a row depends on anything but one record of the input. Streams in
    subqueries, and joins that a stream cannot have, are not looked for: Spark itself refuses them."""
    inputs = {one.name.lower() for one in pipeline.inputs}
    found: set[str] = set()
    waiting = [rows._jdf.queryExecution().analyzed()]
    while waiting:
        plan = waiting.pop()
        if not plan.isStreaming():
            continue
        kind = str(plan.nodeName())
        if kind == "View":
            table = str(plan.desc().identifier().table()).lower()
            found.add(table)
            if table == source.name.lower():
                continue
            if table in inputs:
                raise ConfigError(f"it reads {table}, and the shared query reads {source.name} only")
        parts = list(_sequence(plan.children()))
        streams = [one for one in parts if one.isStreaming()]
        if kind not in _BY_RECORD or (kind == "Join" and len(streams) > 1):
            reason = "a stream that is no input" if not parts else f"a step {kind}, which is of several records"
            raise ConfigError(f"it has {reason}; rows of a shared query are those of one record each")
        waiting += streams
    if source.name.lower() not in found:
        raise ConfigError(f"it does not read {source.name}")
    return found


def _sequence(parts: Any) -> Iterator[Any]:
    """Yield the elements of a sequence of Scala."""
    return (parts.apply(number) for number in range(parts.length()))


class SharedWriter:
    """The function for ``foreachBatch`` of a shared query. ``steps``: the computed tables that the outputs need.
    ``options``: by output, those of its sink. Schema files and Python files are below ``folder``."""

    def __init__(
        self, shared: SharedRead, steps: Sequence[Step], options: Mapping[str, Mapping[str, str]], folder: Path
    ) -> None:
        self._shared = shared
        self._steps = steps
        self._options = options
        self._folder = folder

    def __call__(self, found: DataFrame, batch: int) -> None:
        """Write the batch of this number to all outputs. ``found`` has the records of the batch, as
        ``value_columns.checked`` returns them. Raises the first error of an output; those after it are not written
        then, and Spark runs the batch again at the next start of the query."""
        found.persist()
        try:
            bad = views.found_view(self._shared.source, found)
            for step in self._steps:
                views.step_view(step, found.sparkSession, self._folder)
            for output in self._shared.outputs:
                self._write(output, found.sparkSession.table(output.table), batch)
            if self._shared.bad is not None and bad is not None:
                self._write(self._shared.bad, bad, batch)
        finally:
            found.unpersist()

    def _write(self, output: DeclaredOutput, table: DataFrame, batch: int) -> None:
        options = dict(self._options[output.name])
        if output.topic:
            query = table.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
            options = {"appId": f"{query}.{output.name}"} | options
            options |= {"delivery": "exactly-once", "batchId": str(batch)}
            writing = value_columns.as_records(table, output).write.format("tidelog")
        else:
            writing = table.write.format(FORMAT)
        try:
            writing.mode("append").options(**options).save()
        except Exception as error:
            if (own_error := error_in(error)) is None:
                raise
            text = str(own_error).removeprefix(f"[{own_error.code}] ")
            raise SourceError(own_error.code, f"[out.{output.name}]: {text}") from error
