"""A producer core with a link and an id, for its tests."""

from __future__ import annotations

from itertools import count

from tidelog.batch.format import NewRecord, check_batch, decode_batch
from tidelog.client.core.batch import Batch, record_size
from tidelog.client.core.producer import ProducerCore
from tidelog.client.options import ProducerOptions
from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import Produce, ProduceAck

OPTIONS = ProducerOptions(linger_s=0.005, delivery_timeout_s=30, max_in_flight=5)


class Bench:
    """A producer core with a link and a producer id, and the batches that it has sent."""

    def __init__(self, options: ProducerOptions = OPTIONS, partitions: int = 1, up: bool = True) -> None:
        numbers = count(1)
        self.core = ProducerCore("t", partitions, options, lambda: next(numbers))
        self.now = 100.0
        self.sent: list[tuple[int, int, int, list[bytes | None]]] = []
        self.ids: list[int] = []
        self.conditions: list[int] = []
        self._bytes: dict[tuple[int, int, int], bytes] = {}
        """The bytes of each batch by partition, producer id and base sequence: by rule 1 of the producer a retry
        sends the same bytes."""
        if up:
            self.core.on_link_up()
            self.core.on_producer_id(7)

    def add(self, value: bytes, partition: int = 0, expected_offset: int = -1) -> Batch:
        """Add a record to the open batch or a new one, and return the batch."""
        record = NewRecord(value, None, 1000)
        size = record_size(value, None, ())
        batch = self.core.append(partition, record, size) if expected_offset < 0 else None
        return batch or self.core.open(partition, record, size, self.now, expected_offset)

    def batch(self, value: bytes, partition: int = 0) -> Batch:
        """Add a record as a batch of its own, and return the batch."""
        result = self.add(value, partition)
        self.core.close_open_batches()
        return result

    def send(self) -> list[list[bytes | None]]:
        """Take all batches that may be sent, and return the values of each."""
        before = len(self.sent)
        while (message := self.core.take_message(self.now)) is not None:
            self._read(message)
        return [values for _, _, _, values in self.sent[before:]]

    def _read(self, message: Produce) -> None:
        assert isinstance(message.payload, list)
        for part, data in zip(message.parts, message.payload, strict=True):
            header = check_batch(data)
            assert part.size == header.size
            if header.producer_id:
                place = part.partition, header.producer_id, header.base_sequence
                assert self._bytes.setdefault(place, bytes(data)) == data, "a retry sends other bytes"
            values = [record.value for record in decode_batch(data)]
            self.conditions.append(part.expected_offset)
            self.sent.append((part.id, header.producer_id, header.base_sequence, values))

    def ack(self, index: int, offset: int = 0) -> list[Batch]:
        """Acknowledge the batch that was sent as number ``index``."""
        return self.core.on_produced([ProduceAck(self.sent[index][0], offset, 3, "all/os")], self.now)

    def refuse(self, index: int, error: TidelogError) -> list[Batch]:
        """Refuse the batch that was sent as number ``index``."""
        return self.core.on_produced([ProduceAck(self.sent[index][0], error=error.to_info())], self.now)

    def sequences(self, since: int = 0) -> list[tuple[int, int]]:
        """Return producer id and sequence of the sent batches, from number ``since`` on."""
        return [(producer_id, sequence) for _, producer_id, sequence, _ in self.sent[since:]]


GAP = refuse("OUT_OF_ORDER_SEQUENCE", "gap")
LOSSY_GAP = refuse("OUT_OF_ORDER_SEQUENCE", "gap", lossy=1)
LOSSY_GAP_IN_DOUBT = refuse("OUT_OF_ORDER_SEQUENCE", "gap", unknown_outcome=True, lossy=1)
LATER = refuse("NOT_ENOUGH_REPLICAS", "isr 1 of 2")
UNKNOWN = refuse("REQUEST_TIMED_OUT", "no answer", unknown_outcome=True)
NEVER = refuse("CORRUPT_BATCH", "bad")
