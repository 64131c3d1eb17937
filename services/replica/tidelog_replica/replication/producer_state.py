"""Idempotent producers of one partition: which batch is new, which is a copy, which would leave a gap.

A producer numbers its records per (producer id, producer epoch) from 0; a batch carries the first number. The state
is a function of the log alone (batch headers in order). So leader and followers have the same state, it survives a
failover, and it is rebuilt after a restart and after a truncation. Where the log no longer begins at 0, the state at
the log start is kept as a snapshot (``to_bytes``), which is also sent to a copy that begins there. Uncommitted
batches are covered too: a copy of one must not be appended either; it is acked when the original is committed.

A copy is the same bytes of the same kind. The state has the CRC-32C of each remembered batch, which covers all of
the batch but base offset and leader epoch, and whether the batch is part of a transaction. The kind is compared
beside the CRC because a CRC can be forged: a batch of a transaction must never be acked for a plain batch. Compaction
changes the CRC of a batch; what counts is the CRC that the producer sent, which every header given to this class has
(``format.with_sent_crc``). So a producer that was given another producer's id is not acked for the other's batch: the
log keeps the batch that came first, and refuses the second.

    unknown producer, or a newer epoch   must begin at sequence 0        else OUT_OF_ORDER_SEQUENCE
    older epoch                          FENCED_PRODUCER
    the next sequence                    append
    one of the last 5 batches, with the
    same count, CRC and kind             duplicate: acked with the original's offset
    overlaps them, but is none of them   SEQUENCE_CONFLICT: it is not in this log
    older than the last 5 batches, or
    CRC or kind of the batch in the log
    is not known                         UNVERIFIED_SEQUENCE: it may be in this log, or another batch may
    anything else                        OUT_OF_ORDER_SEQUENCE

An unknown producer that does not begin at 0 is refused, as in Kafka before KIP-360: either an earlier batch of it
is still on its way, or its state was lost with a truncated log; appending would turn a retry into a second copy.
The producer starts over with a new epoch. Sequences are 32 bits wide and wrap around (KIP-98).

The marker of a transaction begins the producer's next epoch (KIP-890): a batch of that transaction which comes late
is fenced, and it cannot be taken for one of the next.

The *window*: as many batches are remembered as a producer may have in flight on one partition. A batch that may
be sent again is never pushed out: the leader refuses a batch that would push out an unacknowledged one
(``would_push_out``), and the gateway refuses it earlier.

At most ``MAX_PRODUCERS`` are remembered. A producer id names the *share* that it belongs to, and the cluster gives
all ids of a principal from one share (``tidelog.types.share_of``). If there is one producer too many, the oldest one
of the largest share is forgotten. So a principal that takes id after id loses its own producers, and a share that
has at most ``MAX_PRODUCERS`` / (shares in use) never loses a producer to another share. This is a function of the log
alone, too: every replica forgets the same producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from io import BytesIO
from typing import Any, NamedTuple

import cbor2
from tidelog.batch.format import MAX_OFFSET, BatchHeader
from tidelog.errors import ProtocolError
from tidelog.types import PRODUCER_WINDOW, REPORTED_IDS_END, Buffer, share_of
from tidelog.wire.cbor import array_head, map_head

from tidelog_replica.replication.transaction_index import TransactionIndex

KEPT_BATCHES = PRODUCER_WINDOW
"""How many batches are remembered for each producer: as many as it may have in flight on one partition."""
MAX_PRODUCERS = 10_000
"""How many producers are remembered for each partition at most."""
_SEQUENCES = 1 << 32


class AppendedBatch(NamedTuple):
    """A batch of the log that is remembered for its producer, so that a copy of it is recognised when it is sent
    again."""

    base_sequence: int
    record_count: int
    base_offset: int
    crc32c: int | None
    """The CRC that the producer sent; None if the state comes from a server of an earlier release."""
    transactional: bool | None = None
    """Whether the batch is part of a transaction; None if the state comes from a server of an earlier release."""


class _Producer(NamedTuple):
    """The last epoch of one producer and its remembered batches of that epoch."""

    epoch: int
    batches: tuple[AppendedBatch, ...]
    """The last batches of the producer in this epoch, oldest first; never empty."""

    @property
    def next_sequence(self) -> int:
        """Return the sequence number that the producer's next batch must begin with."""
        last = self.batches[-1]
        return (last.base_sequence + last.record_count) % _SEQUENCES


