"""Why a record is where it is: who sent it, when, where it is durable, whether it is committed, and who has read it.

The evidence is the header of the record's batch, the metadata of its partition, the log ends of all copies, the
history of the partition, the coordinators' transactions, and the positions of groups. The cluster keeps no time of a
commit and no list of former producers; an answer says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.explain.explanation import Explanation, as_datetime, iso, listed, moment, shortened
from tidelog.explain.inquiry import Asked, Inquiry, describe_partition
from tidelog.explain.partition_state import loss_facts, losses_at, losses_at_in_words
from tidelog.quantities import counted
from tidelog.types import Position

if TYPE_CHECKING:
    from tidelog.batch.format import BatchHeader
    from tidelog.client.log import Log
    from tidelog.wire.messages import (
        DigestAnswer,
        GroupPosition,
        HistoryEntry,
        OffsetAnswer,
        PartitionInfo,
        TopicInfo,
        TransactionInfo,
    )

MARKER_SEARCH_BYTES = 1 << 20
"""Most bytes of batches behind a record that are read to find the marker of its transaction."""
MOST_KEY_BYTES = 200
"""Bytes of a key that an answer shows."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Which server led in a leader epoch, since when (ms since 1970, -1: not known), and why it was elected."""

    leader: str
    since_ms: int = -1
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch that covers an offset, as the log has it. ``header`` is None if the log has none there. ``position``
    is the place of the record among the records of the batch, -1 if the batch has no record at the offset, and -2 if
    it cannot be decoded, for the reason ``unreadable``."""

    header: BatchHeader | None = None
    position: int = -1
    records: int = 0
    timestamp_ms: int = -1
    key: bytes | None = None
    value_bytes: int = -1
    visible: bool = True
    """Whether readers of committed records get the record. False: its transaction was aborted, or has not ended."""
    marker: BatchHeader | None = None
    """The marker that ends the batch's transaction, if it was found."""
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class RecordEvidence:
    """All that was found out about a record. What the cluster did not answer is None or missing; ``unknown`` has a
    sentence for each."""

    topic: TopicInfo
    partition: PartitionInfo
    offset: int
    log_start: int = -1
    end: OffsetAnswer | None = None
    """The high watermark, and the last stable offset if that is lower."""
    batch: Batch | None = None
    copies: Mapping[str, DigestAnswer] = field(default_factory=dict)
    leadership: Leadership | None = None
    transaction: TransactionInfo | None = None
    """The transaction that a coordinator knows under the batch's producer id and epoch."""
    groups: Mapping[str, GroupPosition | None] | None = None
    """The committed position of each group that has one in the partition, None if the caller may not know it; None
    instead of all: the cluster did not answer."""
    unknown: tuple[str, ...] = ()
    losses: tuple[HistoryEntry, ...] = ()
    """What the partition's history tells of losses at the offset (``losses_at``)."""
    coordinators_answered: bool = True
    """False: the coordinators were asked for the transaction and did not tell it; ``unknown`` says why."""

    @property
    def place(self) -> str:
        """Return the partition's name, such as ``orders/0``."""
        return f"{self.topic.name}/{self.partition.partition}"


# --- asking ----------------------------------------------------------------------------------------------


async def why_record(log: Log, topic: str, partition: int, offset: int) -> Explanation:
    """Explain the record at an offset of a partition. Raises ``UNKNOWN_TOPIC``, and ``FORBIDDEN`` without the right
    to describe the topic."""
    return explain_record(await ask_record(log, topic, partition, offset))


