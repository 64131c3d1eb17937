"""A batch on its way: the records of one partition that leave together and share one fate."""

from __future__ import annotations

from typing import Any, NamedTuple

from crc32c import crc32c

from tidelog.batch.format import HEADER, HEADER_BYTES, Codec, Fields, encode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError

RECORD_OVERHEAD = 16
"""Bytes that a record costs in a batch besides key, value and headers, at most (CBOR heads, time)."""
BATCH_OVERHEAD = HEADER_BYTES + 64
"""Bytes that a batch costs besides its records, at most."""
_CHECKED_FROM = 16


def record_size(value: bytes | None, key: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> int:
    """Upper bound of the bytes of a record in an uncompressed batch."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    for name, content in headers:
        size += RECORD_OVERHEAD + 4 * len(name) + len(content)
    return size


class TransactionIdentity(NamedTuple):
    """What the batches of a transaction carry."""

    app: str
    producer_id: int
    epoch: int


class Batch:
    """Open (takes records), then sealed (encoded when it is first sent), then settled: acked or failed.

    ``waiter`` belongs to the shell: what it wakes when the batch settles.
    """

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
        """Not -1: it may be appended there only."""
        self.opened_at = opened_at
        self.deadline = deadline
        self.records: list[Fields] = []
        self.size = BATCH_OVERHEAD
        self.places = 1
        """Of those that may be on their way: more for one that grew."""
        self.count = 0
        """Records of the batch, from when it is sealed."""
        self.base_sequence: int | None = None
        """None: no sequence given yet, or taken back."""
        self.ordinal = 0
        """How many batches of the lane got a sequence before this one."""
        self.uncertain = False
        """A try ended without anyone knowing how: it may be in the log, whatever is answered to later tries, unless
        that is a gap in a topic that loses nothing."""
        self.astray = False
        """A try under this sequence was lost with its link."""
        self.answer: TidelogError | None = None
        """The last answer, when that was an error that may pass."""
        self._data = b""
        self.settled = False
        self.offset = -1
        self.leader_epoch = -1
        self.durability = ""
        self.error: TidelogError | None = None
        self.reported = 0
        """Records whose failure the application has been told of."""
        self.waiter: Any = None

    def number(self, producer_id: int, base_sequence: int | None) -> None:
        """Give (or take back) the place in the producer's sequence."""
        self.base_sequence = base_sequence
        self.answer = None
        if self._data and base_sequence is not None:
            self._data = renumber(self._data, producer_id, base_sequence)

    def data(self, codec: Codec, producer_id: int, identity: TransactionIdentity | None = None) -> bytes:
        """The encoded batch; the records themselves are let go."""
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
        """Acked (None) or failed, for good."""
        assert not self.settled
        self.settled = True
        self.error = error
        self.count = self.count or len(self.records)
        self.records = []
        self._data = b""


def renumber(batch: bytes, producer_id: int, base_sequence: int) -> bytes:
    """Return the batch under another producer id, at epoch 0, and another sequence."""
    header = read_header(batch)._replace(producer_id=producer_id, producer_epoch=0, base_sequence=base_sequence)
    rest = HEADER.pack(*header)[_CHECKED_FROM:]
    body = memoryview(batch)[HEADER_BYTES:]
    return b"".join((stamp_prefix(0, 0, crc32c(body, crc32c(rest))), rest, body))
