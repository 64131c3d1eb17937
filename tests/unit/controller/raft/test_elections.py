"""Raft's elections and cluster sizes, one sentence per test, with the section that says it. Tests
``raft/raft.py``.

"Raft" is the extended paper by Ongaro and Ousterhout, "dissertation" is Ongaro's. After the model of etcd's
``raft_paper_test.go``. Replication is in ``raft/test_replication.py``.
"""

from __future__ import annotations

import random

import pytest
from support.raft_network import FIVE, LATER, SETTINGS, THREE, Net, append, core, leader, log, of, sent, terms_of
from tidelog.sansio.effects import Send
from tidelog.wire.messages import AppendEntries, AppendResult, Message, RequestVote, Vote
from tidelog_controller.raft.effects import Persist, RoleChanged
from tidelog_controller.raft.log import Entry, PersistentState
from tidelog_controller.raft.raft import Raft

# --- elections: Raft §5.2, §5.4.1 ------------------------------------------------------------------------


def test_a_server_starts_as_follower_in_its_stored_term() -> None:
    """Raft §5.2, figure 2: state on stable storage is updated before responding, and read at the start."""
    raft = core(term=7, terms=[1, 7], voted_for="c3")
    assert (raft.role, raft.term, raft.voted_for, raft.leader_id, raft.commit_index) == ("follower", 7, "c3", None, 0)
    assert terms_of(raft) == [1, 7]


def test_election_timeouts_are_random_between_the_two_bounds() -> None:
    """Raft §5.2: split votes are rare because timeouts are chosen from a fixed interval."""
    seeds = range(200)
    found = [Raft("c1", SETTINGS, of(THREE), random.Random(seed), 10.0).deadline() for seed in seeds]
    deadlines = [deadline - 10.0 for deadline in found if deadline is not None]
    assert SETTINGS.election_timeout_min_s <= min(deadlines) < 0.8
    assert 1.4 < max(deadlines) < SETTINGS.election_timeout_max_s


def test_a_candidate_with_a_majority_of_votes_leads_and_sends_a_no_op_at_once() -> None:
    """Raft §5.2 and §8: a new leader commits a blank entry of its own term."""
    raft = core(term=1, terms=[1])
    assert sent(raft.on_tick(LATER), "c2") == [RequestVote(2, 1, 1, pre=True)]
    assert sent(raft.on_message("c2", Vote(2, True, pre=True), LATER), "c3") == [RequestVote(2, 1, 1)]
    effects = raft.on_message("c3", Vote(2, True), LATER)
    assert RoleChanged("leader", 2, "c1") in effects
    assert sent(effects) == [append(2, (1, 1), [Entry(2, 2, b"")])] * 2


def test_at_most_one_server_leads_a_term() -> None:
    """Election safety, Raft figure 3: a second candidate of the term finds the votes taken."""
    raft = core(term=4)
    assert sent(raft.on_message("c2", RequestVote(5, 0, 0), 0.0)) == [Vote(5, True)]
    assert sent(raft.on_message("c3", RequestVote(5, 0, 0), 0.0)) == [Vote(5, False)]
    assert sent(raft.on_message("c2", RequestVote(5, 0, 0), 0.0)) == [Vote(5, True)], "a lost answer is repeated"


def test_a_vote_is_durable_before_it_is_answered() -> None:
    """Raft figure 2: "updated on stable storage before responding to RPCs"."""
    effects = core(term=4).on_message("c2", RequestVote(5, 0, 0), 0.0)
    writes = [e for e in effects if not isinstance(e, RoleChanged)]
    assert writes == [Persist(5, "c2", None, ()), Send("c2", Vote(5, True))]


def test_a_candidate_votes_for_itself_durably_before_it_asks_others() -> None:
    """Raft §5.2: it must not vote for another in that term after a crash either."""
    raft = core(term=4)
    raft.on_tick(LATER)
    effects = raft.on_message("c2", Vote(5, True, pre=True), LATER)
    assert isinstance(effects[-3], Persist) and effects[-3] == Persist(5, "c1", None, ())
    assert sent(effects[-2:]) == [RequestVote(5, 0, 0)] * 2


