"""Reads records from partitions of Kafka, in rounds, and says how far each partition has been read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tidelog.backup.kafka.batches import ImportFailed, Row
from tidelog.batch.format import Fields, RecordHeaders
from tidelog.errors import Unreachable, refuse

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

ROUND_BYTES = 8 << 20
"""Bytes of keys and values after which a round ends."""
FETCHED = 500
"""Most records that are taken from librdkafka's buffer at a time."""
WAIT_S = 0.5
"""Longest wait in seconds for the first record of a round."""

Key = tuple[str, int]
"""Topic and partition."""
NullHeaders = Literal["refuse", "empty", "drop"]
"""What happens to a header without a value, which Tidelog does not have: the run ends with an error, the header gets
an empty value, or it is left out."""


@dataclass(slots=True)
class Chunk:
    """Consecutive records of one partition. Offsets below ``reached`` that are not in ``rows`` have no record.
    ``at_end``: Kafka has no more records for now."""

    rows: list[Row] = field(default_factory=list)
    reached: int = 0
    bytes: int = 0
    at_end: bool = False


class KafkaReader:
    """Reads partitions from given offsets on, through a consumer of confluent-kafka that is in no group. Its methods
    block; one thread at a time calls them, and ``close`` last."""

    def __init__(self, consumer: Consumer, starts: Mapping[Key, int], null_headers: NullHeaders) -> None:
        from confluent_kafka import TopicPartition

        self._consumer = consumer
        self._null_headers = null_headers
        self._consumer.assign([TopicPartition(*key, offset) for key, offset in starts.items()])

    def read(self) -> dict[Key, Chunk]:
        """Return the next records, by partition; an empty map if there are none within ``WAIT_S`` seconds. Raises
        ``OFFSET_OUT_OF_RANGE`` if a partition does not have the offset at which it should be read, ``Unreachable``
        for errors that may pass, and ``ImportFailed`` for others."""
        chunks: dict[Key, Chunk] = {}
        size = 0
        messages = self._consumer.consume(1, WAIT_S)
        while messages:
            for message in messages:
                key = (str(message.topic()), int(message.partition() or 0))
                chunk = chunks.get(key)
                if chunk is None:
                    chunk = chunks[key] = Chunk()
                size += self._add(chunk, key, message)
            if size >= ROUND_BYTES:
                break
            messages = self._consumer.consume(FETCHED, 0)
        return chunks

    def _add(self, chunk: Chunk, key: Key, message: Message) -> int:
        """Add a message of the consumer to the chunk of its partition, and return the bytes of the record; 0 if the
        message reports that the end of the partition is reached. Raises as ``read`` does."""
        offset = message.offset()
        error = message.error()
        if error is not None:
            _check(key, error)
            if offset is not None:
                chunk.reached, chunk.at_end = max(chunk.reached, offset), True
            return 0
        assert offset is not None
        kind, timestamp = message.timestamp()
        value, content = message.value(), message.key()
        found = message.headers()
        headers = self._headers(key, offset, found) if found else ()
        fields: Fields = value, content, timestamp if kind and timestamp > 0 else 0, headers
        chunk.rows.append((offset, fields))
        chunk.reached, chunk.at_end = offset + 1, False
        size = len(value or b"") + len(content or b"")
        chunk.bytes += size
        return size

    def _headers(self, key: Key, offset: int, found: object) -> RecordHeaders:
        """Return the headers of a record, in their order; names may repeat. Raises ``ImportFailed`` if one has no
        value and such headers are to be refused."""
        assert isinstance(found, list)
        if all(value is not None for _, value in found):
            return tuple(found)
        if self._null_headers == "refuse":
            names = ", ".join(repr(name) for name, value in found if value is None)
            raise ImportFailed(
                f"{key[0]}/{key[1]}, offset {offset}: the header {names} has no value (null), which Tidelog does not"
                " have. --null-headers empty gives such headers an empty value, --null-headers drop leaves them out"
            )
        if self._null_headers == "drop":
            return tuple((name, value) for name, value in found if value is not None)
        return tuple((name, value or b"") for name, value in found)

    def pause(self, keys: Iterable[Key]) -> None:
        """Read no more of these partitions."""
        from confluent_kafka import TopicPartition

        self._consumer.incremental_unassign([TopicPartition(*key) for key in keys])

    def close(self) -> None:
        """End the consumer and its connections."""
        self._consumer.close()


def _check(key: Key, error: KafkaError) -> None:
    """Do nothing if ``error`` reports that the end of the partition ``key`` is reached. Otherwise raises the error
    that it stands for."""
    from confluent_kafka import KafkaError

    code = error.code()
    if code == KafkaError._PARTITION_EOF:
        return
    text = f"Kafka: {key[0]}/{key[1]}: {error.str()}"
    if code in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION):
        raise refuse("OFFSET_OUT_OF_RANGE", text)
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        raise ImportFailed(f"{text}: the user of --properties needs the right to read the topic")
    raise Unreachable(text)
