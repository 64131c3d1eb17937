"""Sessions of replica servers: when each begins and ends, and that a fence is proposed once."""

from __future__ import annotations

import pytest
from tidelog_controller.active.server_sessions import ServerSessions
from tidelog_controller.metadata.application import MetadataState, apply
from tidelog_controller.metadata.commands import Command, FenceServer, RegisterServer, UnfenceServer

SESSION_S, GRACE_S = 3.0, 0.75

LINKS = {f"r{number}": number for number in range(1, 6)}


class Cluster:
    """Five servers, and an active controller since time 0."""

    def __init__(self) -> None:
        self.state = MetadataState("test")
        for node in LINKS:
            self.state = apply(self.state, RegisterServer(0, node, "ws://x"), self.state.index + 1).state
        self.sessions = ServerSessions(SESSION_S, GRACE_S)
        self.sessions.become_active(self.state, 0.0)

    def apply(self, command: Command, now: float) -> None:
        self.state = apply(self.state, command, self.state.index + 1).state
        self.sessions.on_applied(command, now)

    def beat(self, now: float, *nodes: str) -> None:
        for node in nodes:
            assert self.sessions.on_heartbeat(self.state, node, LINKS[node], now, 0) is None

    def expired(self, now: float) -> list[str]:
        return [fence.node for fence in self.sessions.expired(self.state, now, 0)]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_new_active_controller_grants_everybody_a_full_session(cluster: Cluster) -> None:
    assert cluster.sessions.deadline(cluster.state) == SESSION_S
    assert cluster.expired(SESSION_S - 0.1) == []
    assert cluster.expired(SESSION_S) == ["r1", "r2", "r3", "r4", "r5"]


def test_heartbeats_keep_a_session_and_its_end_is_decided_once(cluster: Cluster) -> None:
    cluster.beat(2.0, "r2", "r3", "r4", "r5")
    assert cluster.expired(3.0) == ["r1"]
    assert cluster.expired(3.1) == []
    assert cluster.sessions.deadline(cluster.state) == 5.0
    cluster.apply(FenceServer(0, "r1", 1), 3.2)
    assert cluster.expired(4.9) == []


def test_fenced_server_that_beats_is_unfenced_once(cluster: Cluster) -> None:
    cluster.apply(FenceServer(0, "r1", 1), 1.0)
    unfence = UnfenceServer(9, "r1", 1)
    assert cluster.sessions.on_heartbeat(cluster.state, "r1", 1, 1.5, 9) == unfence
    assert cluster.sessions.on_heartbeat(cluster.state, "r1", 1, 1.6, 9) is None
    cluster.apply(unfence, 1.7)
    cluster.beat(2.0, "r2", "r3", "r4", "r5")
    assert cluster.expired(4.5) == []
    assert cluster.expired(4.6) == ["r1"]


def test_a_session_whose_link_broke_ends_after_the_grace(cluster: Cluster) -> None:
    cluster.beat(1.0, *LINKS)
    cluster.sessions.on_link_closed(LINKS["r2"], 1.5)
    assert cluster.sessions.deadline(cluster.state) == 1.5 + GRACE_S
    assert cluster.expired(2.24) == []
    (fence,) = cluster.sessions.expired(cluster.state, 2.25, 0)
    assert (fence.node, fence.evidence) == ("r2", {"silent_ms": "1250", "link": "broken"})


def test_a_heartbeat_over_another_link_saves_the_session(cluster: Cluster) -> None:
    cluster.beat(1.0, *LINKS)
    cluster.sessions.on_link_closed(LINKS["r2"], 1.5)
    assert cluster.sessions.on_heartbeat(cluster.state, "r2", 99, 1.7, 0) is None
    cluster.sessions.on_link_closed(LINKS["r2"], 1.8)
    assert cluster.expired(3.9) == []


def test_registration_begins_a_session(cluster: Cluster) -> None:
    assert cluster.expired(3.0)[0] == "r1"
    cluster.apply(RegisterServer(0, "r1", "ws://x"), 3.1)
    cluster.apply(FenceServer(0, "r1", 1), 3.2)  # was in flight; names the former life
    assert not cluster.state.servers["r1"].fenced
    assert cluster.expired(6.0) == []
    assert cluster.expired(6.1) == ["r1"]
