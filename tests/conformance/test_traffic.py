"""What a library says, and what it is told, is what ``tidelog.cddl`` says: here, and in all cases before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidelog.cli.conformance.cases import Case
from tidelog.cli.conformance.client import Client
from tidelog.cli.conformance.library import Library, record, refusal
from tidelog.cli.conformance.suite import Outcome
from tidelog.cli.conformance.traffic import Traffic

pytestmark = pytest.mark.real

PLAIN = {
    *("hello", "welcome", "metadata", "metadata-answer", "create-topic", "topic-created", "error-answer", "done"),
    *("init-producer", "producer-id", "produce", "produced", "list-offset", "offset-answer", "subscribe", "delivery"),
}
GROUPS = {"join-group", "join-group-answer", "commit-offsets", "fetch-offsets", "fetch-offsets-answer", "leave-group"}


def talk(library: Library) -> None:
    """Have the library send a message of each kind."""
    topic = library.topic()
    library.write(topic, record(b"one", b"key", headers=[("name", b"content")]), record(None), record(b"three"))
    library.read(topic)
    library.do("list_offset", topic=topic, partition=0, at="latest")
    refusal("TOPIC_EXISTS", lambda: library.do("create_topic", topic=topic, partitions=1, replication_factor=1))
    if "groups" in library.client.features:
        member = library.member(topic, topic)
        member.next(3)
        member.commit()
        member.close()
    library.do("delete_topic", topic=topic)


def test_every_message_is_as_the_protocol_says(
    client: Client, traffic: Traffic, run: Callable[[Case], Outcome]
) -> None:
    outcome = run(Case("talk", "", talk))
    assert outcome.status == "passed", outcome.reason
    assert traffic.faults == []
    assert traffic.kinds >= (PLAIN | GROUPS if "groups" in client.features else PLAIN)
