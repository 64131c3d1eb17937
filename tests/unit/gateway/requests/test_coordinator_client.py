"""What gateways do with requests about consumer groups: find the coordinator, and try again while it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from tidelog.client.core.partitioner import partition_of
from tidelog.errors import TidelogError, refuse
from tidelog.types import GROUPS, TRANSACTIONS, ClusterImage, PartitionState, TopicState
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteGroup,
    DescribeGroup,
    Done,
    FetchOffsets,
    FetchOffsetsAnswer,
    GroupInfo,
    GroupPosition,
    LeaveGroup,
    ListGroups,
    ListGroupsAnswer,
    ListTransactions,
    ListTransactionsAnswer,
    Message,
    PrepareGroups,
    TopicCreated,
    TransactionInfo,
)
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.requests.coordinator_client import TIMEOUT_S, CoordinatorClient

PARTITIONS = 4
NOT_COORDINATOR = refuse("NOT_COORDINATOR", "no")
LEAVE = LeaveGroup("g", "a")


class FakeShell:
    """A gateway whose replica servers answer from a script."""

    def __init__(self, *answers: Message | TidelogError) -> None:
        self.cluster = ClusterView()
        self.peers = self.controllers = self
        self.script = list(answers)
        self.asked: list[tuple[str, Message]] = []
        self.prepared: list[Message] = []
        self.news = trio.Event()
        self.index = 0
        self.topic = GROUPS

    def lead(self, *leaders: str | None) -> None:
        """Who leads the partitions of the topic."""
        self.index += 1
        states = tuple(PartitionState((), (), leader, 1, 1) for leader in leaders)
        self.cluster.update(ClusterImage(self.index, "c", (), (TopicState("id", self.topic, partitions=states),)))
        self.news.set()
        self.news = trio.Event()

    async def wait_change(self) -> None:
        await self.news.wait()

    def start_call(self, node: str, message: Message, timeout_s: float, done: Callable[[Any], None]) -> None:
        self.asked.append((node, message))
        done(self.script.pop(0) if len(self.script) > 1 else self.script[0])

    async def call(self, message: Message, timeout_s: float) -> Message:
        self.prepared.append(message)
        if len(self.prepared) == 1:
            raise refuse("NOT_ENOUGH_REPLICAS", "not all servers are up")
        self.lead(*["r1"] * PARTITIONS)
        return TopicCreated("id")


def gateway(
    *answers: Message | TidelogError, led: bool = True, topic: str = GROUPS
) -> tuple[FakeShell, CoordinatorClient]:
    shell = FakeShell(*answers)
    shell.topic = topic
    if led:
        shell.lead(*["r1"] * PARTITIONS)
    return shell, CoordinatorClient(shell, lambda message: message)  # type: ignore[arg-type]


async def test_the_leader_of_the_groups_partition_is_asked() -> None:
    shell, coordination = gateway(Done())
    leaders = [f"r{number}" for number in range(PARTITIONS)]
    shell.lead(*leaders)
    assert await coordination.answer(LEAVE) == Done()
    assert shell.asked == [(leaders[partition_of(b"g", PARTITIONS)], LEAVE)]


async def test_a_failover_is_latency(autojump_clock: trio.testing.MockClock) -> None:
    shell, coordination = gateway(NOT_COORDINATOR, refuse("UNREACHABLE", "gone"), Done())
    shell.lead(*[None] * PARTITIONS)
    async with trio.open_nursery() as nursery:

        async def elect() -> None:
            await trio.testing.wait_all_tasks_blocked()
            assert not shell.asked, "nobody leads"
            shell.lead(*["r2"] * PARTITIONS)

        nursery.start_soon(elect)
        assert await coordination.answer(LEAVE) == Done()
    assert [node for node, _ in shell.asked] == ["r2", "r2", "r2"]


async def test_an_error_that_does_not_pass_is_returned_at_once() -> None:
    shell, coordination = gateway(refuse("UNKNOWN_MEMBER", "no"))
    with pytest.raises(TidelogError, match="UNKNOWN_MEMBER"):
        await coordination.answer(LEAVE)
    assert len(shell.asked) == 1


async def test_a_coordinator_that_has_not_heard_of_a_topic_yet_is_asked_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    unknown = refuse("UNKNOWN_TOPIC", "not heard of yet")
    shell, coordination = gateway(unknown, Done())
    assert await coordination.answer(CommitOffsets("g", (GroupPosition("id", 0, 5),))) == Done()
    assert len(shell.asked) == 2
    _, coordination = gateway(unknown, Done())
    with pytest.raises(TidelogError, match="UNKNOWN_TOPIC"):
        await coordination.answer(CommitOffsets("g", (GroupPosition("another", 0, 5),)))


async def test_after_a_while_it_is_given_up_and_the_outcome_is_unknown_if_it_ever_was(
    autojump_clock: trio.testing.MockClock,
) -> None:
    doubtful = refuse("REQUEST_TIMED_OUT", "late", unknown_outcome=True)
    for first, unknown in ((doubtful, True), (NOT_COORDINATOR, False)):
        _, coordination = gateway(first, refuse("NOT_COORDINATOR", "no"))
        began = trio.current_time()
        with pytest.raises(TidelogError, match="NOT_COORDINATOR") as caught:
            await coordination.answer(LEAVE)
        assert caught.value.unknown_outcome is unknown
        assert trio.current_time() - began <= TIMEOUT_S


async def test_a_group_that_an_earlier_try_may_have_deleted_was_deleted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    gone = refuse("UNKNOWN_GROUP", "no")
    _, coordination = gateway(refuse("REQUEST_TIMED_OUT", "late", unknown_outcome=True), gone)
    assert await coordination.answer(DeleteGroup("g")) == Done()
    for script in ((gone,), (NOT_COORDINATOR, gone)):
        _, coordination = gateway(*script)
        with pytest.raises(TidelogError, match="UNKNOWN_GROUP"):
            await coordination.answer(DeleteGroup("g"))


async def test_all_coordinators_are_asked_for_their_groups() -> None:
    answers = [ListGroupsAnswer((GroupInfo(name, "empty"),)) for name in "bdac"]
    shell, coordination = gateway(*answers)
    listed = await coordination.answer(ListGroups())
    assert isinstance(listed, ListGroupsAnswer)
    assert [info.group for info in listed.groups] == ["a", "b", "c", "d"]
    assert sorted(message.partition for _, message in shell.asked) == [0, 1, 2, 3]  # type: ignore[attr-defined]


async def test_all_coordinators_are_asked_for_their_transactions() -> None:
    answers = [ListTransactionsAnswer((TransactionInfo(name, "open", 7, 1),)) for name in "bdac"]
    shell, coordination = gateway(*answers, topic=TRANSACTIONS)
    listed = await coordination.answer(ListTransactions())
    assert isinstance(listed, ListTransactionsAnswer)
    assert [info.app for info in listed.transactions] == ["a", "b", "c", "d"]
    assert sorted(message.partition for _, message in shell.asked) == [0, 1, 2, 3]  # type: ignore[attr-defined]
    shell.script = [ListTransactionsAnswer()]
    await coordination.answer(ListTransactions("app"))
    assert shell.asked[-1][1] == ListTransactions("app"), "of one application its own coordinator tells"
    assert len(shell.asked) == PARTITIONS + 1


async def test_groups_are_not_missing_silently(autojump_clock: trio.testing.MockClock) -> None:
    shell, coordination = gateway(ListGroupsAnswer())
    shell.lead("r1", None, "r1", "r1")
    with pytest.raises(TidelogError, match="nobody leads"):
        await coordination.answer(ListGroups())


async def test_the_topic_is_created_when_it_is_first_needed(autojump_clock: trio.testing.MockClock) -> None:
    shell, coordination = gateway(FetchOffsetsAnswer(), led=False)
    assert await coordination.answer(ListGroups()) == ListGroupsAnswer()
    assert not shell.prepared, "to list nothing nothing is needed"
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(coordination.answer, FetchOffsets("g"))
    assert shell.prepared == [PrepareGroups()] * 2, (
        "a refusal that may pass is tried again; who comes meanwhile waits"
    )
    assert len(shell.asked) == 3


async def test_a_topic_that_cannot_be_created_is_said_so() -> None:
    shell, coordination = gateway(Done(), led=False)

    async def call(message: Message, timeout_s: float) -> Message:
        raise refuse("INVALID_CONFIG", "no such thing")

    shell.call = call  # type: ignore[method-assign]
    with pytest.raises(TidelogError, match="INVALID_CONFIG"):
        await coordination.answer(DescribeGroup("g"))
