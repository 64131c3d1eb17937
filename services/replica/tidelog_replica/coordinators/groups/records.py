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
"""Partition numbers by topic id, both in order, as ``shares_of`` makes them."""
R = TypeVar("R")

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The stored record of a group: its generation and settings, without members and positions."""

    generation: int = 0
    assignor: str = "sticky"
    empty_ms: int = 0
    """Since when the group has no members, in ms of the wall clock since 1970; 0: it has some."""
    principal: str = later("")
    """The principal that began the group, since feature level 5; "": not known."""


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """The stored record of a committed position: the next offset to read, the leader epoch of the record before it
    (-1: unknown), the client's ``metadata``, when it was committed (ms since 1970), and by which member in which
    generation ("" and -1: by none)."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    ms: int = 0
    member: str = ""
    generation: int = -1


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """The stored positions that a producer has committed within an open transaction, in producer epoch ``epoch``.
    They become valid when the transaction is committed."""

    epoch: int
    offsets: dict[TopicPartition, OffsetRecord]


@dataclass(frozen=True, slots=True)
class _WrittenPending:
    """The encoded form of a ``PendingRecord``, with rows in place of the dict."""

    epoch: int
    offsets: tuple[tuple[str, int, int, int, str, int, str, int], ...]
    """Topic id, partition, and the fields of an ``OffsetRecord``."""


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """The stored record of a group's member: its subscription, time-outs, and its assigned, leaving and target
    partitions."""

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
    """Return the encoded key and value of a group's record. If ``record`` is None the value is None, which deletes
    the record."""
    return entry_of(("group", group), record)


def offset_entry(group: str, partition: TopicPartition, record: OffsetRecord | None) -> Entry:
    """Return the encoded key and value of the record of a committed position. If ``record`` is None the value is
    None, which deletes the record."""
    return entry_of(("offset", group, *partition), record)


def member_entry(group: str, member: str, record: MemberRecord | None) -> Entry:
    """Return the encoded key and value of a member's record. If ``record`` is None the value is None, which deletes
    the record."""
    return entry_of(("member", group, member), record)


def pending_entry(group: str, producer_id: int, record: PendingRecord | None) -> Entry:
    """Return the encoded key and value of the record with a transaction's positions. If ``record`` is None the value
    is None, which deletes the record, since the transaction has ended."""
    written = None
    if record is not None:
        rows = [
            (*partition, o.offset, o.leader_epoch, o.metadata, o.ms, o.member, o.generation)
            for partition, o in sorted(record.offsets.items())
        ]
        written = _WrittenPending(record.epoch, tuple(rows))
    return entry_of(("pending", group, producer_id), written)


def shares_of(partitions: Iterable[TopicPartition]) -> Shares:
    """Group partitions by topic: return the numbers by topic id, both in order."""
    shares: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        shares.setdefault(topic_id, []).append(number)
    return {topic_id: tuple(numbers) for topic_id, numbers in shares.items()}


def partitions_of(shares: Shares) -> frozenset[TopicPartition]:
    """Return the set of partitions in a map of numbers by topic id: the inverse of ``shares_of``."""
    return frozenset(TopicPartition(topic_id, number) for topic_id, numbers in shares.items() for number in numbers)


def entry_of(key: tuple[Any, ...], record: Any | None) -> Entry:
    """Encode the key and the record of an entry as CBOR, and return both. If ``record`` is None the value is None,
    which deletes the record."""
    return cbor2.dumps(key), None if record is None else cbor2.dumps({"format": FORMAT} | STORED.to_map(record))


def read_entry(key: bytes | None, value: bytes | None) -> tuple[list[Any], dict[str, Any] | None]:
    """Decode an entry that ``entry_of`` has encoded. Return the key as a list, and the record's fields as a map, or
    None if the entry deletes the record. Raises ``ValueError`` if a newer version of Tidelog has written it, and
    other exceptions for bytes that are no such entry."""
    about = cbor2.loads(key or b"")
    fields = None if value is None else cbor2.loads(value)
    if fields is not None and fields.pop("format") > FORMAT:
        raise ValueError("a newer version of Tidelog wrote it")
    return about, fields


def record_in(kind: type[R], fields: dict[str, Any] | None) -> R | None:
    """Return the record of class ``kind`` with these fields; None if ``fields`` is None. Raises ``ValueError`` for
    fields that this version does not know."""
    return None if fields is None else STORED.from_map(kind, fields)


def put(records: dict[Any, Any], key: object, record: object) -> None:
    """Set ``records[key]`` to the record. If the record is None remove the key; does nothing then if the key is not
    there."""
    if record is None:
        records.pop(key, None)
    else:
        records[key] = record


class StoredGroups:
    """The contents of one partition of ``__groups``, as a new coordinator reads them from the log: groups, members,
    positions, and positions of open transactions."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self.members: dict[tuple[str, str], MemberRecord] = {}
        self.offsets: dict[tuple[str, TopicPartition], OffsetRecord] = {}
        self.pending: dict[tuple[str, int], PendingRecord] = {}

    def add_record(self, key: bytes | None, value: bytes | None) -> None:
        """Apply the next record of the log: its value replaces an earlier one of the same key; None deletes it.
        Raises ``ValueError`` if the record cannot be decoded, for example if a newer version has written it."""
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
    """Return the ``PendingRecord`` with these decoded fields. Raises ``ValueError`` for fields that this version does
    not know."""
    written = STORED.from_map(_WrittenPending, fields)
    return PendingRecord(written.epoch, {TopicPartition(*row[:2]): OffsetRecord(*row[2:]) for row in written.offsets})
