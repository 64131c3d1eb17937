"""What a library says, and what it is told, is what ``tidelog.cddl`` says: here, and in all tests before."""

from __future__ import annotations

import pytest
from drivers import Driver, Library, Refused, record
from recording import Traffic

pytestmark = pytest.mark.real

PLAIN = {
    *("hello", "welcome", "metadata", "metadata-answer", "create-topic", "topic-created", "error-answer", "done"),
    *("init-producer", "producer-id", "produce", "produced", "list-offset", "offset-answer", "subscribe", "delivery"),
}
GROUPS = {"join-group", "join-group-answer", "commit-offsets", "fetch-offsets", "fetch-offsets-answer", "leave-group"}


def test_every_message_is_as_the_protocol_says(driver: Driver, library: Library, traffic: Traffic) -> None:
    topic = library.topic()
    library.write(topic, record(b"one", b"key", headers=[("name", b"content")]), record(None), record(b"three"))
    library.read(topic)
    library.do("list_offset", topic=topic, partition=0, at="latest")
    with pytest.raises(Refused, match="TOPIC_EXISTS"):
        library.do("create_topic", topic=topic, partitions=1, replication_factor=1, config={})
    if "groups" in driver.features:
        member = topic + ".member"
        library.do("open_member", consumer=member, group=topic, topics=[topic], start="earliest", options={})
        driver.do("next", consumer=member, count=3)
        driver.do("commit", consumer=member)
        driver.do("close_consumer", consumer=member)
    library.do("delete_topic", topic=topic)
    assert traffic.faults == []
    assert traffic.kinds >= (PLAIN | GROUPS if "groups" in driver.features else PLAIN)
