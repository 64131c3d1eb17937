"""Findings about partitions say since when and why, and how many batches were refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING

from unit.tidelog.cli.explain.findings.cluster_views import WHOLE, causes, cluster, entry, finding

REFUSED = 'tidelog_replica_produce_errors_total{code="CODE"} 41\n'


@pytest.mark.parametrize(
    ("state", "code", "cause", "event"),
    [
        ("read_only", "TOPIC_READ_ONLY", "partition-read-only", "read_only"),
        ("paused", "TOPIC_PAUSED", "partition-paused", "paused"),
    ],
)
def test_a_partition_that_takes_no_records_on_purpose_is_a_cause_once_sends_were_refused(
    state: str, code: str, cause: str, event: str
) -> None:
    closed = replace(WHOLE, **{state: True})  # type: ignore[arg-type]
    histories = {("orders", 0): (entry(30, event, "operator", "r1", asked_by="olga (10.0.0.7)"),)}
    quiet = finding(cluster(closed, histories=histories), cause)
    assert (quiet.level, quiet.because_of) == (NOTE, "")
    assert "because olga (10.0.0.7) wants it" in quiet.evidence and quiet.evidence.startswith("since ")
    page = REFUSED.replace("CODE", code)
    loud = finding(cluster(closed, histories=histories, pages={"r1": page}), cause)
    assert loud.level == WARNING and f"r1 has refused 41 batches with {code}" in loud.evidence
    assert finding(cluster(closed, pages={"r2": page, "r1": page.replace(code, "DISK_FULL")}), cause).level == NOTE


def test_too_few_in_sync_is_a_consequence_of_the_server_that_is_down() -> None:
    alone = replace(WHOLE, isr=("r1",), elr=("r2",))
    histories = {("orders", 0): (entry(9, "isr_shrunk", "session_expired", "r1", node="r3", silent_ms="3012"),)}
    view = cluster(alone, down="r3", histories=histories)
    assert [one.cause for one in causes(view)] == ["replica-server-down"]
    few = finding(view, "in-sync-below-minimum")
    assert (few.level, few.because_of) == (PROBLEM, "replica-server-down")
    assert "the session of r3 ended: nothing was heard of it for 3012 ms" in few.evidence
    assert [one.cause for one in causes(cluster(alone))] == ["in-sync-below-minimum"], "nobody is down"


def test_the_latest_change_counts_and_others_are_left_out() -> None:
    shrunk = entry(90, "isr_shrunk", "follower_lagging", "r1", **{"r2.behind_ms": "11000"})
    grown = entry(60, "isr_expanded", "follower_caught_up", "r1")
    again = entry(30, "isr_shrunk", "session_expired", "r1", node="r3")
    seen = finding(
        cluster(replace(WHOLE, isr=("r1", "r2")), histories={("orders", 0): (shrunk, grown, again)}),
        "replica-out-of-sync",
    )
    assert "the session of r3 ended" in seen.evidence and "behind" not in seen.evidence


def test_partitions_in_one_state_are_one_finding_with_the_evidence_of_the_first() -> None:
    behind = replace(WHOLE, isr=("r1", "r2"))
    histories = {
        ("orders", n): (entry(30 - n, "isr_shrunk", "session_expired", "r1", node="r3", silent_ms=str(n)),)
        for n in range(2)
    }
    one = finding(cluster(behind, behind, histories=histories), "replica-out-of-sync")
    assert "orders/0, orders/1" in one.what and "for 0 ms" in one.evidence
    assert one.about == ("r3", "orders/0", "orders/1")