class SequenceRefusal(NamedTuple):
    """A refusal of a produced batch because of its producer's epoch or sequence: an error code and a message for the
    producer."""

    code: str
    message: str
    unverified_at: int = -1
    """With ``UNVERIFIED_SEQUENCE``: base offset of the batch in the log whose CRC would decide; -1: that batch is not
    remembered."""
    conflict_at: int = -1
    """With ``SEQUENCE_CONFLICT``: base offset of the other batch in the log, if it has the same sequence and number
    of records; otherwise -1."""


class ProducerState:
    """The producer state of one partition, as its log shows it: the last batches of each producer, and the index of
    transactions. It lives as long as the log is open, and is rebuilt from the log after a truncation."""

    def __init__(self, headers: Iterable[BatchHeader] = ()) -> None:
        self._producers: dict[int, _Producer] = {}
        """The remembered producers by id. Those that appended last stand at the end."""
        self._shares: dict[int, dict[int, None]] = {}
        """The ids of each share that has any, in the order of ``_producers``."""
        self.transactions = TransactionIndex()
        self.highest_id = 0
        """The highest producer id below ``REPORTED_IDS_END`` that was recorded, also of forgotten producers; 0 for
        none."""
        self.rebuild(headers)

    def __len__(self) -> int:
        return len(self._producers)

    def before(self, offset: int) -> ProducerState:
        """Return a new producer state as it was when the log ended at ``offset``, as far as that is still known.
        Missing are batches that later ones have pushed out of memory, and the earlier epochs of producers whose epoch
        has changed since. This state stays unchanged."""
        kept = [
            (id, known.epoch, tuple(b for b in known.batches if b.base_offset < offset))
            for id, known in self._producers.items()
        ]
        state = ProducerState()
        for id, epoch, batches in sorted(
            (each for each in kept if each[2]), key=lambda each: each[2][-1].base_offset
        ):
            state._put(id, _Producer(epoch, batches))
        state.transactions = self.transactions.before(offset)
        return state

    def reaches(self, offset: int) -> bool:
        """Return whether any remembered batch ends above ``offset``. False for an empty state."""
        last = next(reversed(self._producers.values())).batches[-1] if self._producers else None
        return last is not None and last.base_offset + last.record_count > offset

    def rebuild(self, headers: Iterable[BatchHeader], before: ProducerState | None = None) -> None:
        """Replace this state by the one that results from the batches with these headers, in the order of the log, on
        top of the state ``before`` them (None: empty). ``before`` must not be used afterwards. ``highest_id`` never
        goes down."""
        self._producers = {} if before is None else before._producers
        self._shares = {} if before is None else before._shares
        self.transactions = TransactionIndex() if before is None else before.transactions
        self.highest_id = max(self.highest_id, 0 if before is None else before.highest_id)
        for header in headers:
            self.record(header, header.base_offset)

    def check(self, header: BatchHeader) -> AppendedBatch | SequenceRefusal | None:
        """Check a produced batch against its producer's epoch and sequence, without changing anything. Return None if
        it may be appended, which includes batches without a producer. Return the batch of the log that it is a copy
        of, or the refusal."""
        if not header.producer_id:
            return None
        known = self._producers.get(header.producer_id)
        if known is None or header.producer_epoch > known.epoch:
            if header.base_sequence == 0:
                return None
            return SequenceRefusal(
                "OUT_OF_ORDER_SEQUENCE",
                f"producer {header.producer_id} epoch {header.producer_epoch} is not known here"
                f" and begins at sequence {header.base_sequence}, not 0",
            )
        if header.producer_epoch < known.epoch:
            return SequenceRefusal(
                "FENCED_PRODUCER",
                f"producer {header.producer_id} is at epoch {known.epoch}, not {header.producer_epoch}",
            )
        ahead = (header.base_sequence - known.next_sequence) % _SEQUENCES
        if ahead == 0:
            return None
        if ahead < _SEQUENCES // 2:
            sent = f"producer {header.producer_id} sends sequence {header.base_sequence}"
            return SequenceRefusal("OUT_OF_ORDER_SEQUENCE", f"{sent}, expected {known.next_sequence}")
        return _compare(header, known.batches)

    def would_push_out(self, header: BatchHeader, acked: int) -> bool:
        """Return whether recording this new batch would push a batch of its producer out of memory that is not
        acknowledged: one that ends above offset ``acked``. The producer may still send that batch again, so it has
        more batches in flight than the window allows."""
        known = self._producers.get(header.producer_id)
        if known is None or known.epoch != header.producer_epoch or len(known.batches) < KEPT_BATCHES:
            return False
        oldest = known.batches[0]
        return oldest.base_offset + oldest.record_count > acked

    def learn(self, header: BatchHeader) -> None:
        """Add the CRC and kind, plain or transactional, to a remembered batch for which they were not known.
        ``header`` is the header of that batch as its producer sent it. The producer must be remembered."""
        known = self._producers[header.producer_id]
        at, crc, kind = header.base_offset, header.crc32c, header.is_transactional
        batches = (b._replace(crc32c=crc, transactional=kind) if b.base_offset == at else b for b in known.batches)
        self._producers[header.producer_id] = known._replace(batches=tuple(batches))

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Record a batch that is in the log at ``base_offset``, or will be. It becomes the last batch of its
        producer, whose oldest batch may be pushed out of memory; a batch of a transaction, or a marker, is also
        entered in the index of transactions. Beyond ``MAX_PRODUCERS`` another producer is forgotten. Does nothing for
        a batch without a producer, or one that was recorded before."""
        if not header.producer_id:
            return
        if self.highest_id < header.producer_id < REPORTED_IDS_END:
            self.highest_id = header.producer_id
        known = self._producers.get(header.producer_id)
        if known is not None:
            if known.batches[-1].base_offset >= base_offset:
                return
            self._drop(header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        if header.is_transactional:
            self.transactions.record(header, base_offset)
            if header.is_control:
                epoch, sequence = epoch + 1, _SEQUENCES - 1
        written = AppendedBatch(sequence, header.record_count, base_offset, header.crc32c, header.is_transactional)
        before = () if known is None or known.epoch != epoch else known.batches[1 - KEPT_BATCHES :]
        self._put(header.producer_id, _Producer(epoch, (*before, written)))
        if len(self._producers) > MAX_PRODUCERS:
            self._drop(self._to_be_forgotten(header.producer_id))

    def _put(self, id: int, producer: _Producer) -> None:
        """Add a producer that is not remembered yet, as the one that appended last."""
        self._producers[id] = producer
        self._shares.setdefault(share_of(id), {})[id] = None

    def _drop(self, id: int) -> None:
        """Forget a producer, which must be remembered."""
        share = share_of(id)
        del self._producers[id], self._shares[share][id]
        if not self._shares[share]:
            del self._shares[share]

    def _to_be_forgotten(self, latest_id: int) -> int:
        """Return the id of the producer to forget when there are too many: the one that appended longest ago of the
        largest share. Among equally large shares the share of producer ``latest_id`` comes first, then the lowest
        number: all replicas must choose alike."""
        own = share_of(latest_id)
        largest = max(self._shares, key=lambda share: (len(self._shares[share]), share == own, -share))
        return next(iter(self._shares[largest]))

    def fences(self, producer_id: int, epoch: int) -> bool:
        """Return whether the log shows a later epoch of the producer than ``epoch``. After the marker that ended a
        transaction of ``epoch`` it does."""
        known, begun = self._producers.get(producer_id), self.transactions.open.get(producer_id)
        return (known is not None and known.epoch > epoch) or (begun is not None and begun.epoch > epoch)

    def needs_marker(self, producer_id: int, epoch: int) -> bool:
        """Return whether a marker that ends ``epoch`` of a producer must be written. True if the log has an open
        transaction of that epoch or an earlier one, also when a plain batch has a later epoch. True as well if it has
        no open transaction and does not fence the epoch yet. A marker of one epoch is therefore written a single
        time."""
        begun = self.transactions.open.get(producer_id)
        return begun.epoch <= epoch if begun is not None else not self.fences(producer_id, epoch)

    def snapshot(self) -> dict[int, tuple[int, tuple[AppendedBatch, ...]]]:
        """Return the epoch and remembered batches of each producer, by producer id, to compare this state with one
        that was rebuilt from the log."""
        return {id: (p.epoch, p.batches) for id, p in self._producers.items()}

    def copy(self) -> ProducerState:
        """Return an independent copy of producers and transactions, which another thread may use. ``highest_id`` is
        not copied."""
        copied = ProducerState()
        copied._producers = self._producers.copy()
        copied._shares = {share: ids.copy() for share, ids in self._shares.items()}
        copied.transactions = self.transactions.copy()
        return copied

    def to_bytes(self) -> bytes:
        """Return the whole state as two CBOR items: ``producers`` of ``tidelog.cddl``, then ``producer-crcs``, which
        a server of an earlier release ignores. The rows are encoded one by one, since encoding ten thousand at a time
        would block every other thread for a tenth of a second."""
        known = self._producers
        parts = [array_head(len(known) + (not self.transactions.is_idle))]
        parts += (cbor2.dumps((id, p.epoch, tuple(each[:3] for each in p.batches))) for id, p in known.items())
        if not self.transactions.is_idle:
            parts.append(cbor2.dumps(self.transactions.to_map()))
        parts += (_CRCS_HEAD, array_head(len(known)))
        parts += (cbor2.dumps(tuple(each.crc32c for each in p.batches)) for p in known.values())
        parts += (_KINDS_HEAD, array_head(len(known)))
        parts += (cbor2.dumps(tuple(each.transactional for each in p.batches)) for p in known.values())
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: Buffer) -> ProducerState:
        """Return the state whose ``to_bytes`` gave ``data``. CRCs or kinds are unknown if a server of an earlier
        release wrote it. Raises ``ProtocolError`` if the data is malformed, or has more producers or batches than are
        ever remembered."""
        stream = BytesIO(data)
        try:
            rows = cbor2.load(stream)
            more = cbor2.load(stream) if stream.tell() < len(data) else None
        except (cbor2.CBORError, ValueError, OverflowError) as error:
            raise ProtocolError(f"producers are not CBOR: {error}") from None
        state = cls()
        if isinstance(rows, list) and rows and isinstance(rows[-1], dict):
            state.transactions = TransactionIndex.from_map(rows.pop())
        if not isinstance(rows, list) or len(rows) > MAX_PRODUCERS:
            raise ProtocolError(f"producers are not an array of at most {MAX_PRODUCERS}")
        all_crcs, all_kinds = _column_of(more, "crcs", len(rows)), _column_of(more, "transactional", len(rows))
        for row, crcs, kinds in zip(rows, all_crcs, all_kinds, strict=True):
            if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], list):
                raise ProtocolError("a producer is [id, epoch, batches]")
            id, epoch, batches = row
            if not 1 <= len(batches) <= KEPT_BATCHES or not all(map(_is_written, batches)):
                raise ProtocolError(f"a producer has 1 to {KEPT_BATCHES} batches of [sequence, count, offset]")
            if not _is_number(id, 2**64 - 1) or not _is_number(epoch, 2**16 - 1) or not id or id in state._producers:
                raise ProtocolError("a producer has an id of its own, and an epoch")
            crcs = _values_of(crcs, len(batches), _is_crc, "CRC")
            kinds = _values_of(kinds, len(batches), _is_kind, "kind")
            known = (AppendedBatch(*batch, *each) for batch, *each in zip(batches, crcs, kinds, strict=True))
            state._put(id, _Producer(epoch, tuple(known)))
        state.highest_id = max((id for id in state._producers if id < REPORTED_IDS_END), default=0)
        return state


def _compare(header: BatchHeader, batches: Sequence[AppendedBatch]) -> AppendedBatch | SequenceRefusal:
    """Return the batch among ``batches``, the remembered ones of its producer, of which a batch with a sequence below
    the next one is a copy. Return the refusal if it is no copy, or if that cannot be known: its batch is no longer
    remembered, or the CRC or kind there is unknown."""
    id, sequence, count = header.producer_id, header.base_sequence, header.record_count
    text = f"producer {id} epoch {header.producer_epoch} sequence {sequence}"
    conflict_at = -1
    for written in batches:
        if (written.base_sequence, written.record_count) != (sequence, count):
            continue
        if written.crc32c is None or written.transactional is None:
            return _unverified(f"{text}: CRC or kind of the batch in the log is not known", written.base_offset)
        if (written.crc32c, written.transactional) == (header.crc32c, header.is_transactional):
            return written
        conflict_at = written.base_offset
        break
    behind = (batches[0].base_sequence - sequence) % _SEQUENCES
    if count <= behind < _SEQUENCES // 2:
        return _unverified(f"{text} is before the last {len(batches)} batches, which alone are remembered")
    return SequenceRefusal(
        "SEQUENCE_CONFLICT",
        f"{text}: the log has another batch there, and this one was not written. Two producers use one id, or the"
        " batch was changed before it was sent again. Get a new producer id and send the records under it",
        conflict_at=conflict_at,
    )


def _unverified(text: str, offset: int = -1) -> SequenceRefusal:
    """Return an ``UNVERIFIED_SEQUENCE`` refusal. Its message is ``text``, followed by advice for the user; ``offset``
    is that of the batch in the log whose CRC would decide (-1: not remembered)."""
    advice = "It may be in the log, or another batch in its place: read the log before you send the records again"
    return SequenceRefusal("UNVERIFIED_SEQUENCE", f"{text}. {advice}", offset)


_CRCS_HEAD = map_head(2) + cbor2.dumps("crcs")
"""The first bytes of a CBOR map of two pairs: its head and the key of the first pair."""
_KINDS_HEAD = cbor2.dumps("transactional")
"""The key of the second pair."""


def _is_number(value: object, limit: int) -> bool:
    """Return whether a value read from CBOR is an integer from 0 to ``limit``."""
    return type(value) is int and 0 <= value <= limit


def _is_written(batch: object) -> bool:
    """Return whether a value read from CBOR is a valid remembered batch: [sequence, count, offset]."""
    if not isinstance(batch, list) or len(batch) != 3:
        return False
    limits = _SEQUENCES - 1, 2**32 - 1, MAX_OFFSET
    return all(map(_is_number, batch, limits)) and batch[1] > 0


def _column_of(more: object, name: str, count: int) -> Sequence[object]:
    """Return one column of ``producer-crcs`` (``tidelog.cddl``): a row for each of ``count`` producers, or None for
    each if an earlier release left the column out. Raises ``ProtocolError`` if the column is malformed."""
    if more is None:
        return (None,) * count
    if not isinstance(more, dict) or "crcs" not in more:
        raise ProtocolError("behind the producers stand the CRCs of each of them")
    column = more.get(name, [None] * count)
    if not isinstance(column, list) or len(column) != count:
        raise ProtocolError(f"{name} has one row for each producer")
    return column


def _values_of(row: object, count: int, fits: Callable[[object], bool], what: str) -> list[Any]:
    """Return the values of one producer's row in a column of ``producer-crcs``, one for each of its ``count``
    batches; None for each if there is no row. Raises ``ProtocolError`` if the row has another length, or a value that
    does not pass ``fits``."""
    if row is None:
        return [None] * count
    if not isinstance(row, list) or len(row) != count or not all(map(fits, row)):
        raise ProtocolError(f"a producer has one {what} for each of its batches")
    return row


def _is_crc(crc: object) -> bool:
    return crc is None or _is_number(crc, 2**32 - 1)


def _is_kind(transactional: object) -> bool:
    return transactional is None or type(transactional) is bool
