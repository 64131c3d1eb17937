"""A rebalance that evens out bytes or traffic instead of numbers of replicas, and gives its reasons."""

from __future__ import annotations

from tidelog.cli.admin.partition_weights import rates, sizes
from tidelog.types import PartitionState, ServerState, TopicState
from tidelog.wire.messages import PartitionInfo, PartitionWeight, TopicInfo
from tidelog_controller.metadata.rules.rebalance_planner import plan_rebalance
from tidelog_controller.metadata.state import MetadataState

MB = 1_000_000


def cluster(*leaders: str, servers: tuple[str, ...] = ("r1", "r2")) -> MetadataState:
    """Return a topic with one partition for each of ``leaders``, which is its only replica."""
    known = {n: ServerState(n, f"ws://{n}", 1, fenced=False) for n in servers}
    parts = tuple(PartitionState((n,), (n,), n, 1, 1) for n in leaders)
    return MetadataState("test", 1, known, {"id": TopicState("id", "t", partitions=parts)}, {"t": "id"})


def weights(*megabytes: float) -> tuple[PartitionWeight, ...]:
    return tuple(PartitionWeight("t", number, round(size * MB)) for number, size in enumerate(megabytes))


def test_equal_numbers_of_unequal_partitions_are_uneven_in_bytes() -> None:
    state = cluster("r1", "r1", "r2", "r2")
    assert plan_rebalance(state).moves == ()
    plan = plan_rebalance(state, weights=weights(600, 400, 10, 10), unit="B")
    (move,) = plan.moves
    assert (plan.unit, move.partition, move.replicas, move.target) == ("B", 1, ("r1",), ("r2",))
    assert move.reason == "load"
    assert move.evidence == "r1 holds 1000.0 MB, r2 20.0 MB; this is 400.0 MB"


def test_traffic_has_its_own_unit() -> None:
    (move,) = plan_rebalance(cluster("r1", "r1"), weights=weights(3.0, 3.0), unit="B/s").moves
    assert move.evidence == "r1 holds 6.0 MB/s, r2 0.0 MB/s; this is 3.0 MB/s"


def test_a_partition_that_would_only_move_the_burden_stays() -> None:
    assert plan_rebalance(cluster("r1", "r2"), weights=weights(1000, 10), unit="B").moves == ()


def test_a_small_difference_and_small_partitions_are_not_worth_a_move() -> None:
    assert plan_rebalance(cluster("r1", "r1", "r2"), weights=weights(500, 20, 500), unit="B").moves == ()
    many = cluster(*["r1"] * 21, "r2")
    assert plan_rebalance(many, weights=weights(*[0.1] * 20, 1000, 500), unit="B").moves == ()


def test_partitions_without_a_weight_stay_where_they_are() -> None:
    assert plan_rebalance(cluster("r1", "r1", "r1"), unit="B").moves == ()


def test_preferred_leaders_are_spread_by_weight_too() -> None:
    known = {n: ServerState(n, f"ws://{n}", 1, fenced=False) for n in ("r1", "r2")}
    parts = tuple(PartitionState((a, b), (a, b), a, 1, 1) for a, b in (("r1", "r2"), ("r1", "r2"), ("r2", "r1")))
    state = MetadataState("test", 1, known, {"id": TopicState("id", "t", partitions=parts)}, {"t": "id"})
    assert plan_rebalance(state).moves == ()
    (move,) = plan_rebalance(state, weights=weights(50, 50, 1), unit="B/s").moves
    assert (move.partition, move.target, move.reason) == (0, ("r2", "r1"), "leaders")
    assert move.evidence.startswith("r1 is preferred leader of 100.0 MB/s, r2 1.0 MB/s")


def test_without_weights_the_figures_are_numbers_of_replicas() -> None:
    (move,) = plan_rebalance(cluster("r1", "r1")).moves
    assert move.evidence == "r1 holds 2, r2 0"


def described(*partitions: tuple[int, int, int]) -> list[TopicInfo]:
    """Return the description of a topic whose partitions have these log starts, high watermarks and bytes."""
    infos = [
        PartitionInfo(number, ("r1",), ("r1",), "r1", 1, 1, start, end, bytes=size)
        for number, (start, end, size) in enumerate(partitions)
    ]
    return [TopicInfo("id", "t", {}, tuple(infos))]


def test_the_size_of_a_partition_is_its_weight_and_an_unknown_size_gives_none() -> None:
    assert sizes(described((0, 10, 500), (-1, -1, -1))) == (PartitionWeight("t", 0, 500),)


def test_the_rate_is_the_growth_between_two_samples_in_bytes_of_the_average_record() -> None:
    before, after = described((0, 10, 1000), (5, 5, 0), (0, 9, 90)), described((50, 110, 6000), (5, 5, 0), (0, 9, 90))
    assert rates(before, after, 2.0) == (PartitionWeight("t", 0, 5000),)
