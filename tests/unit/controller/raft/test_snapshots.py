"""When a snapshot is due, which one is the newest, and what the log keeps at its head (Raft §7)."""

from __future__ import annotations

import pytest
from support.raft_network import LATER, leader, log
from tidelog.wire.messages import AppendResult
from tidelog_controller.raft.effects import TakeSnapshot
from tidelog_controller.raft.log import Base, RaftLog, Snapshot
from tidelog_controller.raft.membership import members_of
from tidelog_controller.raft.settings import RaftSettings
from tidelog_controller.raft.snapshots import OwnSnapshots

MEMBERS = members_of("c1")
EIGHT = RaftLog(log(1, 1, 1, 1, 1, 1, 1, 1), Base(0, 0, MEMBERS))
"""Eight entries of three bytes each."""


def snapshots(threshold: int = 4, threshold_bytes: int = 1 << 20, newest: Snapshot | None = None) -> OwnSnapshots:
    return OwnSnapshots(newest, RaftSettings(snapshot_threshold=threshold, snapshot_threshold_bytes=threshold_bytes))


def test_a_snapshot_is_due_once_for_as_many_entries_as_the_threshold() -> None:
    own = snapshots()
    asked = [effect.index for index in range(1, 9) for effect in own.ask_if_due(index, EIGHT)]
    assert asked == [4, 8]


def test_after_a_start_entries_are_counted_from_the_stored_snapshot() -> None:
    own = snapshots(newest=Snapshot(3, 1, MEMBERS, b""))
    assert own.ask_if_due(6, EIGHT) == []
    assert own.ask_if_due(7, EIGHT) == [TakeSnapshot(7)]


def test_none_is_due_before_the_server_is_founded() -> None:
    """A snapshot names the configuration."""
    own, entries = snapshots(), log(1, 1, 1, 1)
    own.count(entries)
    assert own.ask_if_due(4, RaftLog(entries)) == []
    assert own.ask_if_due(4, RaftLog(entries, Base(0, 0, MEMBERS))) == [TakeSnapshot(4)]


def test_only_a_newer_snapshot_is_accepted_and_handed_out_once_to_be_stored() -> None:
    own = snapshots()
    assert own.accept(4, b"four", EIGHT) and own.newest == Snapshot(4, 1, MEMBERS, b"four")
    assert own.has_unsaved() and own.take_unsaved() == own.newest
    assert not own.accept(4, b"again", EIGHT) and not own.accept(3, b"older", EIGHT)
    assert not own.has_unsaved() and own.take_unsaved() is None
    assert own.index == 4


def test_behind_a_snapshot_of_the_leader_counting_begins_anew() -> None:
    """An own snapshot that is made only then is older, and dropped."""
    own = snapshots(threshold_bytes=5)
    own.count(log(1))
    theirs = Snapshot(5, 1, MEMBERS, b"five")
    own.replace(theirs)
    assert own.take_unsaved() == own.newest == theirs
    assert not own.accept(4, b"four", EIGHT)
    own.count(log(1))
    assert own.ask_if_due(8, EIGHT) == [], "three entries and three bytes"


@pytest.mark.parametrize(
    ("threshold", "threshold_bytes", "last"),
    [(4, 1 << 20, 6), (6, 1 << 20, 5), (1000, 1 << 20, 0), (1000, 13, 6), (1000, 12, 6), (1000, 11, 7), (1000, 1, 8)],
)
def test_the_log_keeps_half_of_what_makes_a_snapshot_due(threshold: int, threshold_bytes: int, last: int) -> None:
    """In entries and in bytes; each of the entries has three."""
    own = snapshots(threshold, threshold_bytes)
    own.accept(8, b"eight", EIGHT)
    assert own.last_to_compact(EIGHT) == last


def test_the_log_drops_nothing_that_no_snapshot_covers() -> None:
    own = snapshots(threshold=2, threshold_bytes=1)
    own.accept(5, b"five", EIGHT)
    assert own.last_to_compact(EIGHT) == 5


def test_commands_of_as_many_bytes_as_the_threshold_ask_for_a_snapshot() -> None:
    raft = leader(1, snapshot_threshold_bytes=10)
    raft.on_message("c2", AppendResult(1, True, 1), LATER)
    asked = []
    for index, size in ((2, 9), (3, 1), (4, 9)):
        raft.propose(bytes(size), LATER)
        effects = raft.on_message("c2", AppendResult(1, True, index), LATER)
        asked += [effect.index for effect in effects if isinstance(effect, TakeSnapshot)]
    assert asked == [3]
