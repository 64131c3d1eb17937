"""Retention that waits for an archive, in a whole simulated cluster with all faults."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.testing.clients.archive import GROUP
from tidelog.testing.clients.producer import ProducerOptions
from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.faults.strikes import Swarm
from tidelog.testing.hardware.loop import stream
from tidelog.testing.invariants.ghost import Violation
from tidelog_replica.maintenance.retention_waits import GroupRead, RetentionWaits

DURATION = 8.0
CONFIG = {"retention_records": "20", "segment_max_bytes": "1024", "retention_waits_for": GROUP}
CONFIG |= {"retention_waits_max_ms": "0"}  # the disks here do not know when a file was written


def run(seed: int) -> Cluster:
    """Run a cluster with an archive, and producers whose records are due soon."""
    swarm = replace(Swarm.draw(stream(seed, "options"), 0.7 * DURATION), group="")
    topics = (TopicOptions("t", 2, 3, CONFIG),)
    producers = (ProducerOptions(window=3, pace=0.05), ProducerOptions(window=1, pace=0.05))
    options = Options(seed, topics=topics, producers=producers, swarm=swarm, duration=DURATION, archive=True)
    cluster = Cluster(options)
    cluster.run()
    return cluster


@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_deleted_before_the_archive_has_read_it_whatever_fails(seed: int) -> None:
    assert run(seed).counts["deleted after the archive had read it"] > 1


def test_a_server_that_deletes_without_asking_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetentionWaits, "ask", lambda self, partition, done: done(GroupRead(GROUP, 1 << 40)))
    with pytest.raises(Violation, match="RETENTION"):
        run(0)
