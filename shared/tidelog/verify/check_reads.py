"""Checks of what readers were shown, of what the replicas have, and of answers that promise to be fresh."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

from tidelog.verify.history import ReadCall
from tidelog.verify.ledger import Facts, sent, show, span


def check(facts: Facts) -> dict[tuple[str, bytes], str]:
    """Check the reads, the replicas' logs and the fresh answers of a history, and add every anomaly to ``facts``.
    Return the records that a reader was shown and that are not at their offset in the final log: (partition, value)
    -> name of the reader."""
    strange = _check_reads(facts)
    _check_dumps(facts)
    _check_fresh(facts)
    return strange


def _check_reads(facts: Facts) -> dict[tuple[str, bytes], str]:
    """Check every read of a history. Add a ``consumer_skip`` (A7) if a reader went back or passed over a record, a
    ``conflict`` (A5) if two readers were shown different records at one offset, and a ``vanished`` (A3) for a shown
    record that is gone at the end. Return the shown records that are not at their offset in the final log:
    (partition, value) -> name of the reader."""
    shown: dict[tuple[str, int, int], tuple[bytes, ReadCall]] = {}
    """By leader epoch in a topic that may lose records: each loss may have put another record there."""
    positions: dict[tuple[str, str], int] = {}
    strange: dict[tuple[str, bytes], str] = {}
    for read in facts.reads:
        partition = read.partition
        wanted = positions.get((read.process, partition), read.position)
        if wanted != read.position and not read.start_over and not facts.follows(partition, wanted, read.position):
            text = f"{partition}: {read.process} asked for {read.position} ({span(read)}), not {wanted}"
            facts.flag("consumer_skip", text)
        wanted = read.position
        final = facts.final.get(partition, {})
        for place, (offset, value) in enumerate(read.rows):
            if offset != wanted and not facts.follows(partition, wanted, offset):
                text = f"{partition}: {read.process} got {offset} instead of {wanted} ({span(read)})"
                facts.flag("consumer_skip", text)
            wanted = offset + 1
            if final.get(offset) == value:
                continue
            strange[partition, value] = read.process
            epoch = read.epochs[place] if read.epochs else -1
            lost = facts.may_be_lost(partition, epoch, offset)
            before, first = shown.setdefault((partition, offset, epoch if lost else -1), (value, read))
            if before != value:
                text = f"{offset} was shown as {show(before)} to {first.process} ({span(first)})"
                facts.flag("conflict", f"{partition}: {text} and as {show(value)} to {read.process} ({span(read)})")
            elif not lost and first is read:
                _check_gone(facts, read, offset, value, final.get(offset))
        positions[read.process, partition] = wanted
    return strange


def _check_gone(facts: Facts, read: ReadCall, offset: int, value: bytes, kept: bytes | None) -> None:
    """Add a ``vanished`` for a record that was shown at ``offset``, if the final log has another record (``kept``) or
    none at that offset. Do nothing for a record that was never sent or whose transaction was aborted, which other
    checks report, and for offsets that the final log need not have."""
    op = facts.sent.get(value)
    if op is None or op.partition != read.partition or not facts.is_kept(read.partition, offset):
        return
    if op.transaction in facts.dropped or (kept is not None and kept not in facts.sent):
        return
    text = f"{read.partition}: {show(value)} ({sent(op)}) was shown at {offset} to {read.process} ({span(read)})"
    facts.flag("vanished", f"{text}; {show(kept)} is there at the end")


def _check_dumps(facts: Facts) -> None:
    """Compare the log of each replica with the final log, offset by offset. Add a ``gap`` (A10) for missing offsets,
    and a ``conflict`` (A5) for different records at one offset, and for each difference that a comparison of hash
    chains found."""
    reference = dict(facts.final)
    for node, partitions in facts.history.dumps.items():
        for partition, rows in partitions.items():
            if rows == facts.history.final.get(partition):
                continue
            final = reference.setdefault(partition, dict(rows))
            for before, after in pairwise(rows):
                if after[0] != before[0] + 1 and not facts.follows(partition, before[0] + 1, after[0]):
                    facts.flag("gap", f"{partition} on {node}: {before[0]} is followed by {after[0]}")
            for offset, value in rows:
                if offset in final and final[offset] != value:
                    text = f"{partition} on {node}: {offset} is {show(value)}, elsewhere {show(final[offset])}"
                    facts.flag("conflict", text)
    for one in facts.history.differing:
        facts.flag("conflict", f"{one.partition}: the replicas differ from offset {one.offset} on: {one.text}")


def _check_fresh(facts: Facts) -> None:
    """Add a ``stale_latest`` (A9) for every answer that must be fresh (``linearizable``) and reports an end of the
    log that is too low: below a record that was acknowledged with ``all``, or below the end in another fresh answer,
    if that was known before the answer was requested. If the answer may be stale by some bound, its request counts as
    made that much earlier."""
    known = [(op.end, op.partition, op.offset + len(op.values)) for op in facts.promised]
    for op in facts.latest:
        if op.linearizable:
            kept = min((loss.start for loss in facts.losses.get(op.partition, ())), default=op.offset)
            known.append((op.end, op.partition, min(op.offset, kept)))
    known.sort()
    covered: dict[str, tuple[int, float]] = {}
    place = 0
    for op in sorted(facts.latest, key=attrgetter("start")):
        while place < len(known) and known[place][0] < op.start:
            when, partition, end = known[place]
            if end > covered.get(partition, (0, 0.0))[0]:
                covered[partition] = end, when
            place += 1
        end, when = covered.get(op.partition, (0, 0.0))
        if op.linearizable and op.offset < end:
            text = f"{op.process} got {op.offset} as the end ({span(op)}), but {end} was known at {when:.3f} s"
            facts.flag("stale_latest", f"{op.partition}: {text}")
