"""Requests that wait at a gateway for a seat at a replica server, or at the controllers. Tests
``requests/requests.py`` and ``requests/coordinator_client.py``."""

from __future__ import annotations

from dataclasses import replace

import trio
import trio.testing
from tidelog.errors import Unreachable, refuse
from tidelog.types import GROUPS, TRANSACTIONS
from tidelog.wire.messages import (
    CommitOffsets,
    DeleteTopic,
    DescribeGroup,
    DescribeQuorum,
    Done,
    EndTransaction,
    FetchOffsets,
    GroupHeartbeat,
    JoinGroup,
    TopicShare,
)
from tidelog_gateway.requests.coordinator_client import LARGE_EACH, SMALL_EACH
from tidelog_gateway.requests.requests import CONTROL_EACH

from unit.gateway.requests.test_bounded_requests import POSITIONS, gateway, link, view


def test_a_coordinator_has_few_small_requests_of_a_principal_at_a_time_in_their_order() -> None:
    """A replica server serves producers between two of them."""
    trio.run(_be_heard_fifty_times)


async def _be_heard_fifty_times() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS), replace(shell.topic(1), name=TRANSACTIONS))
        for id in range(50):
            requests.on_message(link(1), id, GroupHeartbeat("g", str(id), 1), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == SMALL_EACH
        requests.on_message(link(2), 1, GroupHeartbeat("g", "bob's", 1), view("bob"))
        requests.on_message(link(1), 50, EndTransaction("app", 7, 1, True), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == SMALL_EACH + 2, "others, and transactions, do not wait"
        for count in range(52):
            shell.fetches.pop(0)()
            await trio.testing.wait_all_tasks_blocked()
            assert len(shell.fetches) <= SMALL_EACH + 2 and len(shell.answers) == count + 1
        heard = [
            int(one.member) for one in shell.coordinated if isinstance(one, GroupHeartbeat) and one.member.isdigit()
        ]
        assert sorted(heard) == list(range(50))
        later = heard[SMALL_EACH:]
        assert later == sorted(later), "one seat became free at a time"


def test_a_request_that_is_tried_again_has_no_seat_meanwhile() -> None:
    """Members of a principal are heard while others of it wait for the end of a transaction."""
    trio.run(_be_heard_between_two_tries)


async def _be_heard_between_two_tries() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for id in range(SMALL_EACH):
            requests.on_message(link(1), id, FetchOffsets("g", (TopicShare("id-0", (0,)),)), view())
        requests.on_message(link(2), 1, GroupHeartbeat("g", "member", 1), view())
        await trio.testing.wait_all_tasks_blocked()
        assert not any(isinstance(one, GroupHeartbeat) for one in shell.coordinated)
        for refused in shell.fetches[:SMALL_EACH]:
            refused(refuse("UNSTABLE_OFFSETS", "a transaction is not at its end"))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(shell.coordinated[SMALL_EACH], GroupHeartbeat)


async def test_a_hundred_members_of_one_principal_join_and_are_heard() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for number in range(100):
            requests.on_message(link(number), 1, JoinGroup("g", str(number), ("orders",)), view())
            requests.on_message(link(number), 2, GroupHeartbeat("g", str(number), 1), view())
        for _ in range(200):
            await trio.testing.wait_all_tasks_blocked()
            shell.fetches.pop(0)()
        await trio.testing.wait_all_tasks_blocked()
        assert shell.answers == [Done()] * 200


async def test_small_requests_that_wait_for_their_turn_end_with_their_link() -> None:
    """What is with the coordinator goes on, and has its seat until it is answered."""
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for source in (1, 2):
            for id in range(SMALL_EACH):
                requests.on_message(link(source), id, CommitOffsets("g", POSITIONS[:1]), view())
        requests.on_close(link(1))
        requests.on_close(link(2))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == SMALL_EACH
        assert len(shell.answers) == SMALL_EACH and all(isinstance(one, Unreachable) for one in shell.answers)
        requests.on_message(link(3), 1, CommitOffsets("g", POSITIONS[:1]), view())
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == SMALL_EACH
        shell.fetches.pop()()
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.coordinated) == SMALL_EACH + 1 and not requests._pending.get(2)


async def test_a_read_that_nobody_waits_for_has_its_seat_until_the_coordinator_has_answered() -> None:
    async with gateway(0) as (shell, requests):
        shell.have(replace(shell.topic(0), name=GROUPS))
        for source in range(20):
            requests.on_message(link(source), 1, DescribeGroup("g"), view("mallory"))
            await trio.testing.wait_all_tasks_blocked()
            requests.on_close(link(source))
            await trio.testing.wait_all_tasks_blocked()
        assert len(shell.fetches) == LARGE_EACH


def test_the_controllers_have_few_changes_of_a_principal_at_a_time_in_their_order() -> None:
    trio.run(_delete_many_topics)


async def _delete_many_topics() -> None:
    async with gateway(0) as (shell, requests):
        for id in range(20):
            requests.on_message(link(1), id, DeleteTopic(str(id)), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.changes) == CONTROL_EACH
        requests.on_message(link(2), 1, DeleteTopic("bob's"), view("bob"))
        requests.on_message(link(3), 1, DescribeQuorum(), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.changes) == CONTROL_EACH + 2 and len(shell.answers) == 1, (
            "others, and questions, do not wait"
        )
        for _ in range(21):
            shell.decide.release()
            await trio.testing.wait_all_tasks_blocked()
        assert len(shell.answers) == 22
        numbers = [one.sequence for one in shell.changes if isinstance(one, DeleteTopic)]
        assert numbers == sorted(numbers), "controllers remember a request while few with higher numbers have come"
        deleted = [int(one.name) for one in shell.changes if isinstance(one, DeleteTopic) and one.name.isdigit()]
        assert deleted[CONTROL_EACH:] == list(range(CONTROL_EACH, 20))


async def test_changes_that_wait_for_their_turn_end_with_their_link() -> None:
    async with gateway(0) as (shell, requests):
        for id in range(20):
            requests.on_message(link(1), id, DeleteTopic(str(id)), view("mallory"))
        await trio.testing.wait_all_tasks_blocked()
        requests.on_close(link(1))
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.answers) == 20 - CONTROL_EACH
        for _ in range(20):
            shell.decide.release()
        await trio.testing.wait_all_tasks_blocked()
        assert len(shell.changes) == CONTROL_EACH and not requests._pending