async def ask_record(log: Log, topic: str, partition: int, offset: int) -> RecordEvidence:
    """Ask the cluster for all that it knows of the record at an offset, in two rounds of requests in parallel. Raises
    ``UNKNOWN_TOPIC``."""
    found, info = await describe_partition(log, topic, partition)
    inquiry = Inquiry()
    start = inquiry.ask("the log start", lambda: _first(log, found, partition, "earliest"))
    end = inquiry.ask("the high watermark", lambda: _first(log, found, partition, "latest"))
    batch = inquiry.ask("the batch of the record", lambda: read_batch(log, found, partition, offset))
    copies = {
        node: inquiry.ask(f"what {node} holds", partial(log.partitions.digest, found.topic_id, partition, node))
        for node in (*info.replicas, *info.learners)
    }
    history = inquiry.ask("the history of the partition", lambda: log.partitions.histories(found, [partition]))
    groups = inquiry.ask("which groups have passed it", lambda: log.groups.positions(found, partition))
    await inquiry.run()
    furthest = max((at.offset for at in (groups.value or {}).values() if at is not None), default=-1)
    later: Asked[OffsetAnswer] | None = None
    if end.value is not None and end.value.offset < furthest:  # the position may be newer than the end
        later = inquiry.ask("the high watermark now", lambda: _first(log, found, partition, "latest"))

    header = batch.value.header if batch.value is not None else None
    led: Asked[Leadership] | None = None
    transaction: Asked[list[TransactionInfo]] | None = None
    if header is not None:
        entries = (history.value or {}).get(partition, ())
        epoch, timestamp = header.leader_epoch, header.max_timestamp
        what = f"which server led in leader epoch {epoch}"
        led = inquiry.ask(what, lambda: _leadership(log, found, partition, entries, epoch, timestamp))
        if header.is_transactional:
            id = header.producer_id
            transaction = inquiry.ask("the transaction", lambda: _transactions_of(log, id))
    await inquiry.run()
    known = transaction.value if transaction is not None and transaction.value else []
    last = later.value if later is not None and later.value is not None else end.value
    high_watermark = last.offset if last is not None else -1
    return RecordEvidence(
        found,
        info,
        offset,
        start.value.offset if start.value is not None else -1,
        last,
        batch.value,
        {node: asked.value for node, asked in copies.items() if asked.value is not None},
        led.value if led is not None else None,
        next((one for one in known if header and one.producer_epoch == header.producer_epoch), None),
        groups.value,
        inquiry.failures(),
        losses_at((history.value or {}).get(partition, ()), offset, offset + 1, high_watermark),
        transaction is None or transaction.value is not None,
    )


async def _first(log: Log, topic: TopicInfo, partition: int, place: str) -> OffsetAnswer:
    return (await log.partitions.list_offsets(topic, place, [partition], "uncommitted"))[partition]


async def read_batch(log: Log, topic: TopicInfo, partition: int, offset: int) -> Batch:
    """Read the batch that covers an offset, and return it; an empty ``Batch`` if no committed batch covers it."""
    try:
        _, batches = await log.read_batches(
            topic.topic_id, partition, Position(-1, offset), max_bytes=1, isolation="uncommitted"
        )
    except TidelogError as error:
        if error.code in ("OFFSET_OUT_OF_RANGE", "LOG_TRUNCATED"):
            return Batch()
        raise
    found = next(((header, view) for header, view in batches if header.end_offset > offset), None)
    if found is None or found[0].base_offset > offset:
        return Batch()
    header, view = found
    if header.is_control:
        return Batch(header)
    from tidelog.batch.format import decode_batch

    try:
        records = decode_batch(view)
    except CorruptBatch as error:
        return Batch(header, -2, unreadable=error.message)
    at = next((number for number, record in enumerate(records) if record.offset == offset), -1)
    if at < 0:
        return Batch(header, -1, len(records))
    visible, marker = True, None
    if header.is_transactional:
        visible, marker = await _outcome(log, topic, partition, offset, header)
    record = records[at]
    size = -1 if record.value is None else len(record.value)
    return Batch(header, at, len(records), record.timestamp_ms, record.key, size, visible, marker)


