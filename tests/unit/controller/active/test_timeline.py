"""The timeline has everything: events, the past state that they lead to, and the upkeep of its topic. Tests
``active/timeline_records.py``, ``active/timeline_topic.py`` and ``timeline/replay.py``."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.applied_commands import Log
from support.timeline_cluster import GROUP, SETTINGS, Pen, TimelineLog, cluster, happen, present
from tidelog.timeline.records import Document, decode, encode, is_repeat
from tidelog.timeline.replay import Past, past_after
from tidelog.types import TIMELINE, TopicConfig
from tidelog_controller.active.timeline_records import event_record, keyframe_records
from tidelog_controller.active.timeline_topic import ControllerGroup, TimelineTopic
from tidelog_controller.config import TimelineSettings
from tidelog_controller.metadata import timeline_state as timeline_module
from tidelog_controller.metadata.commands import (
    AddTopic,
    ChangeTopic,
    FenceServer,
    ForgetEvents,
    NoteControllers,
)
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state

from unit.controller.metadata.test_application_random import RULES, SERVERS, action, commands_of


@settings(max_examples=60, deadline=None)
@given(st.lists(action, min_size=10, max_size=50), st.integers(0, 1000))
def test_the_past_equals_the_state_after_every_command_from_the_beginning_and_from_any_keyframe(
    actions: list[tuple[object, ...]], when: int
) -> None:
    log, whole, late = Log(), Past(), Past()
    told = 0
    keyframe: list[Document] = []

    def tell() -> None:
        nonlocal told
        for event in log.state.timeline.after(told, 10_000):
            record = decode(encode(event_record(event)))
            assert record is not None and record["words"]
            whole.apply_record(record)
            if keyframe:
                late.apply_record(record)
        told = log.state.timeline.last
        assert whole.complete and whole.image() == present(log.state)
        assert not keyframe or late.image() == present(log.state)

    for server in SERVERS[:3]:
        log.register(server, lives=(f"{server}-first",))
    for rule in RULES:
        log.write(AddTopic(0, rule, rule, TopicConfig(commit_rule=rule, min_insync_replicas=2), (SERVERS[:3],)))
    for number, act in enumerate(actions):
        if number == when % len(actions):
            tell()
            keyframe = keyframe_records(log.state)
            for part in keyframe:
                late.apply_record(part)
        for command in commands_of(log, number, act):
            log.write(command)
            tell()
        log.write(NoteControllers(number, f"c{number % 3 + 1}", 1 + number // 5, GROUP[: 1 + number % 3]))
        tell()


def test_an_event_says_what_changed_and_why_in_words() -> None:
    log = Log()
    log.register(*SERVERS[:3])
    log.topic(*SERVERS[:3], min_insync_replicas=2)
    log.write(FenceServer(1000, "r1", log.epoch_of("r1"), {"silent_ms": "3001"}))
    server, partition = (event_record(event) for event in log.state.timeline.pending[-2:])
    assert (server["kind"], server["before"], server["server"]) == ("server_fenced", {"fenced": False}, "r1")
    assert partition["before"] == {"isr": ["r1", "r2", "r3"], "leader": "r1", "leader_epoch": 0, "epoch": 0}
    assert (partition["after"]["leader"], partition["after"]["isr"]) == ("r2", ["r2", "r3"])
    assert (partition["event"], partition["index"]) == (server["event"] + 1, server["index"])
    assert partition["words"] == (
        "orders/0: r2 leads after r1, in leader epoch 1, in sync r2 r3, "
        "because the session of r1 ended: nothing was heard of it for 3001 ms"
    )


def test_times_do_not_go_back_but_for_a_clock_that_was_wrong() -> None:
    log = cluster()
    happen(log)
    for time_ms, told in ((900_000, 900_000), (899_000, 900_000), (901_000, 901_000), (5_000, 5_000)):
        log.write(ChangeTopic(time_ms, "other", {"retention_ms": time_ms + len(log.commands)}))
        assert log.state.timeline.time_ms == told


def test_events_wait_in_the_snapshot_and_a_version_without_them_leaves_a_gap() -> None:
    log = cluster()
    log.write(NoteControllers(9, "c1", 1, GROUP))
    state = Replicated(log.state)
    assert decode_state(encode_state(state)) == state and log.state.timeline.pending
    older = replace(log.state, timeline=timeline_module.PendingTimeline(last=1))
    there, pen_log = TimelineLog(), Log()
    pen_log.state = older
    Pen(pen_log, there).write()
    assert [r["type"] for r in there.records()] == ["gap", "keyframe"]
    assert past_after(there.records()).image() == present(older)


def test_known_facts_about_controllers_and_the_writing_itself_make_no_event() -> None:
    log = cluster()
    log.write(NoteControllers(9, "c1", 1, GROUP))
    last = log.state.timeline.last
    assert [event.kind for event in log.state.timeline.pending[-4:]] == [
        *["controller_joined"] * 3,
        "controller_active",
    ]
    log.write(NoteControllers(10, "c1", 1, GROUP))
    log.write(ForgetEvents(11, last))
    assert (log.state.timeline.last, log.state.timeline.pending, log.state.timeline.written) == (last, (), last)
    log.write(NoteControllers(12, "c2", 2, GROUP[1:]))
    assert [(e.kind, e.node) for e in log.state.timeline.pending] == [
        ("controller_left", "c1"),
        ("controller_active", "c2"),
    ]


def test_the_past_knows_where_it_is_incomplete() -> None:
    log = cluster()
    records = [event_record(event) for event in log.state.timeline.pending]
    assert not past_after(records[1:]).complete
    lost = past_after([*records[:2], {"type": "gap", "from": 3, "event": 4, "time_ms": 0}, *records[4:]])
    assert not lost.complete and lost.missing == (3, 4)
    (frame,) = keyframe_records(log.state)
    assert past_after([*records[1:], frame]).complete
    half = {**frame, "parts": 2}
    assert not past_after([*records[1:], half]).complete


def test_events_that_stand_in_the_timeline_twice_are_replayed_once() -> None:
    log = cluster()
    records = [event_record(event) for event in log.state.timeline.pending]
    (frame,) = keyframe_records(log.state)
    for twice in ([*records, *records[-3:]], [*records, frame, *records[-3:]], [*records[:4], *records[1:]]):
        past = past_after(twice)
        assert past.complete and past.image() == past_after(records).image()
    assert [is_repeat(record, 4) for record in (*records[:5], frame)] == [True] * 4 + [False] * 2


def test_a_large_cluster_has_a_keyframe_in_parts() -> None:
    log = cluster()
    log.write(AddTopic(1, "many", "many", TopicConfig(), (("r1",),) * 1200))
    log.write(AddTopic(1, "few", "few", TopicConfig(), (("r2",),) * 3))
    parts = keyframe_records(log.state)
    assert [part["part"] for part in parts] == [1, 2, 3] and "servers" not in parts[1]
    past = past_after(parts)
    assert len(past.topics["many"].partitions) == 1200 and len(past.topics["few"].partitions) == 3


# --- upkeep --------------------------------------------------------------------------------------------------


def kept(log: Log, upkeep: TimelineTopic, now: float, confirmed: int = 0) -> list[str]:
    """Apply what is proposed for the timeline's topic at this time, and return the kinds of the commands."""
    commands = upkeep.due(log.state, confirmed, ControllerGroup("c1", 1, GROUP), now, 1)
    for command in commands:
        before = log.state
        log.write(command)
        upkeep.on_applied(before, log.state, now)
    assert upkeep.deadline(confirmed, ControllerGroup("c1", 1, GROUP)) > now
    return [command.KIND for command in commands]


