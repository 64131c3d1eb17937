"""Transactions at replica servers: what leaders take, what readers see, and what a failover leaves."""

from __future__ import annotations

import pytest
from support.fake_controller import KEY
from support.replica_network import CLIENT, code
from support.transaction_network import APP, GROUP_LOG, LOG, TransactionNet
from tidelog.errors import TidelogError
from tidelog.wire.messages import (
    BeginTransaction,
    CommitOffsets,
    CommitStaged,
    Done,
    EndTransaction,
    EnrolPartition,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupPosition,
    ListOffset,
    ListTransactions,
    ListTransactionsAnswer,
    OffsetAnswer,
    StableOffset,
    StagedCommitted,
    TopicShare,
    TransactionBegun,
    TransactionEnded,
    TransactionInfo,
    WriteMarker,
)
from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import StoredTransactions
from tidelog_replica.coordinators.transactions.transaction import Marker


def test_all_of_a_transaction_becomes_visible_when_it_is_committed() -> None:
    net = TransactionNet()
    begun = net.begin()
    one, two = net.write(begun, b"a"), net.write(begun, b"b", partition=1)
    assert code(net.acks[one]) == code(net.acks[two]) == ""
    assert net.seen(0) == net.seen(1) == []
    assert net.seen(0, isolation="uncommitted") == [b"a"]
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.1)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [b"b"])


def test_nothing_of_an_aborted_transaction_is_ever_seen() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.send("r1", b"plain")
    assert net.seen() == [], "what comes behind it waits"
    assert net.end(begun, commit=False) == TransactionEnded(False)
    net.advance(0.1)
    assert net.seen() == [b"plain"]
    net.advance(4)
    assert net.seen(name="r2", any_replica=True) == [b"plain"], "nor at a follower"
    assert net.seen(isolation="uncommitted") == [b"a", b"plain"]


def test_a_transaction_without_records_comes_to_its_end_without_being_asked() -> None:
    net = TransactionNet()
    begun = net.begin()
    assert net.end(begun) == TransactionEnded(True)
    end = net.nodes["r3"].partitions[LOG].log.end
    net.advance(0.1)
    assert net.nodes["r3"].partitions[LOG].log.end == end + 1, "that it is at its end is written, too"


def test_the_latest_offset_is_the_last_stable_offset() -> None:
    net = TransactionNet()
    net.send("r1", b"before")
    begun = net.begin()
    net.write(begun, b"a", b"b")
    net.send("r1", b"behind")
    assert net.stable() == 1
    net.end(begun)
    net.advance(0.1)
    assert net.stable() == 5


def test_a_leader_takes_no_batch_of_a_transaction_that_is_not_open() -> None:
    net = TransactionNet()
    begun = net.begin()
    stranger = TransactionBegun(77, 0)
    assert code(net.acks[net.write(stranger, b"x")]) == "UNKNOWN_TRANSACTION"
    later = TransactionBegun(begun.producer_id, begun.producer_epoch + 1)
    assert code(net.acks[net.write(later, b"x")]) == "UNKNOWN_TRANSACTION"
    net.write(begun, b"a")
    net.end(begun)
    net.advance(0.1)
    assert code(net.acks[net.write(begun, b"late")]) == "FENCED_PRODUCER"
    assert code(net.acks[net.write(begun, b"late", partition=1)]) == "INVALID_TRANSACTION", "never enrolled"
    assert net.seen() == [b"a"]


def test_the_same_begin_again_is_answered_the_same() -> None:
    net = TransactionNet()
    first = net.begin("one")
    assert net.begin("one") == first
    net.write(first, b"a")
    assert net.begin("one") == first
    assert net.end(first) == TransactionEnded(True)
    net.advance(0.1)
    assert net.seen() == [b"a"]