async def _outcome(
    log: Log, topic: TopicInfo, partition: int, offset: int, header: BatchHeader
) -> tuple[bool, BatchHeader | None]:
    """Return whether readers of committed records get the record at ``offset``, which is in a batch of a transaction,
    and the marker of that transaction if it is within ``MARKER_SEARCH_BYTES``."""
    from tidelog.batch.format import decode_batch

    place = topic.topic_id, partition
    _, seen = await log.read_batches(*place, Position(-1, offset), max_bytes=1)
    visible = any(
        record.offset == offset for one, view in seen if not one.is_control for record in decode_batch(view)
    )
    _, behind = await log.read_batches(
        *place, Position(-1, header.end_offset), max_bytes=MARKER_SEARCH_BYTES, isolation="uncommitted"
    )
    marker = next((one for one, _ in behind if is_marker_of(one, header)), None)
    return visible, marker


def is_marker_of(marker: BatchHeader, batch: BatchHeader) -> bool:
    """Return whether a batch is the marker that ends the transaction of another."""
    whose = marker.producer_id, marker.producer_epoch
    return marker.is_control and marker.is_transactional and whose == (batch.producer_id, batch.producer_epoch)


async def _transactions_of(log: Log, producer_id: int) -> list[TransactionInfo]:
    return list(await log.transactions.of_producer(producer_id))


async def _leadership(
    log: Log, topic: TopicInfo, partition: int, entries: Sequence[HistoryEntry], epoch: int, timestamp_ms: int
) -> Leadership:
    """Return which server led in a leader epoch: as the controllers remember, otherwise from the timeline at the time
    of the record. Raises ``UNKNOWN_TOPIC`` if neither knows."""
    if found := leadership_in(entries, epoch):
        return found
    from tidelog.timeline.query import TimelineReader, partition_at, topic_at

    at = as_datetime(timestamp_ms)
    if at is None:
        raise refuse(
            "UNKNOWN_TOPIC",
            f"the controllers do not have leader epoch {epoch}, and the record's timestamp is no date",
        )
    past = await TimelineReader(log).moment(at)
    state = partition_at(topic_at(past, topic.name), partition)
    if state["leader_epoch"] != epoch or not state["leader"]:
        text = f"neither the controllers nor the timeline at {moment(timestamp_ms)} has leader epoch {epoch}"
        raise refuse("UNKNOWN_TOPIC", text)
    return Leadership(state["leader"])


def leadership_in(entries: Sequence[HistoryEntry], epoch: int) -> Leadership | None:
    """Return which server led in a leader epoch, as a partition's history has it; None if the history does not reach
    so far. The first entry may be one in the middle of an epoch, so that its time is not known."""
    for number, entry in enumerate(entries):
        if entry.leader_epoch == epoch and entry.leader:
            began = number > 0 or entry.event == "created"
            return Leadership(entry.leader, entry.time_ms if began else -1, entry.cause if began else "")
    return None


# --- explaining ------------------------------------------------------------------------------------------


def explain_record(evidence: RecordEvidence) -> Explanation:
    """Return the explanation of a record from what was found out about it."""
    subject = f"{evidence.place}@{evidence.offset}"
    unknown = list(evidence.unknown)
    batch = evidence.batch
    lost = losses_at_in_words(evidence.losses, evidence.end.offset if evidence.end is not None else -1)
    if batch is None or batch.header is None or batch.position == -1:
        sentences, steps = _no_record(evidence)
        facts = _facts(evidence)
        return Explanation("record", subject, (*sentences, *lost), facts, tuple(unknown), steps)
    sentences = (
        *_record_in_words(evidence, batch),
        *_sender_in_words(evidence, batch.header, unknown),
        *_time_in_words(evidence, batch),
        *_copies_in_words(evidence, batch.header),
        *_commit_in_words(evidence, batch.header, unknown),
        *_transaction_in_words(evidence, batch),
        *_groups_in_words(evidence, unknown),
        *_archive_in_words(evidence, unknown),
        *lost,
    )
    return Explanation("record", subject, sentences, _facts(evidence), tuple(unknown))


