"""Tries a pipeline with the first records of its topics, read as a batch, and writes nothing."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import types
from pyspark.sql.types import DataType

from tidelog.errors import ConfigError
from tidelog.spark import options as source
from tidelog.spark.option_parsers import given_of
from tidelog.spark.pipelines import value_columns, views
from tidelog.spark.pipelines.analysis import explained, muted
from tidelog.spark.pipelines.declaration import DeclaredOutput, Input, Pipeline, bad_output
from tidelog.spark.pipelines.source_options import reading_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class OutputTrial:
    """What an output would get."""

    output: str
    destination: str
    """Where the pipeline would write it: such as ``topic NAME`` or ``parquet PATH``."""
    rows: int
    """Number of rows that the output would get from the records of the trial."""
    columns: tuple[str, ...]
    first: tuple[tuple[Any, ...], ...]
    """The first rows, as values that JSON has."""
    error: str = ""
    """Why there are no rows: what Spark said; "" if it said nothing."""


def trial(
    pipeline: Pipeline, spark: SparkSession, folder: Path, connection: Mapping[str, str], records: int, shown: int
) -> list[OutputTrial]:
    """Read ``records`` records of each input, from where the pipeline would begin, and return what each output and
    each topic of bad records would get: the number of its rows, and the first ``shown`` of them. ``connection``
    has the options by which the source connects. A table that cannot be computed is an error of its outputs."""
    bad: list[tuple[DeclaredOutput, DataFrame]] = []
    failed: dict[str, str] = {}
    with muted():
        for one in pipeline.inputs:
            try:
                rows = views.input_view(one, _records(one, spark, connection, records), folder)
            except PySparkException as error:
                failed[one.name.lower()] = explained(error)[1]
            except ConfigError as error:
                failed[one.name.lower()] = error.message
            else:
                if rows is not None and (output := bad_output(one)) is not None:
                    bad.append((output, rows))
        for step in pipeline.steps:
            try:
                views.step_view(step, spark, folder)
            except PySparkException as error:
                failed[step.name.lower()] = explained(error)[1]
            except ConfigError as error:
                failed[step.name.lower()] = error.message
        results = []
        for output in pipeline.outputs:
            if error_text := failed.get(output.table.lower()):
                results.append(_failed(output, error_text))
            else:
                results.append(_rows(output, spark.table(output.table), shown))
        return results + [_rows(output, rows, shown) for output, rows in bad]


def _records(declared: Input, spark: SparkSession, connection: Mapping[str, str], records: int) -> DataFrame:
    """Return the first records of an input. All outputs see the same ones, since they are read once, and kept. Where
    the pipeline would begin at the end of the topics, the trial begins at their beginning."""
    options = {"gateway": source.DEFAULT_GATEWAY} | dict(connection) | reading_options(declared)
    of_batches = given_of(options, tuple(source.BATCH))
    options = {name: value for name, value in options.items() if name.lower() in {one.lower() for one in of_batches}}
    options = {
        name: "earliest" if name.lower() == "startingoffsets" and value.strip().lower() == "latest" else value
        for name, value in options.items()
    }
    reading = spark.read.format("tidelog")
    for name, value in options.items():
        reading = reading.option(name, value)
    return reading.load().limit(records).localCheckpoint()


def _rows(output: DeclaredOutput, table: DataFrame, shown: int) -> OutputTrial:
    """Return what an output gets of a table."""
    readable = replace(output, value="json") if output.value == "cbor" else output
    try:
        rows = value_columns.as_records(table, readable) if output.topic else table
        rows = rows.localCheckpoint()  # computes every column of every row, as the pipeline would
        number = rows.count()
        kinds = [one.dataType for one in rows.schema.fields]
        first = tuple(tuple(map(plain, row, kinds)) for row in rows.take(shown))
    except PySparkException as error:
        return _failed(output, explained(error)[1])
    return OutputTrial(output.name, _destination(output), number, tuple(rows.columns), first)


def _failed(output: DeclaredOutput, error: str) -> OutputTrial:
    return OutputTrial(output.name, _destination(output), 0, (), (), error)


def _destination(output: DeclaredOutput) -> str:
    return " ".join(output.destination())


def plain(value: Any, kind: DataType) -> Any:
    """Return a value of a row, of the type ``kind`` in Spark, as one that JSON has: bytes as their text, or in Base64
    if they are not UTF-8; rows as maps; times as ISO 8601, in UTC if they are points in time; others as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    match kind:
        case types.StructType():
            return {one.name: plain(value[one.name], one.dataType) for one in kind.fields}
        case types.ArrayType():
            return [plain(one, kind.elementType) for one in value]
        case types.MapType():
            return {str(plain(name, kind.keyType)): plain(one, kind.valueType) for name, one in value.items()}
        case types.BinaryType():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return base64.b64encode(value).decode()
        case types.TimestampType():
            return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, datetime | date) else str(value)
