"""E10 to E13, E24 to E29: transactions, on the toy network of the unit tests."""

from __future__ import annotations

import pytest
from support.fake_controller import KEY
from support.replica_network import code
from support.transaction_network import APP, LOG, TransactionNet
from tidelog.batch.format import NewRecord, encode_batch, read_header
from tidelog.wire.messages import (
    BeginTransaction,
    EndTransaction,
    Fetch,
    TopicShare,
    TransactionBegun,
    TransactionEnded,
    WriteMarker,
)


def without_followers(net: TransactionNet, leader: str) -> None:
    """Cut the followers off, so that nothing that this server appends is committed from now on."""
    net.drop_notify = True
    net.hold = lambda name, call: isinstance(call.message, Fetch) and call.to == leader


def with_followers(net: TransactionNet) -> None:
    net.drop_notify = False
    net.hold = lambda name, call: False


def test_E10_a_leader_ends_with_the_marker_of_a_transaction_that_is_not_committed() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    without_followers(net, "r1")
    decided = net.ask("r3", EndTransaction(APP, begun.producer_id, begun.producer_epoch, True))
    net.advance(4)
    assert net.answers[decided] == TransactionEnded(True, (TopicShare(KEY.topic_id, (0,)),))
    assert net.partition("r1").log.end == 2, "the marker is there"
    told = net.stable()
    with_followers(net)
    net.held.clear()
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    net.move(KEY, "r2")
    assert net.stable() >= told, "what was decided for readers stays so"
    with_followers(net)
    for held in net.held:
        net.deliver(*held)
    net.advance(5)
    assert net.seen() == [b"a"], "the next leader is told, too"


@pytest.mark.parametrize("commit", [True, False])
def test_E11_a_coordinator_ends_with_a_decision_that_is_not_committed(commit: bool) -> None:
    net = TransactionNet()
    begun = net.begin(timeout_ms=5000)
    net.write(begun, b"a")
    without_followers(net, "r3")
    told = net.end(begun, commit=commit)
    with_followers(net)
    net.move(LOG, "r1")
    net.advance(10)
    decided = net.end(begun, commit=False)
    assert told in (None, decided), "what was told is so for ever"
    assert net.seen() == ([b"a"] if decided.committed else [])


def test_E12_a_batch_of_a_transaction_comes_when_the_next_one_is_open() -> None:
    """KIP-890 names this failure of older protocols."""
    net = TransactionNet()
    first = net.begin()
    net.write(first, b"a")
    assert net.end(first) == TransactionEnded(True)
    net.advance(0.1)
    second = net.begin()
    net.write(second, b"b", partition=1)
    late = net.write(first, b"late")
    assert net.end(second) == TransactionEnded(True)
    net.advance(0.1)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [b"b"])
    assert code(net.acks[late]) == "FENCED_PRODUCER"


def test_E13_a_transaction_is_seen_everywhere_or_nowhere_and_holds_nobody_up() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.write(begun, b"b", partition=1)
    stranger = net.write(TransactionBegun(77, 0), b"of none")
    for leader in ("r1", "r2"):
        net.send(leader, b"behind", partition=int(leader == "r2"))
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.1)
    assert (net.seen(0), net.seen(1)) == ([b"a", b"behind"], [b"b", b"behind"])
    assert code(net.acks[stranger]) == "UNKNOWN_TRANSACTION"


