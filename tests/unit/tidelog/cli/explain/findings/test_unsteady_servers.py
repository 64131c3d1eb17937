"""A server that is restarted again and again is told from one that goes silent again and again, and both from a
server that was lost once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.applied_commands import Log
from tidelog.cli.explain.findings.diagnosis import examine
from tidelog.wire.messages import HistoryEntry, PartitionInfo
from tidelog_controller.metadata.commands import FenceServer, RegisterServer, UnfenceServer

from unit.tidelog.cli.explain.findings.cluster_views import NOW_MS, WHOLE, causes, cluster, entry, finding

Histories = dict[tuple[str, int], tuple[HistoryEntry, ...]]


WITHOUT = ("r1", "r3")


def losses(*ago_s: float, link: str = "") -> Histories:
    """The histories of two partitions, of which r2 leads the first again and again, and is lost each time. Its
    session ends two seconds and a half after its followers report it."""
    evidence = {"node": "r2"} | ({"link": link} if link else {})
    led: list[HistoryEntry] = []
    followed: list[HistoryEntry] = []
    for ago in ago_s:
        led.append(entry(ago + 3, "leader_elected", "transferred", "r2", to="r2"))
        led.append(entry(ago, "leader_elected", "leader_reported", "r1", isr=WITHOUT, reports="2"))
        followed.append(entry(ago + 3, "isr_expanded", "follower_caught_up", "r1"))
        followed.append(entry(ago - 2.5, "isr_shrunk", "session_expired", "r1", isr=WITHOUT, **evidence))
    return {("orders", 0): tuple(led), ("orders", 1): tuple(followed)}


TWO = (WHOLE, WHOLE)


def at(ago_s: float) -> int:
    return int(NOW_MS - ago_s * 1000)


def grow(log: Log, ago_s: float) -> None:
    """The leader takes all replicas into the in-sync set."""
    log.write(replace(log.proposal("r1", "r2", "r3"), time_ms=at(ago_s)))


def killed(log: Log, ago_s: float) -> None:
    """r1 is killed, its followers report it, and a second after its loss it registers as a new incarnation."""
    if log.partition.leader == "r1":
        log.write(replace(log.report(), time_ms=at(ago_s)))
    log.write(FenceServer(at(ago_s - 0.2), "r1", log.epoch_of("r1"), {"silent_ms": "900", "link": "broken"}))
    lives = (log.state.servers["r1"].life or "first", f"life-{len(log.commands)}")
    log.write(RegisterServer(at(ago_s - 1), "r1", "ws://r1", lives, False))
    grow(log, ago_s - 2)


def frozen(log: Log, ago_s: float) -> None:
    """r1 is not heard of for four seconds, and its followers report it."""
    if log.partition.leader == "r1":
        log.write(replace(log.report(), time_ms=at(ago_s)))
    log.write(FenceServer(at(ago_s - 2.2), "r1", log.epoch_of("r1"), {"silent_ms": "3002"}))
    log.write(UnfenceServer(at(ago_s - 3), "r1", log.epoch_of("r1")))
    grow(log, ago_s - 3.5)


@pytest.mark.parametrize(("happens", "cause"), [(killed, "server-restarting"), (frozen, "server-unsteady")])
def test_the_controllers_histories_tell_the_two_apart(happens: Callable[[Log, float], None], cause: str) -> None:
    """The entries are those that the rules of the controllers make of these commands."""
    log = Log()
    log.register("r1", "r2", "r3")
    log.topic("r1", "r2", "r3", min_insync_replicas=2)
    for ago_s in (110, 60):
        happens(log, ago_s)
        assert not causes(cluster(histories={("orders", 0): log.state.history["id"][0]}))
    happens(log, 20)
    (one,) = causes(cluster(histories={("orders", 0): log.state.history["id"][0]}))
    assert one.cause == cause and "3 times in 110 s" in one.what, log.state.history["id"][0]


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


def test_two_losses_at_short_notice_suffice() -> None:
    (one,) = causes(cluster(*TWO, histories=losses(35, 10, link="broken")))
    assert one.cause == "server-restarting" and "lost 2 times in 35 s" in one.what


def test_a_registration_shows_a_restart_too() -> None:
    history: list[HistoryEntry] = []
    for ago in (60, 35, 20):
        history.append(entry(ago + 5, "isr_expanded", "follower_caught_up", "r1"))
        history.append(entry(ago, "isr_shrunk", "registered", "r1", isr=WITHOUT, node="r2", restart="unclean"))
    (one,) = causes(cluster(histories={("orders", 0): tuple(history)}))
    assert one.cause == "server-restarting" and "lost 3 times in 60 s" in one.what


def test_the_only_replica_of_a_partition_is_lost_once_each_time() -> None:
    history: list[HistoryEntry] = []
    for ago in (60, 35, 20):
        history.append(entry(ago + 5, "leader_elected", "registered", "r2", isr=("r2",), node="r2"))
        history.append(entry(ago, "offline", "session_expired", "", isr=("r2",), node="r2", link="broken"))
    alone = PartitionInfo(0, ("r2",), ("r2",), "r2", 1, 1)
    one = finding(cluster(alone, histories={("orders", 0): tuple(history)}), "server-restarting")
    assert "lost 3 times in 60 s" in one.what and "the lead of orders/0 3 times" in one.evidence


def test_the_start_of_its_process_is_evidence() -> None:
    page = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds {}\n"
    histories = losses(40, 25, 10)
    now = NOW_MS / 1000
    steady = cluster(*TWO, histories=histories, pages={"r2": page.format(now - 3600)})
    assert "its process runs since" in finding(steady, "server-unsteady").evidence
    once = cluster(*TWO, histories=histories, pages={"r2": page.format(now - 9)})
    assert finding(once, "server-unsteady"), "one of three"


@pytest.mark.parametrize(
    "histories",
    [
        losses(60, 10),  # too few
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
        ("orders", n): (
            entry(90, "created", "create_topic", "r1"),
            entry(10 + n / 10, "isr_shrunk", "session_expired", "r1", isr=WITHOUT, node="r2"),
        )
        for n in range(9)
    }
    assert not causes(cluster(*[WHOLE] * 9, histories=histories))


def test_what_follows_from_it_is_called_a_consequence() -> None:
    behind = PartitionInfo(0, ("r1", "r2", "r3"), ("r1", "r3"), "r1", 1, 1)
    histories = losses(40, 25, 10, link="broken")
    view = cluster(behind, behind, down="r2", histories=histories)
    assert [one.cause for one in causes(view)] == ["server-restarting"]
    assert finding(view, "replica-server-down").because_of == "server-restarting"
    assert finding(view, "replica-out-of-sync").because_of == "server-restarting"


def test_peers_that_cannot_connect_to_it_are_no_network_that_is_cut() -> None:
    page = 'tidelog_replica_peer_unreachable_seconds{peer="r2"} 9\n'
    pages = {"r1": page, "r3": page}
    metrics: dict[str, dict[str, float]] = {node: {} for node in ("r1", "r2", "r3")}
    histories = losses(40, 25, 10, link="broken")
    alone = cluster(*TWO, pages=pages, metrics=metrics)
    assert {one.cause for one in causes(alone)} == {"network-cut"}
    both = cluster(*TWO, pages=pages, metrics=metrics, histories=histories)
    assert [one.cause for one in causes(both)] == ["server-restarting"]


def test_a_server_that_is_killed_once_and_comes_back_without_its_data_was_lost_once() -> None:
    log = Log()
    log.register("r1", lives=("r1-0",))
    log.topic("r1", min_insync_replicas=1)
    log.write(FenceServer(at(18), "r1", log.epoch_of("r1"), {"silent_ms": "12", "link": "broken"}))
    log.write(RegisterServer(at(16), "r1", "ws://r1", ("r1-1",), False))
    history = log.state.history["id"][0]
    assert "data" in history[-1].evidence
    alone = PartitionInfo(0, ("r1",), (), "", 1, 1)
    found = {one.cause for one in examine(cluster(alone, histories={("orders", 0): history}))}
    assert not found & {"server-restarting", "server-unsteady"}