def test_a_restart_does_not_forget_the_vote() -> None:
    """C16, Raft figure 2: no double vote after restart."""
    net = Net(THREE)
    net.deliver("c2", "c1", RequestVote(5, 0, 0))
    net["c1"].restart(net.now)
    assert net["c1"].raft.voted_for == "c2"
    net.flying.clear()
    net.deliver("c3", "c1", RequestVote(5, 0, 0))
    assert net.flying == [("c1", "c3", Vote(5, False))]


@pytest.mark.parametrize(
    ("mine", "theirs", "granted"),
    [
        ([1, 1], (2, 1), True),
        ([1, 1], (1, 1), False),
        ([1, 1], (1, 2), True),
        ([1, 2], (9, 1), False),
        ([], (1, 1), True),
        ([1], (0, 0), False),
    ],
)
@pytest.mark.parametrize("pre", [False, True])
def test_only_a_log_that_is_at_least_as_up_to_date_gets_a_vote(
    mine: list[int], theirs: tuple[int, int], granted: bool, pre: bool
) -> None:
    """Election restriction, Raft §5.4.1: the later last term wins, then the longer log."""
    (answer,) = sent(core(term=2, terms=mine).on_message("c2", RequestVote(3, *theirs, pre), 0.0))
    assert isinstance(answer, Vote) and answer.granted == granted and answer.pre == pre


def test_votes_of_another_term_or_counted_twice_elect_nobody() -> None:
    """Raft §5.2: a majority of the servers, in the same term."""
    raft = core(term=4, voters=FIVE)
    raft.on_tick(LATER)
    for _ in range(3):
        raft.on_message("c2", Vote(5, True, pre=True), LATER)
    assert raft.role == "pre_candidate"
    raft.on_message("c3", Vote(5, True, pre=True), LATER)
    assert (raft.role, raft.term) == ("candidate", 5)
    for vote in (Vote(5, True), Vote(5, True), Vote(4, True), Vote(5, True, pre=True)):
        raft.on_message("c2", vote, LATER)
    raft.on_message("c4", Vote(4, True), LATER)
    raft.on_message("c5", Vote(5, False), LATER)
    assert raft.role == "candidate"
    raft.on_message("c3", Vote(5, True), LATER)
    assert raft.role == "leader"


def test_a_candidate_that_hears_the_leader_of_its_term_follows_it() -> None:
    """Raft §5.2: the other has been elected."""
    raft = core(term=4)
    raft.on_tick(LATER)
    raft.on_message("c2", Vote(5, True, pre=True), LATER)
    raft.on_message("c3", append(5, (0, 0), log(5)), LATER)
    assert (raft.role, raft.term, raft.leader_id, raft.voted_for) == ("follower", 5, "c3", "c1")


def test_a_split_vote_ends_with_another_election_after_a_new_random_timeout() -> None:
    """Raft §5.2: without a winner, candidates time out and stand again."""
    raft = core(term=4)
    raft.on_tick(LATER)
    raft.on_message("c2", Vote(5, True, pre=True), LATER)
    deadline = raft.deadline()
    assert raft.role == "candidate" and deadline is not None and deadline > LATER
    assert sent(raft.on_tick(deadline), "c2") == [RequestVote(6, 0, 0, pre=True)]


@pytest.mark.parametrize(
    "message", [append(9, (0, 0)), Vote(9, False), Vote(9, False, pre=True), AppendResult(9, False, 0)]
)
def test_a_leader_that_sees_a_later_term_follows(message: Message) -> None:
    """Raft §5.1: a stale leader reverts to follower immediately."""
    raft = leader(5)
    effects = raft.on_message("c2", message, LATER)
    voted_for = "c2" if isinstance(message, AppendEntries) else None
    assert (raft.role, raft.term, raft.voted_for) == ("follower", 9, voted_for)
    assert Persist(9, voted_for, None, ()) in effects