def plant(net: TransactionNet, leader: str, producer_id: int, epoch: int, *, sequence: int = 0) -> None:
    """Append a plain batch of a producer to a leader's log without any check; an earlier release accepted such
    batches."""
    partition = net.partition(leader)
    leading = partition.leading
    assert leading is not None
    batch = encode_batch(
        [NewRecord(b"foreign")], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    header = read_header(batch)
    partition.producers.record(header, leading.append(batch, header) - 1)
    net.send(leader, b"behind")  # which writes both, and lets them be committed


@pytest.mark.parametrize("epoch", [0, 1, 7, 65535])
@pytest.mark.parametrize("commit", [True, False])
def test_E24_a_plain_batch_of_another_epoch_keeps_no_marker_out(epoch: int, commit: bool) -> None:
    """Another client writes plain batches under the producer id of an open transaction. Its marker is written all the
    same, so the last stable offset moves, and the application continues with its next transaction."""
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    plant(net, "r1", begun.producer_id, epoch, sequence=1 if epoch == 0 else 0)
    net.send("r1", b"foreign", producer_id=begun.producer_id, producer_epoch=epoch, base_sequence=0)
    ended = net.end(begun, commit=commit)
    assert ended == TransactionEnded(commit)
    net.advance(0.2)
    assert net.stable() == net.partition("r1").log.end
    assert not net.partition("r1").producers.transactions.open
    assert (b"a" in net.seen()) == commit
    following = net.begin()
    assert code(net.acks[net.write(following, b"next")]) == ""
    net.end(following)
    net.advance(0.2)
    assert net.seen()[-1] == b"next"


def test_E25_the_answer_to_a_commit_waits_for_the_markers_and_lists_missing_ones() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.write(begun, b"b", partition=1)
    net.hold = lambda name, call: isinstance(call.message, WriteMarker) and call.to == "r1"
    decided = net.ask("r3", EndTransaction(APP, begun.producer_id, begun.producer_epoch, True))
    assert decided not in net.answers, "one marker is missing"
    net.advance(net.settings.transactions.visible_wait_ms / 1000 + 0.1)
    missing = (TopicShare(KEY.topic_id, (0,)),)
    assert net.answers[decided] == TransactionEnded(True, missing), "decided, and not visible everywhere"
    assert net.seen(1) == [b"b"] and net.seen(0) == []
    again = net.ask("r3", EndTransaction(APP, begun.producer_id, begun.producer_epoch, True))
    assert again not in net.answers, "who asks again waits, too"
    with_followers(net)
    for held in net.held:
        net.deliver(*held)
    net.advance(0.5)
    assert net.answers[again] == TransactionEnded(True)
    assert net.seen(0) == [b"a"]


def test_E26_a_commit_is_answered_by_the_next_coordinator_when_its_markers_are_in() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.hold = lambda name, call: isinstance(call.message, WriteMarker) and name == "r3"
    decided = net.ask("r3", EndTransaction(APP, begun.producer_id, begun.producer_epoch, True))
    net.move(LOG, "r2")
    assert code(net.answers[decided]) == "NOT_COORDINATOR", "and it is not known whether it is committed"
    again = net.ask("r2", EndTransaction(APP, begun.producer_id, begun.producer_epoch, True))
    net.advance(5)
    assert net.answers[again] == TransactionEnded(True)
    assert net.seen() == [b"a"]


def plain(net: TransactionNet, begun: TransactionBegun, value: bytes, epoch: int, sequence: int = 0) -> str:
    """Send a plain batch under the producer id of a transaction, and return the code of its refusal, "" for none."""
    ids = {"producer_id": begun.producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return code(net.acks[net.send("r1", value, **ids)])


@pytest.mark.parametrize("epoch", [0, 1, 9])
def test_E27_a_plain_batch_under_the_id_of_an_open_transaction_is_refused_and_holds_nobody_up(epoch: int) -> None:
    """It would raise the producer's epoch in the log, so that the marker would be refused and the LSO would never
    move again."""
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    assert plain(net, begun, b"stranger's", epoch) == "INVALID_TRANSACTION"
    assert plain(net, begun, b"stranger's", epoch, sequence=1) == "INVALID_TRANSACTION"
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.1)
    assert net.seen(0) == [b"a"]


def test_E27_a_plain_batch_is_refused_while_the_coordinator_is_asked() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a", run=False)
    ids = {"producer_id": begun.producer_id, "producer_epoch": 3, "base_sequence": 0}
    stranger = net.send("r1", b"stranger's", **ids)
    assert code(net.acks[stranger]) == "INVALID_TRANSACTION"
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.1)
    assert net.seen(0) == [b"a"]


def test_E28_a_batch_of_a_transaction_is_never_acked_for_a_plain_one() -> None:
    """The plain batch came first: the transaction's own batch is refused, and not taken for a copy."""
    net = TransactionNet()
    begun = net.begin()
    assert plain(net, begun, b"a", begun.producer_epoch) == ""
    id = net.write(begun, b"a")
    assert (code(net.acks[id]), net.acks[id].duplicate) == ("SEQUENCE_CONFLICT", False)


def test_E29_a_process_that_takes_over_fences_the_one_that_still_writes() -> None:
    """Transactional ids exist for this failure (KIP-98): a process is taken for dead, another one begins under its
    name, and the first goes on. Nothing that it writes before, during or after the takeover becomes visible."""
    net = TransactionNet()
    first = net.begin("first process")
    net.write(first, b"before")
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    takeover = BeginTransaction(APP, "second process", producer_id=5000)
    assert code(net.tell(takeover)) == "TRANSACTION_ENDING", "the first one is aborted, and its marker is on its way"
    assert code(net.acks[net.write(first, b"during")]) == "", "this leader knows nothing of it yet"
    assert code(net.acks[net.write(first, b"during", partition=1)]) == "TRANSACTION_ABORTED"
    assert code(net.end(first)) == "TRANSACTION_ABORTED"
    waiting = net.ask("r3", takeover)
    assert waiting not in net.answers, "no log holds two transactions of one name"
    with_followers(net)
    for held in net.held:
        net.deliver(*held)
    net.advance(0.5)
    second = net.answers[waiting]
    assert second == TransactionBegun(first.producer_id, first.producer_epoch + 1)
    net.write(second, b"a")
    for partition in (0, 1):
        assert code(net.acks[net.write(first, b"after", partition=partition)]) == "FENCED_PRODUCER"
    assert code(net.end(first)) == code(net.end(first, commit=False)) == "FENCED_PRODUCER"
    assert net.end(second) == TransactionEnded(True)
    net.advance(0.5)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [])
    net.advance(4)
    assert net.seen(name="r2", any_replica=True) == [b"a"], "nor at a follower"
