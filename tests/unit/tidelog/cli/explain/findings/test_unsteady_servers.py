"""A server that is restarted again and again is told from one that goes silent again and again, and both from a
server that was lost once."""

from __future__ import annotations

import pytest
from tidelog.wire.messages import HistoryEntry, PartitionInfo

from unit.tidelog.cli.explain.findings.cluster_views import WHOLE, causes, cluster, entry, finding

Histories = dict[tuple[str, int], tuple[HistoryEntry, ...]]


def losses(*ago_s: float, link: str = "") -> Histories:
    """The histories of two partitions, of which r2 leads the first again and again, and is lost each time."""
    evidence = {"node": "r2"} | ({"link": link} if link else {})
    led: list[HistoryEntry] = []
    followed: list[HistoryEntry] = []
    for ago in ago_s:
        led.append(entry(ago + 3, "leader_elected", "transferred", "r2", to="r2"))
        led.append(entry(ago, "leader_elected", "leader_reported", "r1", leader="r2", reports="2", live="2"))
        followed.append(entry(ago - 0.5, "isr_shrunk", "session_expired", "r1", **evidence))
    return {("orders", 0): tuple(led), ("orders", 1): tuple(followed)}


TWO = (WHOLE, WHOLE)


def test_a_server_that_is_restarted_again_and_again_is_the_cause() -> None:
    view = cluster(*TWO, histories=losses(40, 25, 10, link="broken"))
    (one,) = causes(view)
    assert one.cause == "server-restarting"
    assert "r2 is restarted again and again: it was lost 3 times in 40 s" in one.what
    assert "the lead of orders/0 3 times" in one.evidence
    assert "log of r2" in one.next_step


def test_a_server_that_goes_silent_again_and_again_is_another_cause() -> None:
    (one,) = causes(cluster(*TWO, histories=losses(40, 25, 10)))
    assert one.cause == "server-unsteady" and "while its process runs" in one.what


def test_a_registration_shows_a_restart_too() -> None:
    registered = [entry(ago, "isr_shrunk", "registered", "r1", node="r2", restart="unclean") for ago in (60, 35, 20)]
    assert [one.cause for one in causes(cluster(histories={("orders", 0): tuple(registered)}))] == [
        "server-restarting"
    ]


def test_the_start_of_its_process_is_evidence() -> None:
    view = cluster(
        *TWO,
        histories=losses(40, 25, 10, link="broken"),
        pages={"r2": "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.794999995e+09\n"},
    )
    assert "its process runs since" in finding(view, "server-restarting").evidence


@pytest.mark.parametrize(
    "histories",
    [
        losses(30, 10),  # too few
        losses(200, 150, 10),  # too long ago
        losses(110, 80, 50),  # steady since
        {("orders", 0): tuple(entry(n, "leader_elected", "operator", "r1") for n in (30, 20, 10))},  # on purpose
        {},
    ],
    ids=["too few", "too long ago", "steady since", "on purpose", "none"],
)
def test_a_server_that_was_lost_once_or_moved_on_purpose_is_not_reported(histories: Histories) -> None:
    assert not causes(cluster(*TWO, histories=histories))


def test_several_changes_at_once_are_one_loss() -> None:
    histories = {
        ("orders", n): (entry(10 + n / 10, "isr_shrunk", "session_expired", "r1", node="r2"),) for n in range(9)
    }
    assert not causes(cluster(*[WHOLE] * 9, histories=histories))


def test_what_follows_from_it_is_called_a_consequence() -> None:
    behind = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r3"), "r1", 1, 1)
    histories = losses(40, 25, 10, link="broken")
    view = cluster(behind, behind, down="r2", histories=histories)
    assert [one.cause for one in causes(view)] == ["server-restarting"]
    assert finding(view, "replica-server-down").because_of == "server-restarting"
    assert finding(view, "replica-out-of-sync").because_of == "server-restarting"
