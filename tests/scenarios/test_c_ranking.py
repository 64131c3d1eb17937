"""C. The choice of the next leader: servers that answer badly come last, and short freezes cause few elections."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tidelog.feature_levels import RANKING, Levels
from tidelog.testing import cluster

from scenarios.stage import Stage

FROZEN_S, CYCLE_S = 1.22, 1.4
"""A server that is frozen 87 % of the time. Its session (1.5 s here) does not end."""


def freeze_again_and_again(stage: Stage, node: str, cycles: int) -> None:
    """Freeze a server for ``FROZEN_S`` of every ``CYCLE_S``; the last cycle ends in the middle of its freeze."""
    for _ in range(cycles):
        stage.processes[node].freeze(FROZEN_S)
        stage.run_for(CYCLE_S)
    stage.processes[node].freeze(FROZEN_S)
    stage.run_for(0.5)


def hang(stage: Stage, node: str, seconds: float) -> None:
    """Freeze a process so that the other servers notice: their pings are not answered."""
    stage.processes[node].freeze(seconds)
    for other in stage.now.replicas:
        if other != node:
            stage.network.mute(node, other, stage.loop.now + seconds)


def stop_in_order(stage: Stage, node: str) -> None:
    """Let a server hand over all that it leads, as on SIGTERM."""
    process = stage.replica(node)
    process.submit("leave", lambda: process.core.leave(stage.loop.now))
    stage.until(lambda: stage.leader not in ("", node))
    process.stop(power=False)


def stage_with_a_frozen_follower(**options: object) -> Stage:
    stage = Stage(ranked=True, replica_max_lag_ms="60000", min_insync_replicas="2", **options)  # type: ignore[arg-type]
    freeze_again_and_again(stage, stage.others[0], cycles=5)
    assert stage.now.isr == stage.now.replicas and stage.leader == stage.first
    return stage


def test_C22_a_follower_that_is_frozen_most_of_the_time_is_not_chosen_on_an_orderly_stop():
    stage = stage_with_a_frozen_follower()
    frozen, healthy = stage.others
    stop_in_order(stage, stage.first)
    assert stage.leader == healthy
    elected = stage.changes[-1]
    assert (elected.event, elected.evidence["passed_over"]) == ("leader_elected", frozen)
    assert "silent for" in elected.evidence[f"rank_{frozen}"]
    stage.settle()


def test_C22_nor_when_the_leader_dies():
    stage = stage_with_a_frozen_follower()
    stage.kill(stage.first)
    stage.until(lambda: stage.leader not in ("", stage.first))
    assert stage.leader == stage.others[1]
    stage.settle()


def test_C22_below_the_feature_level_the_first_in_replica_order_leads():
    stage = stage_with_a_frozen_follower(levels=Levels(newest=RANKING - 1))
    stop_in_order(stage, stage.first)
    assert stage.leader == stage.others[0]
    stage.settle()


def with_long_sessions() -> Stage:
    """Return a stage with sessions of 3 s, as by default: much longer than a follower waits before it reports."""
    settings = replace(cluster.CONTROLLER_SETTINGS, session_timeout_s=3.0, leader_report_window_s=5.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster, "CONTROLLER_SETTINGS", settings)
        return Stage(ranked=True, replica_max_lag_ms="60000", min_insync_replicas="2")


@pytest.mark.parametrize("frozen_s", [1.8, 2.4])
def test_C23_seven_freezes_of_the_leader_make_few_elections(frozen_s: float):
    stage = with_long_sessions()
    epoch = stage.now.leader_epoch
    for _ in range(7):
        hang(stage, stage.leader, frozen_s)
        stage.run_for(2.85)
    assert 1 <= stage.now.leader_epoch - epoch <= 3
    stage.put(b"m0")
    stage.settle()


def test_C23_a_leader_that_dies_after_several_elections_is_replaced_as_fast_as_ever():
    stage = with_long_sessions()
    for _ in range(4):
        hang(stage, stage.leader, 1.8)
        stage.run_for(2.85)
    stage.until(lambda: stage.leader != "" and len(stage.now.isr) == 3)
    dead, began = stage.leader, stage.loop.now
    stage.kill(dead)
    stage.until(lambda: stage.leader not in ("", dead))
    assert stage.loop.now - began < 1.0, "the broken link ends the session: nothing holds that back"
    stage.settle()
