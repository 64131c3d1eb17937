"""The connections that are reserved for operators: who gets one, when, and how many. Tests
``clients/operator_reserve.py`` and its use in ``clients/connections.py``."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog.acl import NewToken, new_token
from tidelog.errors import TidelogError
from tidelog.types import Quota, Token
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings
from trio.testing import MockClock

from unit.gateway.clients.test_connections import FakeLink, Stage, pass_s, played

ROOT, ALICE = new_token(), new_token()


def token(made: NewToken, principal: str) -> Token:
    return Token(made.token_id, principal, made.digest, 0, -1)


def cause(stage: Stage, shown: str = "", remote: str = "10.0.0.9:1", *, operator: bool = False) -> str:
    """Why a client is refused; "" if it is let in."""
    found = stage.come(shown, remote, operator=operator)
    return str(found.detail.get("cause", found.code)) if isinstance(found, TidelogError) else ""


def leave(stage: Stage, link: FakeLink) -> None:
    stage.door.on_close(link)  # type: ignore[arg-type]


def reserved(stage: Stage) -> int:
    return len(stage.figures.reserve.links)


def test_operators_come_into_a_full_gateway_up_to_a_number() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.let_in(operator=True)
        stage.let_in()
        assert reserved(stage) == 0, "there was ordinary room"
        assert cause(stage) == "gateway_full"
        first = stage.let_in(operator=True)
        stage.let_in(operator=True)
        assert cause(stage, operator=True) == "gateway_full" and reserved(stage) == 2
        leave(stage, first)
        assert cause(stage) == "gateway_full", "what is reserved is not for others"
        assert cause(stage, operator=True) == "" and reserved(stage) == 2

    played(act, client_max_connections=2, operator_reserved_connections=2)


def test_a_reserved_connection_is_given_back_when_there_is_ordinary_room() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        ordinary = [stage.let_in(), stage.let_in()]
        stage.let_in(operator=True)
        assert reserved(stage) == 1
        leave(stage, ordinary[0])
        assert reserved(stage) == 0
        assert cause(stage) == "gateway_full", "the operator has that room now"
        leave(stage, ordinary[1])
        assert cause(stage) == ""

    played(act, client_max_connections=2, operator_reserved_connections=1)


def test_the_bound_of_an_address_holds_up_no_operator() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        one = stage.let_in()
        assert cause(stage) == "address_full"
        assert cause(stage, operator=True) == "" and reserved(stage) == 1
        assert cause(stage, operator=True) == "address_full"
        leave(stage, one)
        assert reserved(stage) == 0

    played(act, address_max_connections=1, operator_reserved_connections=1)


@pytest.mark.parametrize("quota", [(), (Quota("anonymous", connections=1),)])
def test_the_bound_of_a_principal_holds_up_no_operator(quota: tuple[Quota, ...]) -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.door._quota_enforcer.update(quota)
        one = stage.let_in()
        assert cause(stage) == "QUOTA_EXCEEDED"
        assert cause(stage, operator=True) == "" and reserved(stage) == 1
        assert cause(stage, operator=True) == "QUOTA_EXCEEDED"
        leave(stage, one)
        assert reserved(stage) == 0

    played(act, principal_max_connections=9 if quota else 1, operator_reserved_connections=1)


def test_where_clients_must_say_who_they_are_only_superusers_are_operators() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.tell(token(ROOT, "root"), token(ALICE, "alice"))
        await pass_s(clock, 0.1)
        stage.let_in(ALICE.text)
        assert cause(stage, ALICE.text, operator=True) == "gateway_full"
        assert cause(stage, new_token().text, operator=True) == "UNAUTHENTICATED"
        assert cause(stage, operator=True) == "UNAUTHENTICATED"
        assert cause(stage, ROOT.text) == "gateway_full", "a program of a superuser that is no tool of operators"
        assert reserved(stage) == 0
        assert cause(stage, ROOT.text, operator=True) == "" and reserved(stage) == 1
        assert cause(stage, ROOT.text, operator=True) == "gateway_full"

    guard = Authorizer(AuthorizerSettings(authentication=True, superusers=("root",)))
    played(act, guard, client_max_connections=1, operator_reserved_connections=1)


@pytest.mark.parametrize(
    ("settings", "principal", "operator"),
    [
        ({}, "anonymous", True),
        ({"superusers": ("root",)}, "anonymous", True),
        ({"authentication": True}, "alice", True),
        ({"authentication": True, "superusers": ("root",)}, "alice", False),
        ({"authorization": True}, "anonymous", False),
        ({"authorization": True, "authentication": True}, "alice", False),
        ({"authorization": True, "superusers": ("root",)}, "root", True),
    ],
)
def test_who_is_an_operator(settings: dict[str, Any], principal: str, operator: bool) -> None:
    assert Authorizer(AuthorizerSettings(**settings)).is_operator(principal) == operator


def test_a_gateway_that_ends_takes_no_operators() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.let_in()
        stage.door._drain.begun.set()
        assert cause(stage, operator=True) == "ending"

    played(act, client_max_connections=1)


def test_without_reserved_connections_operators_are_clients_like_all_others() -> None:
    async def act(stage: Stage, clock: MockClock) -> None:
        stage.let_in()
        assert cause(stage, operator=True) == "gateway_full"

    played(act, client_max_connections=1, operator_reserved_connections=0)
