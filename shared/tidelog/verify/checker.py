"""Checks a history, after Jepsen's Kafka workload, in a few passes. The time is linear in its length, except for
sorting what is nearly in order. ``anomalies.py`` lists what is checked; each anomaly is reported under one kind, the
most telling.

The checker is independent of how the history was made: the simulation, ``tidelog verify check`` and the runs against
real faults use it."""

from __future__ import annotations

from itertools import pairwise
from operator import attrgetter

from tidelog.verify import check_groups as groups
from tidelog.verify import check_reads as reading
from tidelog.verify import check_transactions as transactions
from tidelog.verify.anomalies import Anomaly
from tidelog.verify.history import FAILED, OK, OperationHistory, SendCall
from tidelog.verify.ledger import Facts, after, sent, show, span


def check(history: OperationHistory) -> list[Anomaly]:
    """Return all anomalies of a history in the order in which they are found; an empty list for a sound history."""
    facts = Facts(history)
    _check_final_log(facts)
    _check_sends(facts)
    _check_order(facts)
    strange = reading.check(facts)
    _check_sources(facts, strange)
    groups.check(facts)
    transactions.check_history(facts, strange)
    _check_progress(facts)
    return facts.found


def _check_final_log(facts: Facts) -> None:
    """Check the final log of each partition: add a ``gap`` (A10) for missing offsets, a ``conflict`` (A5) for an
    offset that occurs twice, and a ``duplicate`` (A8) for a record of an idempotent producer that is in the log
    twice."""
    for partition, rows in facts.history.final.items():
        wanted = facts.history.retained_from.get(partition, 0)
        for offset, _ in rows:
            if offset != wanted and not facts.follows(partition, wanted, offset):
                if offset > wanted:
                    facts.flag("gap", f"{partition}: {wanted} to {offset} missing in the log at the end")
                else:
                    facts.flag("conflict", f"{partition}: offset {offset} twice in the log at the end")
            wanted = offset + 1
    for value, offsets in facts.offsets.items():
        if len(offsets) > 1:
            op = facts.sent.get(value)
            if op is not None and op.idempotent and not op.transaction:
                facts.flag("duplicate", f"{op.partition}: {show(value)} ({sent(op)}) stands at {offsets}")


def _check_sources(facts: Facts, strange: dict[tuple[str, bytes], str]) -> None:
    """Find the send of every record in the final log, and of the records in ``strange``, which readers were shown.
    Add a ``phantom`` (A2) if a record was never sent, a ``wrong_partition`` (A11) if it was sent to another
    partition, and a ``failed_seen`` (A4) if it was refused."""
    odd: dict[tuple[str, bytes], str] = {}
    for partition, rows in facts.history.final.items():
        for _, value in rows:
            op = facts.sent.get(value)
            if op is None or op.partition != partition or op.result == FAILED:
                odd[partition, value] = ""
    for (partition, value), who in (odd | strange).items():
        op = facts.sent.get(value)
        where = f", shown to {who}," if who else " in the log at the end"
        if op is None:
            text = f"{show(value)}{where} was never sent{_expected(facts, partition, value)}"
            facts.flag("phantom", f"{partition}: {text}")
        elif op.partition != partition:
            facts.flag("wrong_partition", f"{show(value)} of {op.partition} ({sent(op)}){where} is in {partition}")
        elif op.result == FAILED:
            facts.flag("failed_seen", f"{partition}: {show(value)}{where} was refused ({sent(op)})")


def _expected(facts: Facts, partition: str, value: bytes) -> str:
    """Return a text that names the acknowledged record at the offset of an unknown ``value`` in the final log; "" if
    none was acknowledged there."""
    for offset in facts.offsets.get(value, ()):
        op = facts.acked_at.get((partition, offset))
        if op is not None:
            return f"; at {offset} was acknowledged {show(op.values[offset - op.offset])} ({sent(op)})"
    return ""


def _check_sends(facts: Facts) -> None:
    """Check every acknowledged send. Adds a ``double_win`` (A13) if two conditional appends got one offset. Outside
    of transactions, every record that was acknowledged with ``all`` must be where its ack says (A1, A5;
    ``_check_kept``)."""
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
            _check_kept(facts, op)


def _check_kept(facts: Facts, op: SendCall) -> None:
    """Add a ``lost_write`` for each record of an acknowledged send that is not in the final log, and a ``conflict``
    for one that is at another offset than its ack says. Skips records that retention or a loss which the topic's
    settings allow may have removed."""
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


def _check_order(facts: Facts) -> None:
    """Add an ``order`` (A6) if the records of one producer stand in another order in a partition than they were sent.
    If no producer has such a case, the order in real time is checked, too."""
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
    """Add an ``order`` if a send that began after the ack of another process's send stands before it."""
    acked: dict[str, list[SendCall]] = {}
    for op in facts.promised:
        if op.partition in facts.final:
            acked.setdefault(op.partition, []).append(op)
    for partition, ops in acked.items():
        for op, highest in after(ops, attrgetter("offset")):
            if op.offset < highest.offset and op.process != highest.process:
                text = f"{op.process}'s send at {op.offset} ({span(op)}) began after {highest.process}'s"
                facts.flag("order", f"{partition}: {text} at {highest.offset} ({span(highest)}) was acknowledged")


def _check_progress(facts: Facts) -> None:
    """Add a ``no_progress`` (A12) for each span within a healthy time in which sends were tried and none succeeded
    for longer than the history's ``patience``."""
    tried = [op for op in facts.sends if op.level == "all" and op.partition not in facts.history.deleted]
    good = sorted(op.end for op in tried if op.result == OK)
    place = 0
    for begin, end in sorted(facts.history.healthy):
        while place < len(good) and good[place] <= begin:
            place += 1
        last = place
        while last < len(good) and good[last] <= end:
            last += 1
        for left, right in pairwise([begin, *good[place:last], end]):
            late = right - facts.history.patience
            if left < late and any(
                begin < op.end and op.start <= late and (op.start >= left or op.end >= right) for op in tried
            ):
                text = f"no send succeeded from {left:.1f} to {right:.1f} s, and the cluster was well"
                facts.flag("no_progress", text)
