"""Transactions in a whole simulated cluster, with everything that can go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.cluster import Cluster, Options, TopicOptions
from simulation.loop import stream
from simulation.strikes import Swarm

DURATION = 8.0


def run(seed: int) -> Cluster:
    """Applications with zombies and drivers, and nobody else."""
    swarm = replace(Swarm.draw(stream(seed, "options"), 0.7 * DURATION), group="")
    topics = (TopicOptions("t"),)
    cluster = Cluster(Options(seed, topics=topics, swarm=swarm, duration=DURATION, transactions=True))
    cluster.run()
    return cluster


@pytest.mark.parametrize("seed", range(2))
def test_transactions_are_whole_whatever_fails(seed: int) -> None:
    cluster = run(seed)
    assert cluster.counts["transactions committed"] and cluster.counts["batches committed"]
