"""How a gateway gives producer ids: all of them come from the controllers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from test_coordination import FakeShell
from tidelog.access import ANONYMOUS
from tidelog.errors import TidelogError
from tidelog.types import MAX_TASKS, TRANSACTIONS
from tidelog.wire.messages import (
    AllocateProducerIds,
    InitProducer,
    InitTaskProducer,
    Message,
    ProducerId,
    ProducerIds,
    TaskProducer,
)
from tidelog_gateway.requests import Requests
from tidelog_replica.core.transactions.records import ProducerRecord
from tidelog_replica.core.transactions.task_producers import record_of_batch

VIEW = SimpleNamespace(principal=ANONYMOUS, tell=lambda request, answer: None)


class Shell(FakeShell):
    """Controllers that give ids out, and the coordinator of one application."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__()
        self.topic = TRANSACTIONS
        self.lead("r1")
        self.nursery = nursery
        self.next_id = 1
        self.record: ProducerRecord | None = None
        self.allocated: list[Message] = []
        self.answers: list[Any] = []

    def begin(self, link: object, id: int) -> Any:
        return self.answers.append

    async def call(self, message: Message, timeout_s: float) -> Message:
        assert isinstance(message, AllocateProducerIds) and message.client == "g" and message.sequence
        self.allocated.append(message)
        self.next_id += message.count
        return ProducerIds(self.next_id - message.count, message.count)

    def start_call(self, node: str, message: Message, timeout_s: float, done: Any) -> None:
        assert isinstance(message, InitTaskProducer)
        self.asked.append((node, message))
        record = record_of_batch(self.record, message, 1000)
        self.record = record or self.record
        done(TaskProducer(record.first_id + message.task, record.epoch, 1000) if record else TaskProducer(0, 0, 0))


async def answers(*messages: Message) -> tuple[list[Any], Shell]:
    """What the gateway answers, one after the other."""
    async with trio.open_nursery() as nursery:
        shell = Shell(nursery)
        requests = Requests(shell, "g")  # type: ignore[arg-type]
        for number, message in enumerate(messages, 1):
            requests.on_message(None, number, message, VIEW)  # type: ignore[arg-type]
            while len(shell.answers) < number:
                await trio.lowlevel.checkpoint()
    return shell.answers, shell


async def test_ids_are_given_one_at_a_time_or_many_and_none_twice() -> None:
    found, _ = await answers(*map(InitProducer, (1, 1, 5, 1, MAX_TASKS, 1)))
    given = [id for one in found for id in range(one.producer_id, one.producer_id + one.count)]
    assert [one.count for one in found] == [1, 1, 5, 1, MAX_TASKS, 1]
    assert len(set(given)) == len(given) == MAX_TASKS + 9


@pytest.mark.parametrize("count", [0, MAX_TASKS + 1])
async def test_a_number_of_ids_out_of_range_is_refused(count: int) -> None:
    (error,), shell = await answers(InitProducer(count))
    assert isinstance(error, TidelogError) and error.code == "INVALID_CONFIG"
    assert not shell.allocated


async def test_an_application_gets_a_block_of_ids_once_and_none_that_a_client_brings() -> None:
    asked = InitTaskProducer("app", "query", 7, 3, first_id=777)
    (single, first, again, later), shell = await answers(
        InitProducer(), asked, asked, InitTaskProducer("app", "query", 8, 3, first_id=777)
    )
    assert [message.count for message in shell.allocated] == [1000, MAX_TASKS]  # type: ignore[attr-defined]
    assert (single, first) == (ProducerId(1), TaskProducer(1001 + 3, 0, 1000))
    assert again == first
    assert later == TaskProducer(first.producer_id, 1, 1000)
    assert [message.first_id for _, message in shell.asked] == [0, 1001, 0, 0]  # type: ignore[attr-defined]
