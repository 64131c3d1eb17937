"""A cluster of Kafka in this process: the mock of librdkafka, which its own tests use.

It keeps records and committed positions, and answers producers and consumers. It has no transactions that readers
notice, no compaction, no retention, no settings of topics (requests for them time out), and no list of groups. Topics
are made when a producer asks for them, with four partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

PARTITIONS = 4
"""Of each topic."""


class MockKafka:
    """The mock, and a producer for it. ``address``: where its broker listens."""

    def __init__(self) -> None:
        quiet = {"log_level": 0}
        self._owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", **quiet})
        broker = next(iter(self._owner.list_topics(timeout=30).brokers.values()))
        self.address = f"{broker.host}:{broker.port}"
        self._producer = Producer({"bootstrap.servers": self.address, **quiet})

    def create(self, topic: str) -> None:
        """Create a topic."""
        self._producer.list_topics(topic, timeout=30)

    def produce(self, topic: str, partition: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Append records, each with the arguments of ``Producer.produce``, and wait until they are there."""
        for record in records:
            self._producer.produce(topic, partition=partition, **record)
        assert self._producer.flush(30) == 0

    def commit(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        """Commit positions of a consumer group."""
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group, "log_level": 0})
        parts = [TopicPartition(topic, partition, offset) for partition, offset in positions.items()]
        consumer.commit(offsets=parts, asynchronous=False)
        consumer.close()


@contextmanager
def mock_kafka() -> Iterator[MockKafka]:
    """Run a mock for the block."""
    yield MockKafka()
