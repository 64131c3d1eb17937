"""Raft's rules, one sentence per test, with the section that says it.

"Raft" is the extended paper by Ongaro and Ousterhout, "dissertation" is Ongaro's. After the model of etcd's
``raft_paper_test.go``.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import cbor2
import pytest
from raft_net import Net

from tidelog.effects import Send
from tidelog.errors import ConfigError, ProtocolError
from tidelog.wire.messages import AppendEntries, AppendResult, Heartbeat, Message, RequestVote, Vote
from tidelog_controller.core.raft import (
    Apply,
    Entry,
    Persist,
    Raft,
    RaftEffect,
    RaftSettings,
    RoleChanged,
    Stored,
)
from tidelog_controller.core.raft_log import encode_entries

THREE = ("c1", "c2", "c3")
FIVE = ("c1", "c2", "c3", "c4", "c5")
SETTINGS = RaftSettings()
LATER = 2 * SETTINGS.election_timeout_max_s


def log(*terms: int) -> list[Entry]:
    """Entries of these terms; entry 3 of term 2 holds b"2.3"."""
    return [Entry(n, term, b"%d.%d" % (term, n)) for n, term in enumerate(terms, start=1)]


def core(
    term: int = 0,
    terms: Sequence[int] = (),
    voted_for: str | None = None,
    voters: Sequence[str] = THREE,
    settings: RaftSettings = SETTINGS,
) -> Raft:
    """Controller c1 after a restart at time 0 with this on its disk."""
    return Raft("c1", voters, settings, Stored(term, voted_for, log(*terms)), random.Random(1), 0.0)


def leader(term: int, terms: Sequence[int] = (), voters: Sequence[str] = THREE, **settings: int) -> Raft:
    """c1 as the leader of ``term`` since time ``LATER``; its log is ``terms`` and the no-op."""
    raft = core(term - 1, terms, voters=voters, settings=RaftSettings(**settings))
    raft.on_tick(LATER)
    for vote in (Vote(term, True, pre=True), Vote(term, True)):
        for voter in voters[1:]:
            raft.on_message(voter, vote, LATER)
    assert raft.role == "leader" and raft.term == term
    return raft


def append(term: int, prev: tuple[int, int], entries: Sequence[Entry] = (), commit: int = 0) -> AppendEntries:
    """An AppendEntries; ``prev`` is (index, term)."""
    return AppendEntries(term, prev[0], prev[1], commit, encode_entries(entries))


def sent(effects: Sequence[RaftEffect], to: str | None = None) -> list[Message]:
    return [e.message for e in effects if isinstance(e, Send) and to in (None, e.to)]


def applied(effects: Sequence[RaftEffect]) -> list[int]:
    return [entry.index for e in effects if isinstance(e, Apply) for entry in e.entries]


def terms_of(raft: Raft) -> list[int]:
    return [entry.term for entry in raft.log.slice(1, raft.log.last_index)]


# --- elections: Raft §5.2, §5.4.1 ------------------------------------------------------------------------


def test_a_server_starts_as_follower_in_its_stored_term() -> None:
    """Raft §5.2, figure 2: state on stable storage is updated before responding, and read at the start."""
    raft = core(term=7, terms=[1, 7], voted_for="c3")
    assert (raft.role, raft.term, raft.voted_for, raft.leader_id, raft.commit_index) == ("follower", 7, "c3", None, 0)
    assert terms_of(raft) == [1, 7]


def test_election_timeouts_are_random_between_the_two_bounds() -> None:
    """Raft §5.2: split votes are rare because timeouts are chosen from a fixed interval."""
    seeds = range(200)
    found = [Raft("c1", THREE, SETTINGS, Stored(), random.Random(seed), 10.0).deadline() for seed in seeds]
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
    assert (raft.role, raft.term, raft.voted_for) == ("follower", 9, None)
    assert Persist(9, None, None, ()) in effects


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
    """C16, dissertation §9.6: its term has not grown, and nobody who hears the leader answers it."""
    net = Net(THREE)
    net.elect("c1")
    net.isolate("c3")
    net.run(60.0)
    assert (net["c1"].raft.term, net["c3"].raft.term, net["c3"].raft.role) == (1, 1, "pre_candidate")
    net.isolate()
    net.run(10.0)
    assert (net["c1"].raft.role, net["c1"].raft.term) == ("leader", 1)
    assert net["c3"].raft.leader_id == "c1"


def test_who_hears_a_leader_ignores_vote_requests_of_later_terms() -> None:
    """Dissertation §4.2.3: a server that has no business to disrupt is not even answered."""
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


def test_a_candidate_left_behind_in_a_later_term_comes_back() -> None:
    """etcd: the leader's messages are refused with the later term, so that one election unites them."""
    stored = {"c1": Stored(1), "c2": Stored(1), "c3": Stored(4, "c3")}
    net = Net(THREE, stored=stored)
    net.isolate("c3")
    net.elect("c1")
    assert net["c1"].raft.term == 2
    net.isolate()
    net.run(5.0)
    assert net.leader.raft.term > 4
    assert len({node.raft.leader_id for node in net.nodes.values()}) == 1


