"""A controller comes back with an old copy of its disk: it is recognised, does not count, and is refilled. Tests
``raft/raft.py`` and ``raft/old_copies.py``.

Theory: docs/decisions/0019-an-old-copy-of-a-disk.md and ``raft/old_copies.py``."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.raft_network import LATER, Net, Node, append, core, log
from tidelog.sansio.effects import Event
from tidelog.types import NodeId
from tidelog.wire.messages import Acked, AppendEntries, AppendResult, Message, RequestVote, Vote
from tidelog_controller.raft.effects import RaftEffect
from tidelog_controller.raft.membership import Standing
from tidelog_controller.raft.settings import RaftSettings

BEAT_S = RaftSettings().heartbeat_s
Sent = list[tuple[NodeId, NodeId, Message]]


class Group(Net):
    """Three controllers with named stores, and the events that they log."""

    def __init__(self, **settings: int) -> None:
        super().__init__(3, named=True, settings=RaftSettings(**settings))
        self.said: list[tuple[NodeId, Event]] = []
        self.before_effect = self._note

    def _note(self, node: Node, effect: RaftEffect) -> None:
        if isinstance(effect, Event):
            self.said.append((node.node_id, effect))

    def names(self, node: NodeId) -> list[str]:
        """Return the names of the events that one controller has logged."""
        return [event.name for who, event in self.said if who == node]

    def without(self, *gone: NodeId) -> None:
        """Cut the given controllers off from all others."""
        self.blocked = lambda sender, to: sender in gone or to in gone

    def beat(self) -> None:
        """Let the next heartbeat pass, and every message that follows from it."""
        self.run(1.01 * BEAT_S)


def one_behind(*, down: tuple[NodeId, ...] = (), **settings: int) -> tuple[Group, Node]:
    """Return a group in which c1 leads and ten commands are committed, and c2, which has acknowledged them, restarted
    with the copy of its disk that it had after the second one. From then on the controllers in ``down`` are cut
    off."""
    net = Group(**settings)
    net.elect("c1")
    for number in range(1, 3):
        net.propose(b"%d" % number)
    copy = net["c2"].copy_disk()
    for number in range(3, 11):
        net.propose(b"%d" % number)
    net.run(2 * BEAT_S)
    net["c2"].restore_disk(copy, net.now)
    net.without(*down)
    return net, net["c2"]


# --- what is to be true in the end -----------------------------------------------------------------------


def test_it_is_refilled_and_then_two_of_three_go_on_without_the_third() -> None:
    net, old = one_behind()
    net.run(5 * BEAT_S)
    assert old.raft.log.last_index == net["c1"].raft.log.last_index
    net.without("c3")
    net.propose(b"last")
    assert net["c1"].applied[-1].data == b"last" == old.disk.entries[-1].data
    assert not old.raft.rolled_back and old.raft.is_voter


def test_the_first_heartbeat_recognises_it_and_both_sides_say_so() -> None:
    net, old = one_behind(down=("c3",))
    net.beat()
    assert old.raft.rolled_back and old.disk.rolled_back
    assert net["c1"].raft.standings()["c2"] == Standing(match=11, rolled_back=True, refill_to=11)
    assert old.raft.standings()["c2"].rolled_back
    assert net.names("c2") == ["raft_store_rolled_back"] and net.names("c1") == ["controller_rolled_back"]


def test_its_acknowledgements_do_not_count_before_it_is_refilled() -> None:
    """With the third one away no other controller has confirmed that the leader still leads: it does not name a
    target yet."""
    net, old = one_behind(down=("c3",))
    net.beat()
    net.propose(b"11", net["c1"])
    net.run(3 * BEAT_S)
    assert old.raft.log.last_index == net["c1"].raft.log.last_index == 12, "it is sent everything all the same"
    assert old.raft.rolled_back and net["c1"].raft.commit_index == 11
    token, effects = net["c1"].raft.read(net.now)
    net["c1"].perform(effects)
    net.settle()
    assert token is not None and net["c1"].raft.reads_waiting, "its answer confirms no read"
    assert not net["c1"].raft.is_live("c2", net.now), "nor is it live where the group is to be changed"
    assert not net["c1"].raft.transfer(net.now, "c2")[0], "nor is leadership handed to it"


def test_it_votes_for_nobody_and_does_not_stand() -> None:
    net, old = one_behind(down=("c3",))
    net.beat()
    net.without("c1")
    net.run(LATER * 3)
    assert {net["c2"].raft.role, net["c3"].raft.role} == {"follower", "pre_candidate"}
    assert old.raft.role == "follower" and old.raft.term == net["c3"].raft.term
    for pre in (True, False):
        net.deliver("c3", "c2", RequestVote(old.raft.term + 1, 99, old.raft.term, pre, store="c3.1"))
        answer = net.flying.pop()[2]
        assert isinstance(answer, Vote) and not answer.granted and answer.rolled_back and answer.pre is pre


def test_a_restart_does_not_make_it_forget_that_it_is_an_old_copy() -> None:
    net, old = one_behind(down=("c3",))
    net.beat()
    old.restart(net.now)
    assert old.raft.rolled_back and not old.raft.is_voter
    net.without("c1")
    net.run(LATER * 3)
    assert net["c3"].raft.role != "leader" and old.raft.role != "leader"


def test_if_the_leader_ends_before_that_the_others_say_which_disk_is_needed() -> None:
    net, old = one_behind(down=("c3",))
    net.beat()
    net.without("c1")
    net.run(LATER * 3)
    fields = {"rolled_back": ("c2",), "needed": ("c1",)}
    assert [event.fields for who, event in net.said if event.name == "raft_disk_needed"] == [fields], "once"
    assert net["c3"].raft.disks_needed == ("c1",) and net["c3"].raft.standings()["c2"].rolled_back
    net.without()
    net.run(LATER * 3)
    assert net["c3"].raft.disks_needed == () and not old.raft.rolled_back
    net.without("c1")
    net.run(LATER * 3)
    net.propose(b"without the first")
    assert net.leader.applied[-1].data == b"without the first"


def test_the_third_may_end_in_the_middle_of_the_refill() -> None:
    """The leader and the store that it refills are what is left of a majority: it goes on leading until that store
    counts."""
    net, old = one_behind()
    messages = 0

    def only_the_first(sender: NodeId, to: NodeId) -> bool:
        nonlocal messages
        messages += (sender, to) == ("c1", "c2")
        return (sender, to) == ("c1", "c2") and messages > 1

    net.blocked = only_the_first
    net.beat()
    net.without("c3")
    assert old.raft.rolled_back and old.raft.log.last_index == 3
    net.run(20 * BEAT_S)
    assert not old.raft.rolled_back and net["c1"].raft.role == "leader"
    net.propose(b"last")
    assert old.disk.entries[-1].data == b"last" == net["c1"].applied[-1].data


# --- who knows -------------------------------------------------------------------------------------------


def test_a_candidate_knows_it_from_the_leaders_heartbeats() -> None:
    """The leader ends before the old disk comes back: the others know what it knew."""
    net, old = one_behind(down=("c1",))
    net.run(LATER * 3)
    assert old.raft.rolled_back and net["c3"].raft.disks_needed == ("c1",)


def test_a_new_leader_that_was_elected_without_it_recognises_it() -> None:
    net, _ = one_behind(down=("c2",))
    net["c1"].perform(net["c1"].raft.transfer(net.now, "c3")[1])
    net.settle()
    assert net.leader.node_id == "c3"
    net.without()
    net.run(5 * BEAT_S)
    assert "raft_store_rolled_back" in net.names("c2") and net.names("c3")[-1] == "controller_refilled"


def test_a_leader_that_has_restarted_since_knows_it_from_a_vote() -> None:
    net, old = one_behind(down=("c2",))
    net["c1"].restart(net.now)
    net["c3"].raft.on_peer_lost("c1", net.now)
    net.elect("c1")
    net.without("c3")
    net.beat()
    assert old.raft.rolled_back and net.names("c1")[-1] == "controller_rolled_back"


def test_a_leader_that_comes_back_with_an_old_disk_is_not_elected_and_is_refilled() -> None:
    net = Group()
    net.elect("c1")
    net.propose(b"1")
    copy = net["c1"].copy_disk()
    net.without("c3")
    net.propose(b"2")
    net.without()
    net.beat()
    net["c1"].restore_disk(copy, net.now)
    net["c3"].raft.on_peer_lost("c1", net.now)
    request = RequestVote(net["c3"].raft.term + 1, 99, 1, store="c1.1")
    assert not net["c3"].raft._is_fit(replace(request, last_index=2)), "behind what that store has acknowledged"
    net.run(LATER * 2)
    assert "raft_store_rolled_back" in net.names("c1") and not net["c1"].raft.rolled_back
    assert net.leader.node_id != "c1" and b"2" in [entry.data for entry in net["c1"].applied]


def test_an_uncommitted_entry_that_it_acknowledged_to_this_very_leader_is_known_too() -> None:
    """Five controllers: without it the next acknowledgement would make a majority with one that is gone."""
    net = Net(5, named=True)
    net.elect("c1")
    net.isolate("c1", "c2")
    copy = net["c2"].copy_disk()
    net.propose(b"not committed")
    assert net["c1"].raft.commit_index < net["c1"].raft.log.last_index == net["c2"].raft.log.last_index
    net["c2"].restore_disk(copy, net.now)
    net.run(1.01 * BEAT_S)
    assert net["c2"].raft.rolled_back


def test_it_is_refilled_by_a_snapshot_where_the_log_is_compacted() -> None:
    net, old = one_behind(snapshot_threshold=2)
    assert net["c1"].raft.log.base.index > old.raft.log.last_index
    net.run(5 * BEAT_S)
    assert "raft_store_rolled_back" in net.names("c2") and not old.raft.rolled_back
    net.without("c3")
    net.propose(b"last")
    assert net["c1"].applied[-1].data == b"last" == old.applied[-1].data


def test_a_copy_that_lacks_nothing_is_harmless() -> None:
    net = Group()
    net.elect("c1")
    net.propose(b"1")
    net.run(2 * BEAT_S)
    net["c2"].restore_disk(net["c2"].copy_disk(), net.now)
    net.run(5 * BEAT_S)
    assert net.said == [] and net["c1"].raft.standings()["c2"].match == 2


# --- late messages ---------------------------------------------------------------------------------------


def record(net: Net, sender: NodeId, to: NodeId) -> Sent:
    """Return a list to which every message from one controller to the other is added from now on."""
    seen: Sent = []
    blocked, deliver = net.blocked, net.deliver

    def note(a: NodeId, b: NodeId, message: Message) -> None:
        if (a, b) == (sender, to) and not blocked(a, b):
            seen.append((a, b, message))
        deliver(a, b, message)

    net.deliver = note  # type: ignore[method-assign]
    return seen


def test_a_late_acknowledgement_of_its_earlier_life_does_not_count() -> None:
    """It arrives after the leader has learned of the old copy: the leader alone has the entry."""
    net = Group()
    net.elect("c1")
    copy = net["c2"].copy_disk()
    net.propose(b"1")
    net.blocked = lambda sender, to: "c3" in (sender, to) or to == "c1"
    net.propose(b"2", net["c1"])
    late = AppendResult(1, True, 3, 0, net["c1"].raft._round, "c2.1")
    assert net["c2"].disk.entries[-1].data == b"2" and net["c1"].raft.commit_index == 2
    net["c2"].restore_disk(copy, net.now)
    net.without("c3")
    net.beat()
    assert net["c2"].raft.rolled_back
    net.deliver("c2", "c1", late)
    assert net["c1"].raft.commit_index == 2


def test_late_messages_do_not_make_a_healthy_store_an_old_copy() -> None:
    """Every message that was ever sent, in both directions, arrives once more, in the opposite order, after the
    refill."""
    net, old = one_behind()
    there, back = record(net, "c1", "c2"), record(net, "c2", "c1")
    net.run(5 * BEAT_S)
    net.propose(b"more")
    assert any(isinstance(m, AppendResult) and m.refill_id for _, _, m in back), (
        "answers of the refill are among them"
    )
    net.said.clear()
    commit = net["c1"].raft.commit_index
    for sender, to, message in [*reversed(back), *reversed(there)]:
        net.deliver(sender, to, message)
    net.settle()
    assert net.said == [] and not old.raft.rolled_back
    assert net["c1"].raft.standings()["c2"] == Standing(match=commit)


def test_a_message_of_an_earlier_refill_does_not_end_this_one() -> None:
    net, old = one_behind()
    copy = old.copy_disk()
    there = record(net, "c1", "c2")
    net.run(5 * BEAT_S)
    earlier = [message for _, _, message in there if isinstance(message, AppendEntries) and message.refill_id]
    assert earlier
    net.propose(b"more")
    net.without("c3")
    old.restore_disk(copy, net.now)
    net.beat()
    assert old.raft.rolled_back
    for message in earlier:
        net.deliver("c1", "c2", message)
    assert old.raft.rolled_back


def test_it_counts_only_when_its_log_agrees_up_to_the_target() -> None:
    raft = core(term=1, terms=[1, 1])
    raft.store, raft.rolled_back, raft._refill_id = "c1.1", True, 7
    short = replace(append(1, (2, 1), log(1, 1, 1)[2:]), refill_id=7, refill_to=4)
    raft.on_message("c2", short, 0.0)
    assert raft.rolled_back
    raft.on_message("c2", replace(short, payload=append(1, (2, 1), log(1, 1, 1, 1)[2:]).payload), 0.0)
    assert not raft.rolled_back


@pytest.mark.parametrize("acked", [Acked("c1.1", 2, 1), Acked("c1.1", 1, 1), Acked("other", 9, 1)])
def test_an_index_that_it_has_or_that_another_store_acked_proves_no_rollback(acked: Acked) -> None:
    raft = core(term=1, terms=[1, 1])
    raft.store = "c1.1"
    raft.on_message("c2", replace(append(1, (2, 1)), acked=(acked,)), 0.0)
    assert not raft.rolled_back
