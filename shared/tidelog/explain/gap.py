"""Why a reader gets no record at an offset: compaction, retention, transactions, a batch that cannot be decoded, or
the end of the log.

A log has no holes: every offset from its start to its end is covered by a batch. So the evidence is the batches from
the offset on, read both as a reader of committed records gets them and as they are in the log, the bounds of the log,
and the losses in the history of the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tidelog.errors import CorruptBatch
from tidelog.explain.explanation import Explanation, iso, listed, moment, span
from tidelog.explain.inquiry import Inquiry, describe_partition
from tidelog.explain.partition_state import led_for, loss_facts, losses_at, losses_at_in_words, stood_for
from tidelog.quantities import counted
from tidelog.types import Position

if TYPE_CHECKING:
    from tidelog.batch.format import BatchHeader
    from tidelog.client.log import Log
    from tidelog.wire.messages import (
        DigestAnswer,
        HistoryEntry,
        OffsetAnswer,
        PartitionInfo,
        ReadAnswer,
        TopicInfo,
        TransactionInfo,
    )

    Read = tuple[ReadAnswer, list[tuple[BatchHeader, memoryview]]]

READ_BYTES = 1 << 20
"""Most bytes of one read of batches."""
MOST_READS = 4
"""Most reads, one behind the other, in search of the next record."""
MOST_PRODUCERS = 10
"""Most producer ids whose applications are asked for."""
MOST_PARTS = 20
"""Most parts of a gap that sentences are about, the first ones."""


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive offsets from ``start`` up to, not including, ``end`` without a record, for one reason."""

    start: int
    end: int
    kind: str
    """``marker``: the end of a transaction; ``servers``: another control batch; ``aborted`` and ``open``: records of
    such a transaction; ``compacted``; ``unreadable``: records in a batch that cannot be decoded."""
    producer_id: int = 0
    producer_epoch: int = -1
    text: str = ""
    """Of a marker ``committed`` or ``aborted``; of a batch that cannot be decoded the reason."""
    time_ms: int = -1
    """Of a marker: its timestamp."""

    @property
    def offsets(self) -> str:
        """Return the offsets in words."""
        return f"Offset {self.start}" if self.end == self.start + 1 else f"Offsets {self.start} to {self.end - 1}"


@dataclass(frozen=True, slots=True)
class GapEvidence:
    """All that was found out about a gap that begins at ``offset``. ``next_record``: the offset of the first record
    from there on that readers of committed records get, -1 if none was found. ``looked_to``: the offset up to which
    batches were looked at."""

    topic: TopicInfo
    partition: PartitionInfo
    offset: int
    log_start: int = -1
    end: OffsetAnswer | None = None
    leader: DigestAnswer | None = None
    """The log of the leader."""
    parts: tuple[Part, ...] = ()
    next_record: int = -1
    looked_to: int = -1
    losses: tuple[HistoryEntry, ...] = ()
    """What the partition's history tells of losses in the gap (``losses_at``)."""
    transactions: Mapping[tuple[int, int], TransactionInfo] | None = None
    """What coordinators know of the transactions in the gap, by producer id and epoch."""
    unknown: tuple[str, ...] = ()
    led_ms: int = -1
    """For how many milliseconds the leader has led the partition at least; -1: not known."""

    @property
    def place(self) -> str:
        """Return the partition's name, such as ``orders/0``."""
        return f"{self.topic.name}/{self.partition.partition}"

    @property
    def high_watermark(self) -> int:
        """Return the high watermark; -1 if it is not known."""
        return -1 if self.end is None else self.end.offset


# --- asking ----------------------------------------------------------------------------------------------


async def why_gap(log: Log, topic: str, partition: int, offset: int) -> Explanation:
    """Explain why readers of committed records get no record at an offset and the ones behind it, up to the next
    record. Raises ``UNKNOWN_TOPIC``."""
    return explain_gap(await ask_gap(log, topic, partition, offset))


