"""Transactions that are renewed while their program makes progress. Tests ``transactions/coordinator.py``,
``transactions/transaction.py`` and ``transactions/service.py``."""

from __future__ import annotations

from typing import Any

from support.replica_network import code
from support.transaction_network import APP, LOG, TransactionNet
from tidelog.types import staged_name
from tidelog.wire.messages import (
    BeginTransaction,
    CommitStaged,
    Done,
    ListTransactions,
    PrepareTransaction,
    StagedCommitted,
    TransactionBegun,
)
from tidelog_replica.config import TransactionSettings

TIMEOUT_MS = 10_000


def begin(net: TransactionNet, owner: str = "one", staged: str = "task") -> TransactionBegun:
    begun = net.begin(owner, staged=staged, timeout_ms=TIMEOUT_MS)
    net.write(begun, b"a")
    return begun


def renew(net: TransactionNet, owner: str = "one", staged: str = "task") -> Any:
    return net.tell(BeginTransaction(APP, owner, staged, TIMEOUT_MS, renew=True))


def prepare(net: TransactionNet, begun: TransactionBegun) -> Any:
    return net.tell(PrepareTransaction(APP, begun.producer_id, begun.producer_epoch))


def test_a_transaction_that_is_renewed_stays_open_and_one_that_is_not_does_not() -> None:
    net = TransactionNet()
    begun = begin(net)
    for _ in range(5):
        net.advance(8)
        assert renew(net) == begun
    net.write(begun, b"b")
    assert prepare(net, begun) == Done()
    assert net.tell(CommitStaged(APP, 0, ("task",))) == StagedCommitted(False)
    net.advance(0.1)
    assert net.seen() == [b"a", b"b"]

    zombie = begin(net, "two")
    net.advance(8)
    assert isinstance(renew(net, "two"), TransactionBegun)
    net.advance(11)
    assert code(prepare(net, zombie)) == "UNKNOWN_TRANSACTION"
    assert code(renew(net, "two")) == "UNKNOWN_TRANSACTION", "it begins none"
    assert net.stable() == net.partition("r1").log.end, "and readers go on"


def test_a_transaction_is_not_renewed_beyond_a_bound() -> None:
    net = TransactionNet(settings=TransactionSettings(open_max_ms=25_000))
    begun = begin(net)
    for _ in range(3):
        net.advance(8)
        assert renew(net) == begun
    net.advance(2)
    assert code(prepare(net, begun)) == "UNKNOWN_TRANSACTION", "24 s were within the bound, 26 s are not"


def test_the_next_coordinator_knows_of_the_renewal_and_of_the_begin() -> None:
    net = TransactionNet(settings=TransactionSettings(open_max_ms=25_000))
    begun = begin(net)
    [before] = net.tell(ListTransactions(APP)).transactions
    net.advance(8)
    renew(net)
    net.wall_ms += 8000
    net.move(LOG, "r1")
    net.advance(8)
    [after] = net.tell(ListTransactions(APP)).transactions
    assert (after.state, after.since_ms) == ("open", before.since_ms), "8 s after the renewal, 16 s after the begin"
    assert renew(net) == begun
    net.advance(9.5)
    assert code(prepare(net, begun)) == "UNKNOWN_TRANSACTION"


def test_what_is_prepared_waits_no_longer_than_before() -> None:
    net = TransactionNet(settings=TransactionSettings(staged_timeout_ms=3000))
    begun = begin(net)
    assert prepare(net, begun) == Done()
    assert renew(net) == begun
    net.advance(3.5)
    assert code(net.tell(CommitStaged(APP, 0, ("task",)))) == "UNKNOWN_TRANSACTION"


def test_a_zombie_that_renews_harms_nobody() -> None:
    net = TransactionNet()
    begin(net, "zombie")
    net.tell(BeginTransaction(APP, "two", "task", TIMEOUT_MS, 5000))
    net.advance(0.5)
    begun = begin(net, "two")
    assert code(renew(net, "zombie")) == "FENCED_PRODUCER"
    assert prepare(net, begun) == Done()


def test_a_renewal_does_not_wait_for_the_end_of_the_transaction() -> None:
    net = TransactionNet()
    begin(net)
    net.hold = lambda name, call: call.message.OP == "write_marker"
    net.advance(11)
    assert code(renew(net)) == "TRANSACTION_ABORTED"


# --- what is prepared, and its batch is not at its end -----------------------------------------------------------


def test_what_is_prepared_waits_for_the_rest_of_its_owners_batch() -> None:
    """Within the hour others of the owner begin, or renew."""
    net = TransactionNet()
    first, other = staged_name("query", "0-0"), staged_name("other", "0-0")
    net.stage(first, b"a"), net.stage(other, b"x"), net.stage("plain", b"y")
    net.advance(3000)
    begin(net, staged="also plain")
    slow = begin(net, "slow", staged_name("query", "0-1"))
    net.advance(8)
    assert renew(net, "slow", staged_name("query", "0-1")) == slow
    net.advance(8)
    assert prepare(net, slow) == Done()
    net.advance(3100)
    left = {one.staged for one in net.tell(ListTransactions(APP)).transactions}
    assert left == {first, staged_name("query", "0-1")}, "none of another owner, or of none"
    assert net.tell(CommitStaged(APP, 0, tuple(left))) == StagedCommitted(False)


def test_it_does_not_wait_for_ever() -> None:
    net = TransactionNet()
    net.stage(staged_name("query", "0-0"), b"a")
    net.advance(3000)
    begin(net, staged=staged_name("query", "0-1"))
    net.advance(3590)
    assert len(net.tell(ListTransactions(APP)).transactions) == 1, "an hour after the last begin is not over"
    net.advance(20)
    assert net.tell(ListTransactions(APP)).transactions == ()
    assert net.stable() == net.partition("r1").log.end


def test_an_owner_that_begins_again_and_again_holds_up_readers_no_longer_than_the_bound() -> None:
    net = TransactionNet(settings=TransactionSettings(staged_timeout_ms=60_000, open_max_ms=200_000))
    net.stage(staged_name("query", "0-0"), b"a")
    for n in range(8):
        net.advance(50)
        begin(net, f"attempt {n}", staged_name("query", "0-1"))
    staged = {one.staged for one in net.tell(ListTransactions(APP)).transactions}
    assert staged_name("query", "0-0") not in staged, "400 s are more than 200 s and 60 s"


def test_the_next_coordinator_lets_nothing_wait_longer() -> None:
    """It knows of no begin, and its clock may have begun a moment ago."""
    net = TransactionNet()
    net.stage(staged_name("query", "0-0"), b"a")
    net.wall_ms += 3_595_000
    net.move(LOG, "r1")
    net.advance(6)
    assert net.tell(ListTransactions(APP)).transactions == ()
