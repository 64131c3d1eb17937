"""A server that is down says since when, and why the controllers fenced it."""

from __future__ import annotations

from unit.tidelog.cli.explain.findings.cluster_views import WHOLE, causes, cluster, entry


def test_the_last_end_of_its_session_is_evidence() -> None:
    histories = {
        ("orders", n): (
            entry(50 - 20 * n, "isr_shrunk", "session_expired", "r1", node="r3", silent_ms=str(n), link="broken"),
            entry(5, "isr_shrunk", "session_expired", "r1", node="r2"),
        )
        for n in range(2)
    }
    (one,) = causes(cluster(WHOLE, WHOLE, down="r3", histories=histories))
    assert one.cause == "replica-server-down" and one.evidence.startswith("since ")
    assert "the session of r3 ended: nothing was heard of it for 1 ms after its link broke" in one.evidence


def test_without_a_history_it_is_the_incarnation() -> None:
    (one,) = causes(cluster(down="r3"))
    assert one.evidence == "the controllers have fenced its incarnation 3"