async def ask_gap(log: Log, topic: str, partition: int, offset: int) -> GapEvidence:
    """Ask the cluster for the bounds and the losses of a partition, and for its batches from an offset on. Raises
    ``UNKNOWN_TOPIC``."""
    from tidelog.client.loop import wall_ms

    found, info = await describe_partition(log, topic, partition)
    inquiry = Inquiry()
    bounds = {
        at: inquiry.ask(what, partial(log.partitions.list_offsets, found, at, [partition], "uncommitted"))
        for at, what in (("earliest", "the log start"), ("latest", "the high watermark"))
    }
    history = inquiry.ask("the history of the partition", lambda: log.partitions.histories(found, [partition]))
    digest = None
    if leader := info.leader:
        ask_leader = partial(log.partitions.digest, found.topic_id, partition, leader)
        digest = inquiry.ask(f"what {leader} holds", ask_leader)
    await inquiry.run()
    earliest, latest = bounds["earliest"].value, bounds["latest"].value
    evidence = GapEvidence(
        found,
        info,
        offset,
        earliest[partition].offset if earliest else -1,
        latest[partition] if latest else None,
        digest.value if digest is not None else None,
    )
    if evidence.log_start >= 0 and evidence.high_watermark >= 0:
        evidence = await _with_parts(log, evidence, inquiry)
    last = evidence.next_record if evidence.next_record >= 0 else max(evidence.looked_to + 1, offset + 1)
    entries = (history.value or {}).get(partition, ())
    losses = losses_at(entries, offset, last, evidence.high_watermark)
    led_ms = led_for(entries, info, wall_ms())
    return replace(evidence, losses=losses, unknown=inquiry.failures(), led_ms=led_ms)


async def _with_parts(log: Log, evidence: GapEvidence, inquiry: Inquiry) -> GapEvidence:
    """Read batches from the gap's begin on until there is a record, and return the evidence with what was found."""
    place = evidence.topic.topic_id, evidence.partition.partition
    at, parts, next_record = max(evidence.offset, evidence.log_start), list[Part](), -1
    for _ in range(MOST_READS):
        if at >= evidence.high_watermark or next_record >= 0:
            break
        read = partial(log.read_batches, *place, Position(-1, at), max_bytes=READ_BYTES)
        stored = inquiry.ask("what the log has there", partial(read, isolation="uncommitted"))
        seen = inquiry.ask("what readers get there", partial(read, isolation="committed"))
        await inquiry.run()
        if stored.value is None or seen.value is None or not stored.value[1]:
            break
        stable = evidence.end.stable.offset if evidence.end is not None and evidence.end.stable else -1
        more, next_record = divide(stored.value[1], seen.value[1], at, stable)
        parts += more
        at = stored.value[1][-1][0].end_offset
    parts = joined(parts)
    producers = list(dict.fromkeys(part.producer_id for part in parts if part.kind in ("aborted", "open", "marker")))
    asked = [
        inquiry.ask(f"the transaction of producer {id}", partial(_transactions, log, id))
        for id in producers[:MOST_PRODUCERS]
    ]
    await inquiry.run()
    known = {(tx.producer_id, tx.producer_epoch): tx for one in asked for tx in one.value or ()}
    return replace(evidence, parts=tuple(parts), next_record=next_record, looked_to=at, transactions=known)


async def _transactions(log: Log, producer_id: int) -> list[TransactionInfo]:
    return list(await log.transactions.of_producer(producer_id))


