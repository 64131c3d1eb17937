"""What the audit topic is told: who changed the cluster, who was refused; bounded, without secrets."""

from __future__ import annotations

import json
from typing import Any

from tidelog.errors import refuse
from tidelog.wire.messages import (
    AlterTopic,
    CommitOffsets,
    CreateTopic,
    Done,
    GroupPosition,
    LeaveGroup,
    PutToken,
    RevokeTokens,
    TopicCreated,
)
from tidelog_gateway.core.journal import BATCH, BATCH_BYTES, EVENT_BYTES, MOST, MOST_OF_ONE, Journal

ALICE = {"principal": "alice", "remote": "10.0.0.7:4711"}
MALLORY = {"principal": "mallory", "remote": "10.0.0.8:4711"}


def journal(failures_s: int = 5) -> Journal:
    return Journal("g1/ab", "g1", failures_s, 0.0)


def told(one: Journal) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in one.take()]


def test_a_change_says_who_what_and_with_what_outcome() -> None:
    one = journal()
    one.on_change(ALICE, CreateTopic("orders", 3, config={"flush": "os"}), TopicCreated("id"), 0.0, 1000)
    one.on_change(ALICE, AlterTopic("orders", {"x": "y"}), refuse("INVALID_CONFIG", "no x"), 0.0, 2000)
    (record, _) = one.take()
    assert (record.key, record.timestamp_ms) == (b"alice", 1000)
    one.put_back([record])
    assert told(one) == [
        {
            "event": "change",
            "id": "g1/ab/1",
            "time_ms": 1000,
            "gateway": "g1",
            "principal": "alice",
            "remote": "10.0.0.7:4711",
            "op": "create_topic",
            "outcome": "done",
            "request": {"name": "orders", "partitions": 3, "replication_factor": 1, "config": {"flush": "os"}},
        }
    ]


def test_no_secret_and_no_digest_is_told_and_texts_are_cut() -> None:
    one = journal()
    one.on_change(ALICE, PutToken("0" * 16, "d" * 64, "bob"), Done(), 0.0, 0)
    one.on_change(ALICE, AlterTopic("n" * 5000, {"k" * 5000: "v" * 5000}), Done(), 0.0, 0)
    token, topic = told(one)
    assert token["request"]["token_id"] == "0" * 16 and "digest" not in token["request"]
    assert len(json.dumps(topic)) < 4000


def test_failures_are_bounded_and_what_is_left_out_is_counted() -> None:
    one = journal(failures_s=20)
    kept = [one.on_failure("denied", ALICE, "produce", "no", 0.0, 0) for _ in range(100)]
    assert sum(kept) == 5
    assert [event["event"] for event in told(one)] == ["denied"] * 5
    assert one.on_failure("unauthenticated", {"remote": "x"}, "hello", "no", 10.0, 0)
    left_out, last = told(one)
    assert (left_out["event"], left_out["count"], last["event"]) == ("left_out", 95, "unauthenticated")


def test_nobody_hides_a_change_behind_failures() -> None:
    one = journal(failures_s=10_000)
    for turn in range(2 * MOST):
        one.on_failure("denied", ALICE, "produce", "no", float(turn), 0)
    one.on_change(ALICE, CreateTopic("orders"), Done(), 0.0, 0)
    events = told(one)
    assert events[0]["event"] == "change" and len(events) == BATCH
    taken = BATCH - 1
    while more := len(told(one)):
        taken += more
    assert taken == MOST and not one


def test_what_was_not_written_comes_first_and_in_its_order() -> None:
    one = journal()
    for n in range(3):
        one.on_change(ALICE, CreateTopic(f"t{n}"), Done(), 0.0, n)
    records = one.take()
    one.on_change(ALICE, CreateTopic("t3"), Done(), 0.0, 3)
    one.put_back(records)
    assert [event["request"]["name"] for event in told(one)] == ["t0", "t1", "t2", "t3"]


