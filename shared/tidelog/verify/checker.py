"""Checks a history, after Jepsen's Kafka workload, in a few passes. The time is linear in its length, except for
sorting what is nearly in order. ``anomalies.py`` lists the anomalies that are looked for; each one is reported under
one kind, the most telling.

The checker is independent of how the history was made: the simulation, ``tidelog verify check`` and the runs against
real faults use it.
"""

from __future__ import annotations

from itertools import pairwise

from tidelog.verify import check_groups as groups
from tidelog.verify import check_reads as reading
from tidelog.verify import check_sends as sends
from tidelog.verify import check_transactions as transactions
from tidelog.verify.anomalies import Anomaly
from tidelog.verify.history import FAILED, OK, OperationHistory
from tidelog.verify.ledger import Facts, sent, show


def check(history: OperationHistory) -> list[Anomaly]:
    """Check a history against all promises of the cluster, and return the anomalies in the order in which they are
    found. The list is empty if the history is sound. The history is not changed."""
    facts = Facts(history)
    _check_final_log(facts)
    sends.check_kept(facts)
    sends.check_order(facts)
    strange = reading.check(facts)
    _check_sources(facts, strange)
    groups.check(facts)
    transactions.check_history(facts, strange)
    _check_progress(facts)
    return facts.found


def _check_final_log(facts: Facts) -> None:
    """Check the final log of each partition, and add to the findings: a ``gap`` (A10) for missing offsets, a
    ``conflict`` (A5) for an offset that occurs twice, and a ``duplicate`` (A8) for a record of an idempotent producer
    that is in the log twice."""
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
    """Look up the send of every record in the final log, and of the records in ``strange``, which readers were shown
    and which are not in the final log. Add a ``phantom`` (A2) if a record was never sent, a ``wrong_partition`` (A11)
    if it was sent to another partition, and a ``failed_seen`` (A4) if it was refused."""
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
    """Return a text for a finding about ``value``, a record of the final log that was never sent: it names the record
    that was acknowledged at that offset. Return "" if none was acknowledged there."""
    for offset in facts.offsets.get(value, ()):
        op = facts.acked_at.get((partition, offset))
        if op is not None:
            return f"; at {offset} was acknowledged {show(op.values[offset - op.offset])} ({sent(op)})"
    return ""


def _check_progress(facts: Facts) -> None:
    """Add a ``no_progress`` (A12) for each part of a healthy span that is longer than the history's ``patience`` and
    in which sends were tried and none succeeded."""
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