def divide(
    stored: Iterable[tuple[BatchHeader, memoryview]],
    seen: Iterable[tuple[BatchHeader, memoryview]],
    start: int,
    stable: int,
) -> tuple[list[Part], int]:
    """Divide the offsets from ``start`` on by the reason for which they have no record, up to the first record that
    readers get. ``stored``: the batches in the log; ``seen``: the same as readers of committed records get them, in
    which aborted batches are empty; ``stable``: the last stable offset, -1 if it is the high watermark. Returns the
    parts and the offset of that record, -1 if the batches have none."""
    shown = {header.base_offset: batch for header, batch in seen}
    parts: list[Part] = []
    for header, batch in stored:
        first, end = max(start, header.base_offset), header.end_offset
        if first >= end:
            continue
        whose = header.producer_id, header.producer_epoch
        if header.is_control:
            kind, text = ("marker", _outcome(header)) if header.is_transactional else ("servers", "")
            parts.append(Part(first, end, kind, *whose, text, header.max_timestamp))
            continue
        if 0 <= stable <= header.base_offset:
            # readers of committed records wait here, also for records of others
            parts.append(Part(first, end, "open", *(whose if header.is_transactional else (0, -1))))
            continue
        try:
            kept = [offset for offset in _record_offsets(batch) if offset >= first]
            visible = [o for o in _record_offsets(shown.get(header.base_offset, batch)) if o >= first]
        except CorruptBatch as error:
            parts.append(Part(first, end, "unreadable", *whose, error.message))
            continue
        last = visible[0] if visible else end
        kind = "aborted" if kept and not visible else "compacted"
        if first < last:
            parts.append(Part(first, last, kind, *(whose if kind == "aborted" else ())))
        if visible:
            return parts, visible[0]
    return parts, -1


def _outcome(marker: BatchHeader) -> str:
    return "committed" if marker.base_sequence == 1 else "aborted"


def _record_offsets(batch: memoryview) -> Sequence[int]:
    """Return the offsets at which a batch has a record. Raises ``CorruptBatch``."""
    from tidelog.batch.format import decode_columns

    return decode_columns(batch).offsets


def joined(parts: Iterable[Part]) -> list[Part]:
    """Join neighbours that have the same reason. Markers stay apart, since each ends another transaction."""
    found: list[Part] = []
    for part in parts:
        if found and part.kind != "marker" and replace(found[-1], start=part.start, end=part.end) == part:
            found[-1] = replace(found[-1], end=part.end)
        else:
            found.append(part)
    return found


# --- explaining ------------------------------------------------------------------------------------------


def explain_gap(evidence: GapEvidence) -> Explanation:
    """Return the explanation of a gap from what was found out about it."""
    sentences, steps = _extent(evidence)
    for sentence, step in (_of_part(part, evidence) for part in evidence.parts[:MOST_PARTS]):
        sentences.append(sentence)
        steps += [step] if step else []
    if len(evidence.parts) > MOST_PARTS:
        rest = evidence.parts[MOST_PARTS:]
        kinds = listed(sorted({part.kind for part in rest}))
        sentences.append(f"{counted(len(rest), 'more part')} up to offset {rest[-1].end - 1}: {kinds}.")
    sentences += _at_the_end(evidence, steps)
    sentences += losses_at_in_words(evidence.losses, evidence.high_watermark)
    unknown = list(evidence.unknown)
    if not evidence.losses and not any("history" in text for text in unknown):
        unknown.append("Losses that the history of the partition no longer reaches back to are not known.")
    subject = f"{evidence.place}@{evidence.offset}"
    return Explanation(
        "gap", subject, tuple(sentences), _facts(evidence), tuple(unknown), tuple(dict.fromkeys(steps))
    )


def _extent(evidence: GapEvidence) -> tuple[list[str], list[str]]:
    """Return sentences about where the gap begins and ends, and about what lies before the log start."""
    place, offset, after, start = evidence.place, evidence.offset, evidence.next_record, evidence.log_start
    if start < 0 or evidence.end is None:
        if not evidence.partition.leader:
            step = f"'tidelog why {place}' shows why nobody leads."
            return [f"{place} has no leader, so nobody can read it from offset {offset} on."], [step]
        step = f"'tidelog why {place}' shows its history."
        return [f"{place} could not be read from offset {offset} on."], [step]
    if after == offset:
        return [f"{place} has a record at {offset} that readers of committed records get: no gap begins there."], []
    words = []
    if after >= 0:
        size = counted(after - offset, "offset")
        words.append(f"From {offset} on, {place} has {size} without a record for readers; the next is {after}.")
    elif offset < evidence.high_watermark:
        words.append(f"From {offset} on, {place} has no record for readers up to offset {evidence.looked_to - 1}.")
    if offset < start:
        last = f"Offsets {offset} to {start - 1}" if start > offset + 1 else f"Offset {offset}"
        words.append(f"{last}: deleted; the log starts at {start}. {_retention(evidence.topic)}")
    return words, []


