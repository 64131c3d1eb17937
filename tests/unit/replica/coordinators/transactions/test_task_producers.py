"""Producers of the tasks of numbered batches at their coordinator: bounds, forgetting, and the feature level."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.replica_network import code
from support.transaction_network import LOG, TransactionNet
from tidelog.errors import TidelogError
from tidelog.feature_levels import TASK_PRODUCERS
from tidelog.types import MAX_TASKS
from tidelog.wire.messages import InitTaskProducer, TaskProducer
from tidelog_replica.config import TransactionSettings
from tidelog_replica.coordinators.transactions.coordinator import TransactionCoordinator
from tidelog_replica.coordinators.transactions.records import ProducerRecord, StoredTransactions, producer_entry
from tidelog_replica.coordinators.transactions.task_producers import MAX_EPOCH, record_of_batch

ASKED = InitTaskProducer("app", "query", 7, 2)
KNOWN = ProducerRecord("query", 7, 500, 3, 9000)


def test_a_batch_keeps_its_producers_and_its_time() -> None:
    assert record_of_batch(KNOWN, ASKED, 20_000) is KNOWN
    assert record_of_batch(KNOWN, replace(ASKED, first_id=777), 20_000) is KNOWN, "ids that are not needed"


def test_the_next_batch_has_the_next_epoch_and_a_later_time() -> None:
    later = replace(ASKED, batch=12)
    assert record_of_batch(KNOWN, later, 20_000) == ProducerRecord("query", 12, 500, 4, 20_000)
    assert record_of_batch(KNOWN, later, 10) == ProducerRecord("query", 12, 500, 4, 9000), "a clock that went back"


def test_a_block_of_ids_is_asked_for_by_a_new_application_and_when_the_epochs_are_used_up() -> None:
    spent = replace(KNOWN, epoch=MAX_EPOCH)
    later = replace(ASKED, batch=8)
    assert record_of_batch(None, ASKED, 10) is None
    assert record_of_batch(spent, later, 10_000) is None
    assert record_of_batch(None, replace(ASKED, first_id=777), 10) == ProducerRecord("query", 7, 777, 0, 10)
    assert record_of_batch(spent, replace(later, first_id=777), 10) == ProducerRecord("query", 8, 777, 0, 9000)
    assert record_of_batch(spent, ASKED, 10_000) is spent, "its last batch may be replayed"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"batch": 6}, "FENCED_PRODUCER"),
        ({"owner": "other"}, "INVALID_TRANSACTION"),
        ({"owner": "other", "batch": 8}, "INVALID_TRANSACTION"),
        ({"owner": ""}, "INVALID_TRANSACTION"),
        ({"owner": "x" * 250}, "INVALID_TRANSACTION"),
        ({"task": MAX_TASKS}, "INVALID_TRANSACTION"),
    ],
)
def test_invalid_requests_for_task_producers_are_refused(fields: dict[str, object], wanted: str) -> None:
    with pytest.raises(TidelogError) as caught:
        record_of_batch(KNOWN, replace(ASKED, first_id=777, **fields), 10)  # type: ignore[arg-type]
    assert caught.value.code == wanted


def coordinator(stored: StoredTransactions | None = None, **settings: int) -> TransactionCoordinator:
    made = TransactionCoordinator(TransactionSettings(**settings))
    made.load_records(stored or StoredTransactions(), 0, 0.0, 0)
    return made


def ask(core: TransactionCoordinator, app: str, batch: int = 0, first_id: int = 500, wall_ms: int = 1000) -> object:
    return core.handle(InitTaskProducer(app, "query", batch, 0, first_id), 0.0, wall_ms)


def test_only_a_batch_that_begins_is_written() -> None:
    core = coordinator()
    assert ask(core, "a", first_id=0) == TaskProducer(0, 0, 0)
    assert core.take_entries() == [], "nothing is remembered of a request without ids"
    first = ask(core, "a")
    assert len(core.take_entries()) == 1
    assert ask(core, "a", wall_ms=9000) == first
    assert core.take_entries() == []


def test_the_coordinator_remembers_so_many_applications_and_says_when_there_are_more() -> None:
    core = coordinator(max_transactions=2)
    assert [code(ask(core, app, first_id=at * MAX_TASKS)) for at, app in enumerate("abc", 1)] == [
        "",
        "",
        "OVERLOADED",
    ]
    assert code(ask(core, "a", batch=1)) == "", "those that it knows go on"
    assert code(ask(core, "no name!")) == "INVALID_TRANSACTION"


def test_an_application_is_forgotten_when_its_last_batch_is_long_ago() -> None:
    core = coordinator(retention_ms=5000)
    ask(core, "old"), ask(core, "new", wall_ms=7000)
    core.take_entries()
    core.on_tick(100.0, 6000)
    assert core.take_entries() == [], "not before that"
    core.on_tick(200.0, 6001)
    (entry,) = core.take_entries()
    assert entry == producer_entry("old", None)
    assert list(core.task_producers) == ["new"]


def test_a_written_producer_entry_is_read_again() -> None:
    stored = StoredTransactions()
    for entry in (producer_entry("a", KNOWN), producer_entry("b", KNOWN), producer_entry("b", None)):
        stored.add_record(*entry)
    assert stored.producers == {"a": KNOWN}
    assert ask(coordinator(stored), "a", batch=7) == TaskProducer(500, 3, 9000)


def test_below_the_feature_level_nothing_is_written_that_an_older_coordinator_cannot_read() -> None:
    net = TransactionNet(level=TASK_PRODUCERS - 1)
    end = net.nodes["r3"].partitions[LOG].log.end
    error = net.init_task(7)
    assert isinstance(error, TidelogError) and error.code == "UNSUPPORTED_LEVEL"
    assert "need feature level 4, the cluster is at 3: upgrade it, and raise its level" in error.message
    assert net.nodes["r3"].partitions[LOG].log.end == end