def test_a_transaction_that_takes_too_long_is_aborted() -> None:
    net = TransactionNet()
    begun = net.begin(timeout_ms=500)
    net.write(begun, b"a")
    net.send("r1", b"behind")
    net.advance(0.6)
    assert net.seen() == [b"behind"]
    assert code(net.end(begun)) == "TRANSACTION_ABORTED"
    assert net.end(begun, commit=False) == TransactionEnded(False)


def test_aborting_a_committed_transaction_does_nothing() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.end(begun)
    assert net.end(begun, commit=False) == TransactionEnded(True)
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.1)
    assert net.end(begun, commit=False) == TransactionEnded(True), "also when all have heard of it"
    assert net.seen() == [b"a"]


@pytest.mark.parametrize("coordinator", ["r1", "r2", "r3"])
def test_a_new_coordinator_goes_on_where_the_old_one_stopped(coordinator: str) -> None:
    net = TransactionNet()
    if coordinator != "r3":
        net.move(LOG, coordinator)
    begun = net.begin()
    net.write(begun, b"a")
    net.write(begun, b"b", partition=1)
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    if coordinator != "r1":
        assert net.end(begun) is None, "it waits for the markers"
        assert net.seen() == []
    net.hold = lambda name, call: False
    net.move(LOG, next(n for n in ("r1", "r2", "r3") if n != coordinator))
    assert net.end(begun) == TransactionEnded(True)
    net.advance(0.5)
    assert (net.seen(0), net.seen(1)) == ([b"a"], [b"b"])


def test_a_new_leader_knows_open_and_aborted_transactions() -> None:
    net = TransactionNet()
    lost = net.begin("one", app="other")
    net.write(lost, b"x", app="other")
    net.end(lost, commit=False, app="other")
    net.advance(0.1)
    begun = net.begin()
    net.write(begun, b"a")
    net.move(KEY, "r2")
    assert net.seen() == []
    assert code(net.acks[net.write(begun, b"b")]) == ""
    net.end(begun)
    net.advance(0.5)
    assert net.seen() == [b"a", b"b"]
    for name in ("r1", "r3"):
        net.close(name)
        net.start(name)
    assert net.partition("r1").log.producers.transactions.aborted_from(0), "after a restart too"


def test_a_marker_takes_the_meaning_of_an_enrolment_away() -> None:
    net = TransactionNet()
    begun = net.begin(timeout_ms=500)
    net.hold = lambda name, call: isinstance(call.message, EnrolPartition)
    waiting = net.write(begun, b"a")
    assert waiting not in net.acks
    (held,) = net.held
    net.hold = lambda name, call: isinstance(call.message, EnrolPartition)
    source = net.names.index("r1")
    net._waiting[source, held[1].token] = "r1"
    net.ask("r1", WriteMarker("r3", KEY.topic_id, 0, begun.producer_id, begun.producer_epoch, False))
    assert code(net.acks[waiting]) == "OFFLINE", "and the next try is fenced"
    net.hold = lambda name, call: False
    net.deliver(*held)
    net.run()
    assert net.values("r1") == []


def test_markers_are_written_once_however_often_they_are_requested() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.end(begun)
    net.advance(0.1)
    end = net.partition("r1").log.end
    again = WriteMarker("r3", KEY.topic_id, 0, begun.producer_id, begun.producer_epoch, True)
    assert net.tell(again, "r1") == Done()
    assert net.partition("r1").log.end == end
    other = net.begin("two")
    net.write(other, b"b")
    assert net.tell(again, "r1") == Done(), "a late one ends nothing of the next transaction"
    assert net.seen() == [b"a"]
    net.end(other)
    net.advance(0.1)
    assert net.seen() == [b"a", b"b"]


