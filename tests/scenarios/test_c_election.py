"""C. Election and fencing."""

from __future__ import annotations

import pytest
from tidelog.errors import TidelogError
from tidelog.types import Acks
from tidelog.wire.messages import Fetch, ListOffset, Progress, Read, ReportLeader, SuspectPart

from scenarios.stage import Stage


@pytest.mark.parametrize("gives_up", ["between two tries", "during a try"])
def test_C1_leader_and_a_follower_die_together(gives_up: str):
    """The outcome that a producer reports at its deadline: either all its tries were refused before anything was
    appended, or one may have been appended."""
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(lambda: stage.hw(third) == 1)  # what it does not know as committed must wait for a second member
    stage.kill(first, second)
    died = stage.loop.now
    stage.until(lambda: stage.leader == third)
    session = stage.controller_settings.session_timeout_s
    assert stage.loop.now - died < session + 1.0
    assert stage.now.isr == (third,)
    batch, in_a_try = stage.send(b"m1", by="refused"), gives_up == "during a try"
    stage.until(lambda: bool(batch.errors) and (batch.link is not None) == in_a_try)
    stage.give_up(batch, by="refused")
    assert set(batch.errors) == {"NOT_ENOUGH_REPLICAS"}
    assert batch.result == ("unknown" if in_a_try else "failed")
    assert stage.read_all() == [b"m0"]
    stage.restart(first)
    stage.until(lambda: len(stage.now.isr) == 2)
    stage.put(b"m2")
    stage.settle()


def test_C2_a_report_from_outside_the_isr_is_ignored():
    stage = Stage(min_insync_replicas="1")
    first, (_, third) = stage.first, stage.others
    stage.cut(third, first)
    stage.put(b"m0")
    stage.until(lambda: third not in stage.now.isr)
    before = stage.now
    stage.run_for(5.0)
    assert stage.now == before, "the server itself reports only what it is in the ISR of"
    process = stage.controller(stage.active)
    server = stage.invariants.metadata.servers[third]
    suspect = SuspectPart(*stage.key, before.epoch, before.leader_epoch)
    report = ReportLeader(third, server.broker_epoch, first, "unreachable", (suspect,))
    for _ in range(3):
        process.submit("forged", lambda: process.core.on_request(0, None, report, stage.loop.now))
        stage.run_for(0.5)
    assert stage.now == before
    stage.settle()


def test_C8_an_offset_that_a_follower_reported_to_an_earlier_leadership_does_not_count():
    """It reported in leader epoch 0. The message arrives after its leader leads again; by then the follower has fewer
    records."""
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(first, second)
    stage.send(b"stray", by="local", acks=Acks.LEADER)
    stage.until(lambda: b"stray" in stage.values(third))
    late = stage.hold(lambda sender, receiver, m: sender == third and isinstance(m, Fetch | Progress) and m.parts)
    stage.until(lambda: bool(late.messages) and late.messages[-1].parts[0].durable == 2)
    message = late.messages[-1]
    late.release()
    stage.isolate(first)
    stage.until(lambda: stage.leader == second and stage.values(third) == [b"m0"])
    stage.network.heal()
    stage.until(stage.in_sync)
    stage.kill(second)
    stage.until(lambda: stage.leads(first) and stage.now.leader_epoch == 2)
    stage.cut(first, third)
    stage.send(b"m1", by="later")
    stage.until(lambda: b"m1" in stage.values(first))
    leader = stage.processes[first]
    word = Progress(message.node, message.broker_epoch, message.parts)
    leader.submit("late", lambda: leader.core.on_request(0, None, word, stage.loop.now))
    answer = stage.ask(first, Fetch(message.node, message.broker_epoch, 1 << 20, message.parts))
    assert answer.parts[0].error.code == "FENCED_LEADER_EPOCH"
    assert stage.hw(first) == 1, "the follower's old position, past m1, is not believed"
    stage.settle()


def test_E4_a_position_on_a_line_that_was_cut_off_is_an_error_that_names_the_place():
    """A reader has the position 3 in leader epoch 0; in this log epoch 0 ended at 2."""
    stage = Stage(min_insync_replicas="1")
    stage.put(b"m0")
    stage.put(b"m1")
    stage.kill(stage.first)
    stage.until(lambda: stage.leader in stage.others and stage.leads(stage.leader))
    stage.put(b"y", by="other")
    stage.put(b"z", by="other")
    at = Read(*stage.key, offset=3, last_epoch=0)
    answer = stage.ask(stage.leader, at)
    assert isinstance(answer, TidelogError) and answer.code == "LOG_TRUNCATED"
    assert (answer.detail["end_offset"], answer.detail["leader_epoch"]) == (2, 0)
    sound = stage.ask(stage.leader, Read(*stage.key, offset=3, last_epoch=1))
    assert sound.payload
    beyond = stage.ask(stage.leader, Read(*stage.key, offset=9, last_epoch=1))
    assert beyond.code in ("LOG_TRUNCATED", "OFFSET_OUT_OF_RANGE")
    stage.settle()


def test_C4_a_leader_that_is_cut_off_answers_no_latest_offset_beside_its_successor():
    """Clients still reach it, and its session has not ended: only the confirmations of the other replicas are
    missing."""
    stage = Stage(min_insync_replicas="1")
    first = stage.first
    stage.put(b"m0")
    latest = ListOffset(*stage.key, "latest")
    assert stage.ask(first, latest).offset == 1
    stage.isolate(first)
    stage.until(lambda: stage.leader in stage.others and stage.leads(stage.leader))
    assert stage.leads(first), "it has not heard of it"
    stage.put(b"m1", by="other")
    assert stage.leads(first) and stage.hw(first) == 1
    answer = stage.ask(first, latest)
    assert isinstance(answer, TidelogError), "it would be 1, and 2 is committed"
    assert stage.ask(stage.leader, latest).offset == 2
    stage.settle()
