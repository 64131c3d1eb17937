"""Transactions in a whole simulated cluster, with everything that can go wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.cluster import Cluster, Options, TopicOptions
from simulation.loop import stream
from simulation.strikes import Swarm
from simulation.transactor import TIMEOUT_MS, CommittedReader, Transactor, judge, settled


def run(seed: int, duration: float = 8.0) -> Cluster:
    """Two applications, one of them with a zombie, and a driver; judged at the end."""
    rng = stream(seed, "options")
    swarm = replace(Swarm.draw(rng, 0.7 * duration), group="")
    topics = (TopicOptions("t", 2, 3, {"replica_max_lag_ms": "1600", "segment_max_bytes": "4096"}),)
    cluster = Cluster(Options(seed, topics=topics, swarm=swarm, duration=duration))
    names = (("p7", "one"), ("p8", "one"), ("p9", "two"))
    transactors = [Transactor(cluster, name, stream(seed, name), app) for name, app in names]
    transactors.append(Transactor(cluster, "p10", stream(seed, "p10"), "driver", stages=True))
    reader = CommittedReader(cluster, "k9", stream(seed, "k9"))
    cluster.loop.run_until(duration)
    cluster.faults.heal()
    cluster.until(cluster.full_isr, cluster.options.patience)
    cluster.run_for(1.0)
    for transactor in transactors:
        transactor.stopped = True
    cluster.run_for(2 * TIMEOUT_MS / 1000)
    cluster.until(lambda: settled(cluster, transactors, reader), cluster.options.patience)
    judge(cluster, transactors, reader)
    return cluster


@pytest.mark.parametrize("seed", range(6))
def test_transactions_are_whole_whatever_fails(seed: int) -> None:
    cluster = run(seed)
    assert cluster.counts["transactions committed"] and cluster.counts["batches committed"]
