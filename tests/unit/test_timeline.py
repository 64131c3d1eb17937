"""The timeline tells everything once: events, the scribe over failovers, and the past that they come to."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metadata_log import Log
from test_metadata_random import RULES, SERVERS, action, commands_of
from tidelog.effects import Call, Event
from tidelog.timeline.past import Past, past_after
from tidelog.timeline.records import Document, decode, encode
from tidelog.types import TIMELINE, TopicConfig
from tidelog.wire.messages import ControllerMember, Produce, SuspectPart
from tidelog_controller.core import timeline as timeline_module
from tidelog_controller.core.commands import (
    AddTopic,
    ChangeTopic,
    FenceServer,
    ForgetEvents,
    LeaveParts,
    NoteControllers,
    SetSuccessor,
)
from tidelog_controller.core.machine import Replicated, decode_state, encode_state
from tidelog_controller.core.pages import event_record, keyframe_records
from tidelog_controller.core.scribe import Scribe, TimelineSettings, ToServer
from tidelog_controller.core.state import MetadataState
from tidelog_controller.core.upkeep import Group, Upkeep
from timeline_log import TimelineLog

GROUP = tuple(ControllerMember(node, f"ws://{node}", True, f"store of {node}") for node in ("c1", "c2", "c3"))
SETTINGS = TimelineSettings(keyframe_events=10, keyframe_interval_s=1000.0)


def present(state: MetadataState) -> dict[str, object]:
    """What a past that has come to the present says."""
    return past_after(keyframe_records(state)).image()


def cluster() -> Log:
    """Three servers, and the topic of the timeline on them."""
    log = Log()
    for node in SERVERS[:3]:
        log.register(node, lives=(f"{node}-first",))
    log.write(AddTopic(5, "T", TIMELINE, TopicConfig(min_insync_replicas=2), (("r1", "r2", "r3"),)))
    return log


def happen(log: Log, count: int = 1) -> None:
    """So many more events, of a topic without partitions of its own."""
    if "other" not in log.state.topics:
        log.write(AddTopic(6, "other", "other", TopicConfig(), (("r1",),)))
    for _ in range(count):
        value = 1000 + len(log.commands)
        log.write(ChangeTopic(7 + len(log.commands), "other", {"retention_ms": value}))


class Pen:
    """A scribe of a controller whose state is ``log``'s, over a timeline that answers at once."""

    def __init__(self, log: Log, there: TimelineLog) -> None:
        self.log, self.there = log, there
        self.scribe = Scribe(SETTINGS)
        self.scribe.become_active(0.0)
        self.now = 0.0
        self.events: list[Event] = []

    def step(self) -> bool:
        """One effect and its answer; False where nothing is to be done."""
        effects = self.scribe.act(self.log.state, self.now, 0)
        for effect in effects:
            match effect:
                case Call(token=token):
                    self.scribe.on_answer(token, self.there.answer(effect), self.log.state, self.now)
                case ToServer(message=Produce() as message):
                    for produced in self.there.produce(message) or self.there.commit():
                        self.scribe.on_produced(produced, self.now)
                case Event():
                    self.events.append(effect)
        return bool(effects)

    def write(self) -> None:
        """Until all is told."""
        for _ in range(1000):
            if not self.step() and self.scribe.deadline(self.log.state) > self.now + 10:
                return
            self.now = max(self.now, min(self.scribe.deadline(self.log.state), self.now + 10))
        raise AssertionError("the scribe does not come to an end")


def elect(log: Log, there: TimelineLog) -> None:
    """The timeline has another leader, in the leader epoch of the log."""
    p = log.state.topics["T"].partitions[0]
    assert p.leader is not None
    log.write(SetSuccessor(8, "T", 0, p.epoch, p.isr[p.isr.index(p.leader) - 1], "test"))
    parts = (SuspectPart("T", 0, p.epoch + 1, p.leader_epoch),)
    log.write(LeaveParts(8, p.leader, log.epoch_of(p.leader), "transfer", parts, lost=False, ready=True))
    assert log.state.topics["T"].partitions[0].leader_epoch == there.leader_epoch


