"""Whether one record is a duplicate of another, how that could come about, and what to change.

The evidence is both records as they are in the log, and the headers of their batches. A leader refuses a batch whose
producer id, epoch and sequence number it has already appended, so two records with all three the same can be no
repetition by one producer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.errors import CorruptBatch, TidelogError
from tidelog.explain.explanation import Explanation, iso, moment, span
from tidelog.explain.inquiry import Asked, Inquiry, describe_partition
from tidelog.types import Position

if TYPE_CHECKING:
    from tidelog.batch.format import BatchHeader, Record
    from tidelog.client.log import Log
    from tidelog.wire.messages import TopicInfo, TransactionInfo


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two records. ``record`` is None if there is none at the offset that can be read, for the reason
    ``missing``."""

    topic: str
    partition: int
    offset: int
    header: BatchHeader | None = None
    record: Record | None = None
    missing: str = ""
    visible: bool = True
    """Whether readers of committed records get the record."""
    transaction: TransactionInfo | None = None
    """The transaction that a coordinator knows under the producer id and epoch."""

    @property
    def name(self) -> str:
        """Return the record's name, such as ``orders/0@7``."""
        return f"{self.topic}/{self.partition}@{self.offset}"

    @property
    def sequence(self) -> int:
        """Return the sequence number of the record."""
        assert self.header is not None
        return self.header.base_sequence + self.offset - self.header.base_offset


@dataclass(frozen=True, slots=True)
class DuplicateEvidence:
    """All that was found out about two records, the earlier one of a partition first."""

    first: Side
    second: Side
    unknown: tuple[str, ...] = ()


Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


# --- asking ----------------------------------------------------------------------------------------------


async def why_duplicate(log: Log, first: Place, second: Place) -> Explanation:
    """Explain whether two records are duplicates, and how that came about. Raises ``UNKNOWN_TOPIC``."""
    return explain_duplicate(await ask_duplicate(log, first, second))


async def ask_duplicate(log: Log, first: Place, second: Place) -> DuplicateEvidence:
    """Read both records, and ask for the transactions that they are in. Raises ``UNKNOWN_TOPIC``."""
    inquiry = Inquiry()
    first, second = sorted((first, second))
    topics = {name: (await describe_partition(log, name, number))[0] for name, number, _ in (first, second)}
    asked = [
        inquiry.ask(f"the record {place[0]}/{place[1]}@{place[2]}", partial(_read, log, topics[place[0]], place))
        for place in (first, second)
    ]
    await inquiry.run()
    sides = [
        one.value or Side(*place, missing="could not be read")
        for one, place in zip(asked, (first, second), strict=True)
    ]
    transactions: dict[int, Asked[list[TransactionInfo]]] = {}
    for side in sides:
        if side.header is not None and side.header.is_transactional:
            id = side.header.producer_id
            transactions[id] = inquiry.ask(f"the transaction of producer {id}", partial(_transactions, log, id))
    await inquiry.run()
    known = [tx for one in transactions.values() for tx in one.value or ()]
    one, other = (_with_transaction(side, known) for side in sides)
    return DuplicateEvidence(one, other, inquiry.failures())


async def _transactions(log: Log, producer_id: int) -> list[TransactionInfo]:
    return list(await log.transactions.of_producer(producer_id))


def _with_transaction(side: Side, known: list[TransactionInfo]) -> Side:
    header = side.header
    if header is None:
        return side
    whose = header.producer_id, header.producer_epoch
    return replace(side, transaction=next((t for t in known if (t.producer_id, t.producer_epoch) == whose), None))


