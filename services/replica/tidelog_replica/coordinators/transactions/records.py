"""What a coordinator of transactions writes to its partition of ``__transactions``, and reads again when it begins.

Key and value are CBOR: the key an array that says what it is about, the value a map, or nothing where that is gone.

    ["slot", app, staged]   an application's transaction (``staged`` ""), or one that it has staged; ``SlotRecord``
    ["app", app]            what the application has committed of what it staged; ``AppRecord``
    ["producer", app]       producers of its latest numbered batch; ``ProducerRecord`` (since feature level 4)

Partitions are a map from topic id to ascending numbers. A value has ``format`` 1; a reader that finds a greater one
must not coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import cbor2
from tidelog.types import later

from tidelog_replica.coordinators.groups.records import Entry, Shares, entry_of, put, read_entry, record_in

STATES = ("open", "prepared", "committing", "aborting", "committed", "aborted")


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The stored record of a transaction: its producer, state, owner, partitions and timeout."""

    producer_id: int
    epoch: int
    state: str
    owner: str
    parts: Shares
    timeout_ms: int
    until_ms: int
    """In ms of the wall clock since 1970: when the transaction expires; if it is decided or has ended, when that
    happened."""
    principal: str = later("")
    """The principal that began the transaction, since feature level 5; "": not known."""


@dataclass(frozen=True, slots=True)
class AppRecord:
    """The stored record of the staged batches that an application has committed. Writing it commits the staged
    transactions in ``deciding`` all at once."""

    done: tuple[int, ...]
    """Numbers of committed batches, rising; only the highest ones are kept."""
    floor: int
    """Below this batch number it is no longer known which batches were committed."""
    deciding: dict[str, int]
    """Producer ids of the staged transactions that this record commits, by staged name. Those that have no
    ``SlotRecord`` any more have ended."""
    ms: int
    """When the last batch was committed, in ms of the wall clock since 1970."""
    principal: str = later("")
    """The principal that the application belongs to, since feature level 5; "": not known."""


@dataclass(frozen=True, slots=True)
class ProducerRecord:
    """The stored record of an application's latest numbered batch without a transaction, and of the producers of its
    tasks."""

    owner: str
    batch: int
    first_id: int
    """Producer id of task 0; task ``n`` has the ``n``-th one after it."""
    epoch: int
    """Producer epoch of the batch."""
    timestamp_ms: int
    """When the batch began, in ms of the wall clock since 1970: the timestamp of all its records."""
    principal: str = later("")
    """The principal that the application belongs to, since feature level 5; "": not known."""


def slot_entry(app: str, staged: str, record: SlotRecord | None) -> Entry:
    """Return the encoded key and value of a transaction's record. If ``record`` is None the value is None, which
    deletes the record."""
    return entry_of(("slot", app, staged), record)


def app_entry(app: str, record: AppRecord | None) -> Entry:
    """Return the encoded key and value of the record of an application's committed batches. If ``record`` is None the
    value is None, which deletes the record."""
    return entry_of(("app", app), record)


def producer_entry(app: str, record: ProducerRecord | None) -> Entry:
    """Return the encoded key and value of the record of an application's task producers. If ``record`` is None the
    value is None, which deletes the record."""
    return entry_of(("producer", app), record)


class StoredTransactions:
    """The contents of one partition of ``__transactions``, as a new coordinator reads them from the log:
    transactions, committed batches, and task producers."""

    def __init__(self) -> None:
        self.slots: dict[tuple[str, str], SlotRecord] = {}
        self.apps: dict[str, AppRecord] = {}
        self.producers: dict[str, ProducerRecord] = {}

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record of the log: its value replaces an earlier one of the same key; None deletes it.
        Raises ``ValueError`` if the record cannot be decoded, for example if a newer version has written it."""
        try:
            (kind, *names), fields = read_entry(key, value)
            match kind, *names:
                case "slot", app, staged:
                    slot = record_in(SlotRecord, fields)
                    if slot is not None and slot.state not in STATES:
                        raise ValueError(f"there is no state {slot.state!r}")
                    put(self.slots, (app, staged), slot)
                case "app", app:
                    put(self.apps, app, record_in(AppRecord, fields))
                case "producer", app:
                    put(self.producers, app, record_in(ProducerRecord, fields))
                case _:
                    raise ValueError(f"there are no records about a {kind}")
        except (ValueError, TypeError, KeyError, AttributeError, cbor2.CBORDecodeError) as error:
            raise ValueError(f"a record of __transactions cannot be read: {error}") from error