def test_a_late_answer_about_the_marker_of_an_older_epoch_says_nothing_of_the_newer_one() -> None:
    core, end = TransactionCoordinator(TransactionSettings()), 0
    core.load_records(StoredTransactions(), 0, 0.0, 1000)

    def decide(now: float) -> Marker:
        """A whole transaction up to its marker."""
        nonlocal end
        begun = core.handle(BeginTransaction(APP, f"owner {now}", producer_id=5), now, 1000)
        assert isinstance(begun, TransactionBegun)
        id, epoch = begun.producer_id, begun.producer_epoch
        assert core.handle(EnrolPartition("r1", APP, id, epoch, *KEY), now, 1000) == Done()
        assert core.handle(EndTransaction(APP, id, epoch, True), now, 1000) == TransactionEnded(True)
        end += len(core.take_entries())
        core.on_written(end)
        core.on_committed(end)
        (marker,) = core.take_markers(now)
        return marker

    first = decide(1.0)
    core.on_marker(first, True, 1.0)
    core.on_tick(2.0, 1000)
    second = decide(3.0)
    assert (second.producer_id, second.epoch) == (first.producer_id, first.epoch + 1)
    core.on_marker(first, True, 3.0)
    core.on_tick(4.0, 1000)
    assert core.slots[APP, ""].state == "committing", "no leader has the second marker"
    core.on_marker(second, True, 5.0)
    core.on_tick(6.0, 1000)
    assert core.slots[APP, ""].state == "committed"


def test_a_leader_that_cannot_ask_the_coordinator_lets_the_batch_be_tried_again() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.cut.add(("r1", "r3"))
    ack = net.acks[net.write(begun, b"a")]
    assert ack.error is not None and ack.error.code == "OFFLINE" and not ack.error.unknown_outcome
    net.cut.clear()
    net.sequences.clear()
    assert code(net.acks[net.write(begun, b"a")]) == ""


def test_a_partition_without_transactions_keeps_nothing_and_asks_nobody() -> None:
    net = TransactionNet()
    net.send("r1", b"a", producer_id=5)
    net.send("r1", b"b")
    for name in net.names:
        assert net.partition(name).log.producers.transactions.is_idle
    assert net.messages(EnrolPartition) == []
    assert b"open" not in net.partition("r1").log.producers.to_bytes()


def test_a_batch_of_a_transaction_with_wrong_fields_is_refused() -> None:
    net = TransactionNet()
    begun = net.begin()
    for fields in ({"transaction": ""}, {"acks": 1}, {"transactional": False}):
        wanted = {"transaction": APP, "acks": 2, "transactional": True, **fields}
        id = net.send("r1", b"x", producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, **wanted)
        assert code(net.acks[id]) == "INVALID_TRANSACTION", fields
    answer = net.tell(BeginTransaction("no name!", "o"))
    assert isinstance(answer, TidelogError) and answer.code == "INVALID_TRANSACTION"


def of_transaction(begun: TransactionBegun, offset: int, app: str = APP) -> CommitOffsets:
    position = GroupPosition(KEY.topic_id, 0, offset)
    return CommitOffsets("g", (position,), "", -1, "", app, begun.producer_id, begun.producer_epoch)


def commit_offset(
    net: TransactionNet, begun: TransactionBegun, offset: int, name: str = "r2", app: str = APP
) -> object:
    id = net.ask(name, of_transaction(begun, offset, app))
    if id not in net.answers:
        net.advance(0.5)  # the coordinator proves that nobody else is one
    return net.answers[id]


def offset_of(net: TransactionNet, name: str = "r2") -> object:
    answer = net.tell(FetchOffsets("g"), name)
    if answer is None:
        net.advance(0.5)
        answer = net.answers[net._next_id]
    return [at.offset for at in answer.positions] if isinstance(answer, FetchOffsetsAnswer) else code(answer)


@pytest.mark.parametrize("commit", [True, False])
def test_positions_of_a_group_change_with_the_transaction_or_not_at_all(commit: bool) -> None:
    net = TransactionNet()
    net.tell(CommitOffsets("g", (GroupPosition(KEY.topic_id, 0, 1),)), "r2")
    begun = net.begin()
    net.write(begun, b"a")
    assert commit_offset(net, begun, 7) == Done()
    assert commit_offset(net, begun, 8) == Done()
    assert offset_of(net) == "UNSTABLE_OFFSETS", "nobody goes on from where it may not be"
    net.end(begun, commit)
    net.advance(0.1)
    assert offset_of(net) == ([8] if commit else [1])
    assert code(commit_offset(net, begun, 9)) in ("INVALID_TRANSACTION", "TRANSACTION_ABORTED")
    assert offset_of(net) == ([8] if commit else [1])


