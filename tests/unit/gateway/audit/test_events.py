"""What the audit topic is told: who changed the cluster, who was refused; bounded, without secrets."""

from __future__ import annotations

import json
from dataclasses import replace
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
from tidelog_gateway.audit.events import BATCH, BATCH_BYTES, EVENT_BYTES, MINOR_BYTES, MOST, MOST_OF_ONE, AuditEvents
from tidelog_gateway.audit.merged_events import MOST_KEYS

ALICE = {"principal": "alice", "remote": "10.0.0.7:4711"}
MALLORY = {"principal": "mallory", "remote": "10.0.0.8:4711"}


def journal(failures_s: int = 5) -> AuditEvents:
    return AuditEvents("g1/ab", "g1", failures_s, 0.0)


def told(one: AuditEvents) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"") for record in one.next_batch()]


def test_a_change_event_holds_principal_request_and_outcome() -> None:
    one = journal()
    one.on_change(ALICE, CreateTopic("orders", 3, config={"flush": "os"}), TopicCreated("id"), 0.0, 1000)
    one.on_change(ALICE, AlterTopic("orders", {"x": "y"}), refuse("INVALID_CONFIG", "no x"), 0.0, 2000)
    (record, _) = one.next_batch()
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


def test_events_hold_no_secret_and_no_digest_and_texts_are_cut() -> None:
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


def test_events_that_were_not_written_come_first_and_in_their_order() -> None:
    one = journal()
    for n in range(3):
        one.on_change(ALICE, CreateTopic(f"t{n}"), Done(), 0.0, n)
    records = one.next_batch()
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


def test_the_removal_of_a_group_member_is_recorded_even_behind_a_flood_of_refusals() -> None:
    one = journal(failures_s=20)
    for _ in range(1000):
        one.on_failure("denied", MALLORY, "produce", "no", 0.0, 0)
    one.on_left(MALLORY, LeaveGroup("billing", "m1"), 0)
    event = told(one)[0]
    assert (event["event"], event["principal"]) == ("left_group", "mallory")
    assert event["request"] == {"group": "billing", "member": "m1", "keep": False}


def test_the_principals_of_omitted_events_are_named() -> None:
    one = journal(failures_s=4)
    for _ in range(50):
        one.on_failure("denied", MALLORY, "produce", "no", 0.0, 0)
    one.on_failure("denied", ALICE, "produce", "no", 0.0, 0)
    left_out = [event for event in told(one) if event["event"] == "left_out"]
    assert [(event["count"], event["principals"]) for event in left_out] == [(49, {"mallory": 49})]


def test_events_and_batches_of_them_are_bounded_in_bytes() -> None:
    """Whatever a client names in a request: a batch that is larger than its topic takes would end the audit."""
    one = AuditEvents("g1/ab", "g1", 1000, 0.0)
    long = CommitOffsets("billing", tuple(GroupPosition("t", n, 7, metadata="\x01" * 170) for n in range(1000)))
    admin = RevokeTokens(principal="p" * 1024, token_id="t" * 1024)
    for n in range(200):
        one.on_minor_change({"principal": f"p{n}"}, long, Done(), 0)
        one.on_change({"principal": "admin"}, admin, Done(), 0.0, 0)
    count = 0
    while records := one.next_batch():
        count += len(records)
        assert sum(len(record.value or b"") for record in records) <= BATCH_BYTES
        for record in records:
            assert len(record.value or b"") <= EVENT_BYTES + 1024
    assert count == 400


RESET = CommitOffsets("mallorys", (GroupPosition("t", 0, 7),))


def test_nobody_hides_a_reset_behind_commits_of_his_own() -> None:
    one = journal(failures_s=20)
    for n in range(10_000):
        one.on_minor_change(MALLORY, replace(RESET, positions=(GroupPosition("t", 0, n),)), Done(), n)
    one.on_minor_change(MALLORY, replace(RESET, group="billing"), Done(), 0)
    one.on_left(MALLORY, LeaveGroup("mallorys", "m1"), 0)
    one.on_left(MALLORY, LeaveGroup("billing", "m1"), 0)
    first = [(event["op"], event["request"]["group"]) for event in told(one)]
    ops = "commit_offsets", "leave_group"
    assert first == [(op, group) for op in ops for group in ("mallorys", "billing")]
    one.on_interval(60_000)
    [merged] = told(one)
    assert (merged["count"], merged["time_ms"], merged["id"]) == (9999, 9999, "g1/ab/5")
    assert merged["request"]["positions"][0]["offset"] == 9999, "the last of them"
    one.on_minor_change(MALLORY, RESET, Done(), 0)
    assert told(one) == []
    one.on_interval(120_000)
    assert [event["count"] for event in told(one)] == [1]
    one.on_interval(180_000)
    one.on_minor_change(MALLORY, RESET, Done(), 0)
    [event] = told(one)
    assert "count" not in event, "after a quiet interval the next is told at once"


