"""The paper as a test file (after etcd's ``raft_paper_test.go``): one test for each property and figure. Tests
``raft/raft.py``.

"Raft" is Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm (Extended Version)"; "thesis" is
Ongaro, "Consensus: Bridging Theory and Practice". Several cores talk through ``raft_network``; details of single
messages are in ``raft/test_elections.py`` and ``raft/test_replication.py``, and the random walks look for what no
figure shows.
"""

from __future__ import annotations

import zlib

import pytest
from support.raft_network import (
    FIVE,
    LATER,
    SETTINGS,
    THREE,
    Net,
    Node,
    append,
    core,
    leader,
    log,
    sent,
    state_bytes,
    terms_of,
)
from tidelog.errors import ProtocolError, TidelogError
from tidelog.wire.messages import (
    AppendEntries,
    AppendResult,
    InstallSnapshot,
    RequestVote,
    SnapshotResult,
    TimeoutNow,
    Vote,
)
from tidelog_controller.raft.effects import Persist, ReadReady, Restore
from tidelog_controller.raft.log import Entry, PersistentState, Snapshot
from tidelog_controller.raft.membership import Configuration, encode_members, members_of
from tidelog_controller.raft.settings import RaftSettings

SMALL = RaftSettings(snapshot_threshold=4, snapshot_chunk_bytes=20)


def votes(net: Net) -> list[str]:
    """Return the voters of the leader's configuration, sorted."""
    return sorted(member.node for member in net.leader.raft.members.voters)


def code(answer: int | TidelogError) -> str:
    """Return the error code with which the leader refused a change."""
    assert isinstance(answer, TidelogError), answer
    return answer.code


# --- figure 3: the five properties -----------------------------------------------------------------------


def test_election_safety_at_most_one_leader_per_term() -> None:
    """Raft figure 3, §5.2: two candidates of one term cannot both have a majority."""
    net = Net(FIVE)
    net.isolate("c1", "c2")
    for candidate in ("c1", "c5"):
        net[candidate].perform(net[candidate].raft.on_tick(LATER))
    net.isolate()
    net.settle()
    leaders = [node for node in net.nodes.values() if node.raft.role == "leader"]
    assert len({node.raft.term for node in leaders}) == len(leaders) <= 1


def test_leader_append_only_a_leader_never_changes_its_entries() -> None:
    """Raft figure 3, §5.3: whatever followers say, a leader's log only grows."""
    s1 = leader(3, [1, 2, 2])
    for answer in (AppendResult(3, False, 0), AppendResult(3, False, 2, 2), AppendResult(2, True, 1)):
        s1.on_message("c2", answer, LATER)
    s1.propose(b"x", LATER)
    assert terms_of(s1) == [1, 2, 2, 3, 3]


def test_log_matching_equal_index_and_term_means_equal_logs_up_to_there() -> None:
    """Raft figure 3, §5.3: entries are taken only behind one that agrees."""
    follower = core(term=3, terms=[1, 1, 2])
    for prev in ((3, 3), (4, 2), (2, 2)):
        (refused,) = sent(follower.on_message("c2", append(3, prev, [Entry(prev[0] + 1, 3, b"x")]), 0.0))
        assert isinstance(refused, AppendResult) and not refused.ok
    assert terms_of(follower) == [1, 1, 2]
    follower.on_message("c2", append(3, (2, 1), [Entry(3, 3, b"3.3")]), 0.0)
    assert terms_of(follower) == [1, 1, 3]


def test_leader_completeness_a_leader_has_every_committed_entry() -> None:
    """Raft figure 3, §5.4: a server that lacks one is not elected, however high its term is."""
    net = Net(THREE)
    net.elect("c1")
    net.isolate("c3")
    net.propose(b"x")
    net.isolate("c1")
    assert net["c3"].raft.log.last_index < net["c2"].raft.log.last_index
    net.run(30.0)
    assert net.leader.node_id == "c2" and net["c3"].applied[:2] == net["c1"].applied


