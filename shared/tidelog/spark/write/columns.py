"""The columns that a write takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.spark.errors import SourceError

COLUMNS = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Columns of the sink and their types."""


def check_columns(types: Mapping[str, str], has_topic: bool) -> None:
    """Raise ``TIDELOG_SCHEMA``, with every error, if a write cannot take these columns. ``types`` maps each column to
    its type, as Spark writes it. ``has_topic`` says that the option ``topic`` is given, so that no column has to name
    the topic."""
    faults = [f"{name} is no column of a record" for name in types if name not in COLUMNS]
    faults += [
        f"{name} is {found}, not {' or '.join(COLUMNS[name])}"
        for name, found in types.items()
        if name in COLUMNS and found not in COLUMNS[name]
    ]
    if "value" not in types:
        faults.append("there is no column value")
    if "topic" not in types and not has_topic:
        faults.append("where rows go is not said: give the option topic, or a column topic")
    if faults:
        raise SourceError(
            "TIDELOG_SCHEMA",
            f"{'; '.join(faults)}. A write takes value (binary or string), and key, headers, topic, partition, "
            "timestamp where there are such columns",
        )