async def _read(log: Log, topic: TopicInfo, place: Place) -> Side:
    """Read one of the records as it is in the log, and whether readers of committed records get it."""
    from tidelog.batch.format import decode_batch

    _, partition, offset = place
    read = partial(log.read_batches, topic.topic_id, partition, Position(-1, offset), max_bytes=1)
    try:
        _, batches = await read(isolation="uncommitted")
    except TidelogError as error:
        if error.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
            return Side(*place, missing="is not in the log: deleted, or not written yet")
        raise
    found = next(((header, view) for header, view in batches if header.end_offset > offset), None)
    if found is None:
        return Side(*place, missing="is not in the log yet")
    header, view = found
    try:
        record = next((one for one in decode_batch(view) if one.offset == offset), None)
    except CorruptBatch as error:
        return Side(*place, header, missing=f"is in a batch that no reader can decode: {error.message}")
    if record is None:
        kind = "a marker or control batch" if header.is_control else "a record that compaction removed"
        return Side(*place, header, missing=f"is the offset of {kind}")
    visible = True
    if header.is_transactional:
        _, seen = await read()
        visible = any(one.offset == offset for other, batch in seen for one in _records(other, batch))
    return Side(*place, header, record, visible=visible)


def _records(header: BatchHeader, batch: memoryview) -> list[Record]:
    from tidelog.batch.format import decode_batch

    return [] if header.is_control else decode_batch(batch)


# --- explaining ------------------------------------------------------------------------------------------


def explain_duplicate(evidence: DuplicateEvidence) -> Explanation:
    """Return the explanation of two records from what was found out about them."""
    first, second = evidence.first, evidence.second
    subject = f"{first.name} {second.name}"
    lacking = [side for side in (first, second) if side.record is None]
    if lacking:
        ways = tuple(dict.fromkeys(f"'tidelog why gap {side.name}' explains that." for side in lacking))
        missing = tuple(dict.fromkeys(f"{side.name} {side.missing}." for side in lacking))
        return Explanation("duplicate", subject, missing, _facts(evidence), evidence.unknown, ways)
    if first.name == second.name:
        one = ("Both are the same offset: one record, read twice.",)
        return Explanation("duplicate", subject, one, {}, evidence.unknown, _GROUP)
    cause, steps, unknown = _cause(first, second)
    hidden = [f"Readers of committed records do not get {one.name}." for one in (first, second) if not one.visible]
    sentences = (_likeness(first, second), *map(_sender, (first, second)), _times(first, second), *hidden, *cause)
    return Explanation("duplicate", subject, sentences, _facts(evidence), (*evidence.unknown, *unknown), tuple(steps))


_GROUP = (
    "A reader that gets a record twice has read again from an older position: commit after processing, or write the"
    " results and the positions in one transaction (docs/transactions.md).",
)
_TRANSACTION = "Write in transactions with a fixed application name: a new start then fences the old one off."
_IDENTITY = (
    "Give each record an id of its own in its key or a header, so that readers recognise what an application sent"
    " twice."
)


def _likeness(first: Side, second: Side) -> str:
    """Return a sentence about what both records have in common."""
    a, b = first.record, second.record
    assert a is not None and b is not None
    same = [
        name
        for name, x, y in (("key", a.key, b.key), ("value", a.value, b.value), ("headers", a.headers, b.headers))
        if x == y
    ]
    if a.key is None and b.key is None:
        same = [name if name != "key" else "missing key" for name in same]
    both = f"{first.name} and {second.name}"
    if len(same) == 3:
        return f"{both} are the same, byte for byte: key, value and headers."
    if a.value != b.value:
        return f"{both} are no duplicates: their values differ" + (f" ({', '.join(same)} the same)." if same else ".")
    return f"{both} have the same value; the same are: {', '.join(same)}."


def _sender(side: Side) -> str:
    """Return a sentence about who sent a record."""
    header = side.header
    assert header is not None
    if not header.producer_id:
        return f"{side.name} was sent by a producer without idempotence."
    whose = f"producer id {header.producer_id}, epoch {header.producer_epoch}, sequence number {side.sequence}"
    if not header.is_transactional:
        return f"{side.name} was sent by {whose}."
    app = f" of application {side.transaction.app}" if side.transaction is not None else ""
    return f"{side.name} was sent in a transaction{app} by {whose}."