# --- events, and the past that they come to ------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(action, min_size=10, max_size=50), st.integers(0, 1000))
def test_the_past_is_what_was_after_every_command_from_the_beginning_and_from_any_keyframe(
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
            whole.take(record)
            if keyframe:
                late.take(record)
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
                late.take(part)
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
    older = replace(log.state, timeline=timeline_module.Timeline(last=1))
    there, pen_log = TimelineLog(), Log()
    pen_log.state = older
    Pen(pen_log, there).write()
    assert [r["type"] for r in there.records()] == ["gap", "keyframe"]
    assert past_after(there.records()).image() == present(older)


def test_what_is_known_of_the_controllers_makes_no_event_and_neither_does_writing() -> None:
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


def test_a_large_cluster_has_a_keyframe_in_parts() -> None:
    log = cluster()
    log.write(AddTopic(1, "many", "many", TopicConfig(), (("r1",),) * 1200))
    log.write(AddTopic(1, "few", "few", TopicConfig(), (("r2",),) * 3))
    parts = keyframe_records(log.state)
    assert [part["part"] for part in parts] == [1, 2, 3] and "servers" not in parts[1]
    past = past_after(parts)
    assert len(past.topics["many"].partitions) == 1200 and len(past.topics["few"].partitions) == 3


# --- the scribe ----------------------------------------------------------------------------------------------


def test_all_is_told_once_with_keyframes_between() -> None:
    log, there = cluster(), TimelineLog()
    pen = Pen(log, there)
    for _ in range(6):
        happen(log, 7)
        pen.write()
    assert there.numbers() == list(range(1, log.state.timeline.last + 1))
    records = there.records()
    starts = [at for at, record in enumerate(records) if record["type"] == "keyframe"]
    assert len(starts) >= 3
    for start in (0, *starts):
        assert past_after(records[start:]).image() == present(log.state)
    assert records[-1]["keyframe"] is not None and records[records[-1]["keyframe"][0]]["type"] == "keyframe"


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("heard", [True, False])
def test_a_controller_that_is_replaced_at_any_step_leaves_nothing_out_and_nothing_twice(
    step: int, heard: bool
) -> None:
    log, there = cluster(), TimelineLog()
    happen(log, 3)
    first = Pen(log, there)
    for _ in range(step):
        first.step()
    for effect in first.scribe.act(log.state, first.now, 0):
        if isinstance(effect, ToServer) and isinstance(effect.message, Produce) and heard:
            there.produce(effect.message)  # it is written, and nobody hears the ack
            there.commit()
    happen(log, 2)
    Pen(log, there).write()
    assert there.numbers() == list(range(1, log.state.timeline.last + 1))
    assert past_after(there.records()).image() == present(log.state)


@pytest.mark.parametrize("seed", range(150))
def test_two_scribes_lost_messages_and_failovers_of_the_timeline_lose_and_double_nothing(seed: int) -> None:
    dice, log, there = random.Random(seed), cluster(), TimelineLog()
    log.write(NoteControllers(9, "c1", 1, GROUP))
    pens = [Pen(log, there), Pen(log, there)]
    pens[1].scribe._number = 1_000_000  # an ack goes back over the link that its batch came over
    behind = {id(pen): log.state for pen in pens}
    wire: list[tuple[Pen, Call | Produce]] = []
    for _ in range(dice.randrange(20, 120)):
        pen = dice.choice(pens)
        match dice.choice(
            ("act", "act", "act", "send", "send", "send", "commit", "happen", "learn", "forget", "fail")
        ):
            case "act":  # with what that controller has applied so far
                pen.now += dice.choice((0.0, 0.1, 6.0))
                for effect in pen.scribe.act(behind[id(pen)], pen.now, 0):
                    if isinstance(effect, Call):
                        wire.append((pen, effect))
                    elif isinstance(effect, ToServer) and isinstance(effect.message, Produce):
                        wire.append((pen, effect.message))
            case "send" if wire:  # in any order; some are lost, some come again later
                at = dice.randrange(len(wire))
                owner, message = wire[at] if dice.random() < 0.2 else wire.pop(at)
                if dice.random() < 0.1:
                    continue
                if isinstance(message, Call):
                    owner.scribe.on_answer(message.token, there.answer(message), behind[id(owner)], owner.now)
                else:
                    for produced in there.produce(message):
                        owner.scribe.on_produced(produced, owner.now)
            case "commit":
                for produced in there.commit():
                    for one in pens:
                        if dice.random() < 0.7 and produced.acks[0].id == one.scribe._number:
                            one.scribe.on_produced(produced, one.now)
            case "happen":
                happen(log, dice.randrange(1, 5))
            case "learn":
                behind[id(pen)] = log.state
            case "forget":
                log.write(ForgetEvents(1, pen.scribe.confirmed))
            case "fail":
                there.fail_over(dice.randrange(3))
                elect(log, there)
        numbers = there.numbers()
        assert numbers == list(range(1, len(numbers) + 1)), "something is missing, or there twice"
    there.commit()
    Pen(log, there).write()
    assert there.numbers() == list(range(1, log.state.timeline.last + 1))
    assert past_after(there.records()).image() == present(log.state)


def test_events_that_had_to_go_leave_a_gap_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_module, "PENDING_EVENTS", 10)
    log, there = cluster(), TimelineLog()
    pen = Pen(log, there)
    pen.write()
    told = log.state.timeline.last
    happen(log, 30)
    first = log.state.timeline.pending[0].number
    assert len(log.state.timeline.pending) == 10
    pen.write()
    records = there.records()
    (gap,) = [record for record in records if record["type"] == "gap"]
    assert (gap["from"], gap["event"]) == (told + 1, first - 1)
    assert there.numbers() == [*range(1, told + 1), *range(first, log.state.timeline.last + 1)]
    assert records[-1]["type"] == "keyframe", "so that all is known again"
    assert past_after(records).complete and past_after(records).image() == present(log.state)
    assert not past_after(records[:-1]).complete


