"""Scenarios of the list, each under its id, on the simulated cluster."""

from __future__ import annotations

import pytest
from simulation.history import OK, UNKNOWN
from simulation.views import view
from tidelog.types import Acks
from tidelog.wire.messages import AlterIsr, ReportLeader, SuspectPart
from tidelog_replica.following import Following

from scenarios.stage import Stage


def node_hw(stage: Stage, node: str) -> int:
    return view(stage.replica(node).core.partitions[stage.key]).high_watermark


def hold_back_the_hw(stage: Stage) -> tuple[str, str]:
    """m1 is known as committed everywhere; m2 is acked and on all replicas, but the followers have not heard yet
    that it is committed."""
    first, (second, third) = stage.first, stage.others
    stage.put(b"m1")
    stage.until(lambda: node_hw(stage, second) == node_hw(stage, third) == 1)
    batch = stage.send(b"m2")

    def committed() -> bool:
        return stage.invariants.committed_end(stage.key) == 2

    stage.until(committed)
    for follower in (second, third):
        stage.network.block(first, follower, 1e6)
    stage.until(lambda: batch.result == OK)
    assert node_hw(stage, second) == node_hw(stage, third) == 1
    return second, third


def lead_in_turn(stage: Stage, second: str, third: str) -> None:
    """The leader dies; as soon as the next one has a follower, that leader dies as well."""
    stage.kill(stage.first)
    stage.until(lambda: stage.leader in (second, third))
    heir = stage.leader
    last = third if heir == second else second

    def follows() -> bool:
        following = stage.replica(last).core.partitions[stage.key].following
        return following is not None and following.core.leader == heir

    stage.until(follows)
    stage.kill(heir)
    stage.until(lambda: stage.leader == last)


def test_A1_followers_keep_what_is_above_their_hw_and_it_stays_readable():
    stage = Stage(min_insync_replicas="1")
    second, third = hold_back_the_hw(stage)
    lead_in_turn(stage, second, third)
    assert stage.read_all() == [b"m1", b"m2"]
    stage.settle()


def test_A1_truncating_to_the_hw_loses_an_acked_record(monkeypatch):
    """The switch: followers cut their logs at their HW, as Kafka did before KIP-101."""

    def begin(self, *arguments):
        plain(self, *arguments)
        self._log.truncate(self.core.high_watermark)
        self._producers.rebuild(self._log.headers())

    plain = Following.__init__
    stage = Stage(min_insync_replicas="1")
    stage.invariants.strict = False
    second, third = hold_back_the_hw(stage)
    monkeypatch.setattr(Following, "__init__", begin)
    lead_in_turn(stage, second, third)
    stage.until(lambda: stage.leads(stage.leader))
    assert stage.values(stage.leader) == [b"m1"], "m2 was acked, and is gone"
    assert any(text.startswith("R3") for text in stage.invariants.violations)


def test_A1_restarted_follower_keeps_its_log_when_the_leader_dies_at_once():
    stage = Stage(replicas=2, min_insync_replicas="1")
    first, (second,) = stage.first, stage.others
    stage.put(b"m1")
    stage.put(b"m2")
    stage.kill(second)
    stage.restart(second)
    stage.kill(first)
    stage.run_for(2.0)
    stage.restart(first)
    stage.until(lambda: stage.leader != "" and stage.processes[stage.leader].running)
    assert stage.read_all() == [b"m1", b"m2"]
    stage.settle()


def test_A8_a_returning_leader_takes_what_was_committed_at_its_uncommitted_offset():
    stage = Stage()
    first = stage.first
    stage.put(b"m0")
    stage.send(b"doomed", by="local", acks=Acks.LEADER)
    stage.put(b"m1")
    stage.isolate(first)
    stray = stage.send(b"never committed", by="local", acks=Acks.LEADER)
    stage.until(lambda: b"never committed" in stage.values(first))
    stage.until(lambda: stage.leader not in ("", first))
    second = stage.leader
    stage.put(b"y", by="other")
    offset = stage.values(second).index(b"y")
    assert stage.values(first)[offset] == b"never committed"
    stage.kill(second)
    stage.until(lambda: stage.leader not in ("", first, second))
    stage.network.heal()
    stage.until(lambda: first in stage.now.isr)
    assert stage.values(first)[offset] == b"y"
    assert stray.result in (OK, UNKNOWN)  # acked by the leader alone: may be lost
    stage.settle()


@pytest.mark.parametrize("seconds_late", [0.0, 1.0])
def test_B1_a_proposed_member_counts_before_the_answer_comes(seconds_late):
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.kill(third)
    stage.put(b"m0")
    stage.until(lambda: third not in stage.now.isr)
    stage.restart(third)
    proposed = watch_for_proposal(stage, third)
    stage.until(lambda: bool(proposed))
    for controller in stage.controllers:  # the answer, and the metadata, do not reach the leader
        stage.network.block(controller, first, 1e6)
    stage.network.block(third, first, 1e6)  # and the new member takes nothing more
    stage.until(lambda: third in stage.now.isr)
    stage.run_for(seconds_late)
    batch = stage.send(b"m1")
    stage.run_for(0.5)
    assert batch.result != OK, "acked without a member of the ISR"
    stage.kill(first, second)
    stage.until(lambda: stage.leader == third)
    stage.settle()


def watch_for_proposal(stage: Stage, node: str) -> list[AlterIsr]:
    """Proposals that would add the node, as the leader makes them."""
    found: list[AlterIsr] = []
    process = stage.replica(stage.leader)
    perform = process.perform

    def look(effect):
        message = getattr(effect, "message", None)
        if isinstance(message, AlterIsr) and node in [member.node for member in message.isr]:
            found.append(message)
        perform(effect)

    process.perform = look  # type: ignore[method-assign]
    return found


def test_B10_a_dead_follower_is_removed_by_the_leaders_timer_and_the_hw_moves_on():
    stage = Stage()
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.cut(third, first)  # it keeps its session: only the leader can notice
    began = stage.loop.now
    stage.put(b"m1")
    assert stage.loop.now - began < 2.0 + 1.0, "replica_max_lag_ms and the way to the controller"
    assert stage.now.isr == tuple(node for node in stage.now.replicas if node != third)
    assert stage.leader == first
    assert node_hw(stage, first) == 2
    stage.until(lambda: node_hw(stage, second) == 2)
    stage.settle()


def test_C1_leader_and_a_follower_die_together():
    stage = Stage(min_insync_replicas="2")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.until(
        lambda: node_hw(stage, third) == 1
    )  # what it does not know as committed must wait for a second member
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