def test_a_late_marker_settles_no_positions_of_a_newer_transaction() -> None:
    net = TransactionNet()
    first = net.begin()
    assert commit_offset(net, first, 7) == Done()
    net.end(first)
    net.advance(0.1)
    second = net.begin()
    assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
    assert commit_offset(net, second, 8) == Done()
    late = WriteMarker("r3", *GROUP_LOG, first.producer_id, first.producer_epoch, True)
    assert net.tell(late, "r2") == Done()
    assert offset_of(net) == "UNSTABLE_OFFSETS", "the second one is not decided"
    net.end(second, commit=False)
    net.advance(0.1)
    assert offset_of(net) == [7]


def test_positions_of_a_transaction_outlive_the_coordinator_of_the_group() -> None:
    net = TransactionNet()
    begun = net.begin()
    assert commit_offset(net, begun, 7) == Done()
    net.move(GROUP_LOG, "r1")
    assert offset_of(net, "r1") == "UNSTABLE_OFFSETS"
    net.end(begun)
    net.advance(0.5)
    assert offset_of(net, "r1") == [7]


def test_nobody_adds_positions_to_a_transaction_of_another_application() -> None:
    """It has a right to an application of its own and to the group, and knows producer id and epoch of another's
    transaction, which has positions of the group already."""
    net = TransactionNet()
    victim, own = net.begin(), net.begin(app="mallory")
    assert commit_offset(net, victim, 7) == Done()
    assert commit_offset(net, own, 3, app="mallory") == Done()
    assert code(commit_offset(net, victim, 99, app="mallory")) == "UNKNOWN_TRANSACTION"
    assert code(commit_offset(net, own, 99)) == "UNKNOWN_TRANSACTION"
    net.end(own, commit=False, app="mallory")
    net.end(victim)
    net.advance(0.2)
    assert offset_of(net) == [7]


def test_positions_that_a_marker_has_overtaken_are_not_held_though_another_request_names_the_producer() -> None:
    """Held after the marker they would keep the group's positions unstable for ever."""
    net = TransactionNet()
    victim = net.begin()
    net.hold = lambda name, call: isinstance(call.message, EnrolPartition)
    waiting = net.ask("r2", of_transaction(victim, 7))
    (held,) = net.held
    net.ask("r2", WriteMarker("r3", *GROUP_LOG, victim.producer_id, victim.producer_epoch, False))
    net.ask("r2", of_transaction(victim, 99, "mallory"))
    net.hold = lambda name, call: False
    net.deliver(*held)
    net.advance(0.5)
    assert code(net.answers[waiting]) == "NOT_COORDINATOR"
    assert offset_of(net) == []


def test_positions_of_a_producer_without_a_transaction_are_refused() -> None:
    net = TransactionNet()
    assert code(commit_offset(net, TransactionBegun(5, 0), 7)) == "UNKNOWN_TRANSACTION"
    assert offset_of(net) == []


def listed(net: TransactionNet, **of: object) -> ListTransactionsAnswer:
    """As the coordinator tells it, once it has proved that it is one."""
    id = net.ask("r3", ListTransactions(**of))  # type: ignore[arg-type]
    net.advance(1)
    answer = net.answers[id]
    assert isinstance(answer, ListTransactionsAnswer), answer
    return answer


