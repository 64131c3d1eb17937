"""Streams in a whole simulated cluster, with all faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.faults.strikes import Swarm
from tidelog.testing.hardware.loop import stream

DURATION = 8.0


def run(seed: int) -> Cluster:
    """Run a cluster with streams, and no other clients."""
    swarm = replace(Swarm.draw(stream(seed, "options"), 0.7 * DURATION), group="")
    options = Options(seed, topics=(TopicOptions("t"),), swarm=swarm, duration=DURATION, streams=True)
    cluster = Cluster(options)
    cluster.run()
    return cluster


@pytest.mark.parametrize("seed", range(2))
def test_streams_have_each_append_once_and_in_order_whatever_fails(seed: int) -> None:
    assert run(seed).counts["appends to streams"]


def test_reads_that_are_late_together_do_not_leave_a_timer_behind() -> None:
    """Found by seed 92: the first of two late reads set the timer to the time of the second."""
    run(92)
