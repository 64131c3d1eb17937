"""The records of the cluster's own topics as JSON.

They are stored as CBOR, those of ``__audit`` as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import cbor2

from tidelog.cli.output import json_text
from tidelog.types import AUDIT, GROUPS, STREAMS, TIMELINE, TRANSACTIONS

if TYPE_CHECKING:
    from tidelog.batch.format import Record

DECODED = {TIMELINE: ("value",), AUDIT: ("value",)} | dict.fromkeys((GROUPS, TRANSACTIONS, STREAMS), ("key", "value"))
"""Topic -> the parts of its records that are printed as JSON."""


def readable(record: Record) -> Record:
    """Return a record of one of the cluster's own topics with JSON texts in place of the stored bytes. Every other
    record, and one that this program cannot decode, because a later version has written it, is returned as it is."""
    if record.topic not in DECODED:
        return record
    try:
        parts = {part: json_text(found).encode() for part, found in _documents(record).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, cbor2.CBORDecodeError):
        return record
    return record._replace(key=parts.get("key", record.key), value=parts.get("value", record.value))


def _documents(record: Record) -> dict[str, Any]:
    """Return the decoded parts of a record of one of the cluster's own topics, by name, without those that are None.
    Raises various errors if it cannot be decoded."""
    if record.topic == TIMELINE:
        from tidelog.timeline.records import decode

        found = decode(record.value)
        return {} if found is None else {"value": found}
    if record.topic == AUDIT:
        return {}  # they are stored as JSON
    from tidelog_replica.coordinators.groups.records import read_entry  # all coordinators encode alike

    about, fields = read_entry(record.key, record.value)
    if fields is None:
        return {"key": about}
    if record.topic == STREAMS:
        fields["data"] = fields["data"].decode(errors="backslashreplace")
    return {"key": about, "value": fields}


def as_document(record: Record, part: str) -> Any:
    """Return the part (``key`` or ``value``) of a ``readable`` record as an object for JSON. Returns None if the part
    is none, is not JSON, or the record is not one of the cluster's own topics."""
    data: bytes | None = getattr(record, part)
    if data is None or part not in DECODED.get(record.topic, ()):
        return None
    try:
        return json.loads(data)
    except ValueError:
        return None