def test_the_topic_is_made_on_three_servers_or_after_a_while_on_fewer_and_grows() -> None:
    log, upkeep = Log(), TimelineTopic(SETTINGS, random.Random(1))
    upkeep.become_active(log.state, 0.0)
    assert kept(log, upkeep, 0.0) == ["note_controllers"]
    before = log.state
    log.register("r1")
    upkeep.on_applied(before, log.state, 1.0)
    assert kept(log, upkeep, 2.0) == [] and kept(log, upkeep, 6.0) == ["add_topic"]
    topic = log.state.topics[log.state.names[TIMELINE]]
    assert (topic.partitions[0].replicas, topic.config.min_insync_replicas) == (("r1",), 1)
    before = log.state
    log.register("r2", "r3", "r4")
    upkeep.on_applied(before, log.state, 7.0)
    assert kept(log, upkeep, 12.0) == ["set_replicas"]
    assert len(log.state.topics[topic.topic_id].partitions[0].target) == 3
    assert kept(log, upkeep, 100.0) == []
    moved = replace(log.state.topics[topic.topic_id].partitions[0], replicas=("r1", "r2", "r3"), target=(), origin=())
    before = log.state
    grown = replace(topic, partitions=(moved,))
    log.state = replace(log.state, topics={topic.topic_id: grown})
    upkeep.on_applied(before, log.state, 101.0)
    assert kept(log, upkeep, 101.0) == ["change_topic"]
    assert log.state.topics[topic.topic_id].config.min_insync_replicas == 2
    assert kept(log, upkeep, 200.0) == []


def test_with_three_servers_the_topic_is_made_at_once() -> None:
    log, upkeep = Log(), TimelineTopic(SETTINGS, random.Random(1))
    log.register(*SERVERS[:3])
    upkeep.become_active(log.state, 0.0)
    assert kept(log, upkeep, 0.0) == ["note_controllers", "add_topic"]


def test_written_events_are_forgotten_from_time_to_time() -> None:
    log, upkeep = cluster(), TimelineTopic(SETTINGS, random.Random(1))
    upkeep.become_active(log.state, 0.0)
    kept(log, upkeep, 0.0)
    assert kept(log, upkeep, 1.0, confirmed=1) == ["forget_events"]
    assert kept(log, upkeep, 1.5, confirmed=3) == []
    assert kept(log, upkeep, 2.0, confirmed=3) == ["forget_events"]
    assert log.state.timeline.pending[0].number == 4


def test_without_replicas_there_is_no_timeline() -> None:
    log, upkeep = Log(), TimelineTopic(TimelineSettings(replication_factor=0), random.Random(1))
    log.register(*SERVERS[:3])
    upkeep.become_active(log.state, 0.0)
    assert kept(log, upkeep, 100.0, confirmed=5) == []
