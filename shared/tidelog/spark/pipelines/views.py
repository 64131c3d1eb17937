"""Creates the views of a pipeline in a Spark session: one for each input and each computed table. A run, a trial and
the check of the SQL create the same views, from streams, from some records, or from no records at all."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.spark.pipelines import value_columns
from tidelog.spark.pipelines.declaration import Input, Step

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def input_view(declared: Input, rows: DataFrame, folder: Path) -> DataFrame | None:
    """Create the view of an input whose records are ``rows``, with the columns of the source. Schema files are below
    ``folder``. Return the rows of its bad records, for the sink, if the input names a topic for them; otherwise None.
    Raises ``ConfigError`` for a schema, a schema file or an expression that cannot be used."""
    return found_view(declared, value_columns.checked(rows, declared, folder))


def found_view(declared: Input, found: DataFrame) -> DataFrame | None:
    """Create the view of an input from its checked records, and return the rows of its bad records as ``input_view``
    does."""
    _view(declared, value_columns.good(found, declared))
    return value_columns.bad(found) if declared.bad else None


def step_view(step: Step, spark: SparkSession, folder: Path) -> None:
    """Create the view of a computed table: the result of its SQL, or of the Python function that it names, whose file
    is below ``folder``. Raises ``ConfigError`` if the file or the function does not exist."""
    _view(step, spark.sql(step.sql) if step.sql else _by_function(step, spark, folder))


def _view(declared: Input | Step, table: DataFrame) -> None:
    """Register a table as a view under its name, with the watermark of its declaration if there is one."""
    if declared.watermark is not None:
        table = table.withWatermark(declared.watermark.column, declared.watermark.delay)
    table.createOrReplaceTempView(declared.name)


def _by_function(step: Step, spark: SparkSession, folder: Path) -> DataFrame:
    """Return the table that the Python function of a step returns."""
    file, _, function = step.python.rpartition(":")
    path = folder / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise ConfigError(f"[table.{step.name}]: there is no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, function, None)
    if make is None:
        raise ConfigError(f"[table.{step.name}]: {path} has no function {function}")
    table: DataFrame = make(spark)
    return table