def _times(first: Side, second: Side) -> str:
    """Return a sentence about the timestamps of both records."""
    a, b = first.record, second.record
    assert a is not None and b is not None
    apart = span(abs(b.timestamp_ms - a.timestamp_ms))
    if a.timestamp_ms == b.timestamp_ms:
        return f"Both have the timestamp {moment(a.timestamp_ms)}, so the application or its source gave it."
    return f"Their timestamps are {moment(a.timestamp_ms)} and {moment(b.timestamp_ms)}, {apart} apart."


def _cause(first: Side, second: Side) -> tuple[list[str], list[str], list[str]]:
    """Return sentences about how both records came into the log, next steps, and what is not known."""
    one, two = first.header, second.header
    a, b = first.record, second.record
    assert one is not None and two is not None and a is not None and b is not None
    if a.value != b.value:
        return [], [], []
    if not (one.producer_id and two.producer_id):
        return (
            [
                "Without idempotence the cluster cannot tell a repetition after a lost ack from a second record: a"
                " producer that repeats a batch writes it twice."
            ],
            ["Use an idempotent producer: the clients of Tidelog are, unless a batch is sent without a producer id."],
            ["Whether the program sent the record twice, or its client repeated the batch, is not known."],
        )
    if one.producer_id != two.producer_id:
        apps = {side.transaction.app for side in (first, second) if side.transaction is not None}
        if len(apps) == 1 and first.transaction and second.transaction:
            why = f"Both belong to application {apps.pop()}, which sent the record in two transactions."
            return [why], [_IDENTITY], []
        why = (
            "The producer ids differ: two producers sent the record, or one program that was started again and sent"
            " it anew. Idempotence holds within one producer id."
        )
        return [why], [_TRANSACTION, _IDENTITY], ["Which programs these producers were is not known."]
    if one.producer_epoch != two.producer_epoch:
        why = (
            f"It is one producer id in the epochs {one.producer_epoch} and {two.producer_epoch}: the producer began"
            " anew in between, after a start or an error, and sent the record again."
        )
        step = "After an error whose outcome is not known, read what is in the log before sending again."
        return [why], [step, _IDENTITY], []
    if (first.topic, first.partition) != (second.topic, second.partition):
        why = "One producer sent the record to two partitions: each partition has sequence numbers of its own."
        return [why], ["Give the record a key, so that it always goes to the same partition.", _IDENTITY], []
    if first.sequence == second.sequence:
        why = (
            "Producer id, epoch and sequence number are the same, which a leader refuses: that cannot be a repetition"
            " by one producer. The sequence may have begun anew, or the log was put together from copies."
        )
        return [why], [f"'tidelog verify' and 'tidelog why {first.topic}/{first.partition}' show what happened."], []
    why = (
        f"One producer sent both under different sequence numbers ({first.sequence} and {second.sequence}): its"
        " application sent the record twice. The client repeats a batch only under the same number."
    )
    return [why], ["Look for where the application sends again, such as its own retries around send.", _IDENTITY], []


def _facts(evidence: DuplicateEvidence) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    facts: dict[str, Any] = {}
    a, b = evidence.first.record, evidence.second.record
    if a is not None and b is not None:
        facts["same"] = {"key": a.key == b.key, "value": a.value == b.value, "headers": a.headers == b.headers}
    for name, side in (("first", evidence.first), ("second", evidence.second)):
        one: dict[str, Any] = {"topic": side.topic, "partition": side.partition, "offset": side.offset}
        one["missing"] = side.missing
        if side.header is not None:
            header = side.header
            one["producer_id"], one["producer_epoch"] = header.producer_id, header.producer_epoch
            one["sequence"], one["leader_epoch"] = side.sequence, header.leader_epoch
            one["transactional"] = header.is_transactional
            one["application"] = side.transaction.app if side.transaction is not None else None
        if side.record is not None:
            key = side.record.key
            one["timestamp"] = iso(side.record.timestamp_ms)
            one["key"] = None if key is None else key.decode("utf-8", "backslashreplace")
            one["value_bytes"] = -1 if side.record.value is None else len(side.record.value)
            one["visible_to_committed_readers"] = side.visible
        facts[name] = one
    return facts