def test_state_machine_safety_no_two_servers_apply_different_entries() -> None:
    """Raft figure 3, §5.4.3, and a committed entry is never replaced."""
    net = Net(THREE)
    net.elect("c1")
    net.propose(b"x")
    for node in net.nodes.values():
        assert [entry.data for entry in node.applied] == [b"", b"x"]
    with pytest.raises(ProtocolError, match="committed"):
        net["c2"].raft.on_message("c3", append(9, (1, 1), [Entry(2, 9, b"y")]), net.now)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_server_that_has_heard_the_leader_of_a_term_votes_for_nobody_else_in_it(restarts: bool) -> None:
    """Raft figure 3, §5.2, decision 19: its disk may be a copy from before it voted for that leader, and a second
    vote would make a second leader."""
    net = Net(3, named=True)
    net.deliver("c1", "c2", append(5, (0, 0)))
    if restarts:
        net["c2"].restart(net.now)
    net.flying.clear()
    net.deliver("c3", "c2", RequestVote(5, 0, 0, store="c3.1"))
    assert net.flying == [("c2", "c3", Vote(5, False, store="c2.1"))]


# --- figures 7 and 8 -------------------------------------------------------------------------------------

LEADER_7 = [1, 1, 1, 4, 4, 5, 5, 6, 6, 6]


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("a", [1, 1, 1, 4, 4, 5, 5, 6, 6]),
        ("b", [1, 1, 1, 4]),
        ("c", [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6]),
        ("d", [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7]),
        ("e", [1, 1, 1, 4, 4, 4, 4]),
        ("f", [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3]),
    ],
)
def test_figure_7_every_follower_comes_to_agree_with_the_leader_of_term_8(name: str, terms: list[int]) -> None:
    """Raft figure 7, §5.3: missing entries are filled in, extraneous ones removed."""
    net = Net(
        THREE, stored={"c1": PersistentState(7, None, log(*LEADER_7)), "c2": PersistentState(7, None, log(*terms))}
    )
    net.isolate("c2")
    net.elect("c1")
    net.isolate()
    net.run(1.0)
    assert net["c1"].raft.term == 8
    assert terms_of(net["c2"].raft) == [*LEADER_7, 8], name
    assert net["c2"].disk.entries == net["c1"].disk.entries


def figure_8(*terms: list[int]) -> Net:
    """Return five servers whose logs have entries of these terms; S5 has been in term 3."""
    stored = {f"c{n}": PersistentState(max([3, *own]), None, log(*own)) for n, own in enumerate(terms, 1)}
    return Net(FIVE, stored=stored)


def test_figure_8_c_an_entry_of_an_earlier_term_is_not_committed_by_counting() -> None:
    """Raft §5.4.2, figure 8 (c): entry 2 of term 2 is on three of five, and not committed."""
    s1 = leader(4, [1, 2], voters=FIVE)
    for follower in ("c2", "c3"):
        s1.on_message(follower, AppendResult(4, True, 2), LATER)
    assert s1.commit_index == 0


def test_figure_8_d_it_may_still_be_replaced() -> None:
    """Raft figure 8 (d): S5, with an entry of term 3, is elected by S2, S3 and S4, and overwrites."""
    net = figure_8([1, 2, 4], [1, 2], [1, 2], [1], [1, 3])
    net.isolate("c1")
    net.elect("c5")
    assert all(terms_of(net[node].raft)[:2] == [1, 3] for node in ("c2", "c3", "c4", "c5"))


def test_figure_8_e_with_an_entry_of_the_leaders_term_everything_before_it_is_committed() -> None:
    """Raft figure 8 (e): once entry 3 of term 4 is on a majority S5 cannot win."""
    net = figure_8([1, 2, 4], [1, 2, 4], [1, 2, 4], [1], [1, 3])
    s5 = net["c5"]
    s5.perform(s5.raft.on_tick(LATER))
    net.settle()
    assert s5.raft.role == "follower" and s5.raft.voted_for is None, "only S4 would vote for it"
    net.elect("c1")
    assert net["c1"].raft.commit_index == 4 and terms_of(net["c5"].raft)[:3] == [1, 2, 4]


