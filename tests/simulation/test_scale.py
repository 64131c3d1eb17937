"""The cost of a cluster with four times as many partitions, in counts, which are the same on every machine."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from simulation.scale import SERVERS, Cost, measure

SMALL, TIMES = 16, 4
BESIDE = 1.15
"""A change takes a moment in which servers ask each other this and that."""


@pytest.fixture(scope="module")
def costs() -> tuple[dict[str, Cost], dict[str, Cost]]:
    """Return the costs of all phases, of a small and of a large cluster."""
    return measure(SMALL), measure(TIMES * SMALL)


def test_a_change_of_one_partition_costs_the_same_however_many_there_are(costs):
    small, large = (found["change one"] for found in costs)
    assert small.metadata == large.metadata, "watchers are told what changed, and nothing else"
    for less, more in zip(astuple(small), astuple(large), strict=True):
        assert more <= BESIDE * less, (small, large)


@pytest.mark.parametrize("phase", ["create", "fail over 1/6", "restart controller"])
def test_the_cost_of_an_action_on_all_partitions_grows_no_faster_than_their_number(costs, phase):
    small, large = (found[phase] for found in costs)
    for less, more in zip(astuple(small), astuple(large), strict=True):
        assert more <= TIMES * less, (small, large)
    assert large.operations > small.operations > 0


def test_idle_followers_ask_their_leaders_servers_not_partitions(costs):
    """The messages are two questions a second, with answers, for each pair of servers; heartbeats; Raft."""
    assert costs[1]["idle 1 s"].messages <= 4 * SERVERS * (SERVERS - 1) + 60
