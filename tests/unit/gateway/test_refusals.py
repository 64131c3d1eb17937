"""What a gateway keeps of refusals, for whom, and how many. Tests ``tidelog_gateway.refusals``."""

from __future__ import annotations

import random
import re

import pytest
from tidelog.errors import refuse
from tidelog.wire.messages import DescribeGroup, ProducePart, Refusal
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.refusals import EACH, PRINCIPALS, Asker, Refusals, shown_to

ALICE, BOB = Asker("alice", "10.0.0.1:5", "app"), Asker("bob", "10.0.0.2:5", "app")


def refusals() -> Refusals:
    return Refusals("g1", ClusterView(""), lambda: 1_795_255_109_771, random.Random(1).getrandbits)


def test_an_error_gets_an_id_that_names_the_gateway_and_stays_as_it_is() -> None:
    kept = refusals()
    error = refuse("OVERLOADED", "too much", unknown_outcome=True, pause_ms=5)
    named = kept.name_error(ALICE, "describe_group", DescribeGroup("billing"), error)
    assert re.fullmatch(r"g1-[0-9a-f]{8}-[0-9a-f]{16}", named.id) and error.id == ""
    assert (named.code, named.message, named.detail, named.unknown_outcome) == (
        "OVERLOADED",
        "too much",
        {"pause_ms": 5},
        True,
    )
    assert kept.name_error(BOB, "read", None, named) is named, "it was named before"
    found = kept.find(named.id, "alice", sees_all=False)
    assert found is not None
    assert (found.op, found.code, found.principal, found.remote) == (
        "describe_group",
        "OVERLOADED",
        "alice",
        "10.0.0.1:5",
    )
    assert found.detail == {"pause_ms": "5"} and found.facts == {"group": "billing"}
    assert f"(error id {named.id})" in str(named)


def test_only_its_principal_and_those_who_see_all_are_shown_a_refusal() -> None:
    kept = refusals()
    id = kept.name_error(ALICE, "read", None, refuse("FORBIDDEN", "no")).id
    assert kept.find(id, "bob", sees_all=False) is None
    assert kept.find(id, "bob", sees_all=True) is not None
    assert kept.find("g1-00000000-0000000000000001", "alice", sees_all=True) is None


def test_refusals_of_one_principal_push_out_none_of_another() -> None:
    kept = refusals()
    first = kept.name_error(ALICE, "read", None, refuse("FORBIDDEN", "no")).id
    mine = [kept.name_error(BOB, "read", None, refuse("OVERLOADED", "x")).id for _ in range(3 * EACH)]
    assert kept.find(first, "alice", sees_all=False) is not None
    assert [kept.find(id, "bob", sees_all=False) is not None for id in mine] == [False] * 2 * EACH + [True] * EACH


def test_principals_that_were_refused_long_ago_are_forgotten() -> None:
    kept = refusals()
    id = kept.name_error(ALICE, "read", None, refuse("FORBIDDEN", "no")).id
    for number in range(PRINCIPALS):
        assert kept.find(id, "alice", sees_all=False) is not None
        kept.name_error(Asker(f"p{number}", "", ""), "read", None, refuse("FORBIDDEN", "no"))
    assert kept.find(id, "alice", sees_all=False) is None


def test_long_texts_are_cut() -> None:
    kept = refusals()
    id = kept.name_error(Asker("alice", "", "n" * 9999), "read", None, refuse("MALFORMED", "m" * 9999)).id
    found = kept.find(id, "alice", sees_all=False)
    assert found is not None and len(found.message) == len(found.program) == 500


def test_the_batch_that_was_refused_is_named() -> None:
    kept = refusals()
    part = ProducePart(1, "abc", 3, 2, 100, 10)
    info = kept.name_info(ALICE, "produce", part, refuse("UNKNOWN_TOPIC", "no").to_info())
    found = kept.find(info.id, "alice", sees_all=False)
    assert found is not None and found.facts == {"topic_id": "abc", "partition": "3"}


def test_ids_do_not_follow_from_one_another() -> None:
    kept = refusals()
    ids = [kept.name_error(ALICE, "read", None, refuse("FORBIDDEN", "no")).id for _ in range(20)]
    ends = [int(id.rsplit("-", 1)[1], 16) for id in ids]
    assert min(abs(one - other) for one in ends for other in ends if one != other) > 1 << 32


SECRET = {"topic_id": "abc", "partition": "3", "topic": "secret", "leader": "r1"}


def test_facts_of_a_topic_are_hidden_from_those_who_may_not_describe_it() -> None:
    one = Refusal("g1-0-1", 0, "read", "UNKNOWN_TOPIC", "no secret", "alice", facts=SECRET, detail={"end": "7"})
    shown = shown_to(one, "alice", lambda name: False)
    assert shown.facts == {"topic_id": "abc", "partition": "3"}
    assert (shown.message, shown.detail) == ("no secret", {"end": "7"}), "she has got them with the error"
    assert shown_to(one, "bob", lambda name: name == "secret") is one


@pytest.mark.parametrize(
    ("facts", "detail"),
    [
        (SECRET, {"key": "of a record"}),
        ({"topic_id": "abc"}, {"key": "of a record"}),
        ({"name": "secret"}, {}),
        ({}, {"resource": "topic:secret"}),
    ],
)
def test_message_and_detail_about_a_topic_are_hidden_from_others_without_its_right(
    facts: dict[str, str], detail: dict[str, str]
) -> None:
    one = Refusal("g1-0-1", 5, "produce", "CORRUPT_BATCH", "the key k of secret", "alice", "r", "p", detail, facts)
    shown = shown_to(one, "operator", lambda name: name not in ("secret", ""))
    assert shown == Refusal("g1-0-1", 5, "produce", "CORRUPT_BATCH", "", "alice", "r", "p")
    about_none = Refusal("g1-0-1", 0, "describe_group", "OVERLOADED", "too much", "alice", facts={"group": "g"})
    assert shown_to(about_none, "operator", lambda name: False) is about_none
