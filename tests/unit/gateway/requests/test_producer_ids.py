"""How a gateway gives producer ids: all of them come from the controllers. Tests ``requests/requests.py`` and
``metadata/rules/recovery.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from tidelog.acl import ANONYMOUS, share_of_principal
from tidelog.errors import TidelogError
from tidelog.feature_levels import PRODUCER_SHARES
from tidelog.types import MAX_TASKS, PRODUCER_WINDOW, SHARES, TRANSACTIONS, share_of
from tidelog.wire.messages import (
    AllocateProducerIds,
    InitProducer,
    InitTaskProducer,
    Message,
    ProducerId,
    ProducerIds,
    TaskProducer,
)
from tidelog_controller.metadata.rules.recovery import first_of_share
from tidelog_gateway.requests.requests import ClientRequests
from tidelog_replica.coordinators.transactions.records import ProducerRecord
from tidelog_replica.coordinators.transactions.task_producers import record_of_batch

from unit.gateway.requests.test_coordinator_client import FakeShell


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
        self.pushed = 0
        """1: the next block is of the share behind the one that was asked for."""

    def begin_request(self, link: object, id: int, message: object = None) -> Any:
        return self.answers.append

    async def call(self, message: Message, timeout_s: float) -> Message:
        assert isinstance(message, AllocateProducerIds) and message.client and message.sequence
        self.allocated.append(message)
        if message.share >= 0:
            self.next_id = first_of_share(self.next_id, message.count, (message.share + self.pushed) % SHARES)
            self.pushed = 0
        self.next_id += message.count
        return ProducerIds(self.next_id - message.count, message.count)

    def start_call(self, node: str, message: Message, timeout_s: float, done: Any) -> None:
        assert isinstance(message, InitTaskProducer)
        self.asked.append((node, message))
        record = record_of_batch(self.record, message, 1000)
        self.record = record or self.record
        done(TaskProducer(record.first_id + message.task, record.epoch, 1000) if record else TaskProducer(0, 0, 0))


def view_of(principal: str) -> Any:
    shown = {"seen": lambda answer: answer, "on_answer": lambda request, answer: None}
    return SimpleNamespace(principal=principal, tenant=(principal, 0), **shown)


VIEW = view_of(ANONYMOUS)


async def answers(*messages: Message) -> tuple[list[Any], Shell]:
    """What the gateway answers, one after the other."""
    return await answers_to([(message, VIEW) for message in messages])


async def answers_to(
    asked: list[tuple[Message, Any]], prepare: Callable[[Shell], None] = lambda shell: None
) -> tuple[list[Any], Shell]:
    async with trio.open_nursery() as nursery:
        shell = Shell(nursery)
        prepare(shell)
        requests = ClientRequests(shell, "g")  # type: ignore[arg-type]
        for number, (message, view) in enumerate(asked, 1):
            link = SimpleNamespace(peer=SimpleNamespace(node="n"), remote="r", source=1)
            requests.on_message(link, number, message, view)  # type: ignore[arg-type]
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
    assert [message.count for message in shell.allocated] == [MAX_TASKS, MAX_TASKS]  # type: ignore[attr-defined]
    block = MAX_TASKS + 1
    assert single == ProducerId(1, window=PRODUCER_WINDOW)
    assert first == TaskProducer(block + 3, 0, 1000, window=PRODUCER_WINDOW)
    assert again == first
    assert later == TaskProducer(first.producer_id, 1, 1000, window=PRODUCER_WINDOW)
    assert [message.first_id for _, message in shell.asked] == [0, block, 0, 0]  # type: ignore[attr-defined]


async def test_all_ids_of_a_principal_come_from_its_share_and_no_other_principal_gets_them() -> None:
    def at_level(shell: Shell) -> None:
        shell.cluster.image = replace(shell.cluster.image, level=PRODUCER_SHARES)

    asked = [(name, count) for name in ("alice", "bob", "alice") for count in (1, 7, MAX_TASKS, 1)]
    found, shell = await answers_to([(InitProducer(count), view_of(name)) for name, count in asked], at_level)
    shares: dict[str, set[int]] = {}
    for (name, _), given in zip(asked, found, strict=True):
        ids = given.producer_id, given.producer_id + given.count - 1
        shares.setdefault(name, set()).update(map(share_of, ids))
    assert shares == {name: {share_of_principal(name)} for name in ("alice", "bob")}
    assert shares["alice"] != shares["bob"]
    assert {message.share for message in shell.allocated} == shares["alice"] | shares["bob"]  # type: ignore[attr-defined]


async def test_a_block_outside_of_the_share_is_given_to_nobody() -> None:
    def at_level(shell: Shell) -> None:
        shell.cluster.image = replace(shell.cluster.image, level=PRODUCER_SHARES)
        shell.pushed = 1

    (given,), shell = await answers_to([(InitProducer(), view_of("alice"))], at_level)
    assert len(shell.allocated) == 2
    assert share_of(given.producer_id) == share_of_principal("alice")
