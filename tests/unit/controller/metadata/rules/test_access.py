"""Tokens and rules and the decisions by them, the right that every op of a client needs, and how the controllers keep
them."""

from __future__ import annotations

import random
from dataclasses import replace

import cbor2
import pytest
from tidelog.acl import decide, digest_of, id_of, new_token, refuse_rule
from tidelog.errors import TidelogError
from tidelog.net.tls import NodeIdentity
from tidelog.types import Access, Acl, Quota, Token
from tidelog.wire.messages import (
    AddController,
    AlterAcls,
    AlterQuotas,
    CommitOffsets,
    CreateTopic,
    DescribeQuorum,
    Digest,
    EndTransaction,
    ListTransactions,
    Metadata,
    MetadataUpdate,
    PutToken,
    ReadCopy,
    RevokeTokens,
)
from tidelog.wire.metadata_image import apply_update, encode_delta, encode_image
from tidelog_controller.metadata.application import apply
from tidelog_controller.metadata.cluster_events import delta_of
from tidelog_controller.metadata.commands import ChangeAccess, decode_command, encode_command
from tidelog_controller.metadata.rules.access import AccessRequest, plan_access
from tidelog_controller.metadata.state import MetadataState
from tidelog_controller.metadata.state_machine import Replicated, decode_state, encode_state
from tidelog_gateway.rights.authorizer import Authorizer, AuthorizerSettings, ClientIdentity
from tidelog_gateway.rights.permissions import (
    BY_ID,
    BY_NAME,
    EVERYTHING,
    OF_APP,
    OF_CLUSTER,
    OF_GROUP,
    OF_STREAM,
    OPEN,
    resource_of,
)
from tidelog_gateway.server import CLIENT_OPS

DAY_MS = 86_400_000
DICE = random.Random(1)


def rules(*texts: str) -> list[Acl]:
    """Return a rule for each text such as ``allow alice read topic:a``."""
    made = []
    for text in texts:
        kind, principal, operation, resource = text.split()
        made.append(Acl(principal, operation, resource, kind == "deny"))
    return made


# --- what rules decide ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "asked", "allowed"),
    [
        ((), "alice read topic:a", False),
        (("allow alice read topic:a",), "alice read topic:a", True),
        (("allow alice read topic:a",), "bob read topic:a", False),
        (("allow alice read topic:a",), "alice write topic:a", False),
        (("allow alice read topic:a",), "alice read topic:ab", False),
        (("allow alice read topic:a*",), "alice read topic:ab", True),
        (("allow alice read topic:a*",), "alice read topic:b", False),
        (("allow alice read topic:a*",), "alice read group:ab", False),
        (("allow * read topic:a",), "anonymous read topic:a", True),
        (("allow alice * topic:a",), "alice delete topic:a", True),
        (("allow alice * topic:*",), "alice cluster cluster", False),
        (("allow alice cluster cluster",), "alice cluster cluster", True),
        (("allow alice read topic:a", "deny alice read topic:a"), "alice read topic:a", False),
        (("deny * * topic:secret*", "allow alice * topic:*"), "alice read topic:secret-1", False),
        (("deny bob * topic:*", "allow * read topic:*"), "alice read topic:a", True),
        (("allow alice read topic:a",), "alice describe topic:a", True),
        (("allow alice create topic:a",), "alice describe topic:a", True),
        (("allow alice describe topic:a",), "alice read topic:a", False),
        (("allow alice read topic:a", "deny alice describe topic:a"), "alice describe topic:a", False),
        (("deny alice read topic:a", "allow alice describe topic:a"), "alice describe topic:a", True),
        (("allow alice read topic:*",), "alice read topic:__audit", False),
        (("allow alice read topic:__*",), "alice read topic:__audit", True),
        (("allow alice read topic:__audit",), "alice read topic:__audit", True),
    ],
)
def test_rules(texts: tuple[str, ...], asked: str, allowed: bool) -> None:
    principal, operation, resource = asked.split()
    assert decide(rules(*texts), principal, operation, resource) is allowed
    assert decide(reversed(rules(*texts)), principal, operation, resource) is allowed, "their order means nothing"


