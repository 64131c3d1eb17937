"""Which servers are slow: the lags that leaders report, the servers that the controller suspects, and the effect on
its choices."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from support.replica_network import cluster
from tidelog.types import PartitionState, ServerState, TopicState
from tidelog.wire.messages import FollowerLag, Heartbeat
from tidelog_controller.active.leader_balancer import LeaderBalancer
from tidelog_controller.active.slow_servers import SlowServers
from tidelog_controller.config import BalanceSettings
from tidelog_controller.metadata.rules.placement import Placement
from tidelog_controller.metadata.state import MetadataState
from tidelog_replica.partition.lag import follower_lags

SERVERS = ("r1", "r2", "r3")


def state(*fenced: str) -> MetadataState:
    servers = {node: ServerState(node, f"ws://{node}", 1, fenced=node in fenced) for node in SERVERS}
    return MetadataState("test", servers=servers)


class Told:
    """The lags that servers report to a controller every five seconds."""

    def __init__(self, threshold_s: float = 2.0) -> None:
        self.slow_servers = SlowServers(threshold_s, patience_s=15.0, rest_s=60.0)
        self.state = state()
        self.now = 0.0

    def tell(self, seconds: int, **lags: str) -> None:
        """Let each named server report lags for so many seconds: ``r1="r2 3.5 r3 0"`` reports 3.5 s of r2 and none of
        r3."""
        for _ in range(seconds // 5):
            self.now += 5.0
            for leader, words in lags.items():
                pairs: Iterator[str] = iter(words.split())
                told = [FollowerLag(node, 0, round(float(next(pairs)) * 1000)) for node in pairs]
                self.slow_servers.on_heartbeat(self.state, leader, told, self.now)

    @property
    def slow(self) -> tuple[str, ...]:
        return self.slow_servers.slow(self.now)


def test_a_server_that_lags_behind_most_of_its_leaders_is_slow_after_a_while() -> None:
    told = Told()
    told.tell(15, r1="r2 0 r3 4", r2="r1 0 r3 9")
    assert told.slow == ()
    told.tell(5, r1="r2 0 r3 4", r2="r1 0 r3 9")
    assert told.slow == ("r3",)
    assert told.slow_servers.worst(told.state, told.now) == {"r1": 0.0, "r2": 0.0, "r3": 9.0}


def test_a_leader_whose_followers_all_lag_is_the_slow_one() -> None:
    told = Told()
    told.tell(30, r1="r2 5 r3 5", r2="r1 0 r3 0", r3="r1 3 r2 0")
    assert told.slow == ("r1",)


def test_one_pair_says_nothing_of_either() -> None:
    told = Told()
    told.tell(60, r1="r2 5 r3 0", r2="r3 0")
    assert told.slow == ()


@pytest.mark.parametrize("lag", ["1.9", "0"])
def test_a_lag_below_the_threshold_does_not_make_a_server_slow(lag: str) -> None:
    told = Told()
    told.tell(60, r1=f"r3 {lag}", r2=f"r3 {lag}")
    assert told.slow == ()


def test_a_break_begins_the_patience_anew() -> None:
    told = Told()
    for _ in range(5):
        told.tell(15, r1="r2 0 r3 4", r2="r3 4")
        told.tell(5, r1="r2 0 r3 0", r2="r3 4")
    assert told.slow == ()


def test_a_slow_server_stays_slow_for_a_while() -> None:
    told = Told()
    told.tell(20, r1="r2 0 r3 4", r2="r3 4")
    told.tell(55, r1="r2 0 r3 0", r2="r3 0")
    assert told.slow == ("r3",)
    told.tell(5, r1="r2 0 r3 0", r2="r3 0")
    assert told.slow == ()


def test_the_dead_are_not_slow_nor_do_they_make_others_so() -> None:
    told = Told()
    told.state = state("r3")
    told.tell(60, r1="r2 0 r3 50", r2="r1 0 r3 50")
    assert told.slow == ()
    assert told.slow_servers.worst(told.state, told.now) == {"r1": 0.0, "r2": 0.0}


def test_old_lag_reports_do_not_count() -> None:
    told = Told()
    told.tell(5, r1="r3 4", r2="r3 4")
    told.tell(60, r1="r2 0")
    assert told.slow == ()


def test_it_can_be_turned_off_and_another_controller_knows_nothing() -> None:
    told = Told(threshold_s=0.0)
    told.tell(60, r1="r3 4", r2="r3 4")
    assert told.slow == ()
    told = Told()
    told.tell(60, r1="r2 0 r3 4", r2="r3 4")
    told.slow_servers.clear()
    assert told.slow == ()


# --- what comes of it --------------------------------------------------------------------------------------


def test_among_servers_with_equal_load_the_slow_one_is_chosen_last() -> None:
    firsts = Counter(Placement((), random.Random(seed), slow=("r2",)).place(SERVERS, 1, 2)[0] for seed in range(20))
    assert all("r2" not in replicas for replicas in firsts)
    placed = Placement((), random.Random(1), slow=("r2",)).place(SERVERS, 30, 2)
    assert Counter(node for replicas in placed for node in replicas) == {"r1": 20, "r2": 20, "r3": 20}, "load counts"
    leads = Placement((), random.Random(1), slow=("r2",)).place(("r1", "r2"), 1, 2)
    assert leads == (("r1", "r2"),)


def test_no_leadership_comes_back_to_a_slow_server() -> None:
    partition = PartitionState(("r1", "r2"), ("r1", "r2"), "r2", 1, 1)
    topic = TopicState("id", "orders", partitions=(partition,))
    metadata = replace(state(), topics={"id": topic}, names={"orders": "id"}, history={"id": ((),)})
    settings = BalanceSettings(leader_min_term_s=0.0, leader_imbalance_check_interval_s=60.0)
    for slow, begun in ((("r1",), []), (("r2",), ["r1"]), ((), ["r1"])):
        balance = LeaderBalancer(settings)
        balance.become_active(metadata, 0.0)
        assert [command.successor for command in balance.due(metadata, 60.0, 0, slow)] == begun


# --- what leaders tell -------------------------------------------------------------------------------------


def test_a_leader_reports_the_lags_of_its_followers() -> None:
    net = cluster()
    net.send("r1", b"a")
    leader = net.nodes["r1"]
    assert follower_lags(leader.partitions.values(), net.now) == (FollowerLag("r2"), FollowerLag("r3"))
    net.cut.add(("r3", "r1"))
    net.send("r1", b"b", b"c")
    net.advance(1.5)
    lags = {lag.node: lag for lag in follower_lags(leader.partitions.values(), net.now)}
    assert lags["r2"] == FollowerLag("r2")
    assert lags["r3"].lag_records == 2 and 1500 <= lags["r3"].lag_ms < 2500
    assert follower_lags(net.nodes["r2"].partitions.values(), net.now) == (), "it leads nothing"


def test_heartbeats_carry_it_now_and_then() -> None:
    net = cluster()
    net.send("r1", b"a")
    net.sent.clear()
    net.advance(10.0)
    beats = [m for name, m in net.sent if name == "r1" and isinstance(m, Heartbeat)]
    carrying = [beat for beat in beats if beat.lags]
    assert len(beats) >= 15 and len(carrying) == 2
    assert carrying[0].lags == (FollowerLag("r2"), FollowerLag("r3"))
