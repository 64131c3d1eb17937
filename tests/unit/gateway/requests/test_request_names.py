"""Under which names a gateway passes the requests of its clients on: each principal's are its own. Tests
``requests/requests.py`` and ``request_names.py``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
from tidelog.errors import TidelogError
from tidelog.request_names import name_of_client, owner_of
from tidelog.wire.messages import AlterAcls, AlterTopic, Done, ListGroups, Message, PutToken
from tidelog_gateway.requests.requests import ClientRequests

OWN = "gateway:g1/ab"


class Shell:
    """Controllers that do whatever they are asked."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.controllers = SimpleNamespace(call=self.call, missing_disks=None)
        self.passed: list[Any] = []
        self.answers: list[Message | TidelogError] = []

    def begin_request(self, link: object, id: int, message: object = None) -> Any:
        return self.answers.append

    async def call(self, message: Message, timeout_s: float) -> Message:
        self.passed.append(message)
        return Done()


def view_of(principal: str, *spared: str) -> Any:
    shown = {"seen": lambda answer: answer, "on_answer": lambda request, answer: None}
    return SimpleNamespace(principal=principal, tenant=(principal, 0), spared=spared, **shown)


async def passed(*asked: tuple[Message, Any], own: str = OWN) -> tuple[list[Any], list[Message | TidelogError]]:
    """What reached the controllers, and what the clients were answered."""
    async with trio.open_nursery() as nursery:
        shell = Shell(nursery)
        requests = ClientRequests(shell, own)  # type: ignore[arg-type]
        link = SimpleNamespace(peer=SimpleNamespace(node="x"), remote="10.0.0.1:1", source=1)
        for id, (message, view) in enumerate(asked):
            requests.on_message(link, id, message, view)  # type: ignore[arg-type]
    return shell.passed, shell.answers


ALICE, MALLORY = view_of("alice"), view_of("mallory")


async def test_the_name_that_a_client_gives_itself_is_never_passed_on() -> None:
    given = (OWN, name_of_client("alice", "app")[:64], "app")
    requests, answers = await passed(*[(AlterAcls(client=name, sequence=7), MALLORY) for name in given])
    assert {one.client for one in requests} == {name_of_client("mallory", name) for name in given}
    assert {one.sequence for one in requests} == {7} and answers == [Done()] * 3


async def test_a_retry_has_the_same_name_at_every_gateway() -> None:
    asked = (AlterAcls(client="app", sequence=7), ALICE)
    ((one,), _), ((other,), _) = await passed(asked), await passed(asked, own="gateway:g2/cd")
    assert one == other


async def test_requests_without_a_name_get_one_of_their_principal() -> None:
    """Whoever sends many pushes only requests of its own out of what the controllers remember."""
    asked = [(AlterTopic("a", {}), MALLORY), (AlterTopic("a", {}), ALICE), (AlterTopic("a", {}, sequence=9), ALICE)]
    requests, _ = await passed(*asked, (AlterTopic("a", {}, client="app"), ALICE))
    owners = {(one.asker.split()[0], owner_of(one.client)) for one in requests}
    assert {who for who, _ in owners} == {"alice", "mallory"} and len({owner for _, owner in owners}) == 2
    assert len(owners) == 2
    assert len({(one.client, one.sequence) for one in requests}) == 4 and all(one.sequence for one in requests)
    assert not any(one.client[-2:] == "ab" for one in requests), "the gateway's secret is not passed on"


async def test_a_principal_without_a_name_is_not_the_gateway() -> None:
    (one,), _ = await passed((AlterAcls(), view_of("")))
    assert one.client != OWN and owner_of(one.client)


async def test_a_name_that_is_too_long_reaches_nobody() -> None:
    requests, (error,) = await passed((AlterAcls(client="ä" * 33, sequence=1), MALLORY))
    assert not requests and isinstance(error, TidelogError) and error.code == "MALFORMED"


async def test_only_the_gateway_sets_the_spared_superusers() -> None:
    wish = PutToken("0" * 16, "ab" * 32, "admin", spared=("bob",))
    requests, _ = await passed((wish, view_of("sam", "admin")), (wish, view_of("admin")))
    assert {one.spared for one in requests} == {("admin",), ()}


def test_a_request_that_changes_nothing_has_no_name() -> None:
    assert not hasattr(ListGroups(), "client")