def _no_record(evidence: RecordEvidence) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return sentences and next steps about an offset at which there is no record."""
    place, offset, batch = evidence.place, evidence.offset, evidence.batch
    gap = (f"'tidelog why gap {place}@{offset}' explains the gap.",)
    if 0 <= offset < evidence.log_start:
        return (f"{place} has no record {offset} any more: its log starts at {evidence.log_start}.",), gap
    if batch is not None and batch.header is not None:
        if batch.header.is_control:
            kind = "a transaction's marker" if batch.header.is_transactional else "a control batch of the servers"
            return (f"{place} has no record at {offset}: the offset is that of {kind}.",), gap
        left = f"{batch.records} of {batch.header.record_count} offsets of its batch have a record"
        return (f"{place} has no record at {offset}: compaction removed it; {left}.",), gap
    end = evidence.end.offset if evidence.end is not None else -1
    if offset < end:
        if batch is not None:
            return (f"{place} has no record at {offset}, although its high watermark is {end}.",), gap
        return (f"{place}@{offset} is committed, since the high watermark is {end}, and could not be read.",), ()
    held = [node for node, copy in evidence.copies.items() if copy.log_end > offset]
    if held and end >= 0:
        lacking = [
            node for node in evidence.partition.isr if (c := evidence.copies.get(node)) and c.durable <= offset
        ]
        waits = f" It waits for {listed(lacking)} of the in-sync set to flush it." if lacking else ""
        return (
            f"{place}@{offset} is written on {listed(held)} and not committed: the high watermark is {end}.{waits}",
            "Nobody can read it yet, so its sender and time are not shown.",
        ), (f"'tidelog why {place}' shows what the replicas wait for.",)
    if end >= 0:
        if evidence.losses:
            history = (f"'tidelog why {place}' shows its history.",)
            return (f"{place} has no record {offset}: its high watermark is {end}.",), history
        return (f"{place} has no record {offset} yet: its high watermark is {end}.",), ()
    if not evidence.partition.leader:
        nobody = f"{place} has no leader, so nobody can read it at {offset}."
        return (nobody,), (f"'tidelog why {place}' shows why nobody leads.",)
    return (f"{place}@{offset} could not be read.",), (f"'tidelog why {place}' shows its history.",)


def _record_in_words(evidence: RecordEvidence, batch: Batch) -> tuple[str, ...]:
    header = batch.header
    assert header is not None
    subject = f"{evidence.place}@{evidence.offset}"
    covers = f"the batch of offsets {header.base_offset} to {header.end_offset - 1} ({header.batch_length} bytes)"
    if batch.unreadable:
        return (f"{subject} is in {covers}, which no reader can decode: {batch.unreadable}.",)
    value = "a tombstone (no value)" if batch.value_bytes < 0 else f"a value of {batch.value_bytes} bytes"
    key = "no key" if batch.key is None else f"a key of {len(batch.key)} bytes"
    return (f"{subject} has {key} and {value}; it is record {batch.position + 1} of {batch.records} in {covers}.",)


def _sender_in_words(evidence: RecordEvidence, header: BatchHeader, unknown: list[str]) -> tuple[str, ...]:
    """Return a sentence about the producer of a batch, and add what is not known of it to ``unknown``."""
    if not header.producer_id:
        unknown.append("Its sender is not known: the producer was not idempotent, so the batch names none.")
        return ()
    sequence = header.base_sequence + evidence.offset - header.base_offset
    whose = f"producer id {header.producer_id}, epoch {header.producer_epoch}, sequence number {sequence}"
    if header.is_transactional:
        if evidence.transaction is None:
            if evidence.coordinators_answered:
                unknown.append(
                    "The application of its transaction is not known: no coordinator keeps that producer id."
                )
            return (f"It was sent in a transaction by {whose}.",)
        staged = f", staged as {evidence.transaction.staged}" if evidence.transaction.staged else ""
        return (f"It was sent in a transaction of application {evidence.transaction.app}{staged}, by {whose}.",)
    unknown.append(
        f"The principal and the program of producer id {header.producer_id} are not known: the cluster keeps no list"
        " of former producers."
    )
    return (f"It was sent by {whose}.",)


def _time_in_words(evidence: RecordEvidence, batch: Batch) -> tuple[str, ...]:
    """Return sentences about when a record was sent and which server took it."""
    header = batch.header
    assert header is not None
    stamp = batch.timestamp_ms if batch.timestamp_ms >= 0 else header.first_timestamp
    time = f"Its timestamp is {moment(stamp)}, by the clock of its producer."
    led = evidence.leadership
    if led is None:
        return (time, f"It was taken in leader epoch {header.leader_epoch}.")
    since = f", which led from {moment(led.since_ms)} on" if led.since_ms >= 0 else ""
    cause = f" ({led.cause.replace('_', ' ')})" if led.cause else ""
    now = evidence.partition.leader
    later = "" if header.leader_epoch == evidence.partition.leader_epoch else f"; {now or 'nobody'} leads now"
    return (time, f"It was taken in leader epoch {header.leader_epoch} by {led.leader}{since}{cause}{later}.")


def _copies_in_words(evidence: RecordEvidence, header: BatchHeader) -> tuple[str, ...]:
    """Return a sentence about which servers have a record durably, which only in memory, and which not."""
    durable, written, lacking, cut = [], [], [], []
    for node, copy in evidence.copies.items():
        if copy.log_start > evidence.offset:
            cut.append(node)
        elif copy.log_end < header.end_offset:
            lacking.append(f"{node} (its log ends at {copy.log_end})")
        elif copy.durable >= header.end_offset:
            durable.append(node)
        else:
            written.append(node)
    silent = [n for n in (*evidence.partition.replicas, *evidence.partition.learners) if n not in evidence.copies]
    flush = evidence.topic.config.get("flush", "fsync")
    parts = [f"It is durable ({flush}) on {listed(durable)}"] if durable else ["It is durable on no server"]
    parts += [f"written and not flushed on {listed(written)}"] if written else []
    parts += [f"missing on {listed(lacking)}"] if lacking else []
    parts += [f"below the log start of {listed(cut)}"] if cut else []
    parts += [f"unknown of {listed(silent)}, which did not answer"] if silent else []
    return ("; ".join(parts) + ".",)


def _commit_in_words(evidence: RecordEvidence, header: BatchHeader, unknown: list[str]) -> tuple[str, ...]:
    """Return a sentence about whether a record is committed, and since when at the latest."""
    if evidence.end is None:
        return ()
    end = evidence.end.offset
    rule = evidence.topic.config.get("commit_rule", "isr")
    passed = [at for at in (evidence.groups or {}).values() if at and _judge(evidence, at) == "passed"]
    times = [at.committed_ms for at in passed if at.committed_ms >= max(0, _taken_ms(evidence))]
    latest = f", by {moment(min(times))} at the latest" if times else ""
    unknown.append("When it was committed is not known: the cluster keeps no time of a commit.")
    return (f"It is committed (commit rule {rule}){latest}: the high watermark is {end}.",)


def _judge(evidence: RecordEvidence, at: GroupPosition) -> str:
    """Return what the position of a group says of the record: ``passed``; ``before``: it lies before the record;
    ``beyond``: it lies beyond the high watermark; ``older``: it was set before the record was sent, as far as clocks
    tell. A client may set a position anywhere, so the last two do not say that the group has read the record. A
    reader commits the leader epoch of the record before the position, which proves that this record was there."""
    if at.offset <= evidence.offset:
        return "before"
    header = evidence.batch.header if evidence.batch is not None else None
    if header is not None and at.leader_epoch >= header.leader_epoch:
        return "passed"
    if evidence.end is not None and at.offset > evidence.end.offset:
        return "beyond"
    if header is None or at.committed_ms < 0:
        return "passed"
    return "older" if at.committed_ms < _taken_ms(evidence) else "passed"


def _taken_ms(evidence: RecordEvidence) -> int:
    """Return the time in milliseconds since 1970 before which the leader cannot have taken the record, as far as
    clocks tell: its timestamp, or the begin of its leader's term if that is later; -1 if neither is known."""
    batch = evidence.batch
    if batch is None or batch.header is None:
        return -1
    stamp = batch.timestamp_ms if batch.timestamp_ms >= 0 else batch.header.first_timestamp
    led = evidence.leadership.since_ms if evidence.leadership is not None else -1
    return max(stamp if as_datetime(stamp) else -1, led)