# --- log replication: Raft §5.3 --------------------------------------------------------------------------


def test_entries_are_durable_before_they_are_acknowledged_or_applied() -> None:
    """Raft figure 2: stable storage before responding."""
    effects = core(term=1, terms=[1]).on_message("c2", append(2, (1, 1), [Entry(2, 2, b"x")], commit=2), 0.0)
    assert effects == [
        RoleChanged("follower", 2, "c2"),
        Persist(2, None, None, (Entry(2, 2, b"x"),)),
        Send("c2", AppendResult(2, True, 2)),
        Apply((Entry(1, 1, b"1.1"), Entry(2, 2, b"x"))),
    ]


def test_the_leader_has_its_own_entry_durable_before_it_counts_or_sends_it() -> None:
    """Raft §5.3; dissertation §10.2.1 would allow to write in parallel, which this does not need."""
    raft = leader(1)
    raft.on_message("c2", AppendResult(1, True, 1), LATER)
    index, effects = raft.propose(b"x", LATER)
    assert index == 2
    assert effects == [
        Persist(1, "c1", None, (Entry(2, 1, b"x"),)),
        Send("c2", append(1, (1, 1), [Entry(2, 1, b"x")], 1)),
    ]


def test_a_follower_refuses_entries_that_do_not_follow_its_log() -> None:
    """Consistency check, Raft §5.3: same index and term before the new entries, or nothing."""
    for prev in ((3, 2), (2, 2)):
        raft = core(term=2, terms=[1, 1])
        (answer,) = sent(raft.on_message("c2", append(2, prev, [Entry(prev[0] + 1, 2, b"x")], 3), 0.0))
        assert isinstance(answer, AppendResult) and not answer.ok
        assert terms_of(raft) == [1, 1] and raft.commit_index == 0


def test_a_conflicting_suffix_is_replaced_and_the_removal_is_durable_too() -> None:
    """Raft §5.3: "delete the existing entry and all that follow it"."""
    raft = core(term=3, terms=[1, 1, 2, 2, 2])
    new = log(1, 1, 3)[2:]
    effects = raft.on_message("c2", append(3, (2, 1), new), 0.0)
    assert terms_of(raft) == [1, 1, 3]
    assert Persist(3, None, 3, tuple(new)) in effects


def test_conflicts_are_judged_by_the_entrys_term_not_the_messages() -> None:
    """Raft figure 2, AppendEntries rule 3: an old entry under a new leader is no conflict."""
    raft = core(term=9, terms=[1, 1, 2, 2])
    effects = raft.on_message("c2", append(9, (1, 1), log(1, 1, 2)[1:]), 0.0)
    assert terms_of(raft) == [1, 1, 2, 2]
    assert not any(isinstance(e, Persist) for e in effects)
    assert sent(effects) == [AppendResult(9, True, 3)]


