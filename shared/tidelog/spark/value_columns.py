"""Converts values of records to columns of a table, and rows of a table to records. A value that does not match its
declaration is kept with the reason."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import cbor2
from pyspark.sql import functions as f

from tidelog.spark.declaration import DeclaredOutput, Input

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TEXT, _REASON, _PARSED, _CORRUPT = "__text", "__reason", "__parsed", "__corrupt"
_ABOUT = ("key", "topic", "partition", "offset", "timestamp")


def parsed(rows: DataFrame, declared: Input) -> DataFrame:
    """Return the source's rows with further columns. ``__parsed`` is the value, decoded as JSON or CBOR, as a struct
    of the declared schema. ``__reason`` is null if the value matches the declaration, and otherwise says why it does
    not, also for a record without a value."""
    if declared.value == "json":
        text = rows.withColumn(_TEXT, f.col("value").cast("string")).withColumn(_REASON, f.lit(None).cast("string"))
    else:
        as_json = f.udf(_cbor_as_json, f"{_TEXT} STRING, {_REASON} STRING", useArrow=False)
        text = rows.withColumn("__both", as_json("value")).select(*rows.columns, "__both.*")
    schema = f"{declared.schema}, {_CORRUPT} STRING"
    value = f.from_json(f.col(_TEXT), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT})
    found = text.withColumn(_PARSED, value)
    reason = (
        f.when(f.col("value").isNull(), f.lit("there is no value"))
        .when(f.col(_REASON).isNotNull(), f.col(_REASON))
        .when(f.col(_PARSED).isNull(), f.lit(f"the value is not {declared.value}"))
        .when(
            f.col(f"{_PARSED}.{_CORRUPT}").isNotNull(),
            f.lit(f"the value is not {declared.value} of the schema {declared.schema}"),
        )
    )
    return found.withColumn(_REASON, reason)


def good(found: DataFrame, declared: Input) -> DataFrame:
    """Return a table of the fields of the values that match their declaration, with the columns ``_key``, ``_topic``,
    ``_partition``, ``_offset`` and ``_timestamp`` of their records. ``found`` are rows of ``parsed``. If the input
    has no topic for bad records, the query fails with ``TIDELOG_VALUE`` at the first value that does not match."""
    if declared.bad:
        fine = found.where(f.col(_REASON).isNull())
    else:
        place = f.concat_ws("/", "topic", "partition")
        text = f.concat(
            f.lit("[TIDELOG_VALUE] "), place, f.lit(" offset "), "offset", f.lit(": "), _REASON,
            f.lit(f". Give [in.{declared.name}] a topic for bad records: bad = …"),
        )  # fmt: skip
        fine = found.where(
            f.when(f.col(_REASON).isNull(), f.lit(True)).otherwise(f.raise_error(text).cast("boolean"))
        )
    about = [f.col(name).alias(f"_{name}") for name in _ABOUT]
    return fine.select(f"{_PARSED}.*", *about).drop(_CORRUPT)


def bad(found: DataFrame) -> DataFrame:
    """Return the records whose value does not match, as rows for the sink: key and value are unchanged; the reason,
    topic, partition and offset become headers. ``found`` are rows of ``parsed``."""
    origin = {
        "reason": f.col(_REASON),
        "topic": f.col("topic"),
        "partition": f.col("partition").cast("string"),
        "offset": f.col("offset").cast("string"),
    }
    headers = [
        f.struct(f.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in origin.items()
    ]
    return found.where(f.col(_REASON).isNotNull()).select("key", "value", f.array(*headers).alias("headers"))


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


def _cbor_as_json(value: bytes | None) -> tuple[str | None, str | None]:
    """Return (JSON text, None) of a CBOR value, or (None, reason) if it is not CBOR; (None, None) for a record
    without a value."""
    if value is None:
        return None, None
    try:
        return json.dumps(cbor2.loads(value), default=_as_text), None
    except (cbor2.CBORError, ValueError, TypeError, OverflowError) as error:
        return None, f"the value is not CBOR: {error}"


def _as_text(value: Any) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _json_as_cbor(text: str) -> bytes:
    return cbor2.dumps(json.loads(text))