# --- §6 and thesis 4: membership -------------------------------------------------------------------------


def grown() -> Net:
    """Return three voters led by c1, and spare servers to be added."""
    net = Net(THREE, spares=["c4", "c5"])
    net.elect("c1")
    return net


def test_a_configuration_is_in_force_as_soon_as_it_is_in_the_log() -> None:
    """Raft §6: "a server always uses the latest configuration in its log, regardless of whether the entry is
    committed"; a configuration that is truncated away is in force no more."""
    net = grown()
    net.isolate("c1")
    net.change("add", "c4")
    assert net["c1"].raft.members.find("c4") is not None and net["c1"].raft.commit_index == 1
    net.elect("c2")
    net.isolate()
    net.run(2.0)
    assert net["c1"].raft.members.find("c4") is None


def test_one_change_at_a_time() -> None:
    """Thesis §4.1: two changes at once could make two majorities."""
    net = grown()
    net.isolate("c1")
    net.change("add", "c4")
    assert code(net.change("add", "c5")) == "CHANGE_IN_PROGRESS"


def test_no_change_before_an_entry_of_the_leaders_own_term_is_committed() -> None:
    """Ongaro, raft-dev 2015: the bug in single-server changes."""
    s1 = leader(4, [1, 2])
    assert code(s1.add_member("c4", "", LATER)[0]) == "CHANGE_IN_PROGRESS"


def test_a_new_server_is_a_learner_first_and_votes_when_it_has_caught_up() -> None:
    """Thesis §4.2.1: it must not make the cluster unavailable while it catches up."""
    net = grown()
    net.blocked = lambda sender, to: "c4" in (sender, to)
    net.change("add", "c4")
    assert votes(net) == ["c1", "c2", "c3"]
    net.propose(b"goes on without it")
    assert net["c1"].raft.commit_index == 3
    net.isolate()
    net.run(2.0)
    assert votes(net) == ["c1", "c2", "c3", "c4"]
    assert net["c4"].raft.is_voter and net["c4"].applied == net["c1"].applied


def test_a_learner_that_does_not_keep_up_does_not_vote() -> None:
    """Thesis §4.2.1: a round must take no longer than an election timeout."""
    s1 = leader(1)
    s1.on_message("c2", AppendResult(1, True, 1), LATER)
    s1.add_member("c4", "", LATER)
    s1.on_message("c2", AppendResult(1, True, 2), LATER)
    s1.on_message("c4", AppendResult(1, True, 1, store="x"), LATER)
    late = LATER + 2 * SETTINGS.election_timeout_min_s
    s1.on_message("c2", AppendResult(1, True, 2), late)
    s1.on_message("c4", AppendResult(1, True, 2, store="x"), late)
    assert not s1.members.has_vote("c4", "x"), "this round was too slow"
    s1.on_message("c4", AppendResult(1, True, 2, store="x"), late)
    assert s1.members.has_vote("c4", "x"), "and this one not"


def test_a_learner_counts_for_no_majority_and_never_stands() -> None:
    """Thesis §4.2.1: "non-voting members … are not counted toward majorities"."""
    s1 = leader(1)
    s1.on_message("c2", AppendResult(1, True, 1), LATER)
    s1.add_member("c4", "", LATER)
    assert s1.commit_index == 1
    s1.on_message("c4", AppendResult(1, True, 2, store="x"), LATER)
    assert s1.commit_index == 1
    learner = core(term=1)
    group = encode_members(members_of("c2", "c3").with_learner("c1", ""))
    learner.on_message("c2", append(2, (0, 0), [Entry(1, 2, group, is_members=True)]), 0.0)
    for now in (LATER, 2 * LATER, 3 * LATER):
        assert sent(learner.on_tick(now)) == [] and learner.role == "follower"
    assert learner.deadline() is None


