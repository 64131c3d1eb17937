"""C. Election and fencing."""

from __future__ import annotations

from tidelog.wire.messages import ReportLeader, SuspectPart

from scenarios.stage import Stage


def test_C1_leader_and_a_follower_die_together():
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
    batch = stage.send(b"m1", by="refused", patience=2.0)
    stage.until(lambda: batch.result != "")
    assert (batch.result, batch.errors[-1]) == ("failed", "NOT_ENOUGH_REPLICAS")
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
