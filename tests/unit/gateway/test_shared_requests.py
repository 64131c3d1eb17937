"""Look-ups, answers and seats that principals share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from tidelog.errors import TidelogError, refuse
from tidelog.types import TopicPartition
from tidelog.wire.messages import Done, Message, OffsetAnswer, ProducerIds
from tidelog_gateway.requests import offset_lookups as lookups
from tidelog_gateway.requests.offset_lookups import Lookup, Lookups, Offsets, Want
from tidelog_gateway.shared_requests import Seats, SingleFlight

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def offsets(end: int) -> Offsets:
    return Offsets(OffsetAnswer(0), OffsetAnswer(end))


def test_requests_made_before_a_look_up_is_sent_share_it() -> None:
    core, one, two = Lookups(), Want("alice"), Want("bob")
    for want in (one, two):
        core.want(want, A, "r1")
    (sent,) = core.next_to_send()
    assert core.on_answer(sent, offsets(7)) == [one, two]
    assert one.found == two.found == {A: offsets(7)}


def test_a_later_request_gets_the_next_look_up_and_one_is_in_flight_at_a_time() -> None:
    core, one, two = Lookups(), Want("alice"), Want("bob")
    core.want(one, A, "r1")
    (first,) = core.next_to_send()
    core.want(two, A, "r1")
    assert not list(core.next_to_send()), "one of a partition at a time"
    assert core.on_answer(first, offsets(7)) == [one]
    (second,) = core.next_to_send()
    assert core.on_answer(second, offsets(9)) == [two]
    assert (one.found[A], two.found[A]) == (offsets(7), offsets(9))


def test_a_server_has_so_many_look_ups_at_a_time_and_principals_come_in_turn() -> None:
    core, many, few = Lookups(), Want("mallory"), Want("bob")
    for number in range(2000):
        core.want(many, TopicPartition("t", number), "r1")
    under_way = list(core.next_to_send())
    assert len(under_way) == lookups.PER_SERVER <= 512
    core.want(few, TopicPartition("u", 0), "r1")
    core.want(few, TopicPartition("u", 1), "r2")
    assert [lookup.key.topic_id for lookup in core.next_to_send()] == ["u"], "another server has room"
    sent: list[Lookup] = []
    for lookup in under_way[:2]:
        core.on_answer(lookup, None)
        sent += core.next_to_send()
    assert "u" in [lookup.key.topic_id for lookup in sent], "one of two is bob's"


def test_a_look_up_that_nobody_awaits_is_not_sent() -> None:
    core, gone, here = Lookups(), Want("alice"), Want("bob")
    for want in (gone, here):
        core.want(want, A, "r1")
    core.want(gone, B, "r1")
    gone.given_up = True
    assert [lookup.key for lookup in core.next_to_send()] == [A]


def test_only_a_server_that_does_not_answer_is_silent() -> None:
    core, want = Lookups(), Want("alice")
    core.want(want, A, "r1")
    core.want(want, B, "r2")
    refused, lost = core.next_to_send()
    core.on_answer(refused, None)
    core.on_answer(lost, None, silent=True)
    assert (want.left, want.found, list(want.silent)) == (0, {A: None, B: None}, ["r2"])


def answers(*asked: str) -> tuple[list[str], int]:
    """What those are told who ask: ``a`` asks at once, ``b`` when the first answer is under way. And how often it was
    worked out."""
    told: list[str] = []
    begun = 0

    async def main() -> None:
        nonlocal begun
        go_on = trio.Event()

        async def work() -> Message:
            nonlocal begun
            begun += 1
            number = begun
            await go_on.wait()
            return ProducerIds(number, 1)

        async def ask(who: str) -> None:
            answer = await sharing.get("the same", work)
            assert isinstance(answer, ProducerIds)
            told.append(f"{who}{answer.first}")

        async with trio.open_nursery() as nursery:
            sharing = SingleFlight(nursery)
            for who in asked:
                if who == "b":
                    await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, who)
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()

    trio.run(main)
    return sorted(told), begun


def test_an_answer_is_shared_by_all_requests_made_before_its_work_began() -> None:
    assert answers("a", "a", "a") == (["a1", "a1", "a1"], 1)


def test_an_answer_is_never_older_than_its_question() -> None:
    assert answers("a", "b", "b") == (["a1", "b2", "b2"], 2)


async def test_all_requests_that_share_a_refusal_get_it() -> None:
    async def work() -> Message:
        raise refuse("OFFLINE", "nobody leads", node="r1")

    errors: list[TidelogError] = []

    async def ask() -> None:
        with pytest.raises(TidelogError, match="nobody leads") as caught:
            await sharing.get("q", work)
        errors.append(caught.value)

    async with trio.open_nursery() as nursery:
        sharing = SingleFlight(nursery)
        for _ in range(3):
            nursery.start_soon(ask)
    assert len({id(error) for error in errors}) == 3
    assert {(error.code, error.detail["node"]) for error in errors} == {("OFFLINE", "r1")}


async def test_work_goes_on_while_anybody_waits_for_it() -> None:
    ended: list[str] = []

    async def work() -> Message:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")
        return Done()

    scopes: list[trio.CancelScope] = []

    async def ask() -> None:
        with trio.CancelScope() as scope:
            scopes.append(scope)
            await sharing.get("q", work)

    async with trio.open_nursery() as nursery:
        sharing = SingleFlight(nursery)
        for _ in range(2):
            nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        scopes[0].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert not ended
        scopes[1].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == ["cancelled"]


async def test_a_request_after_the_last_one_left_does_not_get_the_abandoned_answer() -> None:
    """Also where that had not begun, because the answer before was still worked on."""
    heard: list[Message] = []
    gates = [trio.Event(), trio.Event(), trio.Event()]
    begun: list[int] = []

    async def work() -> Message:
        begun.append(len(begun))
        await gates[begun[-1]].wait()
        return ProducerIds(begun[-1], 1)

    async def ask(scope: trio.CancelScope) -> None:
        with scope:
            heard.append(await sharing.get("q", work))

    async with trio.open_nursery() as nursery:
        sharing = SingleFlight(nursery)
        first, gone, last = trio.CancelScope(), trio.CancelScope(), trio.CancelScope()
        nursery.start_soon(ask, first)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, gone)
        await trio.testing.wait_all_tasks_blocked()
        gone.cancel()
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, last)
        await trio.testing.wait_all_tasks_blocked()
        for gate in gates:
            gate.set()
    assert heard == [ProducerIds(0, 1), ProducerIds(1, 1)]


def seated(most: int, each: int, *principals: str) -> list[str]:
    """In which order those get a seat who wait; each leaves when all that can be are seated."""
    order: list[str] = []

    async def main() -> None:
        seats = Seats(most, each)
        leave: list[trio.Event] = []

        async def sit(who: str) -> None:
            async with seats.seat(who):
                order.append(who)
                leave.append(trio.Event())
                await leave[-1].wait()

        async with trio.open_nursery() as nursery:
            for who in principals:
                nursery.start_soon(sit, who)
                await trio.testing.wait_all_tasks_blocked()
            for number in range(len(principals)):
                await trio.testing.wait_all_tasks_blocked()
                assert len(leave) - number <= most
                leave[number].set()

    trio.run(main)
    return order


def test_principals_sit_down_in_turn() -> None:
    assert seated(1, 1, "m", "m", "m", "b", "c") == ["m", "m", "b", "c", "m"]


def test_a_principal_has_no_more_seats_than_its_own() -> None:
    assert seated(3, 2, "m", "m", "m", "b")[:3] == ["m", "m", "b"]


async def test_a_seat_that_nobody_waits_for_any_more_goes_to_the_next() -> None:
    seats = Seats(1, 1)
    sat: list[str] = []

    async def sit(who: str, scope: trio.CancelScope, then: Callable[[], Awaitable[None]]) -> None:
        with scope:
            async with seats.seat(who):
                sat.append(who)
                await then()

    async def leave() -> None:
        await trio.lowlevel.checkpoint()

    first, second, third = (trio.CancelScope() for _ in range(3))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sit, "a", first, trio.sleep_forever)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(sit, "b", second, trio.sleep_forever)
        nursery.start_soon(sit, "c", third, leave)
        await trio.testing.wait_all_tasks_blocked()
        second.cancel()
        first.cancel()
    assert sat == ["a", "c"]
