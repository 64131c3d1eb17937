"""Raft's log replication, commitment and flow, one sentence per test, with the section that says it. Tests
``raft/raft.py``.

"Raft" is the extended paper by Ongaro and Ousterhout, "dissertation" is Ongaro's.
"""

from __future__ import annotations

import random

import cbor2
import pytest
from support.raft_network import FIVE, LATER, SETTINGS, THREE, Net, append, applied, core, leader, log, sent, terms_of
from tidelog.sansio.effects import Send
from tidelog.wire.messages import AppendEntries, AppendResult, Message, RequestVote, Vote
from tidelog_controller.raft.effects import Apply, Persist, RoleChanged
from tidelog_controller.raft.log import Entry, PersistentState
from tidelog_controller.raft.raft import Raft

# --- log replication: Raft §5.3 --------------------------------------------------------------------------


def test_entries_are_durable_before_they_are_acknowledged_or_applied() -> None:
    """Raft figure 2: stable storage before responding."""
    effects = core(term=1, terms=[1]).on_message("c2", append(2, (1, 1), [Entry(2, 2, b"x")], commit=2), 0.0)
    assert effects == [
        RoleChanged("follower", 2, "c2"),
        Persist(2, "c2", None, (Entry(2, 2, b"x"),)),
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
    assert Persist(3, "c2", 3, tuple(new)) in effects


def test_conflicts_are_judged_by_the_entrys_term_not_the_messages() -> None:
    """Raft figure 2, AppendEntries, step 3: an old entry under a new leader is no conflict."""
    raft = core(term=9, terms=[1, 1, 2, 2], voted_for="c2")
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
        THREE,
        stored={
            "c1": PersistentState(7, None, log(1, 1, 1, 4, 4, 5, 5, 6, 6, 6)),
            "c2": PersistentState(7, None, log(*terms)),
        },
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
    net = Net(
        THREE, stored={"c1": PersistentState(7, None, log(*mine)), "c2": PersistentState(7, None, log(*theirs))}
    )
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
    stored = {f"c{n}": PersistentState(4, "c1", log(1, 2)) for n in (1, 2, 3)}
    stored |= {"c4": PersistentState(4, "c1", log(1)), "c5": PersistentState(4, None, log(1, 3))}
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
    """Return c1 as the leader of term 1, after c2 has acknowledged the no-op."""
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
