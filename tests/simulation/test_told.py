"""A capture is played again: its timeline becomes faults and requests, and the elections are the same."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from tidelog.captures import Capture
from tidelog.errors import ConfigError
from tidelog.testing.captures.replay import alike, beside, play
from tidelog.testing.captures.story import BEGIN_S, LONGEST_S, story_of
from tidelog.testing.cluster import Cluster, Options
from tidelog.testing.faults.strikes import Strike, Swarm
from tidelog.testing.invariants.timeline import leading, records
from tidelog.testing.options import TopicOptions
from tidelog.wire.messages import DrainServer


@cache
def happened() -> tuple[Capture, str]:
    """Return a capture of a simulated cluster whose first leader died and came back, and the name of that leader."""
    topics = (TopicOptions("orders", 1, 3, {"flush": "fsync"}),)
    swarm = Swarm({"told": 1.0}, until=9.0)
    cluster = Cluster(Options(5, topics=topics, swarm=swarm, strikes=(), duration=12.0, timeline=True))
    cluster.until(cluster.ready)
    leader = cluster.state().leader
    assert leader is not None
    cluster.run_for(2.0)
    cluster.faults.strike(Strike("kill", leader, {"seconds": 3.0}))
    cluster.until(lambda: cluster.state().leader not in (None, leader))
    cluster.until(lambda: len(cluster.state().isr) == 3)
    cluster.run_for(3.0)
    partition = leading(cluster)
    assert partition is not None
    return Capture({}, {"timeline": json.loads(json.dumps(records(cluster, partition)))}), leader


def test_the_story_has_the_cluster_and_its_fault_at_its_place() -> None:
    capture, leader = happened()
    story = story_of(capture, 1000)
    assert (story.controllers, sorted(story.racks)) == (3, ["r1", "r2", "r3"])
    assert [(topic["name"], topic["config"]["flush"]) for topic in story.topics] == [("orders", "fsync")]
    died = [strike for strike in story.strikes if strike.target == story.names[leader]]
    assert [strike.kind for strike in died] == ["kill"] and 2.0 < died[0].values["seconds"] < 5.0
    assert story.courses["orders/0"][0][0] == story.names[leader]


def test_a_replay_repeats_the_elections_of_the_capture_with_any_seed() -> None:
    capture, _ = happened()
    story = story_of(capture, 1000)
    for seed in (1, 2):
        replay = play(story, seed)
        assert replay.fault is None
        same, most = replay.sameness(story)
        assert same >= 1 and most <= same + 2, beside(story, replay)


def test_the_elections_of_both_runs_are_compared_partition_by_partition() -> None:
    assert alike([("r1", 4), ("r2", 5), ("r3", 6)], [("r1", 0), ("r2", 1), ("-", 2), ("r3", 3)]) == (2, 3)
    assert alike([("r1", 4)], []) == (0, 0)


# --- single events ---------------------------------------------------------------------------------------


def event(number: int, at_s: float, kind: str, **fields: Any) -> dict[str, Any]:
    known = {
        "type": "event",
        "event": number,
        "time_ms": BEGUN_MS + round(at_s * 1000),
        "kind": kind,
        "cause": "",
        "evidence": {},
    }
    return {**known, "before": None, "after": {}, **fields}


def frame() -> dict[str, Any]:
    partition = {"replicas": ["b", "a"], "isr": ["b", "a"], "leader": "b", "leader_epoch": 7, "epoch": 9}
    topic = {"topic": "t", "topic_id": "id", "config": {}, "first": 0, "partitions": [partition]}
    servers = [{"node": node, "rack": f"rack {node}"} for node in ("a", "b")]
    fields = {"part": 1, "parts": 1, "servers": servers, "controllers": [{"node": "x"}, {"node": "y"}]}
    return {
        "type": "keyframe",
        "event": 1,
        "time_ms": BEGUN_MS,
        **fields,
        "active": "x",
        "term": 1,
        "topics": [topic],
    }


def strikes_of(*events: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    story = story_of(Capture({}, {"timeline": [frame(), *events]}), 100)
    return [(s.kind, s.target, round(s.at - BEGIN_S, 2), round(s.values["seconds"], 2)) for s in story.strikes]


BEGUN_MS = 1_700_000_000_000
Events = list[dict[str, Any]]
SILENT = {"silent_ms": "3000"}


@pytest.mark.parametrize(
    ("events", "played"),
    [
        (
            [
                event(2, 5.0, "server_fenced", server="a", evidence=SILENT),
                event(3, 9.0, "server_registered", server="a", evidence={"restart": "clean"}),
            ],
            [("kill", "r1", 2.0, 7.0)],
        ),
        (
            [
                event(2, 5.0, "server_fenced", server="a", evidence=SILENT),
                event(3, 6.0, "server_registered", server="a", evidence={"restart": "unclean"}),
            ],
            [("power", "r1", 2.0, 4.0)],
        ),
        (
            [
                event(2, 5.0, "server_fenced", server="b", evidence=SILENT),
                event(3, 6.0, "server_registered", server="b", evidence={"restart": "unclean", "data": "wiped"}),
            ],
            [("wipe_disk", "r2", 2.0, 4.0)],
        ),
        (
            [
                event(2, 5.0, "server_fenced", server="a", evidence=SILENT),
                event(3, 7.0, "server_unfenced", server="a"),
            ],
            [("isolate", "r1", 2.0, 5.0)],
        ),
        ([event(2, 4.0, "server_fenced", server="a")], [("kill", "r1", 4.0, 1e6)]),
        (
            [event(2, 4.0, "server_registered", server="a", evidence={"restart": "clean"})],
            [("kill", "r1", 3.7, 0.3)],
        ),
        ([event(2, 4.0, "controller_active", controller="y")], [("isolate", "c1", 3.0, 3.0)]),
        (
            [event(2, 5000.0, "server_fenced", server="a", evidence=SILENT)],
            [("kill", "r1", LONGEST_S - 3.0, 1e6)],
        ),
    ],
    ids=["killed", "power", "wiped", "cut off", "for good", "restarted", "another active", "a long silence is cut"],
)
def test_each_event_of_a_capture_is_played_as_its_faults(
    events: list[dict[str, Any]], played: list[tuple[str, str, float, float]]
) -> None:
    assert strikes_of(*events) == played


def test_a_follower_that_lagged_is_cut_off_from_its_leader_until_the_isr_has_it_again() -> None:
    after = {"replicas": ["b", "a"], "isr": ["b"], "leader": "b", "leader_epoch": 7, "epoch": 10}
    where = {"topic": "t", "topic_id": "id", "partition": 0}
    lagged = {"cause": "follower_lagging", "evidence": {"a.behind_ms": "4000"}, "before": {"isr": ["b", "a"]}}
    back = {**after, "isr": ["b", "a"], "epoch": 11}
    played = strikes_of(
        event(2, 6.0, "isr_shrunk", **{**lagged, **where, "after": after}),
        event(3, 9.0, "isr_expanded", **where, after=back),
    )
    assert played == [("cut_pair", "r1", 2.0, 6.0)]


def test_requests_of_operators_are_replayed_and_other_events_are_counted() -> None:
    events = [event(2, 3.0, "server_draining", server="b"), event(3, 4.0, "topic_deleted", topic="gone", after=None)]
    story = story_of(Capture({}, {"timeline": [frame(), *events]}), 100)
    assert story.wishes == [(BEGIN_S + 3.0, DrainServer("r2", True))]
    assert story.not_played == {"topic_deleted": 1}


def test_only_the_last_events_are_played_on_the_state_before_them() -> None:
    events = [event(n, float(n), "server_draining", server="a") for n in range(2, 9)]
    story = story_of(Capture({}, {"timeline": [frame(), *events]}), 2)
    assert [round(at - BEGIN_S, 2) for at, _ in story.wishes] == [1.0, 2.0]


@pytest.mark.parametrize("timeline", [[], [event(1, 0.0, "server_joined", server="a", after={"node": "a"})]])
def test_a_capture_without_a_usable_timeline_is_refused_with_the_reason(timeline: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match="timeline"):
        story_of(Capture({}, {"timeline": timeline}), 100)