def _transaction_in_words(evidence: RecordEvidence, batch: Batch) -> tuple[str, ...]:
    """Return sentences about the state of a record's transaction and its end, and whether readers of committed
    records wait before the record, for whatever transaction."""
    header, marker, known = batch.header, batch.marker, evidence.transaction
    assert header is not None
    waits = _waits_before(evidence)
    if not header.is_transactional:
        return (waits,) if waits else ()
    if marker is not None:
        how = "committed" if marker.base_sequence == 1 else "aborted"
        when = f"the marker at offset {marker.base_offset} has the time {moment(marker.max_timestamp)}"
        end = f"Its transaction was {how}: {when}."
    elif known is not None and known.state in ("committed", "aborted", "committing", "aborting"):
        end = f"Its transaction is {known.state}" + (
            f" since {moment(known.since_ms)}." if known.since_ms >= 0 else "."
        )
    elif known is not None:
        until = f", and is aborted at {moment(known.until_ms)} unless it ends before" if known.until_ms >= 0 else ""
        end = f"Its transaction is {known.state}{until}."
    elif batch.visible:
        end = "Its transaction was committed."
    else:
        other = "ends further on in the log" if waits else "was aborted"
        end = f"Its transaction {other}, or has not ended."
    if batch.visible:
        return (end, "Readers of committed records get the record.")
    return (end, waits or "Readers of committed records do not get the record.")


