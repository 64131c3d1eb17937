"""E20 to E23: producers of the tasks of numbered batches, on the toy network of the unit tests."""

from __future__ import annotations

import pytest
from support.fake_controller import KEY
from support.replica_network import code
from support.transaction_network import APP, LOG, TransactionNet
from tidelog.wire.messages import Fetch, InitTaskProducer, TaskProducer


@pytest.mark.parametrize("coordinator", ["r1", "r2"])
def test_E20_a_batch_is_replayed_after_the_end_of_the_coordinator(coordinator: str) -> None:
    net = TransactionNet()
    first = [net.init_task(7, task) for task in (0, 5)]
    assert [net.write_task(one, b"a", b"b") for one in first] == ["", ""]
    net.wall_ms += 60_000
    assert [net.init_task(7, task) for task in (0, 5)] == first
    net.move(LOG, coordinator)
    assert [net.init_task(7, task) for task in (0, 5)] == first, "ids, epoch and time are those of the first attempt"
    assert [net.write_task(one, b"a", b"b") for one in first] == ["", ""]
    assert net.seen() == [b"a", b"b"] * 2, "every record once"


def test_E21_a_coordinator_ends_before_the_producer_that_it_chose_is_committed() -> None:
    net = TransactionNet()
    before = net.init_task(6)
    net.drop_notify = True
    net.hold = lambda name, call: isinstance(call.message, Fetch) and call.to == "r3"
    asked = net.ask("r3", InitTaskProducer(APP, "query", 7, 0))
    net.advance(1)
    told = net.answers.get(asked)
    net.drop_notify, net.hold = False, lambda name, call: False
    net.wall_ms += 60_000
    net.move(LOG, "r1")
    again = net.init_task(7)
    assert told is None or code(told) or told == again, "an answer stays true"
    assert again == TaskProducer(before.producer_id, before.producer_epoch + 1, net.wall_ms)


def test_E22_a_task_of_an_earlier_batch_goes_on_when_the_next_one_has_begun() -> None:
    net = TransactionNet()
    early, late = net.init_task(7), net.init_task(7, 1)
    assert net.write_task(early, b"a") == ""
    second = net.init_task(8)
    assert second.timestamp_ms >= early.timestamp_ms
    assert net.write_task(second, b"b") == ""
    assert net.write_task(early, b"zombie", sequence=1) == "FENCED_PRODUCER"
    net.init_task(8, 1)
    assert code(net.init_task(7, 1)) == "FENCED_PRODUCER", f"{late} is over, and nobody is told it again"
    net.move(KEY, "r2")
    assert net.write_task(early, b"zombie", sequence=1) == "FENCED_PRODUCER"
    assert net.seen() == [b"a", b"b"]


def test_E23_two_tasks_batches_or_applications_never_write_under_one_producer() -> None:
    net = TransactionNet()
    seen: dict[tuple[int, int], object] = {}
    for app in ("one", "two"):
        for batch in (0, 1, 5):
            for task in (0, 1, 99):
                found = net.init_task(batch, task, app)
                assert seen.setdefault((found.producer_id, found.producer_epoch), found) is found
        assert code(net.init_task(6, 0, app, owner="another query")) == "INVALID_TRANSACTION"
    assert len(seen) == 18
