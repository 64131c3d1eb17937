"""Transactions in a whole simulated cluster, with all faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidelog.testing.clients.transactor import Transactor
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.faults.strikes import Swarm
from tidelog.testing.hardware.loop import stream
from tidelog.verify.check_transactions import Try

DURATION = 8.0


def run(seed: int) -> Cluster:
    """Run a cluster with applications, zombies and drivers, and no other clients."""
    swarm = replace(Swarm.draw(stream(seed, "options"), 0.7 * DURATION), group="")
    topics = (TopicOptions("t"),)
    cluster = Cluster(Options(seed, topics=topics, swarm=swarm, duration=DURATION, transactions=True))
    cluster.run()
    return cluster


@pytest.mark.parametrize("seed", range(2))
def test_transactions_are_whole_whatever_fails(seed: int) -> None:
    cluster = run(seed)
    assert cluster.counts["transactions committed"] and cluster.counts["batches committed"]


def test_transactions_staged_by_a_dead_driver_are_dropped_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by seed 9001075: a driver gave up, and readers waited for what it had prepared until the end of the run.
    In a cluster an operator aborts that, or the time-out of staged transactions, which is an hour."""

    def die(driver: Transactor, one: Try, answer: Any) -> None:
        driver.idle = True

    monkeypatch.setattr(Transactor, "_on_prepared", die)
    cluster = Cluster(Options(0, topics=(TopicOptions("t"),), duration=3.0, transactions=True))
    cluster.run()
    assert cluster.counts["transactions committed"] and "batches committed" not in cluster.counts
