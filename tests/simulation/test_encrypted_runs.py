"""Runs in which replica servers encrypt, with another key in each run of a process: all invariants hold as in the
clear."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.testing.cluster import Cluster
from tidelog.testing.options import Options


@pytest.mark.parametrize("seed", [76, 102])
def test_all_invariants_hold_and_nothing_is_in_the_clear(seed: int) -> None:
    cluster = Cluster(replace(Options.draw(seed), encrypted=True))
    cluster.run()
    assert cluster.counts["lives with encryption"] > 6
    assert cluster.counts["bits flipped"] and cluster.counts["segment_repaired"]
    disks = [cluster.replica(name).disk for name in cluster.replicas]
    segments = [disk.read(path) for disk in disks for path in disk.files() if path.endswith((".log", ".quarantined"))]
    assert len(segments) > 6
    assert all(data.startswith(b"TLK1") for data in segments if data)