def test_three_become_five_and_three_again_under_load() -> None:
    """Thesis §4.1: single-server changes, one after the other."""
    net = grown()
    for new in ("c4", "c5"):
        net.change("add", new)
        net.propose(b"load")
        net.run(1.0)
    assert votes(net) == ["c1", "c2", "c3", "c4", "c5"]
    for old in ("c2", "c3"):
        net.change("remove", old)
        net.propose(b"load")
    assert votes(net) == ["c1", "c4", "c5"]
    net.isolate("c2", "c3")
    net.propose(b"last")
    assert net["c4"].applied == net["c5"].applied == net["c1"].applied
    assert net["c1"].applied[-1].data == b"last"


def test_a_removed_leader_leads_until_the_change_is_committed_without_counting_itself_then_steps_down() -> None:
    """Thesis §4.2.2; and it asks the next one to stand."""
    net = grown()
    net.isolate("c1")
    net.change("remove", "c1")
    assert net["c1"].raft.role == "leader" and net["c1"].raft.commit_index == 1
    net.isolate()
    net.run(0.5)
    assert net["c1"].raft.role == "follower" and votes(net) == ["c2", "c3"]
    assert net.leader.raft.term == 2, "without a timeout"
    net.run(60.0)
    assert net["c1"].raft.term <= 2 and net.leader.raft.term == 2, "it asks nobody for votes"


def test_a_removed_server_that_does_not_know_it_does_not_disrupt_the_others() -> None:
    """Thesis §4.2.3: a server that hears a leader ignores requests for its vote."""
    net = grown()
    net.isolate("c3")
    net.run(1.0)
    net.change("remove", "c3")
    net.isolate()
    before = net.leader.raft.term
    net.run(60.0)
    assert (net.leader.node_id, net.leader.raft.term) == ("c1", before)


@pytest.mark.parametrize("kind", ["remove a live one", "remove the last"])
def test_a_change_that_would_lose_the_quorum_is_refused(kind: str) -> None:
    """C12: of the two voters that would be left one is down."""
    if kind == "remove a live one":
        net = grown()
        net.isolate("c3")
        net.run(2.0)
        assert code(net.change("remove", "c2")) == "QUORUM_AT_RISK"
        assert isinstance(net.change("remove", "c3"), int), "the one that is down may go"
    else:
        net = Net(["c1"])
        net.run(1.0)
        assert code(net.change("remove", "c1")) == "QUORUM_AT_RISK"


def test_a_member_that_lost_its_store_has_no_vote_until_it_is_added_again() -> None:
    """Raft figure 2 presumes stable storage. Without memory c2 would elect c3, which lacks what c1 and c2 had."""
    net = grown()
    net.isolate("c3")
    net.propose(b"on c1 and c2")
    net["c2"].lose_store(net.now)
    net.isolate("c1")
    net.run(60.0)
    assert net["c3"].raft.role == "pre_candidate" and net["c3"].raft.term == 1
    net.isolate()
    net.run(3.0)
    assert net.leader.node_id == "c1"
    assert net["c2"].applied == net["c1"].applied and not net["c2"].raft.is_voter
    net.isolate("c3")
    index = net.propose(b"on c1 and the new store of c2")
    assert index is not None and net["c1"].raft.commit_index < index
    net.isolate()
    net.run(1.0)
    net.change("add", "c2")
    net.run(1.0)
    assert net["c2"].raft.is_voter and votes(net) == ["c1", "c2", "c3"]


# --- §7: snapshots ---------------------------------------------------------------------------------------


def compacted() -> Net:
    """Return servers of which c1 leads c2 with a compacted log, and c3 has an empty log."""
    net = Net(THREE, settings=SMALL)
    net.isolate("c3")
    net.elect("c1")
    for number in range(12):
        net.propose(b"%d" % number)
    return net