@pytest.mark.parametrize("text", ["allow a read topic:x", "deny * * topic:x*", "allow a@b group group:*"])
def test_good_rules(text: str) -> None:
    assert refuse_rule(rules(text)[0]) == ""


@pytest.mark.parametrize(
    "acl",
    [
        Acl("a b", "read", "topic:x"),
        Acl("", "read", "topic:x"),
        Acl("a", "eat", "topic:x"),
        Acl("a", "read", "topic:"),
        Acl("a", "read", "topic"),
        Acl("a", "read", "topic:x*y"),
        Acl("a", "read", "topic:a/b"),
        Acl("a", "read", "cluster"),
        Acl("a", "cluster", "cluster:x"),
        Acl("a", "read", "group:x"),
        Acl("a", "read", "disk:x"),
    ],
)
def test_rules_that_mean_nothing(acl: Acl) -> None:
    assert refuse_rule(acl) != ""


def test_every_op_of_a_client_has_its_place_in_one_table() -> None:
    tables = [set(BY_NAME), set(BY_ID), set(OF_GROUP), set(OF_APP), set(OF_STREAM), set(OF_CLUSTER), set(OPEN)]
    known = set().union(*tables)
    assert known >= CLIENT_OPS, "who adds an op says what it needs"
    assert sum(map(len, tables)) == len(known), "in one of them only"
    assert resource_of(object(), "something_new") == EVERYTHING


def test_the_transactions_of_all_applications_are_the_clusters_affair() -> None:
    assert resource_of(ListTransactions("billing"), ListTransactions.OP) == ("describe", "app:billing")
    assert resource_of(ListTransactions(), ListTransactions.OP) == ("describe", "cluster")
    assert resource_of(EndTransaction("", 7, 0, False), EndTransaction.OP) == ("transact", "app:")


# --- tokens --------------------------------------------------------------------------------------------------


def test_a_token_is_256_random_bits_and_its_owner_alone_has_it() -> None:
    one, other = new_token(), new_token()
    assert one.text != other.text and one.token_id != other.token_id
    assert len(one.text.split("_", 2)[2]) == 43, "32 bytes in base 64"
    assert id_of(one.text) == one.token_id and digest_of(one.text) == one.digest
    assert one.digest not in one.text and one.text not in repr(PutToken(one.token_id, one.digest))


@pytest.mark.parametrize(
    "text", ["", "tide", "tide_x_y", "tide_0123456789abcdef", "other_0123456789abcdef_x", "_" * 9]
)
def test_text_that_is_no_token_has_no_id(text: str) -> None:
    assert id_of(text) == ""


# --- the guard -----------------------------------------------------------------------------------------------


def guard(*texts: str, tokens: tuple[Token, ...] = (), **settings: object) -> Authorizer:
    made = Authorizer(AuthorizerSettings(**settings))  # type: ignore[arg-type]
    made.update(Access(tokens, tuple(rules(*texts))))
    return made


def test_a_client_is_identified_by_its_token_else_its_certificate_else_anonymous() -> None:
    made = new_token()
    one = guard(tokens=(Token(made.token_id, "alice", made.digest),))
    shown = (NodeIdentity("client", "bob"),)
    assert one.recognize(made.text, shown, 0) == ClientIdentity("alice", made.token_id, made.digest)
    assert one.recognize("", shown, 0) == ClientIdentity("bob")
    assert one.recognize("", (NodeIdentity("replica", "r1"),), 0) == ClientIdentity("anonymous"), (
        "a service is no client"
    )
    assert one.recognize("", None, 0) == ClientIdentity("anonymous")