@pytest.mark.parametrize("message", [append(3, (0, 0), log(3)), RequestVote(3, 9, 2), RequestVote(3, 9, 2, pre=True)])
def test_a_request_of_an_older_term_is_refused_with_the_current_one(message: Message) -> None:
    """Raft §5.1: "if a server receives a request with a stale term number, it rejects the request"."""
    raft = core(term=5, terms=[5])
    (answer,) = sent(raft.on_message("c2", message, 0.0))
    assert answer in (AppendResult(5, False, 0), Vote(5, False), Vote(5, False, pre=True))
    assert (raft.term, terms_of(raft), raft.leader_id) == (5, [5], None)


@pytest.mark.parametrize("message", [Vote(3, True), Vote(3, True, pre=True), AppendResult(3, True, 99)])
def test_an_answer_of_an_older_term_changes_nothing(message: Message) -> None:
    """Raft §5.1: such an answer belongs to a role that is over."""
    raft = leader(5)
    assert raft.on_message("c2", message, LATER) == []


# --- pre-vote, check-quorum, stickiness: dissertation §9.6, §6.2, §4.2.3 ----------------------------------


def test_a_pre_vote_changes_nothing_on_either_side() -> None:
    """Dissertation §9.6: a server raises its term only after a majority would vote for it."""
    candidate, voter = core(term=4), core(term=4)
    effects = candidate.on_tick(LATER)
    assert not any(isinstance(e, Persist) for e in effects) and candidate.term == 4
    assert voter.on_message("c2", RequestVote(5, 0, 0, pre=True), 0.0) == [Send("c2", Vote(5, True, pre=True))]
    assert (voter.term, voter.voted_for) == (4, None)
    assert sent(voter.on_message("c3", RequestVote(5, 0, 0, pre=True), 0.0)) == [Vote(5, True, pre=True)]


def test_a_server_that_was_cut_off_does_not_depose_the_leader_when_it_comes_back() -> None:
    """C16, dissertation §9.6: its term has not grown, and no server that hears the leader answers it."""
    net = Net(THREE)
    net.elect("c1")
    net.isolate("c3")
    net.run(60.0)
    assert (net["c1"].raft.term, net["c3"].raft.term, net["c3"].raft.role) == (1, 1, "pre_candidate")
    net.isolate()
    net.run(10.0)
    assert (net["c1"].raft.role, net["c1"].raft.term) == ("leader", 1)
    assert net["c3"].raft.leader_id == "c1"


def test_a_member_that_hears_a_leader_ignores_vote_requests_of_later_terms() -> None:
    """Dissertation §4.2.3: a disruptive server does not even get an answer."""
    raft = core(term=5)
    raft.on_message("c2", append(5, (0, 0)), 1.0)
    for pre in (True, False):
        assert raft.on_message("c3", RequestVote(9, 8, 8, pre), 1.0 + SETTINGS.election_timeout_min_s / 2) == []
    assert raft.term == 5
    assert sent(raft.on_message("c3", RequestVote(9, 8, 8), 1.0 + SETTINGS.election_timeout_min_s)) == [Vote(9, True)]


def test_a_leader_ignores_vote_requests_of_later_terms() -> None:
    """Dissertation §4.2.3 for the leader itself: only check-quorum or a later leader ends it."""
    raft = leader(5)
    assert raft.on_message("c3", RequestVote(9, 8, 8), LATER) == []
    assert raft.role == "leader"


def test_a_leader_that_hears_no_majority_steps_down() -> None:
    """Check-quorum, dissertation §6.2: clients must not wait for a leader that can commit nothing."""
    net = Net(THREE)
    net.elect("c1")
    net.run(5.0)
    net.isolate("c1")
    net.run(SETTINGS.election_timeout_min_s + 2 * SETTINGS.heartbeat_s)
    assert net["c1"].raft.role != "leader" and net["c1"].raft.term == 1
    assert net["c1"].raft.propose(b"x", net.now) == (None, [])


def test_a_leader_that_hears_just_a_majority_stays() -> None:
    """Dissertation §6.2: one of two peers is enough among three, two of four among five."""
    for voters, cut in ((THREE, ["c3"]), (FIVE, ["c4", "c5"])):
        net = Net(voters)
        net.elect("c1")
        net.isolate(*cut)
        net.run(30.0)
        assert (net["c1"].raft.role, net["c1"].raft.term) == ("leader", 1)
        net.isolate(*cut, "c2")
        net.run(1.0)
        assert net["c1"].raft.role != "leader"


