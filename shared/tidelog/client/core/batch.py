"""A batch in a producer: the records of one partition that are sent together, and are acknowledged or fail
together."""

from __future__ import annotations

from typing import Any, NamedTuple

from crc32c import crc32c

from tidelog.batch.format import HEADER, HEADER_BYTES, Codec, Fields, encode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError

RECORD_OVERHEAD = 16
"""Most bytes that a record costs in a batch besides key, value and headers (CBOR heads, time)."""
BATCH_OVERHEAD = HEADER_BYTES + 64
"""Most bytes that a batch costs besides its records."""
_CHECKED_FROM = 16


def record_size(value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> int:
    """Return an upper bound of the number of bytes that a record takes in an uncompressed batch."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    for name, content in headers:
        size += RECORD_OVERHEAD + 4 * len(name) + len(content)
    return size


class TransactionIdentity(NamedTuple):
    """The transactional id, producer id and producer epoch that every batch of a transaction carries."""

    app: str
    producer_id: int
    epoch: int


class Batch:
    """A batch of records of one partition in a producer. It is open (it takes records), then closed (it is encoded
    when it is first sent), then settled (acked or failed). The shell puts an event into ``waiter`` and sets it when
    the batch settles."""

    __slots__ = (
        "_data",
        "answer",
        "astray",
        "base_sequence",
        "count",
        "deadline",
        "durability",
        "error",
        "expected_offset",
        "leader_epoch",
        "offset",
        "opened_at",
        "ordinal",
        "partition",
        "places",
        "records",
        "reported",
        "settled",
        "size",
        "uncertain",
        "waiter",
    )

    def __init__(self, partition: int, opened_at: float, deadline: float, expected_offset: int = -1) -> None:
        self.partition = partition
        self.expected_offset = expected_offset
        """If not -1, the batch may be appended at this offset only."""
        self.opened_at = opened_at
        self.deadline = deadline
        self.records: list[Fields] = []
        self.size = BATCH_OVERHEAD
        self.places = 1
        """Number of places that the batch takes among the batches in flight; more than one if it grew beyond
        ``batch_bytes``."""
        self.count = 0
        """Number of records; 0 until the batch is closed."""
        self.base_sequence: int | None = None
        """Sequence of the first record; None if the batch was not numbered yet, or its number was taken back."""
        self.ordinal = 0
        """Number of batches of the partition that were numbered before this one."""
        self.uncertain = False
        """Whether some try ended with unknown outcome. The batch may then be in the log whatever later tries return,
        except for a sequence gap in a topic that loses no records."""
        self.astray = False
        """Whether a try under this sequence was lost with its link."""
        self.answer: TidelogError | None = None
        """The error of the last answer, if a retry may succeed; None before an answer."""
        self._data = b""
        self.settled = False
        self.offset = -1
        self.leader_epoch = -1
        self.durability = ""
        self.error: TidelogError | None = None
        self.reported = 0
        """Number of records whose failure was reported to the application."""
        self.waiter: Any = None

    def number(self, producer_id: int, base_sequence: int | None) -> None:
        """Set the producer id and the sequence of the first record under which the batch is sent, or take the
        sequence back (None). A batch that is encoded already gets the new numbers and a new CRC."""
        self.base_sequence = base_sequence
        self.answer = None
        if self._data and base_sequence is not None:
            self._data = renumber(self._data, producer_id, base_sequence)

    def data(self, codec: Codec, producer_id: int, identity: TransactionIdentity | None = None) -> bytes:
        """Return the encoded batch. The first call encodes it with the compression ``codec`` and drops its records;
        later calls return identical bytes, unless ``number`` has changed them."""
        if not self._data:
            self._data = encode_batch(
                self.records,
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0 if identity is None else identity.epoch,
                base_sequence=self.base_sequence or 0,
                transactional=identity is not None,
            )
            self.records = []
        return self._data

    def settle(self, error: TidelogError | None) -> None:
        """Mark the batch as acked (``error`` is None) or failed with ``error``, for good, and drop its records and
        bytes. The caller wakes the waiter."""
        assert not self.settled
        self.settled = True
        self.error = error
        self.count = self.count or len(self.records)
        self.records = []
        self._data = b""


def renumber(batch: bytes, producer_id: int, base_sequence: int) -> bytes:
    """Return the encoded batch with another producer id, at producer epoch 0, and another base sequence; its CRC is
    computed anew."""
    header = read_header(batch)._replace(producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
    rest = HEADER.pack(*header)[_CHECKED_FROM:]
    body = memoryview(batch)[HEADER_BYTES:]
    return b"".join((stamp_prefix(0, 0, crc32c(body, crc32c(rest))), rest, body))
