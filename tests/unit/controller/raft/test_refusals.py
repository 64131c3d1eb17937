"""What Raft must refuse: malformed messages, strangers, impossible claims, settings that do not fit together. Tests
``raft/raft.py``."""

from __future__ import annotations

import itertools

import cbor2
import pytest
from support.raft_network import LATER, append, core, leader, log, sent, terms_of
from tidelog.errors import ConfigError, ProtocolError
from tidelog.wire.messages import AppendEntries, AppendResult, Heartbeat, InstallSnapshot, Message, RequestVote, Vote
from tidelog_controller.raft.log import Entry
from tidelog_controller.raft.raft import Raft
from tidelog_controller.raft.settings import RaftSettings


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
        InstallSnapshot(6, 2, 7, 4, 0, ()),
        InstallSnapshot(6, 0, 5, 4, 0, ()),
        InstallSnapshot(6, 2, 5, 0, 0, ()),
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
    claims = (append(5, (0, 0), log(5)), InstallSnapshot(5, 2, 5, 4, 0, ()))
    for raft, claim in itertools.product((follower, leader(5)), claims):
        before = snapshot(raft)
        with pytest.raises(ProtocolError, match="leads term 5"):
            raft.on_message("c3", claim, 0.0)
        assert snapshot(raft) == before


def test_an_acknowledgement_of_what_was_never_sent_is_an_error() -> None:
    raft = leader(5)
    with pytest.raises(ProtocolError, match="never sent"):
        raft.on_message("c2", AppendResult(5, True, 2), LATER)
    assert raft.commit_index == 0


@pytest.mark.parametrize("sender", ["c9", ""])
@pytest.mark.parametrize("message", [Vote(9, True), Vote(9, False), AppendResult(9, True, 1)])
def test_an_answer_of_a_non_member_is_ignored(sender: str, message: Message) -> None:
    for raft in (core(term=5), leader(5)):
        before = snapshot(raft)
        assert raft.on_message(sender, message, LATER) == []
        assert snapshot(raft) == before


@pytest.mark.parametrize("message", [append(9, (0, 0), log(9)), RequestVote(9, 9, 8), Vote(9, True)])
def test_a_message_of_its_own_is_ignored(message: Message) -> None:
    for raft in (core(term=5), leader(5)):
        before = snapshot(raft)
        assert raft.on_message("c1", message, LATER) == []
        assert snapshot(raft) == before


@pytest.mark.parametrize("voters", [["c2", "c3"], []])
def test_a_server_that_is_no_voter_never_stands(voters: list[str]) -> None:
    raft = core(voters=voters)
    assert raft.deadline() is None
    assert raft.on_tick(LATER) == [] and raft.role == "follower"


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
