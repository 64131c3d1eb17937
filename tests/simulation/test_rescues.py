"""Runs in which the majority of the controllers is lost for good while everything else goes on."""

from __future__ import annotations

import pytest
from tidelog.testing.cluster import Cluster, Options


@pytest.mark.parametrize("seed", range(16))
def test_nothing_acked_is_lost_when_a_survivor_that_lags_goes_on_alone(seed: int):
    cluster = Cluster(Options.draw_rescue(seed))
    cluster.run()
    assert cluster.counts["rescues"] == 1
