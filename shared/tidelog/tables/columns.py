"""Columns of a table: partition fields, and the rule by which the schema may change.

The rule: a column that the table does not have is added, and is null in earlier rows. A column that the table has and
the rows have not is null in the new rows. A column whose type differs is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_FIELD = re.compile(r"(?:(day)\()?([A-Za-z_][A-Za-z0-9_]*)(\))?")


class SchemaConflict(Exception):
    """The columns of the rows do not fit the table. The text has every fault."""


@dataclass(frozen=True, slots=True)
class PartitionField:
    """A field by which a table is divided: a column, or the day of a column with times."""

    column: str
    by_day: bool = False

    @property
    def name(self) -> str:
        """The name of the field in paths, and of the column that Delta and manifests get for a day."""
        return f"{self.column}_day" if self.by_day else self.column

    def __str__(self) -> str:
        """Return the text that ``parse_partition_field`` takes."""
        return f"day({self.column})" if self.by_day else self.column


def parse_partition_field(text: str) -> PartitionField:
    """Return the partition field that a text names: ``COLUMN`` or ``day(COLUMN)``. Raises ``ValueError``."""
    found = _FIELD.fullmatch(text.strip())
    if found is None or bool(found[1]) != bool(found[3]):
        raise ValueError(f"a partition field is COLUMN or day(COLUMN), not {text!r}")
    return PartitionField(found[2], by_day=bool(found[1]))


def nullable(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which every column may be null, without metadata."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True).remove_metadata() for field in schema])


def new_columns(table: pa.Schema, rows: pa.Schema) -> list[pa.Field]:
    """Return the columns of ``rows`` that the table has to get, all nullable. Types with the same
    ``comparable`` count as the same. Raises ``SchemaConflict`` with every column whose type differs, and every column
    of the table that may not be null and is missing in the rows."""
    faults, added = [], []
    for field in rows:
        at = table.get_field_index(field.name)
        if at < 0:
            added.append(field.with_nullable(True))
        elif not comparable(table.field(at).type).equals(comparable(field.type)):
            faults.append(f"{field.name} is {field.type}, and in the table {table.field(at).type}")
    missing = [field.name for field in table if not field.nullable and rows.get_field_index(field.name) < 0]
    faults += [f"{name} may not be null in the table, and the rows have no such column" for name in missing]
    if faults:
        raise SchemaConflict("; ".join(faults))
    return added


def comparable(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for all types that a table format keeps alike: ``string`` for ``large_string``,
    ``int32`` for smaller integers, UTC for every time zone, and so on, also inside of lists, structs and maps."""
    import pyarrow as pa

    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_int8(kind) or pa.types.is_int16(kind):
        return pa.int32()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(pa.field("element", comparable(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(comparable(kind.key_type), comparable(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, comparable(field.type)) for field in kind])
    return kind


def check_partition_fields(schema: pa.Schema, fields: tuple[PartitionField, ...]) -> None:
    """Raise ``SchemaConflict`` if a partition field is no column of the schema, has a type that no partition can
    have, or is a day of something else than a time or date."""
    import pyarrow as pa

    faults = []
    for field in fields:
        at = schema.get_field_index(field.column)
        if at < 0:
            faults.append(f"there is no column {field.column} to divide the table by")
            continue
        kind = schema.field(at).type
        if field.by_day and not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            faults.append(f"day({field.column}) wants a time or a date, and {field.column} is {kind}")
        elif not field.by_day and not (
            pa.types.is_string(kind)
            or pa.types.is_integer(kind)
            or pa.types.is_date(kind)
            or pa.types.is_boolean(kind)
        ):
            faults.append(f"{field.column} is {kind}: partitions are strings, integers, dates or booleans")
    if faults:
        raise SchemaConflict("; ".join(faults))
