"""Leader reports: which are counted, when they replace a leader, and that they replace it once."""

from __future__ import annotations

import pytest
from tidelog.types import TopicConfig
from tidelog.wire.messages import ReportLeader, SuspectPart
from tidelog_controller.active.leader_replacement import LeaderReplacement
from tidelog_controller.metadata.application import MetadataState, apply
from tidelog_controller.metadata.commands import (
    AddTopic,
    Command,
    FenceServer,
    LostLeader,
    RegisterServer,
    RemoveTopic,
    ReplaceLeaders,
)

SESSION_S, GRACE_S, WINDOW_S = 3.0, 0.75, 5.0

LINKS = {f"r{number}": number for number in range(1, 6)}


class Cluster:
    """Five servers, two partitions on all of them led by r1, and an active controller since time 0."""

    def __init__(self) -> None:
        self.state = MetadataState("test")
        for node in ("r1", "r2", "r3", "r4", "r5"):
            self.state = apply(self.state, RegisterServer(0, node, "ws://x"), self.state.index + 1).state
        add = AddTopic(0, "id", "orders", TopicConfig(), (("r1", "r2", "r3", "r4", "r5"),) * 2)
        self.state = apply(self.state, add, 6).state
        self.leader_replacement = LeaderReplacement(SESSION_S, GRACE_S, WINDOW_S)
        self.leader_replacement.become_active(self.state, 0.0)

    def apply(self, command: Command, now: float) -> None:
        applied = apply(self.state, command, self.state.index + 1)
        self.state = applied.state
        self.leader_replacement.on_applied(self.state, command, [key for key, _ in applied.changes], now)

    def beat(self, now: float, *nodes: str) -> None:
        for node in nodes:
            assert self.leader_replacement.sessions.on_heartbeat(self.state, node, LINKS[node], now, 0) is None

    def expired(self, now: float) -> list[str]:
        return [fence.node for fence in self.leader_replacement.sessions.expired(self.state, now, 0)]

    def report(
        self, node: str, now: float, *, partition: int = 0, epoch: int = 0, leader_epoch: int = 0
    ) -> ReplaceLeaders | None:
        parts = (SuspectPart("id", partition, epoch, leader_epoch),)
        report = ReportLeader(node, self.state.servers[node].broker_epoch, "r1", f"{node} waits", parts)
        return self.leader_replacement.on_report(self.state, report, now, 0)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_majority_of_the_others_replaces_the_leader_once(cluster: Cluster) -> None:
    assert cluster.report("r2", 0.1) is None
    assert cluster.report("r3", 0.2) is None
    decision = cluster.report("r4", 0.3)
    evidence = {
        "leader": "r1",
        "reports": "3",
        "live": "4",
        "report_r2": "r2 waits",
        "report_r3": "r3 waits",
        "report_r4": "r4 waits",
    }
    assert decision == ReplaceLeaders(0, "r1", (LostLeader("id", 0, 0, 0, evidence),))
    assert cluster.report("r5", 0.4) is None, "in flight"
    cluster.apply(decision, 0.5)
    assert cluster.state.topics["id"].partitions[0].leader == "r2"
    assert cluster.report("r5", 0.6) is None, "of an old epoch"


def test_one_server_reports_once_however_often(cluster: Cluster) -> None:
    assert [cluster.report("r2", 0.1 * i) for i in range(5)] == [None] * 5


def test_partitions_are_judged_one_by_one(cluster: Cluster) -> None:
    for node in ("r2", "r3"):
        cluster.report(node, 0.1)
    assert cluster.report("r4", 0.2, partition=1) is None
    decision = cluster.report("r5", 0.2)
    assert decision is not None and [part.partition for part in decision.parts] == [0]


def test_reports_outside_the_window_do_not_count(cluster: Cluster) -> None:
    cluster.report("r2", 0.0)
    cluster.report("r3", 0.0)
    cluster.beat(4.0, "r2", "r3", "r4", "r5")
    assert cluster.report("r4", WINDOW_S + 0.1) is None
    assert cluster.report("r2", WINDOW_S + 0.1) is None
    assert cluster.report("r3", WINDOW_S + 0.1) is not None


def test_only_live_members_are_asked(cluster: Cluster) -> None:
    cluster.beat(2.0, "r2", "r3")
    assert cluster.report("r2", 3.5) is None
    assert cluster.report("r4", 3.5) is None, "its session is over"
    assert cluster.report("r3", 3.5) is not None, "two of the two that live"


def test_reports_by_others_or_of_another_epoch_do_not_count(cluster: Cluster) -> None:
    cluster.apply(FenceServer(0, "r5", 5), 0.0)
    epoch = cluster.state.topics["id"].partitions[0].epoch
    assert epoch == 1
    for node in ("r1", "r5"):
        assert cluster.report(node, 0.1, epoch=epoch) is None
    for wrong in ({"epoch": 0}, {"epoch": 2}, {"epoch": epoch, "leader_epoch": 1}, {"partition": 7, "epoch": epoch}):
        for node in ("r2", "r3", "r4"):
            assert cluster.report(node, 0.1, **wrong) is None
    assert cluster.report("r2", 0.1, epoch=epoch) is None
    assert cluster.report("r3", 0.1, epoch=epoch) is not None, "two of three"


def test_reports_are_forgotten_when_the_partition_changes(cluster: Cluster) -> None:
    cluster.report("r2", 0.1)
    cluster.report("r3", 0.1)
    cluster.apply(FenceServer(0, "r5", 5), 0.2)
    assert cluster.report("r4", 0.3, epoch=1) is None


def test_one_report_naming_a_partition_twice_decides_once(cluster: Cluster) -> None:
    cluster.report("r2", 0.1)
    cluster.report("r3", 0.1)
    parts = (SuspectPart("id", 0, 0, 0),) * 2
    decision = cluster.leader_replacement.on_report(
        cluster.state, ReportLeader("r4", 4, "r1", "twice", parts), 0.2, 0
    )
    assert decision is not None and len(decision.parts) == 1


def test_a_controller_that_is_active_again_knows_nothing_of_before(cluster: Cluster) -> None:
    cluster.report("r2", 0.1)
    cluster.report("r3", 0.1)
    assert cluster.expired(3.0)
    cluster.leader_replacement.clear()
    cluster.leader_replacement.become_active(cluster.state, 10.0)
    assert cluster.report("r4", 10.1) is None
    assert cluster.expired(12.9) == []
    assert len(cluster.expired(13.0)) == 5


def test_deleted_topic_is_forgotten(cluster: Cluster) -> None:
    cluster.report("r2", 0.1)
    cluster.report("r3", 0.1)
    cluster.leader_replacement.on_applied(cluster.state, RemoveTopic(0, "id"), [], 0.2)
    assert cluster.report("r4", 0.3) is None
