"""Which leaderships the active controller transfers of its own accord, and the plans that even out replicas and
leaders."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from tidelog.types import PartitionState, ServerState, TopicPartition, TopicState
from tidelog_controller.active.leader_balancer import LeaderBalancer
from tidelog_controller.config import BalanceSettings
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.commands import Command, SetDraining, SetSuccessor
from tidelog_controller.metadata.rules.placement import Placement
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_controller.metadata.state import MetadataState

SETTINGS = BalanceSettings(
    transfer_timeout_s=5.0,
    transfers_at_once=2,
    leader_imbalance_percentage=10,
    leader_imbalance_check_interval_s=60.0,
    leader_min_term_s=30.0,
)


def part(replicas: str, leader: str = "", **more: object) -> PartitionState:
    nodes = tuple(replicas.split())
    return PartitionState(nodes, nodes, leader or nodes[0], 1, 1, **more)  # type: ignore[arg-type]


def cluster(*partitions: PartitionState, racks: dict[str, str] | None = None, spare: str = "") -> MetadataState:
    nodes = sorted({node for p in partitions for node in p.replicas} | set(spare.split()) | set(racks or {}))
    servers = {n: ServerState(n, f"ws://{n}", 1, fenced=False, rack=(racks or {}).get(n, "")) for n in nodes}
    topic = TopicState("id", "orders", partitions=partitions)
    history = {"id": tuple(() for _ in partitions)}
    return MetadataState("test", 1, servers, {"id": topic}, {"orders": "id"}, history)


class Active:
    """A leader balancer, and the metadata to which its commands are applied."""

    def __init__(self, state: MetadataState) -> None:
        self.state = state
        self.balance = LeaderBalancer(SETTINGS)
        self.balance.become_active(state, 0.0)

    def write(self, command: Command, now: float) -> None:
        applied = apply(self.state, command, self.state.index + 1)
        before, self.state = self.state, applied.state
        self.balance.on_applied(before, self.state, command, [key for key, _ in applied.changes], now)

    def due(self, now: float) -> list[tuple[int, str, str]]:
        """Apply the commands that begin or withdraw a transfer now. Return for each the partition, the successor and
        the cause."""
        commands = self.balance.due(self.state, now, 0)
        for command in commands:
            self.write(command, now)
        deadline = self.balance.deadline()
        assert deadline is None or deadline > now
        return [(c.partition, c.successor, c.cause) for c in commands]

    def pass_on(self, number: int, now: float) -> None:
        """End the transfer of a partition: its successor leads in a new leader epoch."""
        p = self.state.topics["id"].partitions[number]
        led = replace(p, leader=p.successor, successor=None, leader_epoch=p.leader_epoch + 1, epoch=p.epoch + 1)
        topic = self.state.topics["id"]
        partitions = (*topic.partitions[:number], led, *topic.partitions[number + 1 :])
        before, self.state = self.state, replace(self.state, topics={"id": replace(topic, partitions=partitions)})
        command = SetSuccessor(0, "gone", 0, 0, "", "")
        self.balance.on_applied(before, self.state, command, [TopicPartition("id", number)], now)


def test_leaders_come_back_to_the_preferred_replicas_a_few_at_a_time() -> None:
    active = Active(cluster(*[part("r1 r2", "r2")] * 3, part("r2 r1")))
    assert active.due(59.0) == []
    assert active.due(60.0) == [(0, "r1", "preferred_leader"), (1, "r1", "preferred_leader")]
    active.pass_on(0, 60.1)
    assert active.due(60.2) == [(2, "r1", "preferred_leader")]


def test_a_few_leaders_elsewhere_are_left_there() -> None:
    active = Active(cluster(part("r1 r2", "r2"), *[part("r1 r2")] * 9))
    assert active.due(60.0) == [], "one of ten is not more than 10 %"
    active = Active(cluster(part("r1 r2", "r2"), *[part("r1 r2")] * 8))
    assert active.due(60.0) == [(0, "r1", "preferred_leader")]


def test_a_leader_that_has_just_begun_is_not_moved() -> None:
    active = Active(cluster(part("r1 r2", "r1")))
    active.write(SetSuccessor(0, "id", 0, 1, "r2", "operator"), 40.0)
    active.pass_on(0, 45.0)
    assert active.due(60.0) == [], "for 15 of 30 s only"
    assert active.due(120.0) == [(0, "r1", "preferred_leader")]


def test_preferred_leaders_that_are_out_of_sync_or_down_or_drained_do_not_come_back() -> None:
    away = replace(part("r1 r2", "r2"), isr=("r2",))
    assert Active(cluster(away)).due(60.0) == []
    state = cluster(part("r1 r2", "r2"))
    server = state.servers["r1"]
    for unfit in (replace(server, fenced=True), replace(server, draining=True)):
        assert Active(replace(state, servers={**state.servers, "r1": unfit})).due(60.0) == []


def test_a_drained_server_is_relieved_at_once_and_no_more_than_it_can_be() -> None:
    alone = replace(part("r1 r2"), isr=("r1",))
    active = Active(cluster(part("r1 r2"), part("r1 r3"), part("r1 r2"), alone, spare="r3"))
    active.write(SetDraining(0, "r1", True), 1.0)
    assert active.due(2.0) == [(0, "r2", "draining"), (1, "r3", "draining")]
    active.pass_on(0, 2.1)
    active.pass_on(1, 2.1)
    assert active.due(2.5) == [(2, "r2", "draining")]
    active.pass_on(2, 2.6)
    assert active.due(9.0) == [], "nobody else can lead the last one"


def test_a_leader_outside_the_target_hands_over_when_the_target_is_in_sync() -> None:
    moving = replace(part("r1 r2 r3"), target=("r3", "r2"), origin=("r1", "r2", "r3"))
    assert Active(cluster(moving)).due(0.1) == [(0, "r3", "reassignment")]
    behind = replace(moving, isr=("r1", "r2"))
    assert Active(cluster(behind)).due(0.1) == []


def test_a_transfer_that_does_not_end_is_withdrawn_and_the_partition_rests() -> None:
    moving = replace(part("r1 r2 r3"), target=("r3", "r2"), origin=("r1", "r2", "r3"))
    active = Active(cluster(moving))
    assert active.due(1.0) == [(0, "r3", "reassignment")]
    assert active.due(5.9) == []
    assert active.due(6.0) == [(0, "", "transfer_timed_out")]
    assert active.due(15.9) == []
    assert active.due(16.1) == [(0, "r3", "reassignment")]


def test_a_new_active_controller_gives_every_transfer_its_full_time() -> None:
    active = Active(cluster(replace(part("r1 r2"), successor="r2")))
    active.balance.become_active(active.state, 100.0)
    assert active.due(104.9) == []
    assert active.due(105.0) == [(0, "", "transfer_timed_out")]


# --- placement by racks, and a plan for what is there ----------------------------------------------------


def test_replicas_are_spread_over_racks_before_load() -> None:
    racks = {"r1": "a", "r2": "a", "r3": "a", "r4": "b", "r5": "c"}
    placed = Placement((), random.Random(1), racks).place(tuple(racks), 30, 3)
    assert all({racks[node] for node in replicas} == {"a", "b", "c"} for replicas in placed)
    load = Counter(node for replicas in placed for node in replicas)
    assert [load[node] for node in ("r1", "r2", "r3")] == [10, 10, 10], "within a rack by load"
    two = Placement((), random.Random(1), {"r1": "a", "r2": "a", "r3": "b"}).place(("r1", "r2", "r3"), 4, 3)
    assert all(len(set(replicas)) == 3 for replicas in two), "fewer racks than replicas"


def after(state: MetadataState) -> tuple[list[tuple[str, ...]], int]:
    """Return the replicas of each partition after the rebalance plan is carried out, and the number of its moves."""
    moves = plan_rebalance(state).moves
    places = [p.replicas for p in state.topics["id"].partitions]
    for move in moves:
        assert places[move.partition] == move.replicas and len(set(move.target)) == len(move.replicas)
        places[move.partition] = move.target
    return places, len(moves)


def test_a_new_server_gets_its_share_with_as_few_moves_as_can_be() -> None:
    places, moves = after(cluster(*[part("r1 r2")] * 6, spare="r3"))
    load = Counter(node for replicas in places for node in replicas)
    assert set(load.values()) == {4}
    assert moves <= 6 and sum("r3" in replicas for replicas in places) == 4
    leaders = Counter(replicas[0] for replicas in places)
    assert max(leaders.values()) - min(leaders.values()) <= 1


def test_an_even_cluster_has_nothing_to_move() -> None:
    state = cluster(part("r1 r2"), part("r2 r3"), part("r3 r1"))
    assert plan_rebalance(state).moves == ()


def test_replicas_on_one_rack_are_parted() -> None:
    racks = {"r1": "a", "r2": "a", "r3": "b"}
    places, _ = after(cluster(part("r1 r2"), part("r2 r1"), racks=racks))
    assert all({racks[node] for node in replicas} == {"a", "b"} for replicas in places)


def test_no_move_puts_two_replicas_on_one_rack() -> None:
    racks = {"r1": "a", "r2": "b", "r3": "b"}
    places, _ = after(cluster(*[part("r1 r2")] * 4, racks=racks))
    assert all({racks[node] for node in replicas} == {"a", "b"} for replicas in places)
    assert Counter(node for replicas in places for node in replicas)["r3"] == 2


def test_a_draining_or_fenced_server_gets_no_partitions_and_keeps_its_own() -> None:
    state = cluster(*[part("r1 r2")] * 4, spare="r3 r4")
    servers = {**state.servers, "r3": replace(state.servers["r3"], draining=True)}
    servers["r4"] = replace(servers["r4"], fenced=True)
    places, _ = after(replace(state, servers=servers))
    assert {node for replicas in places for node in replicas} == {"r1", "r2"}


def test_a_moving_partition_counts_at_its_target_and_is_not_moved_again() -> None:
    moving = replace(part("r1 r2"), target=("r3", "r2"), origin=("r1", "r2"))
    moves = plan_rebalance(cluster(moving, moving, part("r1 r2"), part("r1 r2"), spare="r3")).moves
    assert all(move.partition > 1 for move in moves)
