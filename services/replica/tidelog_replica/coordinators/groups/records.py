"""What a coordinator writes to its partition of ``__groups``, and reads again when it begins.

Key and value are CBOR: the key an array that says what it is about, the value a map, or nothing where that is gone.

    ["group", group]                          generation, assignor, empty_ms, principal
    ["member", group, member]                 see ``MemberRecord``
    ["offset", group, topic_id, partition]    offset, leader_epoch, metadata, ms, member, generation
    ["pending", group, producer_id]           epoch, offsets: positions of a transaction that is not at its end, each
                                              [topic_id, partition] and the fields of an ``offset``

Partitions are a map from topic id to ascending numbers. A value has ``format`` 1; a reader that finds a greater one
must not coordinate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import cbor2
from tidelog.types import TopicPartition, later
from tidelog.wire.schema import STORED

FORMAT = 1
Shares = dict[str, tuple[int, ...]]
"""Partition numbers by topic id, in order (``shares_of``)."""
R = TypeVar("R")

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The record of a group, without its members and positions."""

    generation: int = 0
    assignor: str = "sticky"
    empty_ms: int = 0
    """Since when the group has no members (wall clock); 0: it has some."""
    principal: str = later("")
    """The principal that began the group, since feature level 5; "": not known."""


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """The record of a committed position: the next offset to read, the leader epoch before it, when it was committed
    (wall clock, ms), and by which member in which generation."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    ms: int = 0
    member: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """Positions that are committed together with the transaction of a producer."""

    epoch: int
    offsets: dict[TopicPartition, OffsetRecord]


@dataclass(frozen=True, slots=True)
class _WrittenPending:
    """The form in which a ``PendingRecord`` is encoded: plain rows in place of a dict."""

    epoch: int
    offsets: tuple[tuple[str, int, int, int, str, int, str, int], ...]
    """Topic id, partition, and the fields of an ``OffsetRecord``."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The record of a member, with its assigned, leaving and target partitions."""

    generation: int
    instance: str
    node: str
    topics: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    assigned: Shares
    leaving: Shares
    target: Shares
    principal: str = later("")
    """The principal that the member belongs to, since feature level 5; "": not known."""


def group_entry(group: str, record: GroupRecord | None) -> Entry:
    """Return key and value of a group's record. With None for the record the value is None, which deletes it."""
    return entry_of(("group", group), record)


def offset_entry(group: str, partition: TopicPartition, record: OffsetRecord | None) -> Entry:
    """Return key and value of a committed position's record. With None for the record the value is None, which
    deletes it."""
    return entry_of(("offset", group, *partition), record)


def member_entry(group: str, member: str, record: MemberRecord | None) -> Entry:
    """Return key and value of a member's record. With None for the record the value is None, which deletes it."""
    return entry_of(("member", group, member), record)


def pending_entry(group: str, producer_id: int, record: PendingRecord | None) -> Entry:
    """Return key and value of the record with a transaction's positions. With None for the record the value is None,
    which deletes it: the transaction has ended."""
    written = None
    if record is not None:
        rows = [
            (*partition, o.offset, o.leader_epoch, o.metadata, o.ms, o.member, o.generation)
            for partition, o in sorted(record.offsets.items())
        ]
        written = _WrittenPending(record.epoch, tuple(rows))
    return entry_of(("pending", group, producer_id), written)


def shares_of(partitions: Iterable[TopicPartition]) -> Shares:
    """Return the partitions as numbers by topic id, both in order."""
    shares: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        shares.setdefault(topic_id, []).append(number)
    return {topic_id: tuple(numbers) for topic_id, numbers in shares.items()}


def partitions_of(shares: Shares) -> frozenset[TopicPartition]:
    """Return the partitions of a map by topic id, as ``shares_of`` made it."""
    return frozenset(TopicPartition(topic_id, number) for topic_id, numbers in shares.items() for number in numbers)


def entry_of(key: tuple[Any, ...], record: Any | None) -> Entry:
    """Return the encoded key and value of a record. With None for the record the value is None, which deletes the
    record."""
    return cbor2.dumps(key), None if record is None else cbor2.dumps({"format": FORMAT} | STORED.to_map(record))


def read_entry(key: bytes | None, value: bytes | None) -> tuple[list[Any], dict[str, Any] | None]:
    """Decode what ``entry_of`` returned: the key as a list, and the record as a map, or None if it was deleted.
    Raises ``ValueError`` for a newer format, and other exceptions for bytes that are no such record."""
    about = cbor2.loads(key or b"")
    fields = None if value is None else cbor2.loads(value)
    if fields is not None and fields.pop("format") > FORMAT:
        raise ValueError("a newer version of Tidelog wrote it")
    return about, fields


def record_in(kind: type[R], fields: dict[str, Any] | None) -> R | None:
    """Return the record of class ``kind`` that a map encodes; None for None. Raises ``ValueError`` for fields that
    this version does not know."""
    return None if fields is None else STORED.from_map(kind, fields)


def put(records: dict[Any, Any], key: object, record: object) -> None:
    """Store ``record`` under ``key`` in the dict; with None remove the key, if it is there."""
    if record is None:
        records.pop(key, None)
    else:
        records[key] = record


class StoredGroups:
    """The records of a partition of ``__groups`` while a new coordinator reads the log: the last record of each
    key."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self.members: dict[tuple[str, str], MemberRecord] = {}
        self.offsets: dict[tuple[str, TopicPartition], OffsetRecord] = {}
        self.pending: dict[tuple[str, int], PendingRecord] = {}

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """Take the log's next record, which replaces an earlier one with its key; without a value it deletes that
        one. Raises ``ValueError`` if the record cannot be read, for example since a newer version wrote it."""
        try:
            (kind, *names), fields = read_entry(key, value)
            match kind, *names:
                case "group", group:
                    put(self.groups, group, record_in(GroupRecord, fields))
                case "member", group, member:
                    put(self.members, (group, member), record_in(MemberRecord, fields))
                case "offset", group, topic_id, number:
                    place = group, TopicPartition(topic_id, number)
                    put(self.offsets, place, record_in(OffsetRecord, fields))
                case "pending", group, producer_id:
                    put(self.pending, (group, producer_id), None if fields is None else _pending(fields))
                case _:
                    raise ValueError(f"there are no records about a {kind}")
        except (ValueError, TypeError, KeyError, AttributeError, cbor2.CBORDecodeError) as error:
            raise ValueError(f"a record of __groups cannot be read: {error}") from error


def _pending(fields: dict[str, Any]) -> PendingRecord:
    """Return the ``PendingRecord`` that a map encodes. Raises ``ValueError`` for fields that this version does not
    know."""
    written = STORED.from_map(_WrittenPending, fields)
    return PendingRecord(written.epoch, {TopicPartition(*row[:2]): OffsetRecord(*row[2:]) for row in written.offsets})