def _retention(topic: TopicInfo) -> str:
    """Return a sentence about the settings of a topic that delete the begin of its logs."""
    config = topic.config
    if "delete" not in config.get("cleanup", "delete"):
        return "The topic has no retention now (cleanup), so an earlier setting deleted them, or the log began there."
    bounds = [
        f"{name} {span(int(value)) if name.endswith('_ms') else value}"
        for name in ("retention_ms", "retention_bytes", "retention_records")
        if int(value := config.get(name, "-1")) >= 0
    ]
    if not bounds:
        return "No bound of retention is set now, so an earlier setting deleted them, or the log began there."
    return f"Retention deletes the oldest segments of the topic: {listed(bounds)}."


def _of_part(part: Part, evidence: GapEvidence) -> tuple[str, str]:
    """Return a sentence about one part of the gap, and the next step ("": none)."""
    known = (evidence.transactions or {}).get((part.producer_id, part.producer_epoch))
    whose = f"producer id {part.producer_id}" + (f", application {known.app}" if known is not None else "")
    match part.kind:
        case "marker":
            when = f" at {moment(part.time_ms)}" if part.time_ms > 0 else ""
            return f"{part.offsets}: the marker of a transaction that was {part.text}{when} ({whose}).", ""
        case "servers":
            return f"{part.offsets}: a control batch of the servers, which no reader gets.", ""
        case "aborted":
            return (
                f"{part.offsets}: records of a transaction that was aborted ({whose}).",
                "Readers with isolation uncommitted get records of aborted transactions, too.",
            )
        case "open":
            held = (
                f"of a transaction that has not ended ({whose})" if part.producer_id else "behind an open transaction"
            )
            return f"{part.offsets}: records {held}; readers of committed records wait.", ""
        case "unreadable":
            step = "Let readers skip the batch (on_unreadable): docs/operations.md, Batches that cannot be decoded."
            batch = f"a batch of producer id {part.producer_id}"
            return f"{part.offsets}: in {batch} that no reader can decode: {part.text}.", step
    return f"{part.offsets}: removed by compaction, which keeps the last record of each key.", ""


def _at_the_end(evidence: GapEvidence, steps: list[str]) -> list[str]:
    """Return sentences about a gap that reaches the end of what can be read, and add next steps to ``steps``."""
    if evidence.next_record >= 0 or evidence.end is None:
        return []
    place, end, words = evidence.place, evidence.high_watermark, list[str]()
    if max(evidence.looked_to, evidence.offset) < end:
        steps.append(f"'tidelog why gap {place}@{evidence.looked_to}' looks further.")
        return words
    words.append(f"{place} ends at {end} (high watermark): nothing behind it is committed.")
    stable = evidence.end.stable
    if stable is not None:
        words.append(
            f"Readers of committed records wait at {stable.offset} for the transaction of producer id"
            f" {stable.producer_id}, {stood_for(stable, evidence.partition.leader, evidence.led_ms)}."
        )
        steps.append("'tidelog transactions list' shows the open transactions.")
    leader = evidence.leader
    if leader is not None and leader.log_end > end:
        words.append(
            f"The leader {evidence.partition.leader} has records up to {leader.log_end - 1}, not committed yet."
        )
        steps.append(f"'tidelog why {place}@{end}' shows which replicas they wait for.")
    return words


def _facts(evidence: GapEvidence) -> dict[str, Any]:
    """Return the evidence as values that JSON has."""
    return {
        "topic": evidence.topic.name,
        "partition": evidence.partition.partition,
        "offset": evidence.offset,
        "log_start": evidence.log_start,
        "high_watermark": evidence.high_watermark,
        "next_record": evidence.next_record,
        "looked_to": evidence.looked_to,
        "cleanup": evidence.topic.config.get("cleanup", "delete"),
        "parts": [
            {
                "start": part.start,
                "end": part.end,
                "kind": part.kind,
                "producer_id": part.producer_id,
                "producer_epoch": part.producer_epoch,
                "text": part.text,
                "time": iso(part.time_ms),
            }
            for part in evidence.parts
        ],
        "losses": loss_facts(evidence.losses),
    }
