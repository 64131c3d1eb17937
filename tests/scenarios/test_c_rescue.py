"""C20. The metadata go back: a survivor that lags is rescued while the replica servers keep serving."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidelog.cli.explain.sentences import event_in_words
from tidelog.testing.cluster import TopicOptions
from tidelog.wire.messages import AllocateProducerIds, AlterIsr, History, ProducerIds, Reassign
from tidelog_controller.rescue import plan_rescue

from scenarios.stage import Stage


class Rescued(Stage):
    """A stage with helpers that stop a controller early, destroy the stores of the others, and rescue the stopped
    one."""

    def leave_behind(self) -> str:
        """Stop a controller that is not active and return its name. Its store lacks all later decisions."""
        self.until(self.controllers_agree)
        survivor = next(name for name in self.controllers if name != self.active)
        self.kill(survivor)
        return survivor

    def lose_majority(self, survivor: str) -> None:
        """Stop all controllers but ``survivor``, and delete their stores."""
        for name in self.controllers:
            process = self.controller(name)
            if process.running:
                process.stop(power=False)
            if name != survivor:
                process.lose_store()

    def rescue(self, survivor: str, *, beyond: int = 0, far: bool = True) -> None:
        """Rewrite the store of ``survivor`` by a rescue plan, and start it as the only controller. The plan chooses a
        metadata index above ``beyond``. With ``far``, check at once that the numbers that must not be given twice are
        beyond all that were given before, whether or not servers report them (R5)."""
        process = self.controller(survivor)
        url, wall_ms = f"sim://{survivor}", process.wall_ms()
        process.store.perform(plan_rescue(process.store.stored, self.name, survivor, url, wall_ms, beyond=beyond))
        if far:
            self.invariants.on_rescue(process.store)
        else:
            self.invariants.on_restore(process.store)
        process.start()

    def go_back(self, survivor: str) -> None:
        """Lose all controllers but ``survivor``, and rescue it."""
        self.lose_majority(survivor)
        self.rescue(survivor)

    def ask_controller(self, request: Any) -> Any:
        """Pass a request to the active controller, run the simulation until it answers, and return the answer or the
        error."""
        answers: list[Any] = []
        process = self.controller(self.active)
        perform = process.perform

        def listen(effect: Any) -> None:
            if getattr(effect, "source", None) == -7 and hasattr(effect, "id"):
                answers.append(effect.message)
            else:
                perform(effect)

        def ask() -> Any:
            return process.core.on_request(-7, 1, request, self.loop.now, wall_ms=process.wall_ms())

        process.perform = listen  # type: ignore[method-assign]
        process.submit("asked", ask)
        self.until(lambda: bool(answers))
        process.perform = perform  # type: ignore[method-assign]
        return answers[0]

    def put_as(self, producer_id: int, value: bytes) -> None:
        """Write ``value`` by a new idempotent producer with this producer id, and wait until it is committed."""
        self.last_producer_id = producer_id - 1  # the next that a simulated producer takes
        self.put(value, by=f"producer {producer_id}")

    def ids(self, count: int = 1000) -> range:
        """Allocate a block of producer ids from the active controller, as a gateway does, and return it."""
        answer = self.ask_controller(AllocateProducerIds(count))
        assert isinstance(answer, ProducerIds), answer
        return range(answer.first, answer.first + answer.count)


def shrunk_isr(stage: Rescued, *gone: str) -> None:
    """Isolate these followers and run until none of them is in the ISR."""
    stage.isolate(gone[0])
    for node in gone[1:]:
        stage.isolate(node)
    stage.until(lambda: not set(gone) & set(stage.now.isr))


@pytest.mark.parametrize("clock_ms", (0, -3_600_000, 365 * 86_400_000))
def test_C20_producer_ids_that_were_taken_while_the_survivor_was_down_are_not_given_again(clock_ms: int):
    """This holds also if the clock of the survivor is an hour behind the clocks of the others, or a year ahead."""
    stage = Rescued()
    survivor = stage.leave_behind()
    taken = set(stage.ids()) | set(stage.ids())
    stage.controller(survivor).clock_skew_ms += clock_ms
    stage.go_back(survivor)
    stage.until(lambda: stage.controller(survivor).core.active)
    assert not taken & set(stage.ids())
    stage.settle()


def test_C20_a_clock_that_was_a_year_ahead_and_is_set_right_gives_no_id_twice():
    stage = Rescued()
    year = 365 * 86_400_000
    for name in stage.controllers:
        stage.controller(name).clock_skew_ms += year
    taken = set(stage.ids())
    for name in stage.controllers:
        stage.controller(name).clock_skew_ms -= year
    assert not taken & set(stage.ids())
    survivor = stage.leave_behind()
    taken |= set(stage.ids())
    stage.go_back(survivor)
    stage.until(lambda: stage.controller(survivor).core.active)
    assert not taken & set(stage.ids())


def restored(stage: Rescued, decide: Callable[[], None]) -> None:
    """Restore old copies of all stores of the controllers, without a rescue: all controllers, and only they, forget
    the effects of ``decide``."""
    stage.until(stage.controllers_agree)
    copies = {name: stage.controller(name).store.load() for name in stage.controllers}
    decide()
    stage.kill(*stage.controllers)
    for name, copy in copies.items():
        stage.controller(name).store.stored = copy
    stage.invariants.on_restore(stage.controller(stage.controllers[0]).store)
    stage.restart(*stage.controllers)
    stage.until(lambda: any(stage.controller(name).core.active for name in stage.controllers))


def test_C20_stores_that_were_restored_from_an_old_copy_are_noticed_and_rule_nobody():
    """The servers have seen newer metadata: they refuse to register until one controller has been rescued."""
    stage = Rescued(min_insync_replicas="2")
    first = stage.first
    stage.put(b"m0")

    def decide() -> None:
        stage.isolate(first, clients=True)
        stage.until(lambda: stage.leader not in ("", first) and stage.leads(stage.leader))
        stage.put(b"m1")
        stage.network.heal()
        stage.until(stage.in_sync)

    restored(stage, decide)
    stage.run_for(10.0)
    assert {node for node, event in stage.events if event.name == "registration_refused"} == set(stage.replicas)
    assert stage.ask_controller(AllocateProducerIds(1)).code == "METADATA_WENT_BACK"
    survivor = stage.active
    stage.go_back(survivor)
    stage.until(stage.in_sync, 30.0)
    stage.put(b"m2")
    stage.settle()
    assert stage.values(first) == [b"m0", b"m1", b"m2"]


def test_C20_records_acked_under_an_isr_unknown_to_the_survivor_are_kept():
    """In the metadata of the survivor the ISR has three members, and the leader is one that was replaced since and
    lags."""
    stage = Rescued(min_insync_replicas="2")
    first = stage.first
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.isolate(first, clients=True)
    stage.until(lambda: stage.leader not in ("", first) and stage.leads(stage.leader))
    stage.put(b"m1", b"m2")
    assert stage.end(first) == 1
    stage.lose_majority(survivor)
    stage.network.heal()
    stage.rescue(survivor)
    stage.until(lambda: bool(stage.leader), 40.0)
    stage.put(b"m3")
    stage.settle()
    assert stage.values(first) == [b"m0", b"m1", b"m2", b"m3"]


def test_C20_a_leader_alone_in_its_isr_leads_on_without_waiting_for_lost_followers():
    """The followers left the ISR and never come back. The leader knows that no other replica can have led after
    it."""
    stage = Rescued(min_insync_replicas="1")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    survivor = stage.leave_behind()
    shrunk_isr(stage, *others)
    stage.put(b"m1")
    stage.lose_majority(survivor)
    stage.kill(*others)
    stage.network.heal()
    stage.rescue(survivor)
    stage.until(lambda: stage.leader == first and stage.leads(first), 10.0)
    stage.put(b"m2")
    stage.settle()
    assert stage.values(first) == [b"m0", b"m1", b"m2"]


def test_C20_nobody_leads_while_only_those_are_there_that_may_lack_something():
    """The replica that is down may be the only one with all acked records, so the controller waits for it."""
    stage = Rescued(min_insync_replicas="1")
    first, others = stage.first, stage.others
    stage.put(b"m0")
    survivor = stage.leave_behind()
    shrunk_isr(stage, *others)
    stage.put(b"m1")
    stage.lose_majority(survivor)
    stage.kill(first)
    stage.network.heal()
    stage.rescue(survivor)
    stage.run_for(15.0)
    assert stage.leader == ""
    told = stage.ask_controller(History(*stage.key)).entries[-1]
    assert told.event == "awaiting" and told.evidence["awaited"] == told.evidence["down"] == first
    assert f"waiting for one or more of {first}; down: {first}" in event_in_words(told)
    stage.restart(first)
    stage.until(lambda: stage.leader == first)
    stage.settle()
    assert stage.values(others[0]) == [b"m0", b"m1"]


@pytest.mark.parametrize("restarted", (False, True))
def test_C20_a_single_replica_whose_restart_is_unknown_to_the_survivor_leads_again_at_once(restarted: bool):
    """The broker epoch that the survivor knows for the server is older than the last one in the server's
    directory."""
    stage = Rescued(replicas=1, servers=2)
    first = stage.first
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.kill(first)
    stage.restart(first)
    stage.until(lambda: stage.leads(first))
    stage.put(b"m1")
    stage.lose_majority(survivor)
    if restarted:
        stage.kill(first)
    stage.rescue(survivor)
    if restarted:
        stage.restart(first)
    stage.until(lambda: stage.leads(first), 5.0)
    stage.put(b"m2")
    stage.settle()
    assert stage.values(first) == [b"m0", b"m1", b"m2"]


def test_C20_a_directory_that_is_older_than_the_survivor_vouches_for_nothing():
    """A directory that was restored from an old copy does not count as newer than the metadata, although the metadata
    went back too."""
    stage = Rescued(replicas=1, servers=2)
    first = stage.first
    stage.put(b"m0")
    stage.lose_power(first)
    old = stage.replica(first).disk.clone()
    stage.restart(first)
    stage.until(lambda: stage.leads(first))
    stage.put(b"m1")
    survivor = stage.leave_behind()
    stage.lose_majority(survivor)
    stage.lose_power(first)
    stage.replace_disk(first, old)
    stage.rescue(survivor)
    stage.restart(first)
    stage.run_for(15.0)
    assert stage.leader == ""


def test_C20_a_topic_that_the_survivor_does_not_know_keeps_its_data():
    stage = Rescued()
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.admin.create(TopicOptions("new", 1, 3, {}))
    stage.until(lambda: len(stage.partitions) == 2 and stage.in_sync())
    key = stage.partitions[1]
    stage.run_for(1.0)
    stage.go_back(survivor)
    stage.partitions.remove(key)
    stage.until(stage.in_sync, 30.0)
    stage.run_for(5.0)
    for node in stage.replicas:
        assert stage.files(node, ".log", key), f"{node} has deleted a copy that no controller named as deleted"
    stage.settle()


def test_C20_a_second_rescue_from_the_same_copy_jumps_beyond_the_first():
    stage = Rescued()
    stage.put(b"m0")
    survivor = stage.leave_behind()
    old = stage.controller(survivor).store.load()
    stage.put(b"m1")
    stage.go_back(survivor)
    stage.until(stage.in_sync, 30.0)
    taken = set(stage.ids())
    stage.put(b"m2")
    stage.run_for(5.0)
    stage.controller(survivor).stop(power=False)
    stage.controller(survivor).store.stored = old
    stage.rescue(survivor)
    stage.until(stage.in_sync, 30.0)
    assert not taken & set(stage.ids())
    stage.put(b"m3")
    stage.settle()
    assert stage.values(stage.first) == [b"m0", b"m1", b"m2", b"m3"]


def test_C20_the_epochs_that_replicas_report_count_where_the_clock_is_wrong():
    """The survivor is rescued twice from one copy, with a clock that was never set. Without the reports, the second
    rescue would give the numbers of the first again."""
    stage = Rescued()
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.controller(survivor).clock_skew_ms -= 10 * 365 * 86_400_000
    old = stage.controller(survivor).store.load()
    stage.go_back(survivor)
    stage.until(stage.in_sync, 30.0)
    taken = stage.ids()
    stage.put_as(taken[7], b"m1")
    stage.run_for(6.0)  # a heartbeat in five seconds tells of ids
    seen, led = stage.now.leader_epoch, stage.invariants.metadata.index
    stage.controller(survivor).stop(power=False)
    stage.controller(survivor).store.stored = old
    stage.rescue(survivor, beyond=led, far=False)
    stage.until(stage.in_sync, 30.0)
    assert stage.now.leader_epoch > seen
    assert stage.ids()[0] > taken[7]
    stage.put(b"m2")
    stage.settle()
    assert stage.values(stage.first) == [b"m0", b"m1", b"m2"]


@pytest.mark.parametrize("away", (False, True))
def test_C20_a_copy_that_was_deleted_since_vouches_for_nothing_and_the_newest_ones_are_kept(away: bool):
    """A reassignment that the survivor does not know moved a copy from the first server to the fourth. The acked
    record is on the fourth server and on one other."""
    stage = Rescued(servers=4, min_insync_replicas="2")
    first, others = stage.first, stage.others
    fourth = next(node for node in stage.replicas if node not in stage.now.replicas)
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.ask_controller(Reassign("t", 0, (fourth, *others)))
    stage.until(lambda: not stage.now.target and stage.in_sync(), 30.0)
    stage.until(lambda: stage.partition(first) is None)
    behind = others[0] if stage.leader != others[0] else others[1]
    last = next(node for node in others if node != behind)
    shrunk_isr(stage, behind)
    stage.put(b"m1")
    assert stage.end(behind) == 1
    stage.lose_majority(survivor)
    stage.kill(last, *([fourth] if away else []))
    stage.network.heal()
    stage.rescue(survivor)
    stage.run_for(10.0)
    assert stage.leader == "", f"{first} has deleted its copy, and {behind} lacks a record"
    assert stage.files(fourth, ".log"), "the newest copy was deleted before anybody led"
    stage.restart(last)
    stage.until(lambda: stage.leader in (last, fourth))
    stage.settle()
    assert all(stage.values(node) == [b"m0", b"m1"] for node in stage.now.replicas)


def test_C20_a_single_replica_that_was_moved_since_leads_where_it_is():
    """In the metadata of the survivor the replica is still on the server that has deleted its copy."""
    stage = Rescued(replicas=1, servers=2)
    first = stage.first
    second = next(node for node in stage.replicas if node != first)
    stage.put(b"m0")
    survivor = stage.leave_behind()
    stage.ask_controller(Reassign("t", 0, (second,)))
    stage.until(lambda: stage.now.replicas == (second,) and stage.partition(first) is None and stage.leads(second))
    stage.put(b"m1")
    stage.go_back(survivor)
    stage.until(lambda: stage.leads(second))
    stage.put(b"m2")
    stage.settle()
    assert stage.values(second) == [b"m0", b"m1", b"m2"]


def test_C20_an_isr_proposal_from_before_the_rescue_changes_nothing():
    """The proposal was under way when the controllers were lost, and arrives at the rescued controller, which rejects
    it."""
    stage = Rescued(min_insync_replicas="1")
    stage.put(b"m0")
    survivor = stage.leave_behind()
    held = stage.hold(lambda sender, receiver, m: isinstance(m, AlterIsr))
    stage.cut(stage.first, stage.others[0])
    batch = stage.send(b"m1")
    stage.until(lambda: bool(held.messages))
    proposal = held.messages[0]
    stage.lose_majority(survivor)
    stage.network.heal()
    stage.rescue(survivor)
    stage.until(lambda: bool(stage.leader), 30.0)
    known = stage.now
    assert stage.ask_controller(proposal).code in ("FENCED_BROKER_EPOCH", "NOT_LEADER", "FENCED_LEADER_EPOCH")
    assert stage.now == known
    held.holding = False
    stage.until(lambda: batch.result != "")
    stage.settle()
