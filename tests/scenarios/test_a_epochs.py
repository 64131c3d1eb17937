"""A. Leader epochs and truncation, in a whole cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tidelog.types import Acks
from tidelog.verify.history import OK, UNKNOWN
from tidelog.wire.messages import AlterIsr, EpochOffset, Fetch, FetchAnswer
from tidelog_replica.partition.follower_replica import FollowerReplica

from scenarios.stage import Stage


def hold_back_the_hw(stage: Stage) -> tuple[str, str]:
    """Commit m1 with the HW known everywhere, then m2, which is acked and on all replicas while the followers do not
    know yet that it is committed."""
    first, (second, third) = stage.first, stage.others
    stage.put(b"m1")
    stage.until(lambda: stage.hw(second) == stage.hw(third) == 1)
    batch = stage.send(b"m2")

    def committed() -> bool:
        return stage.invariants.committed_end(stage.key) == 2

    stage.until(committed)
    for follower in (second, third):
        stage.network.block(first, follower, 1e6)
    stage.until(lambda: batch.result == OK)
    assert stage.hw(second) == stage.hw(third) == 1
    return second, third


def lead_in_turn(stage: Stage, second: str, third: str) -> None:
    """Kill the leader; kill the next one as soon as it has a follower."""
    stage.kill(stage.first)
    stage.until(lambda: stage.leader in (second, third))
    heir = stage.leader
    last = third if heir == second else second
    stage.until(lambda: stage.follows(last, heir))
    stage.kill(heir)
    stage.until(lambda: stage.leader == last)


def leave_a_stray_record(stage: Stage, holder: str) -> None:
    """Kill the leader after a record that only ``holder`` has: it is not committed, and the next leader lacks it."""
    (lacking,) = (node for node in stage.others if node != holder)
    stage.cut(stage.first, lacking)
    stray = stage.send(b"stray", by="local", acks=Acks.LEADER)
    stage.until(lambda: b"stray" in stage.values(holder) and stray.result == OK)
    assert b"stray" not in stage.values(lacking)


def test_A1_followers_keep_what_is_above_their_hw_and_it_stays_readable():
    stage = Stage(min_insync_replicas="1")
    second, third = hold_back_the_hw(stage)
    lead_in_turn(stage, second, third)
    assert stage.read_all() == [b"m1", b"m2"]
    stage.settle()


def test_A1_truncating_to_the_hw_loses_an_acked_record(monkeypatch):
    """With the rule switched off: followers cut their logs at their HW, as Kafka did before KIP-101."""

    def begin(self, *arguments):
        plain(self, *arguments)
        self._log.truncate(self.core.high_watermark)
        self._producers.rebuild(self._log.segments.headers())

    plain = FollowerReplica.__init__
    stage = Stage(min_insync_replicas="1")
    stage.invariants.strict = False
    second, third = hold_back_the_hw(stage)
    monkeypatch.setattr(FollowerReplica, "__init__", begin)
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


def test_A2_a_replica_cuts_an_unflushed_record_that_the_other_replica_lost():
    stage = Stage(replicas=2, min_insync_replicas="1")
    pair = (stage.first, *stage.others)
    stage.put(b"m1")
    stage.stall_flushes(*pair)
    below_flush = stage.send(b"m2", by="hasty", acks=Acks.NONE)
    stage.until(lambda: all(stage.values(node) == [b"m1", b"m2"] for node in pair))
    stage.until(lambda: below_flush.result == OK)  # acked, but not at the level of a flush
    stage.lose_power(*pair)
    stage.resume_flushes()
    stage.until(lambda: len(stage.now.isr) == 1)
    (back,) = stage.now.isr
    (late,) = (node for node in pair if node != back)
    stage.restart(back)
    stage.until(lambda: stage.leads(back))
    assert stage.values(back) == [b"m1"]
    stage.put(b"m3")
    stage.restart(late)
    stage.until(stage.in_sync)
    assert stage.values(back) == stage.values(late) == [b"m1", b"m3"]
    stage.settle()


def test_A2_a_record_that_survived_on_one_disk_only_is_dropped_there():
    """The operating system of the machine that returns last had written m2 to its disk."""
    stage = Stage(replicas=2, min_insync_replicas="1")
    late, (back,) = stage.first, stage.others
    stage.put(b"m1")
    stage.stall_flushes(late, back)
    below_flush = stage.send(b"m2", by="hasty", acks=Acks.NONE)
    stage.until(lambda: stage.values(late) == stage.values(back) == [b"m1", b"m2"])
    stage.until(lambda: below_flush.result == OK)
    stage.write_back(late)
    stage.lose_power(late)
    stage.until(lambda: stage.now.isr == (back,))
    stage.lose_power(back)
    stage.resume_flushes()
    stage.restart(back)
    stage.until(lambda: stage.leader == back and stage.leads(back))
    assert stage.values(back) == [b"m1"]
    stage.put(b"m3")
    stage.restart(late)
    stage.until(lambda: bool(stage.happened("log_truncated", late)))
    stage.until(stage.in_sync)
    assert stage.values(late) == [b"m1", b"m3"]
    stage.settle()


def epochs(messages: Iterable[EpochOffset | Fetch]) -> set[int]:
    """Return the leader epochs that the digits name."""
    return {part.leader_epoch for message in messages for part in message.parts}


def test_A4_a_follower_that_missed_a_leader_epoch_truncates_before_it_fetches():
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    leave_a_stray_record(stage, third)
    stage.isolate(third)
    stage.kill(first)
    stage.until(lambda: stage.leader == second)
    missed = stage.now.leader_epoch
    stage.put(b"y", by="other")
    stage.network._blocked = {pair: t for pair, t in stage.network._blocked.items() if third in pair}
    stage.restart(first)
    stage.until(lambda: first in stage.now.isr)
    stage.kill(second)
    stage.until(lambda: stage.leader == first and stage.leads(first))
    assert stage.values(third) == [b"m0", b"stray"]
    asked = stage.hold(lambda sender, receiver, m: sender == third and isinstance(m, EpochOffset | Fetch))
    stage.network.heal()
    stage.until(lambda: stage.now.leader_epoch in epochs(asked.messages))
    assert missed not in epochs(asked.messages), "it hears only of the newest"
    newest = [message for message in asked.messages if stage.now.leader_epoch in epochs([message])]
    assert isinstance(newest[0], EpochOffset), "first it asks where its last epoch ends"
    asked.release()
    stage.until(lambda: third in stage.now.isr)
    assert stage.values(third) == [b"m0", b"y"]
    stage.settle()


def test_A5_elections_without_writes_and_a_conflicting_empty_epoch_end_in_agreement():
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(first)
    stage.until(lambda: stage.leader == second and third in stage.now.isr)
    stage.restart(first)
    stage.until(stage.in_sync)
    stage.cut(first, third)  # nobody will hear of what the first leader begins next
    stage.kill(second)
    stage.until(lambda: stage.leader == first and stage.leads(first))
    lonely = stage.now.leader_epoch
    stage.kill(first)
    stage.until(lambda: stage.leader == third)
    stage.network.heal()
    stage.restart(second)
    stage.until(lambda: second in stage.now.isr)
    stage.kill(third)
    stage.until(lambda: stage.leader == second and stage.leads(second))
    questions = stage.hold(lambda sender, receiver, m: sender == first and isinstance(m, EpochOffset))
    stage.restart(first)
    stage.until(lambda: bool(questions.messages))
    (part,) = questions.messages[0].parts
    assert part.epoch == lonely, "its last epoch is empty, and the leader has never heard of it"
    questions.release()
    stage.until(lambda: first in stage.now.isr, 3.0)
    stage.put(b"m1")
    stage.settle()
    assert stage.values(first) == [b"m0", b"m1"]


def test_A8_a_returning_leader_replaces_its_uncommitted_record_by_the_committed_one():
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


def test_A9_a_follower_that_cannot_reach_its_new_leader_waits_and_cuts_nothing():
    stage = Stage(min_insync_replicas="1")
    second, third = hold_back_the_hw(stage)
    stage.cut(second, third)
    stage.kill(stage.first)
    stage.until(lambda: stage.leader == second and stage.follows(third, second))
    stage.isolate(third)  # its reports would make it the leader
    stage.always(lambda: None if stage.values(third) == [b"m1", b"m2"] else pytest.fail("it cut its log"))
    stage.run_for(10.0)
    assert stage.hw(third) == 1, "all that time its HW was below its log end"
    assert stage.follows(third, second)
    stage.settle()


def test_A10_a_leader_that_lost_its_tail_and_returns_within_its_session_leads_in_a_new_epoch():
    stage = Stage(replicas=2, min_insync_replicas="1")
    first, (second,) = stage.first, stage.others
    stage.put(b"m0")
    stage.kill(second)
    stage.until(lambda: stage.now.isr == (first,))
    stage.hold(lambda sender, receiver, m: isinstance(m, AlterIsr))  # the other is not added to the ISR
    stage.restart(second)
    stage.stall_flushes(first)
    stage.send(b"lost by the leader", by="hasty", acks=Acks.NONE)
    stage.until(lambda: stage.values(second) == [b"m0", b"lost by the leader"])
    assert stage.now.isr == (first,)
    before = stage.now
    stage.lose_power(first)
    stage.resume_flushes()
    stage.restart(first)
    stage.until(lambda: stage.leads(first))
    assert stage.now.leader_epoch == before.leader_epoch + 1
    assert stage.changes[-1].cause == "registered", "its session had not ended"
    stage.put(b"m1")
    stage.settle()
    assert stage.values(first) == stage.values(second) == [b"m0", b"m1"]


def test_A11_a_follower_with_a_longer_log_than_its_leader_is_reconciled_and_stays_up():
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"m0")
    leave_a_stray_record(stage, third)
    stage.kill(first)
    lives = stage.processes[third].life
    stage.until(lambda: stage.leader == second and stage.follows(third, second))
    stage.until(lambda: stage.values(third) == [b"m0"])
    assert stage.processes[third].running and stage.processes[third].life == lives
    assert not stage.happened("partition_offline")
    stage.put(b"m1")
    stage.settle()


@pytest.mark.parametrize("damage", ["missing", "empty", "first entry only", "garbage"])
def test_A12_a_lost_epoch_cache_is_rebuilt_from_the_batches(damage):
    stage = Stage(min_insync_replicas="1")
    first, (second, third) = stage.first, stage.others
    stage.put(b"a", by="one")
    stage.kill(first)
    stage.until(lambda: stage.leader == second and stage.leads(second))
    stage.put(b"b", by="two")
    stage.restart(first)
    stage.until(stage.in_sync)
    stage.kill(second)
    stage.until(lambda: stage.leader == first and stage.leads(first))
    stage.put(b"c", by="three")
    stage.until(lambda: stage.values(third) == [b"a", b"b", b"c"] and stage.durable(third) == 3)
    stage.kill(third)
    disk, path = stage.replica(third).disk, f"{stage.directory()}/leader-epochs"
    whole = disk.read(path)
    if damage == "missing":
        disk.unlink(path)
    else:
        disk.replace(
            path, {"empty": b"", "first entry only": whole[:20], "garbage": bytes(range(len(whole)))}[damage]
        )
    stage.restart(third)
    stage.until(lambda: stage.follows(third, first))
    assert stage.values(third) == [b"a", b"b", b"c"]
    assert disk.read(path) == whole
    stage.until(lambda: third in stage.now.isr)
    assert not stage.happened("log_truncated", third)
    stage.settle()


def test_the_hw_travels_only_with_fetch_answers():
    """The assumption of ``hold_back_the_hw``: a follower whose answers are lost learns no newer HW."""
    stage = Stage()
    second = stage.others[0]
    stage.put(b"m0")
    stage.until(lambda: stage.hw(second) == 1)
    stage.hold(lambda sender, receiver, m: receiver == second and isinstance(m, FetchAnswer))
    stage.send(b"m1")
    stage.run_for(1.0)
    assert stage.hw(second) == 1
    stage.settle()
