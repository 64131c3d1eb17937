"""Every library administers who may do what: tokens that open connections until they are revoked, rules, quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from drivers import Library, Refused, record, until
from recording import Traffic

pytestmark = pytest.mark.real


@pytest.fixture(autouse=True)
def access(needs: Callable[[str], None]) -> None:
    needs("access")


def id_of(token: str) -> str:
    return token.split("_")[1]


def test_a_token_opens_connections_until_it_ends(library: Library, traffic: Traffic) -> None:
    principal, logs = f"app.{library.log}", iter(range(100))

    def connect(token: str) -> str:
        name = f"{library.log}.{next(logs)}"
        library.driver.do("connect", log=name, urls=traffic.urls[:1], token=token)
        return name

    def known() -> set[str]:
        return {token["token_id"] for token in library.do("access")["tokens"] if token["principal"] == principal}

    first = library.do("create_token", principal=principal)["token"]
    until(lambda: known() == {id_of(first)})
    name = connect(first)
    assert library.driver.do("topics", log=name)["topics"] == library.do("topics")["topics"]
    second = library.do("rotate_token", token_id=id_of(first), grace_s=3600)["token"]
    until(lambda: known() == {id_of(first), id_of(second)})
    library.do("revoke_token", token_id=id_of(first))
    until(lambda: known() == {id_of(second)})
    with pytest.raises(Refused) as caught:
        connect(first)
    assert caught.value.code == "UNAUTHENTICATED"
    library.driver.do("close", log=name)
    library.driver.do("close", log=connect(second))
    library.do("revoke_tokens_of", principal=principal)
    until(lambda: not known())
    with pytest.raises(Refused) as caught:
        connect(second)
    assert caught.value.code == "UNAUTHENTICATED"


def test_producers_go_on_while_the_key_of_their_tickets_is_rotated(library: Library) -> None:
    """One producer is open before the rotations and sends after each; a new producer is opened after each."""
    topic = library.topic()
    before = library.producer(topic)
    before.send(record(b"1"))
    for value in (b"2", b"3"):
        library.do("rotate_ticket_keys")
        before.send(record(value))
        library.write(topic, record(b"new " + value))
    before.close()
    assert library.values(topic) == [b"1", b"2", b"new 2", b"3", b"new 3"]


def test_rules_and_quotas_come_and_go(library: Library) -> None:
    principal = f"app.{library.log}"

    def found(kind: str) -> list[dict[str, Any]]:
        return [one for one in library.do("access")[kind] if one["principal"] == principal]

    read = {"principal": principal, "operation": "read", "resource": "topic:orders*", "deny": False}
    write = read | {"operation": "write", "deny": True}
    library.do("alter_acls", add=[{**read}, write])
    until(lambda: found("acls") == [read, write])
    library.do("alter_acls", remove=[read])
    until(lambda: found("acls") == [write])
    library.do("alter_acls", remove=[write])
    unbounded = {"principal": principal, "bytes_in_s": -1, "bytes_out_s": -1, "requests_s": -1, "connections": -1}
    library.do("alter_quotas", quotas=[{"principal": principal, "bytes_in_s": 1000, "connections": 3}])
    until(lambda: found("quotas") == [unbounded | {"bytes_in_s": 1000, "connections": 3}])
    library.do("alter_quotas", quotas=[{"principal": principal}])
    until(lambda: not found("quotas"))
    with pytest.raises(Refused) as caught:
        library.do("alter_acls", add=[read | {"operation": "fly"}])
    assert (caught.value.code, caught.value.retriable) == ("INVALID_CONFIG", False)
