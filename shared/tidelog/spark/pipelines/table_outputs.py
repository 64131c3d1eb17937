"""The outputs of a pipeline that are tables of Iceberg, Delta, or Parquet files with a manifest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.errors import ConfigError
from tidelog.extras import install_hint
from tidelog.spark.errors import SourceError
from tidelog.spark.pipelines.declaration import DeclaredOutput
from tidelog.tables.tables import open_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WAREHOUSE = "warehouse"
"""Folder of the catalog, and of the tables in it, for an output that names no catalog."""
_NEEDS = (("pyiceberg", "iceberg"), ("deltalake", "delta"), ("fsspec", "backup"))
"""The package and the extra that a table of Iceberg, of Delta, and with a manifest needs."""


FORMAT = "tidelog-table"
"""The name of the format that these outputs are written in: ``TableSink`` registers it."""


def prepared_options(
    rows: DataFrame,
    declared: DeclaredOutput,
    pipeline: str,
    place: Callable[[str], str],
    archive: Mapping[str, str],
) -> dict[str, str]:
    """Return the options by which the format ``FORMAT`` writes an output, and make the session know that format.
    ``pipeline`` is the name of the pipeline; ``place`` makes a whole path of one in the declaration; ``archive`` has
    the option of that name, or nothing. Creates the table if it does not exist. Raises ``ConfigError`` if a package
    is missing, or the table cannot have the rows, and ``SourceError`` if the table cannot be reached now."""
    from tidelog.spark.table_sink import TableSink, parse, prepared

    package, extra = _NEEDS[0 if declared.iceberg else 1 if declared.delta else 2]
    if importlib.util.find_spec(package) is None:
        raise ConfigError(f"[out.{declared.name}]: {package} is not installed: {install_hint(extra)}")
    # the application is called after pipeline and output, so that a lost checkpoint is noticed
    options = options_of(declared, place) | {"appId": f"{pipeline}.{declared.name}"} | dict(archive)
    options |= dict(declared.options)
    try:
        prepared(parse(options), rows.schema)
    except SourceError as error:
        if error.code == "TIDELOG_NOT_WRITTEN":  # which a restart of the output may cure
            raise
        raise ConfigError(f"[out.{declared.name}]: {error}") from error
    rows.sparkSession.dataSource.register(TableSink)
    return options


def options_of(declared: DeclaredOutput, place: Callable[[str], str]) -> dict[str, str]:
    """Return the options of the sink that an output's declaration means."""
    options = {"partitionBy": ",".join(declared.partition_by)} if declared.partition_by else {}
    options |= {"upsertBy": declared.upsert_by} if declared.upsert_by else {}
    if not declared.iceberg:
        kind = "delta" if declared.delta else "parquet"
        return options | {"format": kind, "table": place(declared.delta or declared.manifest)}
    catalog = dict(declared.catalog)
    if not catalog:
        folder = place(WAREHOUSE)
        if "://" in folder:
            raise ConfigError(
                f"[out.{declared.name}]: the default catalog is a file in a local --folder: give catalog = …"
            )
        Path(folder).mkdir(parents=True, exist_ok=True)
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder}
    return options | {"format": "iceberg", "table": declared.iceberg} | _prefixed(catalog)


def load(spark: SparkSession, declared: DeclaredOutput, place: Callable[[str], str]) -> DataFrame:
    """Return the committed rows of an output that is a table, read from its files."""
    from tidelog.spark.table_sink import parse

    address = parse(options_of(declared, place) | dict(declared.options)).address
    with closing(open_table(address)) as table:
        files = table.files()
    if not files:
        return spark.createDataFrame([], spark.table(declared.table).schema)
    reading = spark.read.option("mergeSchema", "true")
    if address.format == "delta":  # whose partition columns stand in the paths only
        reading = reading.option("basePath", address.place)
    return reading.parquet(*files)


def _prefixed(catalog: Mapping[str, str]) -> dict[str, str]:
    return {f"catalog.{name}": value for name, value in catalog.items()}
