"""What ``tidelog why ERROR-ID`` says, code by code. Tests ``tidelog.explain.refusal``."""

from __future__ import annotations

from typing import Any

import pytest
from tidelog.explain.explanation import Explanation, moment
from tidelog.explain.refusal import RefusalEvidence, explain_refusal
from tidelog.wire.messages import Refusal

T0 = 1_795_255_109_771
FACTS = {
    "topic": "orders",
    "partition": "0",
    "leader": "r1",
    "leader_epoch": "4",
    "isr": "r1",
    "min_insync_replicas": "2",
    "max_batch_bytes": "1048576",
}


def told(code: str, detail: dict[str, str] | None = None, facts: dict[str, str] | None = None) -> Explanation:
    refusal = Refusal(
        "g1-692b1c40-1f", T0, "produce", code, "words", "alice", "10.0.0.1:5", "app", detail or {}, facts or {}
    )
    return explain_refusal(RefusalEvidence("g1-692b1c40-1f", "g1", refusal))


def test_who_asked_for_what_and_when() -> None:
    found = told("OVERLOADED")
    assert found.sentences == (
        f"At {moment(T0)} gateway g1 refused produce of alice (app), from 10.0.0.1:5: OVERLOADED.",
        "OVERLOADED means: too many bytes or requests are in flight, or too many subscriptions are open.",
        "The message: words",
    )
    assert found.facts["principal"] == "alice" and found.facts["code"] == "OVERLOADED"
    assert "The same request may succeed later" in found.next_steps[0]


def test_what_the_viewer_may_not_see_is_said() -> None:
    hidden = Refusal("g1-692b1c40-1f", T0, "produce", "CORRUPT_BATCH", "", "alice", "10.0.0.1:5", "app")
    found = explain_refusal(RefusalEvidence("g1-692b1c40-1f", "g1", hidden))
    assert found.sentences[2:] == (
        "Its message and facts are not shown: that takes the right to describe the topic that it is about.",
    )


@pytest.mark.parametrize(
    ("code", "detail", "facts", "words"),
    [
        (
            "FORBIDDEN",
            {"principal": "alice", "operation": "write", "resource": "topic:orders"},
            FACTS,
            "The rule that is missing: 'allow alice write topic:orders'.",
        ),
        (
            "QUOTA_EXCEEDED",
            {"pause_ms": "1500", "rate": "bytes_in_s"},
            {},
            "The quota of bytes_in_s was used up, and 1.5 s",
        ),
        (
            "NOT_ENOUGH_REPLICAS",
            {"in_sync": "1"},
            FACTS,
            "orders/0 had 1 replica in sync (r1) and needed 2 (min_insync_replicas).",
        ),
        ("NOT_ENOUGH_REPLICAS", {"in_sync": "1"}, {}, "In sync were 1 replicas."),
        ("BATCH_TOO_LARGE", {}, FACTS, "The topic takes batches of at most 1048576 bytes (max_batch_bytes)."),
        ("LIMIT_EXCEEDED", {"bound": "groups", "setting": "groups.max_groups"}, {}, "The bound of groups is set by"),
        (
            "NOT_LEADER",
            {},
            FACTS,
            "The gateway then knew r1 as leader of orders/0, in leader epoch 4, with r1 in sync.",
        ),
    ],
)
def test_the_facts_that_decided(code: str, detail: dict[str, str], facts: dict[str, str], words: str) -> None:
    assert any(text.startswith(words) for text in told(code, detail, facts).sentences)


def test_the_next_step_names_the_command() -> None:
    detail: Any = {"principal": "alice", "operation": "write", "resource": "topic:orders"}
    assert told("FORBIDDEN", detail).next_steps[0].startswith("'tidelog acls add alice write topic:orders' allows it")
    assert told("NOT_ENOUGH_REPLICAS", {}, FACTS).next_steps[0].startswith("'tidelog why orders/0' shows")


def test_an_id_that_nobody_keeps() -> None:
    found = explain_refusal(RefusalEvidence("g1-692b1c40-1f", "g1"))
    assert found.sentences[0].startswith(
        "No refusal g1-692b1c40-1f is kept that you may see: gateway g1 keeps the last"
    )
    down = explain_refusal(RefusalEvidence("g2-692b1c40-1f", "g2", trouble="[UNREACHABLE] gone"))
    assert down.unknown == ("Gateway g2 could not be asked: [UNREACHABLE] gone",)


def test_a_shell_does_not_take_a_name_in_the_next_step_for_a_command() -> None:
    found = told("FORBIDDEN", {"principal": "a;reboot", "operation": "write", "resource": "topic:orders"})
    assert found.next_steps == ("'tidelog acls add 'a;reboot' write topic:orders' allows it, if nothing denies it.",)
