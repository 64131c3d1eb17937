"""Simulated clients find the newest metadata: a controller that sends no updates does not keep them."""

from __future__ import annotations

from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions

LIMIT_S = 3.0
"""An election time-out until a controller knows that it follows nobody, a second until it is asked, some tries."""


def start(**options: int) -> Cluster:
    cluster = Cluster(Options(1, topics=(TopicOptions("t"),), producers=(ProducerOptions(),) * 4, **options))  # type: ignore[arg-type]
    cluster.until(cluster.ready)
    return cluster


def all_know_the_leader(cluster: Cluster) -> bool:
    key = cluster.partitions[0]
    return all(client.partition(key) == cluster.state(key) for client in cluster.clients)


def test_a_client_does_not_stay_with_a_controller_that_never_was_in_a_group():
    cluster = start(controllers=1, spares=4)
    cluster.until(lambda: all_know_the_leader(cluster), LIMIT_S)


def test_a_client_does_not_stay_with_a_controller_that_was_removed():
    cluster = start(controllers=5)
    cluster.until(lambda: all_know_the_leader(cluster), LIMIT_S)
    for _ in range(3):
        gone = next(name for name in cluster.controllers if cluster.controller(name).core.active)
        cluster.admin.remove_controller(gone)
        cluster.until(lambda: cluster.admin.done)
        leader = cluster.state().leader
        cluster.processes[leader].stop(power=False)
        cluster.until(lambda old=leader: cluster.state().leader not in (old, None))  # type: ignore[misc]
        cluster.until(lambda: all_know_the_leader(cluster), LIMIT_S)
        cluster.processes[leader].start()
        cluster.until(cluster.in_sync)