def test_each_server_compacts_its_log_behind_a_snapshot_of_its_own() -> None:
    """Raft §7: "each server takes snapshots independently, covering just the committed entries in its log"."""
    net = compacted()
    for node in (net["c1"], net["c2"]):
        snapshot = node.disk.snapshot
        assert snapshot is not None and snapshot.index <= node.raft.commit_index
        assert snapshot.data == state_bytes(snapshot.index)
        assert node.disk.base.index == snapshot.index - SMALL.snapshot_threshold // 2
        assert len(node.disk.entries) <= SMALL.snapshot_threshold * 3 // 2, "bounded"


def test_a_follower_that_needs_what_is_compacted_away_gets_the_snapshot_in_pieces() -> None:
    """Raft §7, figure 13."""
    net = compacted()
    pieces: list[int] = []
    net.before_effect = lambda node, effect: pieces.extend(
        message.offset for message in sent([effect], "c3") if isinstance(message, InstallSnapshot) and message.payload
    )
    net.isolate()
    net.run(1.0)
    assert pieces[:3] == [0, 20, 40]
    c3 = net["c3"]
    assert c3.applied_from > 0 and c3.raft.commit_index == net["c1"].raft.commit_index
    assert c3.applied == net["c1"].applied[c3.applied_from :]


def test_a_restart_begins_with_the_snapshot_and_goes_on_with_the_log() -> None:
    """Raft §7: the snapshot replaces what is before it."""
    net = compacted()
    net["c2"].restart(net.now)
    net.run(2.0)
    c2 = net["c2"]
    assert c2.applied_from == c2.disk.snapshot.index and c2.raft.commit_index == net["c1"].raft.commit_index


def installing(raft_terms: list[int], index: int, term: int) -> Node:
    """Return c1, with entries of these terms, after it received a snapshot in two pieces from c2."""
    net = Net(THREE, stored={"c1": PersistentState(3, None, log(*raft_terms))})
    data = state_bytes(index)
    members = net["c1"].raft.members.all
    fields = (3, index, term, len(data), zlib.crc32(data), members)
    net.deliver("c2", "c1", InstallSnapshot(*fields, payload=data[:30]))
    net.deliver("c2", "c1", InstallSnapshot(*fields, offset=30, payload=data[30:]))
    return net["c1"]


def test_a_snapshot_ahead_of_the_log_replaces_it_and_one_that_agrees_keeps_what_follows() -> None:
    """Raft §7: of a log that a snapshot describes a prefix of, "entries following the snapshot are still valid and
    must be retained"."""
    ahead = installing([1, 1], 5, 3)
    assert (ahead.applied_from, ahead.raft.log.last_index, ahead.raft.commit_index) == (5, 5, 5)
    conflicting = installing([1, 1, 1, 1, 1, 1], 5, 3)
    assert (conflicting.applied_from, conflicting.raft.log.last_index) == (5, 5)
    prefix = installing([1, 1, 3, 3], 3, 3)
    assert (prefix.applied_from, prefix.raft.log.last_index, prefix.raft.commit_index) == (0, 4, 3)


def test_an_old_snapshot_and_pieces_out_of_order_change_nothing() -> None:
    """Raft figure 13: messages are lost, doubled and late; an AppendEntries may come in between."""
    node = installing([1, 1], 5, 3)
    net = node.net
    net.flying.clear()
    old = InstallSnapshot(3, 2, 1, 4, 0, (), payload=b"late")
    net.deliver("c2", "c1", old)
    assert net.flying.pop() == ("c1", "c2", AppendResult(3, True, 5))
    newer = InstallSnapshot(3, 9, 3, 40, 1, (), offset=20, payload=b"x" * 20)
    net.deliver("c2", "c1", newer)
    assert net.flying.pop() == ("c1", "c2", SnapshotResult(3, 9, 0))
    net.deliver("c2", "c1", append(3, (5, 3), [Entry(6, 3, b"meanwhile")], commit=6))
    assert node.raft.commit_index == 6 and node.applied[-1].data == b"meanwhile"