def _waits_before(evidence: RecordEvidence) -> str:
    """Return a sentence about readers of committed records that wait at the last stable offset, at or before the
    record; "" if they do not."""
    stable = evidence.end.stable if evidence.end is not None else None
    header = evidence.batch.header if evidence.batch is not None else None
    if stable is None or header is None or stable.offset > evidence.offset:
        return ""
    is_own = header.is_transactional and header.producer_id == stable.producer_id
    why = "" if is_own else f", for the transaction of producer id {stable.producer_id}"
    return f"Readers of committed records wait at offset {stable.offset}, before the record{why}."


def _groups_in_words(evidence: RecordEvidence, unknown: list[str]) -> tuple[str, ...]:
    """Return sentences about which groups have committed a position behind a record, and which have not."""
    if evidence.groups is None:
        return ()
    found: dict[str, list[str]] = {"passed": [], "before": [], "beyond": [], "older": []}
    hidden = sum(at is None for at in evidence.groups.values())
    if hidden:
        unknown.append(
            f"The positions of {counted(hidden, 'group')} are not known: they need the right to describe the group,"
            " or the servers are of an earlier release."
        )
    for name, at in sorted(evidence.groups.items()):
        if at is None:
            continue
        judged = _judge(evidence, at)
        when = f", committed {moment(at.committed_ms)}" if at.committed_ms >= 0 and judged != "before" else ""
        found[judged].append(f"{name} (at {at.offset}{when})")
    words = []
    if found["passed"]:
        unknown.append("When a group passed the record is known only by its last commit, which may be later.")
        words.append(f"Passed by the commits of {shortened(found['passed'])}.")
    if found["before"]:
        words.append(f"Not passed yet by {shortened(found['before'])}.")
    if found["beyond"] and evidence.end is not None:
        words.append(
            f"Beyond the end {evidence.end.offset}, and so no sign of having read the record:"
            f" {shortened(found['beyond'])}."
        )
    if found["older"]:
        words.append(f"Set before the record was sent, by the clocks: {shortened(found['older'])}.")
    if not words and not hidden:
        words.append("No consumer group has a position in the partition.")
    return tuple(words)