def test_anonymous_clients_are_refused_where_authentication_is_required() -> None:
    strict = guard(authentication=True)
    for shown in (None, (), (NodeIdentity("replica", "r1"),)):
        refused = strict.recognize("", shown, 0)
        assert isinstance(refused, TidelogError) and refused.code == "UNAUTHENTICATED"
    assert strict.recognize("", (NodeIdentity("client", "bob"),), 0) == ClientIdentity("bob")


def test_a_token_that_is_not_good_is_refused_even_where_strangers_are_not() -> None:
    made = new_token()
    one = guard(tokens=(Token(made.token_id, "alice", made.digest, 0, 1000),))
    assert isinstance(one.recognize(made.text, None, 999), ClientIdentity)
    for text, now in ((made.text, 1000), (made.text[:-1] + "_", 0), (new_token().text, 0), ("x", 0)):
        refused = one.recognize(text, (NodeIdentity("client", "bob"),), now)
        assert isinstance(refused, TidelogError) and refused.code == "UNAUTHENTICATED"
        assert text not in refused.message or text == "x"


def test_a_client_is_over_with_its_token() -> None:
    made, other = new_token(), new_token()
    token = Token(made.token_id, "alice", made.digest, 0, 1000)
    one = guard(tokens=(token,))
    client = one.recognize(made.text, None, 0)
    assert isinstance(client, ClientIdentity)
    assert not one.is_invalid(client, 999) and one.is_invalid(client, 1000)
    assert one.next_expiry_ms([client, ClientIdentity("bob")]) == 1000
    one.update(Access((replace(token, digest=other.digest),)))
    assert one.is_invalid(client, 0), "another token has its id"
    one.update(Access())
    assert one.is_invalid(client, 0) and one.next_expiry_ms([client]) is None
    assert not one.is_invalid(ClientIdentity("bob"), 0), "who came with a certificate stays"


def test_rules_are_heeded_only_where_authorization_is_on_and_never_for_superusers() -> None:
    assert guard().may("alice", "read", "topic:a")
    strict = guard("allow alice read topic:a", authorization=True, superusers=("root",))
    assert strict.may("root", "cluster", "cluster")
    assert strict.may("alice", "read", "topic:a") and not strict.may("alice", "write", "topic:a")
    strict.update(Access(acls=tuple(rules("allow alice write topic:a"))))
    assert strict.may("alice", "write", "topic:a") and not strict.may("alice", "read", "topic:a"), "nothing stale"


def test_principals_are_named_as_issuers_name_their_users() -> None:
    name = "auth0|5f7c8ec7c33c6c004bbafe82"
    assert refuse_rule(Acl(name, "read", "topic:a")) == ""
    assert decide([Acl(name, "read", "topic:a")], name, "read", "topic:a")
    assert not decide([Acl(name, "read", "topic:a")], "auth0", "read", "topic:a")
    for wish in (PutToken("0" * 16, "d" * 64, name), AlterQuotas((Quota(name, requests_s=1),))):
        assert isinstance(plan_access(EMPTY, wish, DICE, 0), ChangeAccess)
    for bad in ("a b", "a;b", "a$b", "a`b", "a&b", "a>b", "a'b", "a\nb"):
        assert "is no principal" in refuse_rule(Acl(bad, "read", "topic:a"))


def test_a_refusal_says_what_is_missing_and_what_to_do() -> None:
    strict = guard("allow alice describe topic:a", authorization=True)
    refused = strict.refuse_request("alice", CreateTopic("b"))
    assert refused is not None and refused.code == "FORBIDDEN"
    assert "'tidelog acls add alice create topic:b'" in refused.message
    refused = strict.refuse_request("oidc-auth0|reboot", CreateTopic("b"))
    assert refused is not None, "whoever copies it into a shell runs no other command"
    assert "tidelog acls add 'oidc-auth0|reboot' create topic:b" in refused.message
    assert strict.refuse_request("alice", AddController("c9", "ws://x")) is not None
    assert strict.refuse_request("alice", DescribeQuorum()) is not None
    assert strict.refuse_request("alice", Metadata(all_topics=True)) is None, "it tells of what may be described"