def test_a_snapshot_that_was_damaged_on_its_way_is_asked_for_again() -> None:
    """C13: the CRC of the whole decides, and nothing is installed."""
    net = Net(THREE)
    net.deliver("c2", "c1", InstallSnapshot(3, 5, 3, 4, 77, net["c1"].raft.members.all, payload=b"oops"))
    assert net.flying.pop() == ("c1", "c2", SnapshotResult(3, 5, 0))
    assert net["c1"].raft.commit_index == 0 and net["c1"].disk.snapshot is None


def test_a_snapshot_is_durable_before_it_is_acknowledged_or_restored() -> None:
    """Raft §7 with figure 2: stable storage before responding."""
    raft = core(term=3)
    members = raft.members.all
    data = state_bytes(5)
    effects = raft.on_message("c2", InstallSnapshot(3, 5, 3, len(data), zlib.crc32(data), members, payload=data), 0.0)
    kinds = [type(effect) for effect in effects]
    assert kinds.index(Persist) < kinds.index(Restore)
    persist = next(effect for effect in effects if isinstance(effect, Persist))
    assert persist.snapshot == Snapshot(5, 3, Configuration(members), data)
    assert sent(effects)[-1] == AppendResult(3, True, 5)


# --- §8 and thesis 6.4: clients --------------------------------------------------------------------------


def test_a_new_leader_commits_a_no_op_so_that_it_knows_what_is_committed() -> None:
    """Raft §8: "a leader must have the latest information on which entries are committed"."""
    net = Net(THREE, stored={"c1": PersistentState(1, None, log(1, 1)), "c2": PersistentState(1, None, log(1, 1))})
    assert net["c1"].raft.read(0.0) == (None, [])
    net.elect("c1")
    assert net["c1"].raft.commit_index == 3 and net["c1"].applied[-1].data == b""


def test_a_read_is_answered_when_a_majority_has_confirmed_the_leader_since_it_came() -> None:
    """Thesis §6.4, ReadIndex: without an entry in the log."""
    s1 = leader(1)
    assert s1.read(LATER) == (None, []), "nothing of this term is committed"
    s1.on_message("c2", AppendResult(1, True, 1), LATER)
    token, effects = s1.read(LATER)
    rounds = {e.message.round for e in effects if hasattr(e, "message") and isinstance(e.message, AppendEntries)}
    assert rounds == {1} and ReadReady(token or 0) not in effects
    assert ReadReady(token or 0) not in s1.on_message("c2", AppendResult(1, True, 1, round=0), LATER)
    assert ReadReady(token or 0) in s1.on_message("c2", AppendResult(1, True, 1, round=1), LATER)
    assert s1.log.last_index == 1


def test_a_deposed_leader_answers_no_read() -> None:
    """Thesis §6.4: it would miss what its successor has committed."""
    net = Net(THREE)
    net.elect("c1")
    net.isolate("c1")
    node = net["c1"]
    token, effects = node.raft.read(net.now)
    node.perform(effects)
    net.settle()
    net.elect("c2")
    net.propose(b"x", net["c2"])
    answered: list[object] = []
    net.before_effect = lambda node, effect: answered.append(effect) if isinstance(effect, ReadReady) else None
    net.isolate()
    net.run(5.0)
    assert token is not None and answered == []


def test_reads_that_come_together_share_a_heartbeat() -> None:
    """Thesis §6.4: "for many read-only queries … one round of heartbeats"."""
    s1 = leader(1)
    s1.on_message("c2", AppendResult(1, True, 1), LATER)
    first, _ = s1.read(LATER)
    others = [s1.read(LATER) for _ in range(3)]
    assert all(sent(effects) == [] for _, effects in others)
    effects = s1.on_message("c2", AppendResult(1, True, 1, round=1), LATER)
    assert [e for e in effects if isinstance(e, ReadReady)] == [ReadReady(first or 0)]
    effects = s1.on_message("c2", AppendResult(1, True, 1, round=2), LATER)
    assert [e for e in effects if isinstance(e, ReadReady)] == [ReadReady(token or 0) for token, _ in others]


