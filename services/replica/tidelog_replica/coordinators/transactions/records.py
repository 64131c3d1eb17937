"""What a coordinator of transactions writes to its partition of ``__transactions``, and reads again when it begins.

Key and value are CBOR: the key an array that says what it is about, the value a map, or nothing where that is gone.

    ["slot", app, staged]   an application's transaction (``staged`` ""), or one that it has staged; ``SlotRecord``
    ["app", app]            what the application has committed of what it staged; ``AppRecord``
    ["producer", app]       producers of its latest numbered batch; ``ProducerRecord`` (since feature level 4)

Partitions are a map from topic id to ascending numbers. A value has ``format`` 1; a reader that finds a greater one
must not coordinate."""

from __future__ import annotations

from typing import Any, NamedTuple

import cbor2
from tidelog.types import TopicPartition

from tidelog_replica.coordinators.groups.records import fields_of, partitions_of, shares_of

FORMAT = 1

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""

STATES = ("open", "prepared", "committing", "aborting", "committed", "aborted")


class SlotRecord(NamedTuple):
    """A transaction as it is written."""

    producer_id: int
    epoch: int
    state: str
    owner: str
    parts: frozenset[TopicPartition]
    timeout_ms: int
    until_ms: int
    """Wall clock: when it expires; of one that is decided, or has ended, when that was."""
    principal: str = ""
    """The principal that began it, since feature level 5; "": not known."""


class AppRecord(NamedTuple):
    """The batches of an application."""

    done: tuple[int, ...]
    """Numbers of committed batches, rising: the greatest ones."""
    floor: int
    """Whether batches below it are committed is not known any more."""
    deciding: dict[str, int]
    """Staged transactions that are committed by this record: name and producer id. Those that have no slot (any more)
    are at their end."""
    ms: int
    """Wall clock: when the last batch was committed."""
    principal: str = ""
    """Whose application it is, since feature level 5; "": not known."""


class ProducerRecord(NamedTuple):
    """The latest numbered batch of an application that asked for producers of its tasks."""

    owner: str
    batch: int
    first_id: int
    """Producer id of task 0; task ``n`` has the ``n``-th one after it."""
    epoch: int
    """Producer epoch of the batch."""
    timestamp_ms: int
    """Wall clock when the batch began: the timestamp of all its records."""
    principal: str = ""
    """Whose application it is, since feature level 5; "": not known."""


def slot_entry(app: str, staged: str, record: SlotRecord | None) -> Entry:
    """A transaction's record; None: it is gone."""
    fields = None
    if record is not None:
        fields = {**fields_of(record), "parts": shares_of(record.parts)}
    return _entry(("slot", app, staged), fields)


def app_entry(app: str, record: AppRecord | None) -> Entry:
    """An application's record; None: it is gone."""
    return _entry(("app", app), None if record is None else fields_of(record))


def producer_entry(app: str, record: ProducerRecord | None) -> Entry:
    """The record of an application's producers; None: it is gone."""
    return _entry(("producer", app), None if record is None else fields_of(record))


def _entry(key: tuple[str, ...], value: dict[str, Any] | None) -> Entry:
    return cbor2.dumps(key), None if value is None else cbor2.dumps({"format": FORMAT, **value})


class Stored:
    """The records of a partition of ``__transactions``, the last of each key."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], SlotRecord] = {}
        self.apps: dict[str, AppRecord] = {}
        self.producers: dict[str, ProducerRecord] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """The next record. Raises ``ValueError``: it is of a newer version."""
        try:
            kind, *names = cbor2.loads(key or b"")
            fields = None if value is None else cbor2.loads(value)
            if fields is not None and fields.pop("format") > FORMAT:
                raise ValueError("a newer version of Tidelog wrote it")
            match kind, *names:
                case "slot", app, staged:
                    self.slots.pop((app, staged), None)
                    if fields is not None:
                        self.slots[app, staged] = _slot(fields)
                case "app", app:
                    self.apps.pop(app, None)
                    if fields is not None:
                        self.apps[app] = AppRecord(**{**fields, "done": tuple(fields["done"])})
                case "producer", app:
                    self.producers.pop(app, None)
                    if fields is not None:
                        self.producers[app] = ProducerRecord(**fields)
                case _:
                    raise ValueError(f"there are no records about a {kind}")
        except (ValueError, TypeError, KeyError, AttributeError, cbor2.CBORDecodeError) as error:
            raise ValueError(f"a record of __transactions cannot be read: {error}") from error


def _slot(fields: dict[str, Any]) -> SlotRecord:
    record = SlotRecord(**{**fields, "parts": partitions_of(fields["parts"])})
    if record.state not in STATES:
        raise ValueError(f"there is no state {record.state!r}")
    return record