def test_positions_of_a_transaction_take_the_right_to_the_group_and_to_the_application() -> None:
    guard = Authorizer(AuthorizerSettings(authorization=True))
    guard.update(Access(acls=(Acl("alice", "group", "group:g"), Acl("bob", "transact", "app:billing"))))
    plain, moved = CommitOffsets("g", ()), CommitOffsets("g", (), transaction="billing", producer_id=5)
    assert guard.refuse_request("alice", plain) is None
    refused = guard.refuse_request("alice", moved)
    assert refused is not None and refused.code == "FORBIDDEN"
    assert refused.detail["resource"] == "app:billing"
    refused = guard.refuse_request("bob", moved)
    assert refused is not None and refused.detail["resource"] == "group:g"
    guard.update(Access(acls=(Acl("alice", "group", "group:g"), Acl("alice", "transact", "app:billing"))))
    assert guard.refuse_request("alice", moved) is None


def test_nobody_learns_of_a_topic_that_he_may_not_describe() -> None:
    strict = guard("allow alice describe topic:a", authorization=True)
    known = strict.refuse_topic("alice", "read", "id-a", 0, "a")
    hidden, missing = (strict.refuse_topic("alice", "read", "id", 0, name) for name in ("b", None))
    assert known is not None and known.code == "FORBIDDEN"
    assert hidden is not None and missing is not None
    assert (hidden.code, hidden.message) == (missing.code, missing.message) == ("UNKNOWN_TOPIC", "no partition id/0")


def test_reading_a_copy_from_a_disk_needs_the_right_to_read_the_topic() -> None:
    """The answer reveals the contents of the batches to a client that can guess them."""
    strict = guard("allow alice describe topic:a", "allow bob read topic:a", authorization=True)
    refused = strict.refuse_topic("alice", ReadCopy.OP, "id-a", 0, "a")
    assert refused is not None and refused.code == "FORBIDDEN" and refused.detail["operation"] == "read"
    assert strict.refuse_topic("bob", ReadCopy.OP, "id-a", 0, "a") is None
    assert strict.refuse_topic("alice", Digest.OP, "id-a", 0, "a") is None


# --- the controllers -----------------------------------------------------------------------------------------


def done(state: MetadataState, wish: AccessRequest, wall_ms: int = 0) -> MetadataState:
    """Return the state after the request's command was written to the log and applied."""
    command = plan_access(state, wish, DICE, wall_ms)
    assert isinstance(command, ChangeAccess), command
    again = decode_command(encode_command(command))
    assert again == command
    return apply(state, again, state.index + 1).state


def refusal(state: MetadataState, wish: AccessRequest) -> str:
    refused = plan_access(state, wish, DICE, 0)
    assert isinstance(refused, TidelogError)
    return f"{refused.code}: {refused.message}"


ID, DIGEST = "0123456789abcdef", "ab" * 32
EMPTY = MetadataState("c")


def test_a_token_is_kept_as_its_digest_until_it_is_revoked() -> None:
    state = done(EMPTY, PutToken(ID, DIGEST, "alice", DAY_MS), 1000)
    assert state.access.tokens == (Token(ID, "alice", DIGEST, 1000, 1000 + DAY_MS),)
    assert done(state, RevokeTokens(ID)).access.tokens == ()
    state = done(state, PutToken("1" * 16, DIGEST, "alice"))
    assert state.access.tokens[1].expires_ms == -1
    assert done(state, RevokeTokens("", "alice")).access.tokens == ()
    assert "UNKNOWN_TOKEN" in refusal(state, RevokeTokens("f" * 16))
    assert "UNKNOWN_TOKEN" in refusal(state, RevokeTokens("", "bob"))
    assert "UNKNOWN_TOKEN" in refusal(state, RevokeTokens())


