"""Staged transactions at their coordinator: many stage, one commits, and nothing is left. Tests
``transactions/coordinator.py`` and ``transactions/service.py``."""

from __future__ import annotations

import pytest
from support.fake_controller import KEY
from support.replica_network import code
from support.transaction_network import APP, LOG, TransactionNet
from tidelog.types import staged_name
from tidelog.wire.messages import (
    AbortStaged,
    BeginTransaction,
    CommitStaged,
    Done,
    StagedCommitted,
    TopicShare,
    TransactionBegun,
    WriteMarker,
)


def test_transactions_staged_by_many_are_committed_together_and_once() -> None:
    net = TransactionNet()
    one, _ = net.stage("one", b"a"), net.stage("two", b"b", partition=1)
    assert code(net.tell(CommitStaged(APP, 7, ("one", "three")))) == "UNKNOWN_TRANSACTION"
    assert net.tell(CommitStaged(APP, 7, ("one", "two"))) == StagedCommitted(False)
    assert net.tell(AbortStaged(APP, ("one", "two"))) == Done(), "does nothing any more"
    net.advance(0.1)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [b"b"])
    net.stage("again", b"a")
    assert net.tell(CommitStaged(APP, 7, ("again",))) == StagedCommitted(True)
    net.advance(0.1)
    assert net.seen() == [b"a"]
    assert code(net.acks[net.write(one, b"late")]) == "FENCED_PRODUCER"


def test_a_commit_of_a_driver_with_one_batch_at_a_time_leaves_nothing_else_staged() -> None:
    net = TransactionNet()
    net.stage("one", b"a"), net.stage("lost", b"b"), net.stage("other app", b"c", app="other")
    assert net.tell(CommitStaged(APP, 7, ("one",))) == StagedCommitted(False)
    net.advance(0.1)
    assert net.seen() == [b"a"], "lost may still be committed, so nobody reads past it"
    net.stage("two", b"d")
    assert net.tell(CommitStaged(APP, 8, ("two",), alone=True)) == StagedCommitted(False)
    net.advance(0.1)
    assert code(net.tell(CommitStaged(APP, 9, ("lost",)))) == "UNKNOWN_TRANSACTION"
    assert net.tell(CommitStaged("other", 1, ("other app",))) == StagedCommitted(False)
    net.advance(0.1)
    assert net.seen() == [b"a", b"c", b"d"]
    net.stage("again", b"d"), net.stage("lost", b"b")
    assert net.tell(CommitStaged(APP, 8, ("again",), alone=True)) == StagedCommitted(True)
    net.advance(0.1)
    assert net.stable() == net.partition("r1").log.end


def test_a_batch_stays_committed_when_the_coordinator_ends_in_the_middle() -> None:
    net = TransactionNet()
    net.stage("one", b"a")
    net.stage("two", b"b", partition=1)
    net.hold = lambda name, call: isinstance(call.message, WriteMarker) and call.to == "r1"
    decided = net.ask("r3", CommitStaged(APP, 7, ("one", "two")))
    assert decided not in net.answers, "it waits for the markers"
    net.advance(net.settings.transactions.visible_wait_ms / 1000 + 0.1)
    assert net.answers[decided] == StagedCommitted(False, (TopicShare(KEY.topic_id, (0,)),))
    net.hold = lambda name, call: False
    net.move(LOG, "r1")
    again = net.ask("r1", CommitStaged(APP, 7, ("one", "two")))
    net.advance(0.5)
    assert net.answers[again] == StagedCommitted(True)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [b"b"])


def test_a_staged_transaction_that_nobody_commits_expires() -> None:
    net = TransactionNet()
    net.stage("one", b"a")
    net.advance(3601)
    assert net.stable() == 2
    assert net.seen() == []
    assert code(net.tell(CommitStaged(APP, 7, ("one",)))) == "UNKNOWN_TRANSACTION"


