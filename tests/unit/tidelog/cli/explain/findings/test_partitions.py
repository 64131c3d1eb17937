"""Findings about partitions say since when and why, how many batches were refused, and that an unclean election may
have lost records."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.applied_commands import Log
from tidelog.cli.explain.findings.finding import NOTE, PROBLEM, WARNING
from tidelog.cli.explain.sentences import clock

from unit.tidelog.cli.explain.findings.cluster_views import NOW_MS, WHOLE, causes, cluster, entry, finding

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


def test_an_unclean_election_is_named_with_what_it_may_have_cost() -> None:
    """The entry is the one that the rules of the controllers make."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3", min_insync_replicas=1, unclean_election=True)
    log.shrink("r1")
    log.fence("r1")
    history = log.state.history["id"][0]
    elected = replace(history[-1], time_ms=NOW_MS - 60_000)
    (one,) = causes(cluster(histories={("orders", 0): (*history[:-1], elected)}))
    assert (one.cause, one.level, one.about) == ("unclean-election", WARNING, ("orders/0",))
    assert one.what.startswith("orders/0: unclean election at ") and clock(elected) in one.what
    assert "r2 was elected with what it had, so records that had been acknowledged may be missing" in one.what
    assert "in sync was r1" in one.what and "the session of r1 ended" in one.evidence
    assert "why orders/0" in one.next_step


def test_what_was_cut_after_an_unclean_election_follows_from_it() -> None:
    elected = entry(60, "leader_elected", "unclean_election", "r2", isr=("r2",), in_sync_before="r1")
    cut = entry(30, "records_lost", "unclean_election", "r2", node="r1", count="3", start="10", end="13")
    view = cluster(histories={("orders", 0): (elected, cut)})
    assert [one.cause for one in causes(view)] == ["unclean-election"]
    assert finding(view, "records-lost").because_of == "unclean-election"


def test_unclean_elections_of_more_than_a_week_ago_are_not_named() -> None:
    old, new = (entry(days * 86_400, "leader_elected", "unclean_election", "r2", isr=("r2",)) for days in (7.1, 6.9))
    assert not causes(cluster(histories={("orders", 0): (old,)}))
    twice = finding(cluster(histories={("orders", 0): (old, new, new)}), "unclean-election")
    assert "2 unclean elections, the last at " in twice.what
