"""A last stable offset that stands says what readers do not get, and until when."""

from __future__ import annotations

from tidelog.cli.explain.findings.snapshot import ClusterSnapshot, WaitingReaders
from tidelog.wire.messages import StableOffset, TransactionInfo

from unit.tidelog.cli.explain.findings.cluster_views import NOW_MS, causes, cluster, finding


def waiting(age_s: int, records: int, *known: TransactionInfo) -> ClusterSnapshot:
    stable = StableOffset(17, 4711, 3, age_s * 1000)
    return cluster(waits=(WaitingReaders("orders/0", "r1", stable, known[0] if known else None, records),))


def test_an_open_transaction_is_evidence_with_its_records_and_its_end() -> None:
    known = TransactionInfo("billing", "open", 4711, 3, "", 2, NOW_MS - 90_000, NOW_MS + 30_000)
    (one,) = causes(waiting(90, 341, known))
    assert (one.cause, one.about) == ("last-stable-offset-held", ("orders/0",))
    assert "341 records up to the high watermark are not shown" in one.evidence
    assert "open since " in one.evidence and "to be aborted at " in one.evidence and "in 2 part" in one.evidence


def test_a_transaction_without_a_coordinator_is_another_cause() -> None:
    one = finding(waiting(90, 341), "transaction-hanging")
    assert one.evidence == "341 records up to the high watermark are not shown to them"
    assert finding(waiting(90, -1), "transaction-hanging").evidence == ""


def test_readers_who_wait_for_nothing_are_no_finding() -> None:
    assert not causes(cluster(waits=()))