def test_a_staged_name_that_is_used_again_is_not_committed_by_the_decision_about_its_first_use() -> None:
    net = TransactionNet()
    net.stage("one", b"a")
    assert net.tell(CommitStaged(APP, 7, ("one",))) == StagedCommitted(False)
    net.advance(0.1)
    net.stage("one", b"b")
    net.move(LOG, "r1")
    net.advance(0.5)
    assert net.seen() == [b"a"], "nobody has committed what is staged now"
    assert net.tell(CommitStaged(APP, 8, ("one",))) == StagedCommitted(False)
    net.advance(0.1)
    assert net.seen() == [b"a", b"b"]


def test_a_staged_name_is_free_again_when_every_leader_has_the_end_of_its_first_use() -> None:
    net = TransactionNet()
    net.stage("one", b"a")
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    assert net.tell(CommitStaged(APP, 7, ("one",))) is None, "it waits for the marker"
    again = BeginTransaction(APP, "another owner", "one", producer_id=5000)
    id = net.ask("r3", again)
    net.hold = lambda name, call: False
    net.cut = {("r3", "r1")}
    for held in net.held:
        net.deliver(*held)
    net.run()
    net.cut = set()
    net.advance(1.0)
    assert net.seen() == [b"a"], "the leader was told again"
    assert isinstance(net.answers[id], TransactionBegun)


# --- owners ------------------------------------------------------------------------------------------------------


def stage_as(net: TransactionNet, owner: str, batch: int, value: bytes) -> CommitStaged:
    """Stage a batch of one transaction, and return the request that commits it."""
    name = staged_name(owner, f"{batch}-0")
    net.stage(name, value)
    return CommitStaged(APP, batch, (name,), alone=True)


@pytest.mark.parametrize("moved", [False, True], ids=["the same coordinator", "the next one"])
def test_an_application_takes_batches_of_one_owner_only(moved: bool) -> None:
    """Another owner counts its batches from 0 as well: they would be taken for committed, and dropped."""
    net = TransactionNet()
    for batch, value in enumerate((b"a", b"b")):
        assert net.tell(stage_as(net, "first", batch, value)) == StagedCommitted(False)
        net.advance(0.1)
    if moved:
        net.move(LOG, "r1")
        net.advance(0.5)
    for batch in (0, 2):
        refused = net.tell(stage_as(net, "second", batch, b"c"))
        assert (code(refused), refused.detail) == ("INVALID_TRANSACTION", {"owner": "first"})
        assert f"application {APP} belongs to first, not to second" in refused.message
    for batch in (1, 2):
        assert net.tell(stage_as(net, "first", batch, b"d")) == StagedCommitted(batch == 1)
        net.advance(0.1)
    assert net.seen() == [b"a", b"b", b"d"]


@pytest.mark.parametrize(("batch", "refused"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_batch_of_an_unknown_owner_is_sent_again_by_itself_only(batch: int, refused: bool) -> None:
    """An earlier release of the sink names no owner. Of its batches only the latest may come again."""
    net = TransactionNet()
    for number in range(3):
        net.stage("plain", b"%d" % number)
        assert net.tell(CommitStaged(APP, number, ("plain",))) == StagedCommitted(False)
        net.advance(0.1)
    answer = net.tell(stage_as(net, "query", batch, b"3"))
    assert code(answer) == "INVALID_TRANSACTION" if refused else answer == StagedCommitted(batch == 2)


def test_only_batch_0_of_an_unknown_owner_may_be_of_any() -> None:
    net = TransactionNet()
    net.stage("plain", b"0")
    assert net.tell(CommitStaged(APP, 0, ("plain",))) == StagedCommitted(False)
    net.advance(0.1)
    refused = net.tell(stage_as(net, "query", 0, b"0"))
    assert (code(refused), refused.detail) == ("INVALID_TRANSACTION", {"owner": ""})


def test_names_without_an_owner_are_not_asked_for_one() -> None:
    net = TransactionNet()
    for batch, name in enumerate(("7/1", "8/1", "owner=", "owner=x")):
        net.stage(name, b"%d" % batch)
        assert net.tell(CommitStaged(APP, batch, (name,))) == StagedCommitted(False)
        net.advance(0.1)
    assert net.tell(CommitStaged(APP, 0, ("8/1",))) == StagedCommitted(True)