def _archive_in_words(evidence: RecordEvidence, unknown: list[str]) -> tuple[str, ...]:
    """Return sentences about the groups that retention waits for, which copy the topic elsewhere."""
    awaited = [name for name in evidence.topic.config.get("retention_waits_for", "").split(",") if name]
    if not awaited:
        unknown.append("Whether it is archived is not known: the topic names no group in retention_waits_for.")
        return ()
    if evidence.groups is None:  # that is among what is not known already
        return ()
    found: dict[str, list[str]] = {}
    for name in awaited:
        at = evidence.groups.get(name)
        judged = _judge(evidence, at) if at is not None else "hidden" if name in evidence.groups else "before"
        found.setdefault(judged, []).append(name)
    words = []
    if done := found.get("passed"):
        words.append(f"Archived by {listed(done)}, which retention waits for (retention_waits_for).")
    if left := found.get("before"):
        words.append(f"Not archived yet by {listed(left)}: retention keeps the record for it, within its bounds.")
    if ahead := [*found.get("beyond", ()), *found.get("older", ())]:
        words.append(
            f"Not known to be archived by {listed(ahead)}: its position is no sign of that, and retention"
            " (retention_waits_for) does not keep the record for it."
        )
    return tuple(words)


def _facts(evidence: RecordEvidence) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    batch, partition = evidence.batch, evidence.partition
    facts: dict[str, Any] = {
        "topic": evidence.topic.name,
        "partition": partition.partition,
        "offset": evidence.offset,
        "log_start": evidence.log_start,
        "high_watermark": evidence.end.offset if evidence.end is not None else -1,
        "leader": partition.leader,
        "leader_epoch_now": partition.leader_epoch,
        "isr": list(partition.isr),
        "copies": {
            node: {
                "log_start": copy.log_start,
                "log_end": copy.log_end,
                "durable": copy.durable,
                "high_watermark": copy.high_watermark,
            }
            for node, copy in evidence.copies.items()
        },
        "groups": None
        if evidence.groups is None
        else {
            name: at and {"offset": at.offset, "committed": iso(at.committed_ms)}
            for name, at in sorted(evidence.groups.items())
        },
    }
    if evidence.losses:
        facts["losses"] = loss_facts(evidence.losses)
    if batch is not None and batch.header is not None:
        facts["batch"] = _batch_facts(evidence, batch, batch.header)
    if evidence.leadership is not None:
        led = evidence.leadership
        facts["taken_by"] = {"leader": led.leader, "since": iso(led.since_ms), "cause": led.cause}
    if evidence.transaction is not None:
        known = evidence.transaction
        facts["transaction"] = {
            "app": known.app,
            "state": known.state,
            "staged": known.staged,
            "since": iso(known.since_ms),
            "until": iso(known.until_ms),
        }
    return facts


def _batch_facts(evidence: RecordEvidence, batch: Batch, header: BatchHeader) -> dict[str, Any]:
    key = None if batch.key is None else batch.key[:MOST_KEY_BYTES].decode("utf-8", "backslashreplace")
    facts: dict[str, Any] = {
        "base_offset": header.base_offset,
        "last_offset": header.end_offset - 1,
        "bytes": header.batch_length,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "transactional": header.is_transactional,
        "control": header.is_control,
        "sparse": header.is_sparse,
        "crc32c": header.crc32c,
        "timestamp": iso(batch.timestamp_ms),
        "key": key,
        "key_bytes": 0 if batch.key is None else len(batch.key),
        "value_bytes": batch.value_bytes,
        "visible_to_committed_readers": batch.visible and not _waits_before(evidence),
    }
    if batch.marker is not None:
        facts["marker"] = {
            "offset": batch.marker.base_offset,
            "committed": batch.marker.base_sequence == 1,
            "time": iso(batch.marker.max_timestamp),
        }
    return facts