# --- thesis 3.10: transfer -------------------------------------------------------------------------------


def test_a_leader_hands_over_to_the_best_follower_without_a_timeout() -> None:
    """Thesis §3.10: the target is brought up to date, then asked to stand at once."""
    net = Net(THREE)
    first = net.elect("c1")
    net.isolate("c3")
    net.propose(b"x")
    net.isolate()
    began, effects = first.raft.transfer(net.now)
    assert began and sent(effects) == [TimeoutNow(1)]
    assert first.raft.propose(b"y", net.now) == (None, []), "no more commands"
    first.perform(effects)
    net.settle()
    assert (net.leader.node_id, net.leader.raft.term, first.raft.role) == ("c2", 2, "follower")


def test_a_transfer_to_an_unreachable_member_ends_and_the_leader_goes_on() -> None:
    """Thesis §3.10: after about an election timeout "the prior leader aborts the transfer"."""
    net = Net(THREE)
    node = net.elect("c1")
    net.blocked = lambda sender, to: to == "c2"
    node.perform(node.raft.transfer(net.now, "c2")[1])
    net.settle()
    net.run(SETTINGS.election_timeout_min_s + 0.1)
    assert net.propose(b"goes on") is not None and node.raft.role == "leader"


def test_only_the_leader_of_the_term_can_make_a_voter_stand() -> None:
    """Thesis §3.10: a message that is late or from a stranger is ignored."""
    for sender, term in (("c3", 5), ("c2", 4), ("c2", 6)):
        raft = core(term=4)
        raft.on_message("c2", append(5, (0, 0)), 0.0)
        assert raft.on_message(sender, TimeoutNow(term), 0.0) == []
        assert raft.role == "follower"
    alone = core(term=5, voters=["c2", "c3"])
    alone.on_message("c2", append(5, (0, 0)), 0.0)
    assert alone.on_message("c2", TimeoutNow(5), 0.0) == []


# --- thesis 4.2.3, 6.2, 9.6: disruption ------------------------------------------------------------------


def test_pre_vote_a_server_that_was_cut_off_does_not_raise_its_term() -> None:
    """Thesis §9.6: it first asks whether it could win."""
    net = Net(THREE)
    net.elect("c1")
    net.isolate("c3")
    net.run(60.0)
    assert net["c3"].raft.term == 1
    net.isolate()
    net.run(5.0)
    assert (net.leader.node_id, net.leader.raft.term) == ("c1", 1)


def test_disruptive_servers_a_member_that_hears_a_leader_gives_no_vote_except_for_a_transfer() -> None:
    """Thesis §4.2.3, §3.10."""
    raft = core(term=5)
    raft.on_message("c2", append(5, (0, 0)), 1.0)
    assert raft.on_message("c3", RequestVote(6, 9, 5), 1.1) == []
    assert sent(raft.on_message("c3", RequestVote(6, 9, 5, transfer=True), 1.1)) == [Vote(6, True)]


def test_check_quorum_a_leader_without_a_majority_steps_down() -> None:
    """Thesis §6.2: "a leader steps down if an election timeout elapses without a successful round of heartbeats to a
    majority of its cluster"."""
    net = Net(FIVE)
    net.elect("c1")
    net.isolate("c1", "c2")
    net.run(2.0)
    assert net["c1"].raft.role != "leader"


def test_stable_storage_a_vote_and_an_acknowledgement_outlive_the_process() -> None:
    """Raft figure 2: what is promised is durable before it is sent."""
    net = Net(THREE)
    net.deliver("c2", "c1", RequestVote(5, 0, 0))
    net.deliver("c2", "c1", append(5, (0, 0), log(5)))
    net["c1"].restart(net.now)
    net.flying.clear()
    net.deliver("c3", "c1", RequestVote(5, 9, 4))
    assert net.flying == [("c1", "c3", Vote(5, False))] and terms_of(net["c1"].raft) == [5]
