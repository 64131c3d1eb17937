"""Checks of what readers were shown, of what the replicas hold, and of answers that promise to be fresh."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

from tidelog.verify.history import ReadCall
from tidelog.verify.ledger import Facts, sent, show, span


def check(facts: Facts) -> dict[tuple[str, bytes], str]:
    """Check a history and add the anomalies found. Return what was shown and is not in the final log: (partition,
    value) -> the read."""
    strange = _check_reads(facts)
    _check_dumps(facts)
    _check_fresh(facts)
    return strange


def _check_reads(facts: Facts) -> dict[tuple[str, bytes], str]:
    """A3, A5 (readers that were shown different records at one offset), A7."""
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
    """Report records that were shown and are not in the log at the end. Records that were never sent, or were
    aborted, are reported under other kinds."""
    op = facts.sent.get(value)
    if op is None or op.partition != read.partition or not facts.is_kept(read.partition, offset):
        return
    if op.transaction in facts.dropped or (kept is not None and kept not in facts.sent):
        return
    text = f"{read.partition}: {show(value)} ({sent(op)}) was shown at {offset} to {read.process} ({span(read)})"
    facts.flag("vanished", f"{text}; {show(kept)} is there at the end")


def _check_dumps(facts: Facts) -> None:
    """A5, A10 on the committed part of the replicas' own logs."""
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
    """A9: a linearizable "latest" covers every ``all`` ack that came before the request, and every earlier such
    answer. If a read may be stale by some bound, its request counts as made that much earlier."""
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
