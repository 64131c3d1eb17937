"""A library administers who may do what: tokens that open connections until they are revoked, rules, quotas."""

from __future__ import annotations

from tidelog.cli.conformance.cases import Chapter
from tidelog.cli.conformance.client import COMMAND_TIMEOUT_S, Json
from tidelog.cli.conformance.library import Library, expect, record, refusal, until

ACCESS = Chapter("access")


def _id_of(token: str) -> str:
    return token.split("_")[1]


@ACCESS.case("A token opens connections until it is revoked.", needs="access")
def a_token_opens_connections_until_it_is_revoked(library: Library) -> None:
    principal = f"app.{library.log}"

    def connect(token: str) -> str:
        name = library.new_name()
        library.client.do(
            "connect", log=name, urls=library.urls[:1], token=token, connect_timeout_s=COMMAND_TIMEOUT_S
        )
        return name

    def known() -> set[str]:
        return {token["token_id"] for token in library.do("access")["tokens"] if token["principal"] == principal}

    first = library.do("create_token", principal=principal)["token"]
    until("the token is listed", lambda: known() == {_id_of(first)})
    name = connect(first)
    listed = library.client.do("topics", log=name)["topics"]
    expect("the topics that a token shows", listed, library.do("topics")["topics"])
    second = library.do("rotate_token", token_id=_id_of(first), grace_s=3600)["token"]
    until("both tokens are listed", lambda: known() == {_id_of(first), _id_of(second)})
    library.do("revoke_token", token_id=_id_of(first))
    until("only the second token is listed", lambda: known() == {_id_of(second)})
    refusal("UNAUTHENTICATED", lambda: connect(first))
    library.client.do("close", log=name)
    library.client.do("close", log=connect(second))
    library.do("revoke_tokens_of", principal=principal)
    until("no token is listed", lambda: not known())
    refusal("UNAUTHENTICATED", lambda: connect(second))


@ACCESS.case("Producers go on while the key of their tickets is rotated.", needs="access")
def producers_go_on_while_ticket_keys_are_rotated(library: Library) -> None:
    topic = library.topic()
    before = library.producer(topic)
    before.send(record(b"1"))
    for value in (b"2", b"3"):
        library.do("rotate_ticket_keys")
        before.send(record(value))
        library.write(topic, record(b"new " + value))
    before.close()
    expect("the records", library.values(topic), [b"1", b"2", b"new 2", b"3", b"new 3"])


@ACCESS.case("Rules and quotas are set, listed and removed.", needs="access")
def rules_and_quotas_are_set_and_removed(library: Library) -> None:
    principal = f"app.{library.log}"

    def found(kind: str) -> list[Json]:
        return [one for one in library.do("access")[kind] if one["principal"] == principal]

    read = {"principal": principal, "operation": "read", "resource": "topic:orders*", "deny": False}
    write = read | {"operation": "write", "deny": True}
    library.do("alter_acls", add=[read, write])
    until("both rules are listed", lambda: found("acls") == [read, write])
    library.do("alter_acls", remove=[read])
    until("one rule is listed", lambda: found("acls") == [write])
    library.do("alter_acls", remove=[write])
    unbounded = {"principal": principal, "bytes_in_s": -1, "bytes_out_s": -1, "requests_s": -1, "connections": -1}
    library.do("alter_quotas", quotas=[{"principal": principal, "bytes_in_s": 1000, "connections": 3}])
    bounded = [unbounded | {"bytes_in_s": 1000, "connections": 3}]
    until("the quota is listed", lambda: found("quotas") == bounded)
    library.do("alter_quotas", quotas=[{"principal": principal}])
    until("no quota is listed", lambda: not found("quotas"))
    wrong = [read | {"operation": "fly"}]
    expect("retriable", refusal("INVALID_CONFIG", lambda: library.do("alter_acls", add=wrong)).retriable, False)
