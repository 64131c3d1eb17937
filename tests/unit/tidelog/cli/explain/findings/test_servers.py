"""A server that is down says since when, and why the controllers fenced it; one that came back without its data is
named until it has copied them again."""

from __future__ import annotations

from dataclasses import replace

from support.applied_commands import Log
from tidelog.wire.messages import HistoryEntry, PartitionInfo
from tidelog_controller.metadata.commands import FenceServer, RegisterServer

from unit.tidelog.cli.explain.findings.cluster_views import NOW_MS, WHOLE, causes, cluster, entry, finding


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


def wiped(log: Log, ago_s: float) -> tuple[HistoryEntry, ...]:
    """r1 is lost and registers with an empty data directory. Returns the history of the partition."""
    log.write(FenceServer(NOW_MS - round(ago_s * 1000), "r1", log.epoch_of("r1"), {"link": "broken"}))
    log.write(RegisterServer(NOW_MS - round(ago_s * 1000) + 2000, "r1", "ws://r1", ("r1-1",), False))
    return log.state.history["id"][0]


def test_a_server_that_was_registered_without_its_data_is_the_cause_of_what_has_no_leader() -> None:
    log = Log()
    log.register("r1", lives=("r1-0",))
    log.topic("r1", min_insync_replicas=1)
    alone = PartitionInfo(0, ("r1",), (), "", 1, 1)
    view = cluster(alone, histories={("orders", 0): wiped(log, 18)})
    (one,) = causes(view)
    assert one.cause == "server-data-lost" and "its copy of orders/0 is lost" in one.what
    assert "its data directory wiped" in one.evidence and one.evidence.startswith("since ")
    assert finding(view, "partition-without-leader").because_of == "server-data-lost"


def test_a_server_that_has_copied_again_what_it_lost_is_no_finding() -> None:
    registered = entry(30, "elr_changed", "registered", "r2", isr=("r2", "r3"), node="r1", data="wiped")
    behind = replace(WHOLE, isr=("r2", "r3"), leader="r2")
    lacks = cluster(behind, histories={("orders", 0): (registered,)})
    assert [one.cause for one in causes(lacks)] == ["server-data-lost"]
    assert finding(lacks, "replica-out-of-sync").because_of == "server-data-lost"
    grown = entry(20, "isr_expanded", "follower_caught_up", "r2")
    shrunk = entry(10, "isr_shrunk", "follower_lagging", "r2", isr=("r2", "r3"))
    again = cluster(behind, histories={("orders", 0): (registered, grown, shrunk)})
    assert [one.cause for one in causes(again)] == ["replica-out-of-sync"], "it was in sync again"
