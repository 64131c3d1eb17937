"""The timeline writer writes every event once, whichever process is replaced and whatever message is lost on the
way."""

from __future__ import annotations

import random

import pytest
from support.timeline_cluster import GROUP, Pen, TimelineLog, cluster, elect, happen, present
from tidelog.sansio.effects import Call
from tidelog.timeline.replay import past_after
from tidelog.wire.messages import (
    Produce,
)
from tidelog_controller.active.timeline_writer import ToServer
from tidelog_controller.metadata import timeline_state as timeline_module
from tidelog_controller.metadata.commands import (
    ForgetEvents,
    NoteControllers,
)

from unit.controller.metadata.test_application_random import SERVERS


def test_every_event_is_written_once_with_keyframes_between() -> None:
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
    for effect in first.timeline_writer.act(log.state, first.now, 0):
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
    pens[1].timeline_writer._number = 1_000_000  # an ack goes back over the link that its batch came over
    behind = {id(pen): log.state for pen in pens}
    wire: list[tuple[Pen, Call | Produce]] = []
    for _ in range(dice.randrange(20, 120)):
        pen = dice.choice(pens)
        match dice.choice(
            ("act", "act", "act", "send", "send", "send", "commit", "happen", "learn", "forget", "fail")
        ):
            case "act":  # with what that controller has applied so far
                pen.now += dice.choice((0.0, 0.1, 6.0))
                for effect in pen.timeline_writer.act(behind[id(pen)], pen.now, 0):
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
                    owner.timeline_writer.on_answer(
                        message.token, there.answer(message), behind[id(owner)], owner.now
                    )
                else:
                    for produced in there.produce(message):
                        owner.timeline_writer.on_produced(produced, owner.now)
            case "commit":
                for produced in there.commit():
                    for one in pens:
                        if dice.random() < 0.7 and produced.acks[0].id == one.timeline_writer._number:
                            one.timeline_writer.on_produced(produced, one.now)
            case "happen":
                happen(log, dice.randrange(1, 5))
            case "learn":
                behind[id(pen)] = log.state
            case "forget":
                log.write(ForgetEvents(1, pen.timeline_writer.confirmed))
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
def test_events_cut_by_an_unclean_election_are_written_again_or_leave_a_gap(forgotten: bool) -> None:
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
    assert not pen.step() and pen.timeline_writer.deadline(log.state) == float("inf")
