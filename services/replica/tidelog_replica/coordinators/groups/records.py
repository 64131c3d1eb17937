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
from typing import Any, NamedTuple

import cbor2
from tidelog.types import TopicPartition

FORMAT = 1

Entry = tuple[bytes, bytes | None]
"""Key and value of a record."""


class GroupRecord(NamedTuple):
    """A group, but for its members and positions."""

    generation: int = 0
    assignor: str = "sticky"
    empty_ms: int = 0
    """Since when it has no members (wall clock); 0: it has."""
    principal: str = ""
    """The principal that began it, since feature level 5; "": not known."""


class OffsetRecord(NamedTuple):
    """How far a group has come in a partition, when that was committed, and by which member."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    ms: int = 0
    member: str = ""
    generation: int = -1


class PendingRecord(NamedTuple):
    """Positions that count when the transaction of a producer is committed."""

    epoch: int
    offsets: dict[TopicPartition, OffsetRecord]


class MemberRecord(NamedTuple):
    """A member as it is written."""

    generation: int
    instance: str
    node: str
    topics: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    assigned: frozenset[TopicPartition]
    leaving: frozenset[TopicPartition]
    target: frozenset[TopicPartition]
    principal: str = ""
    """Whose member it is, since feature level 5; "": not known."""


def group_entry(group: str, record: GroupRecord | None) -> Entry:
    """A group's record; None: it is gone."""
    return _entry(("group", group), None if record is None else fields_of(record))


def offset_entry(group: str, partition: TopicPartition, record: OffsetRecord | None) -> Entry:
    """A position's record; None: it is gone."""
    return _entry(("offset", group, *partition), None if record is None else record._asdict())


def member_entry(group: str, member: str, record: MemberRecord | None) -> Entry:
    """A member's record; None: it is gone."""
    if record is None:
        return _entry(("member", group, member), None)
    value = fields_of(record)
    for name in ("assigned", "leaving", "target"):
        value[name] = shares_of(value[name])
    return _entry(("member", group, member), value)


def pending_entry(group: str, producer_id: int, record: PendingRecord | None) -> Entry:
    """A transaction's positions; None: it is at its end."""
    fields = None
    if record is not None:
        offsets = [[*partition, *offset] for partition, offset in sorted(record.offsets.items())]
        fields = {"epoch": record.epoch, "offsets": offsets}
    return _entry(("pending", group, producer_id), fields)


def shares_of(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partitions by topic id, in order."""
    shares: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        shares.setdefault(topic_id, []).append(number)
    return shares


def partitions_of(shares: dict[str, list[int]]) -> frozenset[TopicPartition]:
    """Return the partitions of a map by topic id, as ``shares_of`` made it."""
    return frozenset(TopicPartition(topic_id, number) for topic_id, numbers in shares.items() for number in numbers)


def fields_of(record: NamedTuple) -> dict[str, Any]:
    """A record's fields by name. An earlier release, which knows no owner, reads the record of what has none."""
    fields = record._asdict()
    if fields.get("principal") == "":
        del fields["principal"]
    return fields


def _entry(key: tuple[Any, ...], value: dict[str, Any] | None) -> Entry:
    return cbor2.dumps(key), None if value is None else cbor2.dumps({"format": FORMAT, **value})


class Stored:
    """The records of a partition of ``__groups``, the last of each key. Every method that takes some may raise
    ``ValueError``: they are of a newer version."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupRecord] = {}
        self.members: dict[tuple[str, str], MemberRecord] = {}
        self.offsets: dict[tuple[str, TopicPartition], OffsetRecord] = {}
        self.pending: dict[tuple[str, int], PendingRecord] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """The next record."""
        try:
            kind, *names = cbor2.loads(key or b"")
            fields = None if value is None else cbor2.loads(value)
            if fields is not None and fields.pop("format") > FORMAT:
                raise ValueError("a newer version of Tidelog wrote it")
            match kind, *names:
                case "group", group:
                    _put(self.groups, group, None if fields is None else GroupRecord(**fields))
                case "member", group, member:
                    _put(self.members, (group, member), None if fields is None else _member(fields))
                case "offset", group, topic_id, number:
                    place = group, TopicPartition(topic_id, number)
                    _put(self.offsets, place, None if fields is None else OffsetRecord(**fields))
                case "pending", group, producer_id:
                    _put(self.pending, (group, producer_id), None if fields is None else _pending(fields))
                case _:
                    raise ValueError(f"there are no records about a {kind}")
        except (ValueError, TypeError, KeyError, AttributeError, cbor2.CBORDecodeError) as error:
            raise ValueError(f"a record of __groups cannot be read: {error}") from error


def _put(records: dict[Any, Any], key: object, record: object) -> None:
    if record is None:
        records.pop(key, None)
    else:
        records[key] = record


def _pending(fields: dict[str, Any]) -> PendingRecord:
    rows = ((TopicPartition(*row[:2]), OffsetRecord(*row[2:])) for row in fields["offsets"])
    return PendingRecord(fields["epoch"], dict(rows))


def _member(fields: dict[str, Any]) -> MemberRecord:
    for name in ("assigned", "leaving", "target"):
        fields[name] = partitions_of(fields[name])
    return MemberRecord(**{**fields, "topics": tuple(fields["topics"])})
