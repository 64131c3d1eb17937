"""C. The controllers: paused, cut off, changed and without their disks while the cluster works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.testing.cluster import Cluster, Options, TopicOptions
from tidelog.testing.options import CONTROLLER_SETTINGS
from tidelog.testing.processes.controller import RaftStore
from tidelog.wire.messages import (
    AllocateProducerIds,
    AppendEntries,
    CreateTopic,
    History,
    InstallSnapshot,
    RemoveController,
    RequestVote,
)
from tidelog_controller.raft.membership import Configuration

from scenarios.stage import Stage


class Group(Stage):
    """A stage that also blocks messages between controllers and sends them requests."""

    def active_controller(self) -> Any:
        """Return the process of the active controller."""
        return self.controller(self.active)

    def request(self, name: str, message: Any) -> list[Any]:
        """Send a request to a controller over a link of its own. The returned list gets the answer when it comes."""
        answers: list[Any] = []
        process = self.controller(name)
        number = self._number = getattr(self, "_number", 0) - 1
        perform = process.perform

        def listen(effect: Any) -> None:
            if getattr(effect, "source", None) == number and hasattr(effect, "id"):
                answers.append(effect.message)
            else:
                perform(effect)

        process.perform = listen  # type: ignore[method-assign]
        process.submit("asked", lambda: process.core.on_request(number, 1, message, self.loop.now))
        return answers

    def on_the_way(self, change: Callable[[str, str, Any], bool]) -> None:
        """Pass every message between controllers through ``change``, which may drop it."""
        datagram = self.network.datagram

        def carry(sender: str, target: str, message: Any) -> None:
            if change(sender, target, message):
                datagram(sender, target, message)

        self.network.datagram = carry  # type: ignore[method-assign]

    def voters(self) -> set[str]:
        """Return the voters of the newest committed configuration."""
        return {voter.node for voter in self.invariants.members.voters}

    def lose(self, name: str, *, damaged: bool = False) -> None:
        """Restart a controller with an empty disk; ``damaged``: in place of a store that it could not read."""
        process = self.controller(name)
        process.stop(power=False)
        if damaged:
            process.store = RaftStore(f"store 2 of {name}", lost=True)
        else:
            process.lose_store()
        process.start()


def test_C6_an_election_that_only_its_controller_knows_of_is_learned_by_everyone_and_not_repeated():
    """The active controller dies after it has committed the election, before any other process has heard of it."""
    stage = Group(min_insync_replicas="2")
    first, active = stage.first, stage.active
    stage.put(b"m0")
    stage.until(stage.controllers_agree)
    known = stage.controller(active).core.metadata_log.raft.commit_index
    stage.on_the_way(lambda sender, target, m: sender != active or getattr(m, "commit", 0) <= known)
    stage.hold(lambda sender, receiver, m: sender == active)
    stage.kill(first)
    stage.until(lambda: stage.leader not in ("", first))
    elected = stage.now
    stage.kill(active)
    others = [name for name in stage.controllers if name != active]
    assert all(stage.controller(name).core.state.partition(*stage.key).leader == first for name in others)
    assert not stage.leads(elected.leader or "")
    stage.until(lambda: stage.leads(elected.leader or ""))
    stage.put(b"m1")
    assert stage.now.leader_epoch == elected.leader_epoch == 1
    assert [change.leader for change in stage.changes if change.event == "leader_elected"] == [elected.leader]
    stage.settle()
    for name in stage.controllers:
        assert stage.controller(name).core.state.partition(*stage.key).leader_epoch == 1


def test_C7_a_paused_active_controller_resumes_and_its_decisions_are_refused():
    """It hears nothing for 30 s; when it continues, it believes for a moment that all servers are dead."""
    stage = Group()
    first = stage.active
    stage.put(b"m0")
    stage.controller(first).freeze(30.0)
    read = stage.request(first, History(*stage.key))
    stage.until(lambda: any(stage.controller(c).core.active for c in stage.controllers if c != first))
    stage.put(b"m1")
    stage.run_for(10.0)  # all servers have found the new one
    fenced = len(stage.happened("server_fenced"))
    stage.run_for(31.0)
    assert stage.controller(first).core.metadata_log.raft.role == "follower"
    assert len(stage.happened("server_fenced")) == fenced, "its decisions to fence are refused by term"
    assert [answer.code for answer in read] == ["NOT_ACTIVE_CONTROLLER"], "it may not answer from its old state"
    stage.put(b"m2")
    stage.settle()


def test_C12_a_change_of_the_group_while_its_leader_is_cut_off_comes_to_nothing():
    """Only the old leader has the new configuration, and it is truncated there."""
    stage = Group()
    first = stage.active
    others = [name for name in stage.controllers if name != first]
    stage.put(b"m0")
    stage.cut(first, *others)
    answers = stage.request(first, RemoveController(others[0]))
    stage.run_for(0.1)
    assert stage.controller(first).core.metadata_log.raft.members.find(others[0]) is None
    stage.until(lambda: any(stage.controller(name).core.active for name in others))
    stage.put(b"m1")
    assert [answer.unknown_outcome for answer in answers] == [True]
    stage.settle()
    assert stage.voters() == set(stage.controllers)
    assert stage.controller(first).core.metadata_log.raft.members == stage.invariants.members


def test_C12_a_removal_that_breaks_the_quorum_is_refused():
    stage = Group()
    first = stage.active
    down, up = (name for name in stage.controllers if name != first)
    stage.kill(down)
    stage.run_for(2.0)
    refused = stage.request(first, RemoveController(up))
    stage.run_for(0.5)
    assert [answer.code for answer in refused] == ["QUORUM_AT_RISK"]
    stage.put(b"m0")
    done = stage.request(first, RemoveController(down))
    stage.until(lambda: stage.voters() == {first, up})
    assert len(done) == 1 and not isinstance(done[0], Exception)
    stage.settle()


def test_C13_a_controller_whose_store_is_damaged_gets_everything_again_and_nobody_deletes_data():
    stage = Group()
    first = stage.active
    lost, other = (name for name in stage.controllers if name != first)
    stage.put(b"m0")
    stage.lose(lost, damaged=True)
    stage.until(lambda: bool(stage.happened("controller_store_lost", first)))
    stage.until(lambda: stage.controller(lost).core.state == stage.controller(first).core.state)
    assert not stage.controller(lost).core.metadata_log.raft.is_voter
    assert all(stage.values(node) == [b"m0"] for node in stage.replicas)

    stage.kill(other)
    stage.run_for(5.0)
    assert not any(stage.controller(name).core.active for name in (first, lost)), "one vote of three"
    stage.restart(other)
    stage.until(lambda: any(stage.controller(name).core.active for name in (first, other)))
    stage.admin.add_controller(lost)
    stage.until(lambda: stage.admin.done and stage.controller(lost).core.metadata_log.raft.is_voter)
    stage.kill(other)
    stage.until(lambda: any(stage.controller(name).core.active for name in (first, lost)))
    stage.put(b"m1")
    stage.settle()
    assert all(stage.values(node) == [b"m0", b"m1"] for node in stage.replicas)


def test_C13_a_majority_without_memory_founds_no_second_cluster():
    """Two of three disks are lost at once: better no metadata service than an empty one."""
    stage = Group()
    kept, *lost = stage.controllers
    stage.put(b"m0")
    for name in lost:
        stage.lose(name)
    stage.run_for(20.0)
    assert not any(stage.controller(name).core.active for name in stage.controllers)
    assert all(not stage.controller(name).core.metadata_log.bootstrap.founded for name in lost)
    assert all(stage.controller(name).core.metadata_log.bootstrap.lost for name in lost)
    assert stage.controller(kept).core.state.topics
    assert all(stage.values(node) == [b"m0"] for node in stage.replicas)


def group_with_an_old_copy(*away: str, commands: int = 20) -> tuple[Group, str, str, str, list[str]]:
    """Return the active controller; one that returns with a copy of its disk from before the last so many commands;
    the third; and the set of roles ("first", "third") that are cut off, at first ``away``, which the test may
    change."""
    stage = Group()
    first = stage.active
    old, third = (name for name in stage.controllers if name != first)
    stage.put(b"m0")
    copy = stage.controller(old).store.copy()
    for number in range(commands):
        stage.admin.alter("t", {"replica_max_lag_ms": str(2000 + number)})
        stage.until(lambda: stage.admin.done)
    stage.run_for(1.0)
    stage.kill(old)
    stage.controller(old).store = copy
    gone, names = list(away), {first: "first", third: "third", old: "old"}
    stage.on_the_way(lambda sender, target, message: names[sender] not in gone and names[target] not in gone)
    stage.restart(old)
    return stage, first, old, third, gone


def test_C21_a_controller_with_an_old_disk_is_refilled_and_then_two_of_three_go_on():
    stage, first, old, third, _ = group_with_an_old_copy()
    stage.until(lambda: bool(stage.happened("controller_refilled", first)))
    assert len(stage.happened("raft_store_rolled_back", old)) == 1
    process = stage.controller(old)
    assert process.core.metadata_log.raft.is_voter and not process.store.stored.rolled_back
    stage.kill(third)
    stage.admin.alter("t", {"replica_max_lag_ms": "3000"})
    stage.until(lambda: stage.admin.done)
    stage.settle()
    assert all(stage.values(node) == [b"m0"] for node in stage.replicas)


def test_C21_an_old_copy_of_a_disk_does_not_count_before_it_is_refilled():
    """With the third controller cut off, no majority has confirmed that the active controller still leads since the
    old disk came."""
    stage, first, old, _, _ = group_with_an_old_copy("third")
    leader = stage.controller(first)
    committed = leader.core.metadata_log.raft.commit_index
    stage.until(lambda: stage.controller(old).store.stored.rolled_back)
    answers = stage.request(first, CreateTopic("new", 1, 3))
    stage.run_for(0.4)
    index = leader.core.metadata_log.raft.log.last_index
    assert stage.controller(old).store.last_index == index > committed, "it has the entry"
    assert leader.core.metadata_log.raft.commit_index == committed and not answers, "which does not commit it"


def test_C21_an_old_copy_of_a_disk_votes_for_nobody_and_the_disk_that_is_needed_is_named():
    """Both other controllers restart, so only the old disk itself records that it is old."""
    stage, first, old, third, gone = group_with_an_old_copy("third")
    stage.until(lambda: stage.controller(old).store.stored.rolled_back)
    for name in stage.controllers:
        stage.kill(name)
    gone.clear()
    stage.restart(old)
    stage.restart(third)
    stage.run_for(10.0)
    assert not any(stage.controller(name).core.active for name in (old, third))
    assert stage.happened("raft_disk_needed", third)[0].fields == {"rolled_back": (old,), "needed": (first,)}
    assert stage.controller(third).core.metadata_log.quorum(stage.loop.now).disks_needed == (first,)
    stage.restart(first)
    stage.until(lambda: not stage.controller(old).store.stored.rolled_back)
    stage.put(b"m1")
    stage.settle()


def test_C21_an_old_copy_of_a_disk_counts_only_when_it_has_all_that_was_committed():
    """Heartbeats arrive, and the missing entries do not."""
    stage, first, old, _, _ = group_with_an_old_copy(commands=2)
    passing = False
    stage.on_the_way(lambda sender, target, message: passing or target != old or not getattr(message, "payload", b""))
    stage.run_for(2.0)
    raft = stage.controller(first).core.metadata_log.raft
    assert raft._may_refill(raft._progress[old]) and stage.controller(old).core.metadata_log.raft.rolled_back
    passing = True
    stage.until(lambda: not stage.controller(old).store.stored.rolled_back)
    assert stage.controller(old).store.last_index >= raft.commit_index
    stage.settle()


def test_C16_snapshot_during_append():
    """While a follower gets a snapshot piece by piece the leader goes on, and old appends arrive in between."""
    stage = Group()
    first = stage.active
    late = next(name for name in stage.controllers if name != first)
    stage.cut(late, *(name for name in stage.controllers if name != late))
    admin = stage.admin
    for number in range(30):
        admin.alter("t", {"replica_max_lag_ms": str(2000 + number)})
        stage.until(lambda: admin.done)
    active = stage.active
    pieces: list[int] = []
    old: list[Any] = []
    carry = stage.network.datagram

    def look(sender: str, target: str, message: Any) -> bool:
        if target == late and isinstance(message, InstallSnapshot) and message.payload:
            pieces.append(message.offset)
            if len(pieces) == 1:
                stage.request(active, CreateTopic("new", 1, 3))
                for append in old[-20:]:
                    carry(sender, target, append)
        elif target == late and isinstance(message, AppendEntries) and not pieces:
            old.append(message)
        return True

    stage.on_the_way(look)
    stage.network.heal()
    stage.until(stage.controllers_agree)
    assert len(pieces) >= 2 and stage.happened("snapshot_installed", late)
    assert stage.controller(late).core.state == stage.controller(stage.active).core.state
    stage.settle()


def test_C16_a_request_that_is_asked_again_of_the_next_controller_is_done_once():
    """The answer is lost with the controller that did it. The request is not done again, and gets the same answer."""
    stage = Group()
    first = stage.active
    wish = AllocateProducerIds(100, client="asks twice", sequence=1)
    answers = stage.request(first, wish)
    stage.until(lambda: bool(answers))
    stage.until(stage.controllers_agree)
    stage.kill(first)
    stage.until(lambda: any(stage.controller(name).core.active for name in stage.controllers if name != first))
    again = stage.request(stage.active, wish)
    stage.until(lambda: bool(again))
    assert again == answers
    assert stage.controller(stage.active).core.state.next_producer_id == answers[0].first + 100
    other = stage.request(stage.active, AllocateProducerIds(100, client="asks twice", sequence=2))
    stage.until(lambda: bool(other))
    assert other[0].first == answers[0].first + 100
    stage.settle()


def test_C16_removed_leader_and_learner_promotion_under_load():
    """c4 and c5 are added, the leader and another are removed; producers notice no more than an election."""
    cluster = Cluster(Options(1, spares=2, topics=(TopicOptions("t"),)))
    cluster.until(cluster.ready)
    admin = cluster.admin
    for name in ("c4", "c5"):
        admin.add_controller(name)
        cluster.until(lambda: admin.done)
        assert cluster.controller(name).core.metadata_log.raft.is_voter

    def leader() -> str:
        return next(name for name in cluster.controllers if cluster.controller(name).core.active)

    for _ in range(2):
        old = leader()
        admin.remove_controller(old)
        cluster.until(lambda: admin.done)
        cluster.until(lambda gone=old: cluster.controller(gone).core.metadata_log.raft.role != "leader")  # type: ignore[misc]
        removed_at = cluster.loop.now
        cluster.until(lambda: any(cluster.controller(name).core.active for name in cluster.controllers))
        assert cluster.loop.now - removed_at < CONTROLLER_SETTINGS.raft.election_timeout_min_s, "told to stand"
    assert len(cluster.invariants.members.voters) == 3
    cluster.run_for(10.0)
    outside = [name for name in cluster.controllers if cluster.invariants.members.find(name) is None]
    assert all(cluster.controller(name).core.metadata_log.raft.role == "follower" for name in outside)
    assert isinstance(cluster.invariants.members, Configuration)


def test_C16_pre_vote_against_a_disruptive_server():
    """A controller whose messages arrive, but which receives none, asks for votes again and again."""
    stage = Group()
    first = stage.active
    deaf = next(name for name in stage.controllers if name != first)
    asked = []

    def look(sender: str, target: str, message: Any) -> bool:
        if sender == deaf and isinstance(message, RequestVote):
            asked.append(message)
        return target != deaf

    stage.on_the_way(look)
    term = stage.controller(first).core.metadata_log.raft.term
    stage.run_for(30.0)
    assert len(asked) > 10 and all(request.pre for request in asked)
    assert (stage.active, stage.controller(first).core.metadata_log.raft.term) == (first, term)
    stage.put(b"m0")
