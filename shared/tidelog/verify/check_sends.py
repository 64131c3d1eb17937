"""The checks of sends: every acknowledged record is in the final log, where its ack says and in the order of the
sends. ``checker.py`` calls them."""

from __future__ import annotations

from operator import attrgetter

from tidelog.verify.history import OK, SendCall
from tidelog.verify.ledger import Facts, after, sent, show, span


def check_kept(facts: Facts) -> None:
    """Check every acknowledged send. Add a ``double_win`` (A13) if two conditional appends got one offset. Every
    record that was acknowledged with ``all``, outside of a transaction, must be where its ack says: otherwise add a
    ``lost_write`` (A1) or a ``conflict`` (A5)."""
    winners: dict[tuple[str, int], SendCall] = {}
    for op in facts.sends:
        if op.result != OK:
            continue
        if op.expected_offset >= 0 and not facts.may_be_lost(op.partition, op.epoch, op.offset):
            first = winners.setdefault((op.partition, op.expected_offset), op)
            if first is not op:
                text = f"{op.partition}: {first.process} ({span(first)}) and {op.process} ({span(op)}) both won"
                facts.flag("double_win", f"{text} offset {op.expected_offset}")
                continue
        if op.level == "all" and not op.transaction and op.partition not in facts.history.deleted:
            _check_one(facts, op)


def _check_one(facts: Facts, op: SendCall) -> None:
    """Add a ``lost_write`` for each record of an acknowledged send that is not in the final log, and a ``conflict``
    for each one that is at another offset than its ack says. Skip records that may rightly be gone: retention has
    removed them, the topic's settings allow the loss, or the partition was not read to its end."""
    final = facts.final.get(op.partition, {})
    for place, value in enumerate(op.values):
        offset = op.offset + place
        kept = final.get(offset)
        if kept == value or not facts.is_kept(op.partition, offset):
            continue
        if facts.may_be_lost(op.partition, op.epoch, offset):
            continue
        if value in facts.offsets:
            if op.offset >= 0 and facts.sent[value].partition == op.partition:
                at = facts.offsets[value]
                facts.flag("conflict", f"{op.partition}: {show(value)} ({sent(op)}) acked at {offset}, is at {at}")
        elif kept is None or kept in facts.sent:  # otherwise it is reported as a phantom
            text = f"{op.partition}: {show(value)} ({sent(op)}), acked at {offset}, is gone; {show(kept)} is there"
            facts.flag("lost_write", text)


def check_order(facts: Facts) -> None:
    """Add an ``order`` (A6) if the records of one producer are in another order in a partition than they were sent.
    If no producer has such a case, check the order between producers in real time, too."""
    lanes: dict[tuple[str, str], list[SendCall]] = {}
    for op in facts.sends:
        if (
            op.idempotent or op.result == OK
        ):  # an unknown send without retries may be appended late, which breaks no promise
            lanes.setdefault((op.process, op.partition), []).append(op)
    before = len(facts.found)
    for (process, partition), lane in sorted(lanes.items()):
        last, number = -1, -1
        for op in sorted(lane, key=attrgetter("number")):
            places = [facts.offsets[value][0] for value in op.values if value in facts.offsets]
            if not places:
                continue
            if places[0] < last:
                text = f"send {op.number} ({span(op)}) stands at {places[0]}, before its send {number} at {last}"
                facts.flag("order", f"{partition}: {process}'s {text}")
            elif places != sorted(places):
                facts.flag("order", f"{partition}: one batch ({sent(op)}) is not in order: it stands at {places}")
            last, number = places[-1], op.number
    if len(facts.found) == before:
        _check_real_time(facts)


def _check_real_time(facts: Facts) -> None:
    """Add an ``order`` if a send that began after the ack of another process's send has a lower offset."""
    acked: dict[str, list[SendCall]] = {}
    for op in facts.promised:
        if op.partition in facts.final:
            acked.setdefault(op.partition, []).append(op)
    for partition, ops in acked.items():
        for op, highest in after(ops, attrgetter("offset")):
            if op.offset < highest.offset and op.process != highest.process:
                text = f"{op.process}'s send at {op.offset} ({span(op)}) began after {highest.process}'s"
                facts.flag("order", f"{partition}: {text} at {highest.offset} ({span(highest)}) was acknowledged")