@pytest.mark.parametrize("forgotten", [True, False])
def test_what_an_unclean_election_cut_is_written_again_or_leaves_a_gap(forgotten: bool) -> None:
    log, there = cluster(), TimelineLog()
    happen(log, 3)
    pen = Pen(log, there)
    pen.write()
    kept = len(there.numbers())
    happen(log, 2)
    pen.write()
    if forgotten:
        log.write(ForgetEvents(1, log.state.timeline.last))
    cut = log.state.timeline.last
    there.lose(1)
    elect(log, there)
    pen.write()
    last = log.state.timeline.last
    gaps = [(record["from"], record["event"]) for record in there.records() if record["type"] == "gap"]
    assert gaps == ([(kept + 1, cut)] if forgotten else [])
    assert there.numbers() == [n for n in range(1, last + 1) if not (forgotten and kept < n <= cut)]
    assert past_after(there.records()).image() == present(log.state)


def test_after_retention_took_everything_it_goes_on() -> None:
    log, there = cluster(), TimelineLog()
    Pen(log, there).write()
    last = log.state.timeline.last
    log.write(ForgetEvents(1, last))
    there.retire()
    happen(log, 1)
    Pen(log, there).write()
    assert there.numbers()[0] == last + 1 and past_after(there.records()).complete


def test_a_timeline_that_is_ahead_is_left_alone() -> None:
    log, there = cluster(), TimelineLog()
    older = log.state
    happen(log, 3)
    Pen(log, there).write()
    before = there.numbers()
    log.state = older
    pen = Pen(log, there)
    pen.write()
    assert there.numbers() == before and [event.name for event in pen.events] == ["timeline_ahead"]


def test_nothing_is_asked_while_nobody_leads_the_timeline() -> None:
    log = cluster()
    for node in SERVERS[:3]:
        log.fence(node)
    pen = Pen(log, TimelineLog())
    assert not pen.step() and pen.scribe.deadline(log.state) == float("inf")


# --- upkeep --------------------------------------------------------------------------------------------------


def kept(log: Log, upkeep: Upkeep, now: float, confirmed: int = 0) -> list[str]:
    """What is proposed and applied at that time."""
    commands = upkeep.due(log.state, confirmed, Group("c1", 1, GROUP), now, 1)
    for command in commands:
        before = log.state
        log.write(command)
        upkeep.on_applied(before, log.state, now)
    assert upkeep.deadline(confirmed, Group("c1", 1, GROUP)) > now
    return [command.KIND for command in commands]


def test_the_topic_is_made_on_three_servers_or_after_a_while_on_fewer_and_grows() -> None:
    log, upkeep = Log(), Upkeep(SETTINGS, random.Random(1))
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
    log, upkeep = Log(), Upkeep(SETTINGS, random.Random(1))
    log.register(*SERVERS[:3])
    upkeep.become_active(log.state, 0.0)
    assert kept(log, upkeep, 0.0) == ["note_controllers", "add_topic"]


def test_what_is_written_is_forgotten_now_and_then() -> None:
    log, upkeep = cluster(), Upkeep(SETTINGS, random.Random(1))
    upkeep.become_active(log.state, 0.0)
    kept(log, upkeep, 0.0)
    assert kept(log, upkeep, 1.0, confirmed=1) == ["forget_events"]
    assert kept(log, upkeep, 1.5, confirmed=3) == []
    assert kept(log, upkeep, 2.0, confirmed=3) == ["forget_events"]
    assert log.state.timeline.pending[0].number == 4


def test_without_replicas_there_is_no_timeline() -> None:
    log, upkeep = Log(), Upkeep(TimelineSettings(replication_factor=0), random.Random(1))
    log.register(*SERVERS[:3])
    upkeep.become_active(log.state, 0.0)
    assert kept(log, upkeep, 100.0, confirmed=5) == []