def test_a_broken_link_to_the_leader_brings_the_next_election_forward() -> None:
    """A killed process closes its links at once: no server waits for the election timeout, nor refuses its vote
    because of the dead leader."""
    raft = core(term=3, terms=[3])
    raft.on_message("c3", append(3, (1, 3)), LATER)
    raft.on_peer_lost("c3", LATER)
    deadline = raft.deadline()
    assert deadline is not None and LATER <= deadline <= LATER + SETTINGS.election_timeout_min_s / 2
    assert sent(raft.on_message("c2", RequestVote(4, 1, 3, pre=True), LATER)) == [Vote(4, True, pre=True)]
    assert sent(raft.on_tick(deadline), "c2") == [RequestVote(4, 1, 3, pre=True)]


def test_a_broken_link_to_a_leader_that_lives_deposes_nobody() -> None:
    """Pre-vote: the others hear the leader, and so does the server that lost its link, at the next message."""
    net = Net(THREE)
    net.elect("c1")
    node = net["c2"]
    node.perform(node.raft.on_peer_lost("c1", net.now))
    net.run(5.0)
    assert (net.leader.raft.node_id, net.leader.raft.term) == ("c1", 1)


def test_a_broken_link_to_another_follower_changes_nothing() -> None:
    raft = core(term=3, terms=[3])
    raft.on_message("c3", append(3, (1, 3)), LATER)
    before = raft.deadline()
    raft.on_peer_lost("c2", LATER)
    assert raft.deadline() == before
    assert sent(raft.on_message("c2", RequestVote(4, 1, 3, pre=True), LATER)) == []


def test_a_candidate_left_behind_in_a_later_term_comes_back() -> None:
    """etcd: the leader's messages are refused with the later term, so that one election unites them."""
    stored = {"c1": PersistentState(1), "c2": PersistentState(1), "c3": PersistentState(4, "c3")}
    net = Net(THREE, stored=stored)
    net.isolate("c3")
    net.elect("c1")
    assert net["c1"].raft.term == 2
    net.isolate()
    net.run(5.0)
    assert net.leader.raft.term > 4
    assert len({node.raft.leader_id for node in net.nodes.values()}) == 1


# --- sizes of the cluster --------------------------------------------------------------------------------


def test_a_single_server_leads_at_once_and_commits_alone() -> None:
    """Raft §5.2 with a majority of one: no peer to wait for, and no timer afterwards."""
    net = Net(["c1"])
    raft = net["c1"].raft
    assert raft.deadline() == 0.0
    net["c1"].perform(raft.on_tick(0.0))
    assert raft.role == "leader" and raft.deadline() is None
    assert net.propose(b"x") == 2
    assert [entry.data for entry in net["c1"].applied] == [b"", b"x"]
    net["c1"].restart(1.0)
    net["c1"].perform(net["c1"].raft.on_tick(1.0))
    assert [(entry.term, entry.data) for entry in net["c1"].applied] == [(1, b""), (1, b"x"), (2, b"")]


@pytest.mark.parametrize(("size", "needed"), [(2, 2), (4, 3), (6, 4)])
def test_half_of_an_even_number_of_servers_is_no_majority(size: int, needed: int) -> None:
    """C16, Raft §5.2: four servers need three votes and three copies."""
    voters = [f"c{n + 1}" for n in range(size)]
    raft = core(voters=voters)
    raft.on_tick(LATER)
    for vote, role in ((Vote(1, True, pre=True), "pre_candidate"), (Vote(1, True), "candidate")):
        for peer in voters[1 : needed - 1]:
            raft.on_message(peer, vote, LATER)
        assert raft.role == role
        raft.on_message(voters[needed - 1], vote, LATER)
    assert raft.role == "leader"
    for peer in voters[1 : needed - 1]:
        raft.on_message(peer, AppendResult(1, True, 1), LATER)
    assert raft.commit_index == 0
    raft.on_message(voters[needed - 1], AppendResult(1, True, 1), LATER)
    assert raft.commit_index == 1