def test_nobody_hides_a_reset_behind_refused_ones() -> None:
    one = journal(failures_s=20)
    for n in range(1000):
        refused = refuse("GROUP_NOT_EMPTY", "no")
        one.on_minor_change(MALLORY, replace(RESET, group=f"g{n}"), refused, 0)
        one.on_minor_change(MALLORY, replace(RESET, group="billing"), refused, 0)
    one.on_minor_change(MALLORY, replace(RESET, group="billing"), Done(), 0)
    one.on_minor_change(MALLORY, replace(RESET, group="billing"), refused, 0)
    events = []
    while more := told(one):
        events += more
    [done] = [event for event in events if event["outcome"] == "done"]
    assert done["request"]["group"] == "billing"


def test_a_change_that_cannot_be_recorded_is_refused_and_other_principals_have_space() -> None:
    """Nobody hides a reset behind resets of thousands of groups."""
    one = journal()
    n = 0
    while one.refuse_if_full(MALLORY, replace(RESET, group=f"g{n}")) is None:
        one.on_minor_change(MALLORY, replace(RESET, group=f"g{n}"), Done(), 0)
        n += 1
    refused = one.refuse_if_full(MALLORY, replace(RESET, group="billing"))
    assert n < MOST_KEYS / 2 and refused is not None
    assert (refused.code, "mallory" in refused.message) == ("QUOTA_EXCEEDED", True)
    assert one.refuse_if_full(MALLORY, replace(RESET, group="g0")) is None, "what is told anyway is not refused"
    assert one.refuse_if_full(ALICE, replace(RESET, group="billing")) is None
    one.on_minor_change(MALLORY, replace(RESET, group="late"), Done(), 0)
    events = []
    while more := told(one):
        events += more
    assert len(events) == n + 1 and events[-1]["request"]["group"] == "late", "it was let in while there was room"
    one.on_interval(60_000)
    assert one.refuse_if_full(MALLORY, replace(RESET, group="billing")) is None


def test_many_that_fill_the_audit_leave_room_for_others() -> None:
    one = journal()
    for who in range(20):
        n = 0
        while one.refuse_if_full({"principal": f"p{who}"}, replace(RESET, group=f"g{n}")) is None:
            one.on_minor_change({"principal": f"p{who}"}, replace(RESET, group=f"g{n}"), Done(), 0)
            n += 1
    assert one.refuse_if_full(ALICE, RESET) is None


def test_while_the_audit_cannot_be_written_waiting_events_are_bounded() -> None:
    one = journal()
    for minute in range(50):
        for n in range(10):
            one.on_minor_change(MALLORY, replace(RESET, group=f"g{n}"), Done(), minute)
        one.on_interval(60_000 * minute)
    assert len(told(one)) == 10
    one.on_interval(0)
    assert [(event["count"], event["time_ms"]) for event in told(one)] == [(49, 49)] * 10


def test_a_long_request_hides_no_group() -> None:
    one = journal()
    long = tuple(GroupPosition("t", n, 7, metadata="\x01" * 1000) for n in range(1000))
    one.on_minor_change(MALLORY, CommitOffsets("billing", long), Done(), 0)
    [record] = one.next_batch()
    assert json.loads(record.value or b"")["request"]["group"] == "billing"
    assert len(record.value or b"") <= MINOR_BYTES + 1024


def test_logins_from_another_address_are_recorded_at_once() -> None:
    one = journal()
    for port in range(100):
        one.on_login({"principal": "alice", "remote": f"10.0.0.7:{port}", "name": "app"}, 0)
    one.on_login({"principal": "alice", "remote": "10.0.0.9:1", "name": "app"}, 0)
    assert [event["remote"] for event in told(one)] == ["10.0.0.7:0", "10.0.0.9:1"]
    one.on_interval(60_000)
    assert [(event["event"], event["count"]) for event in told(one)] == [("login", 99)]


def test_the_number_of_omitted_events_is_recorded_when_the_interval_ends() -> None:
    one = journal(failures_s=4)
    for _ in range(50):
        one.on_failure("denied", MALLORY, "produce", "no", 0.0, 0)
    assert len(told(one)) == 1
    one.on_interval(60_000)
    assert [(event["event"], event["count"]) for event in told(one)] == [("left_out", 49)]
