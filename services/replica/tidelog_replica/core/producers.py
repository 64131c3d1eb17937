"""Idempotent producers of one partition: which batch is new, which is a copy, which would leave a gap.

A producer numbers its records per (producer id, producer epoch) from 0; a batch carries the first number. The state
is a function of the log alone (batch headers in order), so leader and follower hold the same, it survives a failover,
and it is rebuilt after a restart and after a truncation. Where the log no longer begins at 0, what the lost headers
told is kept as a snapshot (``to_bytes``), which goes to a copy that begins there too. It covers uncommitted batches
too: a copy of one must not be appended either; it is acked when the original is committed.

    unknown producer, or a newer epoch   must begin at sequence 0        else OUT_OF_ORDER_SEQUENCE
    older epoch                          FENCED_PRODUCER
    the next sequence                    append
    one of the last 5 batches, exactly   duplicate: acked with the original's offset
    before that, or overlapping          DUPLICATE_SEQUENCE: said only when all that the producer has in the log is
                                         as safe as it asked, since it takes that for an ack
    anything else                        OUT_OF_ORDER_SEQUENCE

An unknown producer that does not begin at 0 is refused, as in Kafka before KIP-360: either an earlier batch of it
is still on its way, or its state was lost with a truncated log; appending would turn a retry into a second copy.
The producer starts over with a new epoch. Sequences are 32 bits wide and wrap around (KIP-98).

The marker of a transaction begins the producer's next epoch (KIP-890): a batch of that transaction which comes late
is fenced, and nobody can take it for one of the next.

At most ``MAX_PRODUCERS`` are remembered, those that appended last: also a function of the log alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import cbor2
from tidelog.errors import ProtocolError
from tidelog.records import MAX_OFFSET, BatchHeader
from tidelog.types import REPORTED_IDS_END, Buffer

from tidelog_replica.core.stable import LogTransactions

KEPT_BATCHES = 5
"""Batches remembered per producer: how many a producer may have in flight on one partition."""
MAX_PRODUCERS = 10_000
_SEQUENCES = 1 << 32


class Written(NamedTuple):
    """A remembered batch."""

    base_sequence: int
    record_count: int
    base_offset: int


class _Producer(NamedTuple):
    epoch: int
    batches: tuple[Written, ...]
    """The last ones, oldest first; never empty."""

    @property
    def next_sequence(self) -> int:
        last = self.batches[-1]
        return (last.base_sequence + last.record_count) % _SEQUENCES


class Refused(NamedTuple):
    """The batch must not be appended: an error code and its message."""

    code: str
    message: str
    end: int = 0
    """``DUPLICATE_SEQUENCE``: the copy in the log lies below this offset."""


class ProducerState:
    """What one partition's log says of its producers."""

    def __init__(self, headers: Iterable[BatchHeader] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        self.transactions = LogTransactions()
        self.highest_id = 0
        """The highest id that was recorded, of those below ``REPORTED_IDS_END``, forgotten producers included."""
        self.rebuild(headers)

    def __len__(self) -> int:
        return len(self._producers)

    def before(self, offset: int) -> ProducerState:
        """The state as it was at ``offset``, as far as it is still known. Not known are batches before that which
        later ones have pushed out of memory, and producers whose epoch has changed since."""
        kept = [
            (id, known.epoch, tuple(b for b in known.batches if b.base_offset < offset))
            for id, known in self._producers.items()
        ]
        state = ProducerState()
        for id, epoch, batches in sorted(
            (each for each in kept if each[2]), key=lambda each: each[2][-1].base_offset
        ):
            state._producers[id] = _Producer(epoch, batches)
        state.transactions = self.transactions.before(offset)
        return state

    def reaches(self, offset: int) -> bool:
        """Whether it has something from a batch that ends above ``offset``."""
        last = next(reversed(self._producers.values())).batches[-1] if self._producers else None
        return last is not None and last.base_offset + last.record_count > offset

    def rebuild(self, headers: Iterable[BatchHeader], before: ProducerState | None = None) -> None:
        """Forget all, and learn it again from the log's headers, which follow on ``before`` (taken over)."""
        self._producers = {} if before is None else before._producers
        self.transactions = LogTransactions() if before is None else before.transactions
        self.highest_id = max(self.highest_id, 0 if before is None else before.highest_id)
        for header in headers:
            self.record(header, header.base_offset)

    def check(self, header: BatchHeader) -> Written | Refused | None:
        """None: append it. ``Written``: it is in the log already. ``Refused``: neither."""
        if not header.producer_id:
            return None
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            return Refused(
                "OUT_OF_ORDER_SEQUENCE",
                f"producer {header.producer_id} epoch {header.producer_epoch} is not known here"
                f" and begins at sequence {header.base_sequence}, not 0",
            )
        if header.producer_epoch < known.epoch:
            return Refused(
                "FENCED_PRODUCER",
                f"producer {header.producer_id} is at epoch {known.epoch}, not {header.producer_epoch}",
            )
        ahead = (header.base_sequence - known.next_sequence) % _SEQUENCES
        if ahead == 0:
            return None
        for written in known.batches:
            if (written.base_sequence, written.record_count) == (header.base_sequence, header.record_count):
                return written
        text = f"producer {header.producer_id} sends sequence {header.base_sequence}, expected {known.next_sequence}"
        if ahead < _SEQUENCES // 2:
            return Refused("OUT_OF_ORDER_SEQUENCE", text)
        last = known.batches[-1]
        return Refused("DUPLICATE_SEQUENCE", text, last.base_offset + last.record_count)

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """The batch is in the log, or will be next, at ``base_offset``; that may be said twice."""
        if not header.producer_id:
            return
        if self.highest_id < header.producer_id < REPORTED_IDS_END:
            self.highest_id = header.producer_id
        known = self._producers.get(header.producer_id)
        if known is not None:
            if known.batches[-1].base_offset >= base_offset:
                return
            del self._producers[header.producer_id]
        epoch, sequence = header.producer_epoch, header.base_sequence
        if header.is_transactional:
            self.transactions.record(header, base_offset)
            if header.is_control:
                epoch, sequence = epoch + 1, _SEQUENCES - 1
        written = Written(sequence, header.record_count, base_offset)
        before = () if known is None or known.epoch != epoch else known.batches[1 - KEPT_BATCHES :]
        # last in the order: the latest to append
        self._producers[header.producer_id] = _Producer(epoch, (*before, written))
        if len(self._producers) > MAX_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def fences(self, producer_id: int, epoch: int) -> bool:
        """The log has a later epoch of the producer: also the marker of the transaction of that one."""
        known, begun = self._producers.get(producer_id), self.transactions.open.get(producer_id)
        return (known is not None and known.epoch > epoch) or (begun is not None and begun.epoch > epoch)

    def snapshot(self) -> dict[int, tuple[int, tuple[Written, ...]]]:
        """By producer id: its epoch and last batches. For comparison with a state rebuilt from the log."""
        return {id: (p.epoch, p.batches) for id, p in self._producers.items()}

    def copy(self) -> ProducerState:
        """The state as it is now, for another thread; cheap."""
        copied = ProducerState()
        copied._producers = self._producers.copy()
        copied.transactions = self.transactions.copy()
        return copied

    def to_bytes(self) -> bytes:
        """The whole state, as ``producers`` in ``tidelog.cddl``. Row by row: encoding ten thousand at once would keep
        every other thread waiting for a tenth of a second."""
        rows = (cbor2.dumps((id, *known)) for id, known in self._producers.items())
        if self.transactions.is_idle:
            return b"".join((_array_head(len(self)), *rows))
        return b"".join((_array_head(len(self) + 1), *rows, cbor2.dumps(self.transactions.to_map())))

    @classmethod
    def from_bytes(cls, data: Buffer) -> ProducerState:
        """The state in ``data``. Raises ``ProtocolError`` for anything else, and for more than is ever remembered."""
        try:
            rows = cbor2.loads(data)
        except (cbor2.CBORError, ValueError, OverflowError) as error:
            raise ProtocolError(f"producers are not CBOR: {error}") from None
        state = cls()
        if isinstance(rows, list) and rows and isinstance(rows[-1], dict):
            state.transactions = LogTransactions.from_map(rows.pop())
        if not isinstance(rows, list) or len(rows) > MAX_PRODUCERS:
            raise ProtocolError(f"producers are not an array of at most {MAX_PRODUCERS}")
        for row in rows:
            if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], list):
                raise ProtocolError("a producer is [id, epoch, batches]")
            id, epoch, batches = row
            if not 1 <= len(batches) <= KEPT_BATCHES or not all(map(_is_written, batches)):
                raise ProtocolError(f"a producer has 1 to {KEPT_BATCHES} batches of [sequence, count, offset]")
            if not _is_number(id, 2**64 - 1) or not _is_number(epoch, 2**16 - 1) or not id or id in state._producers:
                raise ProtocolError("a producer has an id of its own, and an epoch")
            state._producers[id] = _Producer(epoch, tuple(Written(*batch) for batch in batches))
        state.highest_id = max((id for id in state._producers if id < REPORTED_IDS_END), default=0)
        return state


def _array_head(length: int) -> bytes:
    """How CBOR begins an array of so many items (RFC 8949, section 3.1)."""
    if length < 24:
        return bytes((0x80 | length,))
    return bytes((0x98, length)) if length < 256 else b"\x99" + length.to_bytes(2, "big")


def _is_number(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value <= limit


def _is_written(batch: object) -> bool:
    if not isinstance(batch, list) or len(batch) != 3:
        return False
    limits = _SEQUENCES - 1, 2**32 - 1, MAX_OFFSET
    return all(map(_is_number, batch, limits)) and batch[1] > 0