def test_a_token_takes_the_place_of_another_at_once_or_after_a_grace() -> None:
    state = done(EMPTY, PutToken(ID, DIGEST, "alice", DAY_MS), 0)
    new = "1" * 16
    at_once = done(state, PutToken(new, DIGEST, replaces=ID), 5)
    assert at_once.access.tokens == (Token(new, "alice", DIGEST, 5),)
    later = done(state, PutToken(new, DIGEST, replaces=ID, grace_ms=100), 5)
    assert [(t.token_id, t.expires_ms) for t in later.access.tokens] == [(ID, 105), (new, -1)]
    never_longer = done(state, PutToken(new, DIGEST, replaces=ID, grace_ms=2 * DAY_MS), 5)
    assert never_longer.access.tokens[0].expires_ms == DAY_MS
    assert "UNKNOWN_TOKEN" in refusal(EMPTY, PutToken(new, DIGEST, replaces=ID))


@pytest.mark.parametrize(
    "wish",
    [
        PutToken(ID, DIGEST, ""),
        PutToken(ID, DIGEST, "anonymous"),
        PutToken(ID, DIGEST, "a b"),
        PutToken("x", DIGEST, "alice"),
        PutToken(ID, "x", "alice"),
        PutToken(ID, DIGEST, "alice", 0),
        PutToken("2" * 16, DIGEST, "alice"),
        AlterAcls(add=(Acl("alice", "eat", "topic:x"),)),
        AlterQuotas((Quota("alice", bytes_in_s=0),)),
        AlterQuotas((Quota("", requests_s=1),)),
    ],
)
def test_access_requests_that_make_no_sense_are_refused(wish: AccessRequest) -> None:
    state = done(EMPTY, PutToken("2" * 16, DIGEST, "bob"))
    assert "INVALID_CONFIG" in refusal(state, wish)


def test_rules_and_quotas_come_once_and_go() -> None:
    one, two = rules("allow alice read topic:a", "deny bob * topic:*")
    state = done(EMPTY, AlterAcls(add=(one, two, one)))
    assert state.access.acls == (one, two)
    assert done(state, AlterAcls(add=(one,))).access == state.access
    assert done(state, AlterAcls(remove=(one,), add=(two,))).access.acls == (two,)
    state = done(state, AlterQuotas((Quota("alice", requests_s=5), Quota("bob", connections=0))))
    state = done(state, AlterQuotas((Quota("alice", bytes_in_s=9), Quota("bob"))))
    assert state.access.quotas == (Quota("alice", bytes_in_s=9),)


def test_watchers_hear_of_it_and_snapshots_keep_it() -> None:
    state = done(done(EMPTY, PutToken(ID, DIGEST, "alice")), AlterAcls(add=tuple(rules("allow a read topic:x"))))
    assert decode_state(encode_state(Replicated(state))).metadata == state
    image = apply_update(EMPTY.image(), MetadataUpdate(1, True, encode_image(state.image())))
    assert image.access == state.access
    applied = apply(state, ChangeAccess(0, drop_tokens=(ID,)), 9)
    assert applied.visible
    delta = MetadataUpdate(9, payload=delta_of(state, applied))
    assert apply_update(image, delta).access == applied.state.access
    assert not apply(state, ChangeAccess(0), 9).visible, "nothing changed: nobody need hear of it"
    unrelated = MetadataUpdate(9, payload=encode_delta([], [], []))
    assert apply_update(image, unrelated).access == state.access


def test_images_and_snapshots_of_a_version_without_it_can_be_read() -> None:
    document = cbor2.loads(encode_state(Replicated(EMPTY)))
    del document["access"]
    assert decode_state(cbor2.dumps(document)).metadata == EMPTY
    image = cbor2.loads(encode_image(EMPTY.image()))
    del image["access"]
    assert apply_update(EMPTY.image(), MetadataUpdate(1, True, cbor2.dumps(image))).access == Access()