def test_unfinished_transactions_are_listed_and_an_application_is_described() -> None:
    net = TransactionNet()
    begun = net.begin(timeout_ms=5000)
    net.write(begun, b"a", partition=1)
    net.stage("one", b"b")
    assert net.tell(CommitStaged(APP, 7, ("one",))) == StagedCommitted(False)
    net.stage("two", b"c")
    other = net.begin(app="other")
    net.end(other, app="other")
    net.advance(0.2)
    began_ms, identity = net.wall_ms, (begun.producer_id, begun.producer_epoch)
    found = listed(net, partition=0).transactions
    open_one = TransactionInfo(APP, "open", *identity, "", 1, began_ms, began_ms + 5000)
    assert [found[0], *((info.staged, info.state) for info in found[1:])] == [open_one, ("two", "prepared")]
    told = listed(net, app=APP)
    assert told.transactions[0].parts == (TopicShare(KEY.topic_id, (1,)),)
    assert [info.staged for info in told.transactions] == ["", "two"]
    assert told.batches == (7,)
    (ended,) = listed(net, app="other").transactions
    assert (ended.state, ended.since_ms, ended.until_ms) == ("committed", began_ms, -1)
    assert listed(net, app="nobody") == ListTransactionsAnswer()
    assert code(net.tell(ListTransactions(partition=3))) == "NOT_COORDINATOR"


def test_a_server_knows_how_many_it_coordinates_how_old_they_are_and_how_they_ended() -> None:
    net = TransactionNet()
    begun = net.begin()
    net.write(begun, b"a")
    net.stage("one", b"b")
    net.wall_ms += 3000
    lost = net.begin(app="other")
    net.end(lost, commit=False, app="other")
    net.advance(0.2)
    transactions, counts = net.nodes["r3"].transactions, net.nodes["r3"].assignment.counts
    assert transactions.ages() == {"open": [3.0], "prepared": [3.0], "committing": [], "aborting": []}
    assert counts.ended_transactions == {"committed": 0, "aborted": 1}
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    net.end(begun)
    net.wall_ms += 1000
    assert transactions.ages()["committing"] == [1.0], "a leader has not heard of it yet"
    net.hold = lambda name, call: False
    for held in net.held:
        net.deliver(*held)
    net.advance(1)
    assert (transactions.ages()["committing"], counts.ended_transactions) == ([], {"committed": 1, "aborted": 1})
    assert all(net.nodes[name].transactions.ages()["prepared"] == [] for name in ("r1", "r2"))


def test_the_leader_names_the_transaction_that_holds_the_last_stable_offset_and_for_how_long() -> None:
    net = TransactionNet()
    ask = ListOffset(KEY.topic_id, 0, "latest", isolation="uncommitted")

    def stable() -> object:
        id = net.ask("r1", ask)
        net.advance(0.5)
        return net.answers[id].stable

    net.send("r1", b"before")
    assert stable() is None
    begun = net.begin()
    net.write(begun, b"a")
    net.advance(3)
    told = stable()
    assert isinstance(told, StableOffset)
    assert (told.offset, told.producer_id, told.producer_epoch) == (1, begun.producer_id, 0)
    assert 3000 <= told.age_ms <= 3500
    net.move(KEY, "r2")
    net.leaders[0] = "r2"
    id = net.ask("r2", ask)
    net.advance(0.5)
    assert net.answers[id].stable.producer_id == begun.producer_id and net.answers[id].stable.age_ms < 3000
    net.end(begun)
    net.advance(0.2)
    id = net.ask("r2", ask)
    net.advance(0.5)
    assert net.answers[id] == OffsetAnswer(3, 1), "nobody waits any more"


@pytest.mark.parametrize("closed", [CLIENT, CLIENT + 1])
def test_a_begin_that_waits_is_answered_unless_its_own_link_has_closed(closed: int) -> None:
    net = TransactionNet()
    begun = net.begin("one")
    net.write(begun, b"a")
    net.hold = lambda name, call: isinstance(call.message, WriteMarker)
    net.end(begun)
    waiting = net.ask("r3", BeginTransaction(APP, "two", producer_id=5000))
    assert waiting not in net.answers
    net._take("r3", net.nodes["r3"].on_link_closed(closed, net.now))
    net.hold = lambda name, call: False
    net.advance(10)
    assert (waiting in net.answers) == (closed != CLIENT)