def test_an_older_append_entries_never_erases_what_a_newer_one_brought() -> None:
    """C16, Raft §5.3: messages of one term may arrive in any order, and more than once."""
    raft = core(term=2)
    entries = log(2, 2, 2, 2)
    raft.on_message("c2", append(2, (0, 0), entries), 0.0)
    for stale in (append(2, (0, 0)), append(2, (0, 0), entries[:1]), append(2, (1, 2), entries[1:3])):
        (answer,) = sent(raft.on_message("c2", stale, 0.0))
        assert answer == AppendResult(2, True, stale.prev_index + len(cbor2.loads(bytes(stale.payload) or b"\x80")))
        assert terms_of(raft) == [2, 2, 2, 2]


def test_a_follower_acknowledges_only_what_the_message_proved() -> None:
    """Raft §5.3: what stands behind the last entry of a message may be another leader's."""
    raft = core(term=3, terms=[1, 2, 2, 2])
    (answer,) = sent(raft.on_message("c2", append(3, (1, 1), commit=4), 0.0))
    assert answer == AppendResult(3, True, 1)
    assert raft.commit_index == 1


def test_a_leader_never_changes_its_own_entries() -> None:
    """Leader append-only, Raft figure 3."""
    raft = leader(3, [1, 2, 2])
    raft.on_message("c2", AppendResult(3, False, 1, 1), LATER)
    raft.propose(b"x", LATER)
    assert terms_of(raft) == [1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "terms",
    [
        [1, 1, 1, 4, 4, 5, 5, 6, 6],
        [1, 1, 1, 4],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
        [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
        [1, 1, 1, 4, 4, 4, 4],
        [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
        [],
        [2] * 50,
    ],
)
def test_a_leader_makes_every_log_like_its_own(terms: list[int]) -> None:
    """Raft figure 7, (a) to (f), and two worse ones."""
    net = Net(
        THREE, stored={"c1": Stored(7, None, log(1, 1, 1, 4, 4, 5, 5, 6, 6, 6)), "c2": Stored(7, None, log(*terms))}
    )
    net.isolate("c2")
    net.elect("c1")
    net.isolate()
    net.run(1.0)
    assert net["c2"].disk.entries == net["c1"].disk.entries == net["c3"].disk.entries
    assert net["c2"].applied == net["c1"].applied == net["c1"].disk.entries


def test_conflict_hints_skip_whole_terms() -> None:
    """Raft §5.3 (last paragraph but two): one refusal per term, not per entry, is enough."""
    mine, theirs = [1] + [6] * 300, [1] + [2] * 200 + [3] * 100
    net = Net(THREE, stored={"c1": Stored(7, None, log(*mine)), "c2": Stored(7, None, log(*theirs))})
    refusals = []
    net.isolate("c2")
    net.elect("c1")
    net.isolate()
    deliver = net.deliver

    def counting(sender: str, to: str, message: Message) -> None:
        refusals.extend([message] * (isinstance(message, AppendResult) and not message.ok))
        deliver(sender, to, message)

    net.deliver = counting  # type: ignore[method-assign]
    net.run(1.0)
    assert net["c2"].disk.entries == net["c1"].disk.entries
    assert len(refusals) <= 3


# --- commitment: Raft §5.3, §5.4.2, §8 -------------------------------------------------------------------


def test_an_entry_is_committed_when_a_majority_has_it_and_followers_learn_it_at_once() -> None:
    """Raft §5.3: "the leader keeps track of the highest index it knows to be committed"."""
    raft = leader(1, voters=FIVE)
    assert applied(raft.on_message("c2", AppendResult(1, True, 1), LATER)) == []
    effects = raft.on_message("c3", AppendResult(1, True, 1), LATER)
    assert applied(effects) == [1]
    assert sent(effects, "c2") == [append(1, (1, 1), commit=1)]
    assert applied(raft.on_message("c4", AppendResult(1, True, 1), LATER)) == []


def test_each_entry_is_applied_once_and_in_order() -> None:
    """State machine safety, Raft §5.4.3: whatever the order of the messages."""
    raft = core(term=2)
    entries = log(2, 2, 2, 2)
    found = []
    for first, last, commit in ((0, 2, 1), (0, 1, 4), (2, 4, 3), (0, 4, 2), (0, 4, 4), (0, 4, 4)):
        prev = (first, 2 if first else 0)
        found += applied(raft.on_message("c2", append(2, prev, entries[first:last], commit), 0.0))
    assert found == [1, 2, 3, 4]


def test_entries_of_earlier_terms_are_not_committed_by_counting() -> None:
    """Raft §5.4.2, figure 8 (c): S1 leads term 4, and entry 2 of term 2 is on a majority."""
    s1 = leader(4, [1, 2], voters=FIVE)
    for peer in ("c2", "c3", "c4", "c5"):
        assert applied(s1.on_message(peer, AppendResult(4, True, 2), LATER)) == []
    assert s1.commit_index == 0


def test_an_entry_of_an_earlier_term_on_a_majority_may_still_be_replaced() -> None:
    """Raft figure 8 (d): S5 is elected by S2, S3 and S4 and replaces the entry of term 2."""
    stored = {f"c{n}": Stored(4, "c1", log(1, 2)) for n in (1, 2, 3)}
    stored |= {"c4": Stored(4, "c1", log(1)), "c5": Stored(4, None, log(1, 3))}
    net = Net(FIVE, stored=stored)
    net.elect("c5")
    net.run(1.0)
    assert all([e.term for e in node.disk.entries] == [1, 3, 5] for node in net.nodes.values())


def test_earlier_entries_are_committed_with_the_first_of_the_leaders_term() -> None:
    """Raft figure 8 (e): entry 3 of term 4 on a majority commits 1 and 2 too; S5 cannot be elected any more."""
    s1 = leader(4, [1, 2], voters=FIVE)
    s1.on_message("c2", AppendResult(4, True, 3), LATER)
    assert applied(s1.on_message("c3", AppendResult(4, True, 3), LATER)) == [1, 2, 3]
    s2 = core(term=4, terms=[1, 2, 4], voters=FIVE)
    assert sent(s2.on_message("c5", RequestVote(5, 2, 3), 0.0)) == [Vote(5, False)]


def test_a_new_leader_has_every_committed_entry_of_its_predecessors() -> None:
    """Leader completeness, Raft §5.4.3, and the no-op of §8 tells what is committed without another command."""
    net = Net(FIVE)
    net.elect("c1")
    net.isolate("c4", "c5")
    index = net.propose(b"precious")
    assert index is not None and net["c1"].raft.commit_index == index
    net.isolate("c1")
    net.elect("c3")
    net.run(1.0)
    assert b"precious" in [entry.data for entry in net["c5"].applied]


def test_a_proposal_to_a_server_that_does_not_lead_is_refused() -> None:
    """Raft §8: clients send to the leader."""
    assert core().propose(b"x", 0.0) == (None, [])


# --- flow: batching, pipelining, loss --------------------------------------------------------------------


def streaming(**settings: int) -> Raft:
    """c1 leads term 1; c2 has acknowledged the no-op."""
    raft = leader(1, **settings)
    raft.on_message("c2", AppendResult(1, True, 1), LATER)
    return raft


def test_proposals_are_pipelined_up_to_the_window() -> None:
    """Dissertation §10.2.2: the leader does not wait for answers; here at most ``append_window`` of them."""
    raft = streaming(append_window=3)
    counts = [len(sent(raft.propose(b"x", LATER)[1], "c2")) for _ in range(6)]
    assert counts == [1, 1, 1, 0, 0, 0]
    effects = raft.on_message("c2", AppendResult(1, True, 3), LATER)
    assert sent(effects, "c2")[0] == append(1, (4, 1), [Entry(n, 1, b"x") for n in (5, 6, 7)], commit=3)


def test_a_batch_holds_as_many_entries_as_the_byte_limit_allows_and_at_least_one() -> None:
    """Dissertation §10.2.2, batching; bounded so that a heartbeat never waits behind a huge message."""
    raft = leader(1, append_max_bytes=10)
    for data in (b"1234", b"5678", b"90", b"a", b"x" * 50, b"b"):
        raft.propose(data, LATER)
    messages = sent(raft.on_message("c2", AppendResult(1, True, 1), LATER), "c2")
    payloads = [cbor2.loads(m.payload) for m in messages if isinstance(m, AppendEntries) and m.payload]
    assert [[data for _, data in pairs] for pairs in payloads] == [
        [b"1234", b"5678", b"90"],
        [b"a"],
        [b"x" * 50],
        [b"b"],
    ]


def test_lost_entries_are_sent_again_after_the_next_heartbeat() -> None:
    """Raft §5.3: "the leader retries indefinitely"; the heartbeat's refusal says from where."""
    raft = streaming()
    for _ in range(3):
        raft.propose(b"x", LATER)
    heartbeat = sent(raft.on_tick(LATER + SETTINGS.heartbeat_s), "c2")
    assert heartbeat == [append(1, (4, 1), commit=1)]
    effects = raft.on_message("c2", AppendResult(1, False, 1, 1), LATER + 0.1)
    assert sent(effects) == [append(1, (1, 1), [Entry(n, 1, b"x") for n in (2, 3, 4)], commit=1)]
    assert raft.on_message("c2", AppendResult(1, False, 1, 1), LATER + 0.1) == [], "the same refusal again is old"


def test_lost_acknowledgements_are_made_good_by_the_next_heartbeat() -> None:
    """A heartbeat claims everything sent before it, so its answer opens the window again."""
    raft = streaming(append_window=1)
    raft.propose(b"x", LATER)
    assert sent(raft.propose(b"y", LATER)[1]) == []
    raft.on_tick(LATER + SETTINGS.heartbeat_s)
    effects = raft.on_message("c2", AppendResult(1, True, 2), LATER + 0.1)
    assert append(1, (2, 1), [Entry(3, 1, b"y")], commit=2) in sent(effects, "c2")


def test_old_refusals_and_acknowledgements_do_not_move_a_follower_back() -> None:
    """What a follower has acknowledged it never loses: a hint below it is old."""
    raft = streaming()
    raft.propose(b"x", LATER)
    raft.on_message("c2", AppendResult(1, True, 2), LATER)
    for old in (AppendResult(1, False, 0), AppendResult(1, False, 1, 1), AppendResult(1, True, 1)):
        assert raft.on_message("c2", old, LATER) == []
    assert sent(raft.propose(b"y", LATER)[1], "c2") == [append(1, (2, 1), [Entry(3, 1, b"y")], commit=2)]


def test_only_one_message_probes_a_follower_that_does_not_answer() -> None:
    """etcd's probe state: no stream of entries to a server that is down; heartbeats go on, empty."""
    raft = leader(1)
    assert [sent(raft.propose(b"x", LATER)[1], "c3") for _ in range(3)] == [[], [], []]
    assert sent(raft.on_tick(LATER + SETTINGS.heartbeat_s), "c3") == [append(1, (0, 0))]
    assert len(sent(raft.on_message("c3", AppendResult(1, True, 0), LATER + 0.2), "c3")) == 1


def test_commands_commit_although_many_messages_are_lost() -> None:
    """Raft §5: safety never depends on the network, and progress needs only some of the messages."""
    net = Net(THREE, seed=3)
    net.elect("c1")
    lost = random.Random(8)
    net.blocked = lambda sender, to: lost.random() < 0.2
    for n in range(50):
        net.run(0.05)
        net.propose(b"%d" % n, net.leader)
    net.blocked = lambda sender, to: False
    net.run(3.0)
    assert net["c1"].disk.entries == net["c2"].disk.entries == net["c3"].disk.entries
    assert net["c1"].applied == net["c2"].applied == net["c3"].applied == net["c1"].disk.entries


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


# --- what must not come in -------------------------------------------------------------------------------


def snapshot(raft: Raft) -> tuple[object, ...]:
    return (raft.role, raft.term, raft.voted_for, raft.leader_id, terms_of(raft), raft.commit_index, raft.deadline())


@pytest.mark.parametrize(
    "message",
    [
        *(
            AppendEntries(6, 1, 5, 0, payload)
            for payload in (
                b"\xff",
                b"\x00",
                b"\xa0",
                b"\x81",
                b"\x80\x80",
                b"\x81" * 10_000,
                cbor2.dumps([6, b"x"]),
                cbor2.dumps([[6]]),
                cbor2.dumps([[6, "text"]]),
                cbor2.dumps([["6", b"x"]]),
                cbor2.dumps([[True, b"x"]]),
                cbor2.dumps([[6, b"x", 1]]),
                cbor2.dumps([[7, b"later than the message"]]),
                cbor2.dumps([[4, b"earlier than the entry before"]]),
                cbor2.dumps([[6, b"x"], [5, b"goes back"]]),
                cbor2.dumps([[6, b"x"]]) + b"more",
                [cbor2.dumps([[6, b"x"]]), b"more"],
            )
        ),
        AppendEntries(6, 1, 7, 0),
        AppendEntries(6, 0, 5, 0),
        AppendEntries(6, 1, 0, 0),
        append(5, (0, 0), [Entry(1, 4, b"replaces a committed entry")]),
        RequestVote(6, 1, 6),
        RequestVote(6, 0, 5),
        RequestVote(0, 0, 0),
        Heartbeat("c2", 1),
    ],
)
def test_a_message_that_no_correct_voter_sends_is_an_error_and_changes_nothing(message: Message) -> None:
    raft = core(term=5, terms=[5])
    raft.on_message("c2", append(5, (1, 5), commit=1), 0.0)
    before = snapshot(raft)
    with pytest.raises(ProtocolError):
        raft.on_message("c2", message, LATER)
    assert snapshot(raft) == before
    assert sent(raft.on_message("c2", append(5, (1, 5)), 0.0)) == [AppendResult(5, True, 1)]


def test_a_second_leader_of_the_term_is_an_error_and_changes_nothing() -> None:
    """Election safety, Raft figure 3: it cannot be."""
    follower = core(term=5)
    follower.on_message("c2", append(5, (0, 0)), 0.0)
    for raft in (follower, leader(5)):
        before = snapshot(raft)
        with pytest.raises(ProtocolError, match="leads term 5"):
            raft.on_message("c3", append(5, (0, 0), log(5)), 0.0)
        assert snapshot(raft) == before


def test_an_acknowledgement_of_what_was_never_sent_is_an_error() -> None:
    raft = leader(5)
    with pytest.raises(ProtocolError, match="never sent"):
        raft.on_message("c2", AppendResult(5, True, 2), LATER)
    assert raft.commit_index == 0


@pytest.mark.parametrize("sender", ["c1", "c9", ""])
@pytest.mark.parametrize(
    "message",
    [append(9, (0, 0), log(9)), RequestVote(9, 9, 8), Vote(9, True), Vote(9, False), AppendResult(9, True, 1)],
)
def test_a_message_of_somebody_who_is_no_other_voter_is_ignored(sender: str, message: Message) -> None:
    for raft in (core(term=5), leader(5)):
        before = snapshot(raft)
        assert raft.on_message(sender, message, LATER) == []
        assert snapshot(raft) == before


@pytest.mark.parametrize("voters", [["c2", "c3"], ["c1", "c2", "c2"], []])
def test_a_server_that_is_not_exactly_one_of_the_voters_is_refused(voters: list[str]) -> None:
    with pytest.raises(ConfigError, match="exactly one of the voters"):
        core(voters=voters)


@pytest.mark.parametrize(
    "settings",
    [
        {"heartbeat_s": 0.5},
        {"heartbeat_s": 0.0},
        {"election_timeout_max_s": 0.75},
        {"append_window": 0},
        {"append_max_bytes": 0},
    ],
)
def test_settings_that_do_not_fit_together_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RaftSettings(**settings)  # type: ignore[arg-type]


def test_after_a_tick_the_deadline_is_later() -> None:
    """House rule: otherwise a shell would spin."""
    for raft in (core(), leader(3), leader(3, voters=["c1"]), core(voters=["c1"])):
        for now in (LATER, LATER + 0.01, 2 * LATER, 1e9, 1e9):
            raft.on_tick(now)
            deadline = raft.deadline()
            assert deadline is None or deadline > now
