"""Makes tables of records, and records of rows. A record whose value does not match its declaration, or for which an
expression of the declaration fails, is kept with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import cbor2
from pyspark.sql import functions as f

from tidelog.errors import ConfigError
from tidelog.spark.pipelines.declaration import DeclaredOutput, Input
from tidelog.spark.pipelines.input_check import ABOUT
from tidelog.spark.pipelines.values.captured import VALUE, with_captured
from tidelog.spark.pipelines.values.decoder import FIELDS, REASON, ROW, decoder

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_RECORD, _REASON, _DECODED, _CAPTURED = "__record", "__reason", "__decoded", "__captured"
_SHOWN = 200


def checked(rows: DataFrame, declared: Input, folder: Path) -> DataFrame:
    """Return the table of an input with two columns more: ``__record``, the record as the source has it, and
    ``__reason``, which is null if the row is good, and otherwise the first reason why it is not. Schema files are
    below ``folder``. Raises ``ConfigError`` for a schema, a schema file or an expression that cannot be used."""
    if declared.value == "raw":
        nothing = f.lit(None).cast("string")
        found = rows.withColumns({_RECORD: f.struct(*map(f.col, rows.columns)), _REASON: nothing})
    else:
        found = _decoded(rows, declared, folder)
    table = f"[in.{declared.name}]"
    reasons: list[Column] = [f.col(_REASON)]
    passing = []
    for name, expression in declared.columns.items():
        passing.append(f"{_CAPTURED}_{name}")
        found = with_captured(found, passing[-1], expression, f"{_RECORD}.offset", f"{table}: columns: {name}")
        found = found.withColumn(name, f.col(passing[-1])[VALUE])
        reasons.append(_reason(f.col(passing[-1]).isNull(), f"{name}: cannot be computed: {_short(expression)}"))
    for name in declared.required:
        if name not in found.columns:
            raise ConfigError(f"{table}: required: there is no column {name}")
        reasons.append(_reason(f.col(f"`{name}`").isNull(), f"{name}: is missing or null"))
    if declared.valid:
        found = with_captured(found, _CAPTURED, declared.valid, f"{_RECORD}.offset", f"{table}: valid")
        passing.append(_CAPTURED)
        holds, shown = f.col(_CAPTURED)[VALUE], _short(declared.valid)
        if dict(found.select(holds.alias(VALUE)).dtypes)[VALUE] != "boolean":
            raise ConfigError(f"{table}: valid is a condition, true or false; not {declared.valid}")
        reasons.append(_reason(f.col(_CAPTURED).isNull(), f"valid cannot be computed: {shown}"))
        reasons.append(_reason(holds.isNull(), f"valid is null: {shown}"))
        reasons.append(_reason(~holds, f"not valid: {shown}"))
    return found.withColumn(_REASON, _in_place(f.coalesce(*reasons))).drop(*passing)


def good(found: DataFrame, declared: Input) -> DataFrame:
    """Return the table of the good rows of ``checked``. If the input has no topic for bad records, the query fails
    with ``TIDELOG_VALUE`` at the first row that is not good."""
    if declared.bad:
        fine = f.col(_REASON).isNull()
    else:
        record = f.col(_RECORD)
        code = [
            f.lit(part) for part in ("[", "TIDELOG_VALUE", "] ")
        ]  # a plan that Spark prints does not have it whole
        place = f.concat_ws("/", record["topic"], record["partition"])
        hint = f.lit(f". Give [in.{declared.name}] a topic for bad records: bad = …")
        text = f.concat(*code, place, f.lit(" offset "), record["offset"], f.lit(": "), f.col(_REASON), hint)
        fine = f.when(f.col(_REASON).isNull(), f.lit(True)).otherwise(f.raise_error(text).cast("boolean"))
    return found.where(_in_place(fine)).drop(_RECORD, _REASON)


def bad(found: DataFrame) -> DataFrame:
    """Return the records of the bad rows of ``checked``, as rows for the sink: key and value are unchanged; the
    reason, topic, partition and offset become headers."""
    record = f.col(_RECORD)
    origin = {"reason": f.col(_REASON)} | {name: record[name] for name in ("topic", "partition", "offset")}
    headers = [
        f.struct(f.lit(name).alias("key"), text.cast("string").cast("binary").alias("value"))
        for name, text in origin.items()
    ]
    rows = found.where(f.col(_REASON).isNotNull())
    return rows.select(record["key"].alias("key"), record["value"].alias("value"), f.array(*headers).alias("headers"))


def _decoded(rows: DataFrame, declared: Input, folder: Path) -> DataFrame:
    """Return the columns of the values, those of their records (``ABOUT``), ``__record`` and ``__reason``."""
    how = decoder(declared, folder, str(rows.sparkSession.conf.get("spark.sql.session.timeZone")))
    # Spark takes it for one that may answer differently, so that it computes it once, and no filter moves below it
    decode = f.arrow_udf(how.batches_in_task(), how.type).asNondeterministic()
    both = rows.select(
        f.struct(*map(f.col, rows.columns)).alias(_RECORD), decode("value", "timestamp").alias(_DECODED)
    )
    record, decoded = f.col(_RECORD), f.col(_DECODED)
    about = [record[name.removeprefix("_")].alias(name) for name in ABOUT]
    fields = [decoded[FIELDS][name].alias(name) for name in how.type[FIELDS].dataType.names]
    return both.where(decoded[ROW]).select(*fields, *about, record, decoded[REASON].alias(_REASON))


def _in_place(column: Column) -> Column:
    """Return a column with the same values that Spark computes once, where it stands in the plan. So it evaluates no
    expression a second time for a filter, and no filter or expression of a later step for a row that is bad: Spark
    moves nothing past a column that, as far as it knows, can differ each time."""
    return f.when(f.spark_partition_id() >= 0, column)


def _reason(condition: Column, text: str) -> Column:
    return f.when(condition, f.lit(text))


def _short(expression: str) -> str:
    """Return the text of an expression for a reason: on one line, and not too long."""
    line = " ".join(expression.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def as_records(table: DataFrame, declared: DeclaredOutput) -> DataFrame:
    """Return a table's rows as rows for the sink: the value is a JSON or CBOR map of all columns, the key is the
    output's key expression or null. With ``raw`` the table is returned unchanged."""
    if declared.value == "raw":
        return table
    text = f.to_json(f.struct(*map(f.col, table.columns)), {"ignoreNullFields": "false"})
    key = (
        f.expr(declared.key).cast("string").alias("key") if declared.key else f.lit(None).cast("string").alias("key")
    )
    rows = table.select(key, text.alias("value"))
    if declared.value == "cbor":
        as_cbor = f.udf(_json_as_cbor, "BINARY", useArrow=False)
        return rows.withColumn("value", as_cbor("value"))
    return rows


def _json_as_cbor(text: str) -> bytes:
    return cbor2.dumps(json.loads(text))