def test_one_principal_leaves_room_for_the_failures_of_others() -> None:
    one = journal(failures_s=20)
    for turn in range(1000):
        one.on_failure("denied", MALLORY, "produce", "no", turn / 1000, 0)
        one.on_change(MALLORY, AlterTopic("t", {"x": "y"}), refuse("INVALID_CONFIG", "no x"), turn / 1000, 0)
    assert one.on_failure("denied", ALICE, "produce", "no", 1.0, 0)
    assert one.on_failure("unauthenticated", {"remote": "10.0.0.9:1"}, "hello", "no", 1.0, 0)
    events = told(one)
    assert sum(event.get("principal") == "mallory" for event in events) <= 10, "of 20 a second a fourth, for a second"
    assert (
        sum(event.get("count", 0) for event in events) + len([e for e in events if e["event"] != "left_out"]) == 2002
    )


def test_strangers_together_are_one_principal() -> None:
    one = journal(failures_s=20)
    for turn in range(100):
        one.on_failure("unauthenticated", {"remote": f"10.0.0.{turn}:1"}, "hello", "no", 0.0, 0)
    assert len(told(one)) == 5


def test_a_principal_cannot_hide_the_changes_of_others_behind_its_own() -> None:
    one = journal()
    for _ in range(2 * MOST):
        one.on_change(MALLORY, AlterTopic("mallorys", {"x": "y"}), Done(), 0.0, 0)
    one.on_change(ALICE, CreateTopic("orders"), Done(), 0.0, 0)
    events = []
    while more := told(one):
        events += more
    assert [event["principal"] for event in events] == ["mallory"] * MOST_OF_ONE + ["alice"]
    one.on_change(MALLORY, AlterTopic("mallorys", {"x": "y"}), Done(), 0.0, 0)
    assert one, "those that were written make room"


def test_a_change_whose_outcome_is_unknown_is_kept_like_one_that_was_done() -> None:
    one = journal(failures_s=1)
    for _ in range(20):
        one.on_change(ALICE, CreateTopic("orders"), refuse("NO_QUORUM", "?", unknown_outcome=True), 0.0, 0)
    assert len(told(one)) == 20


def test_who_puts_a_member_out_of_a_group_is_told_also_behind_a_flood_of_refusals() -> None:
    one = journal(failures_s=20)
    for _ in range(1000):
        one.on_failure("denied", MALLORY, "produce", "no", 0.0, 0)
    one.on_left(MALLORY, LeaveGroup("billing", "m1"), 0.0, 0)
    event = told(one)[-1]
    assert (event["event"], event["principal"]) == ("left_group", "mallory")
    assert event["request"] == {"group": "billing", "member": "m1", "keep": False}


def test_it_is_told_whose_events_were_left_out() -> None:
    one = journal(failures_s=4)
    for _ in range(50):
        one.on_left(MALLORY, LeaveGroup("billing", "m1"), 0.0, 0)
    one.on_failure("denied", ALICE, "produce", "no", 0.0, 0)
    left_out = [event for event in told(one) if event["event"] == "left_out"]
    assert [(event["count"], event["principals"]) for event in left_out] == [(49, {"mallory": 49})]


def test_events_and_what_is_written_at_once_are_bounded_in_bytes() -> None:
    """Whatever a client names in a request: a batch that is larger than its topic takes would end the audit."""
    one = Journal("g1/ab", "g1", 1000, 0.0)
    long = CommitOffsets("billing", tuple(GroupPosition("t", n, 7, metadata="\x01" * 170) for n in range(1000)))
    admin = RevokeTokens(principal="p" * 1024, token_id="t" * 1024)
    for n in range(200):
        one.on_minor_change({"principal": f"p{n}"}, long, Done(), 0.0, 0)
        one.on_change({"principal": "admin"}, admin, Done(), 0.0, 0)
    count = 0
    while records := one.take():
        count += len(records)
        assert sum(len(record.value or b"") for record in records) <= BATCH_BYTES
        for record in records:
            assert len(record.value or b"") <= EVENT_BYTES + 1024
    assert count == 400
