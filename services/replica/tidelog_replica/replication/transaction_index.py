"""The transactions of one log: which are open, which have ended, and what readers of committed transactions see.

The index is a function of the log alone: of the batch headers in order, like the producer state
(``replication/producer_state.py``), which contains it. A transaction is *open* in a log from its first batch until
its marker, a control batch, ends it (KIP-98). Its producer id identifies it: a producer has one transaction at a time
in a log.

    last stable offset   the HW, or the start of the first transaction that is open or whose marker is not committed,
                         if that is lower: an uncommitted marker may be missing at the next leader. Everything below
                         is decided. It never goes back: a transaction begins at the log end
    aborted              a batch between the beginning and the marker of an aborted transaction of its producer.
                         Readers of committed transactions never get it (``without_aborted``): they get an empty batch
                         with the same offsets, as compaction would leave it

A log without transactions keeps nothing here, and only ``is_idle`` is called.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tidelog.batch.format import MAX_OFFSET, BatchHeader, read_header
from tidelog.batch.sparse import emptied
from tidelog.errors import ProtocolError
from tidelog.types import Buffer

MAX_KEPT = 1 << 20
"""A snapshot with more transactions than this is refused as malformed."""


class OpenTransaction(NamedTuple):
    """A transaction that has begun in this log and has no marker here yet: it is neither committed nor aborted."""

    epoch: int
    start: int
    """Offset of the transaction's first record in this log."""


class EndedTransaction(NamedTuple):
    """A transaction that a marker in this log has committed or aborted."""

    producer_id: int
    start: int
    end: int
    """Offset of the transaction's marker."""
    committed: bool


class TransactionIndex:
    """The index of the open and ended transactions of one log, from which the last stable offset and the aborted
    batches are found. It is part of the log's ``ProducerState``."""

    def __init__(
        self, open: Iterable[tuple[int, OpenTransaction]] = (), ended: Iterable[EndedTransaction] = ()
    ) -> None:
        self.open = dict(open)
        """The open transactions by producer id, in the order in which they began."""
        self._aborted: list[EndedTransaction] = []
        """The aborted transactions whose markers are committed, in the order of the markers."""
        self._ended = list(ended)
        """The transactions that ended after those, in the order of the markers: it is not known yet that their
        markers are committed."""

    @property
    def is_idle(self) -> bool:
        """Return whether the index is empty. The last stable offset is then the HW, and no batch is aborted."""
        return not (self.open or self._ended or self._aborted)

    def record(self, header: BatchHeader, base_offset: int) -> None:
        """Record a batch of a transaction, or a marker, that is at ``base_offset`` of the log. A batch opens a
        transaction unless its producer has an open one. A marker ends its producer's open transaction; it changes
        nothing if there is none, or if the transaction's epoch is newer than the marker's."""
        if not header.is_control:
            if header.producer_id not in self.open:
                self.open[header.producer_id] = OpenTransaction(header.producer_epoch, base_offset)
            return
        begun = self.open.get(header.producer_id)
        if begun is not None and begun.epoch <= header.producer_epoch:
            del self.open[header.producer_id]
            self._ended.append(
                EndedTransaction(header.producer_id, begun.start, base_offset, header.base_sequence == 1)
            )

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Return whether the log has a batch of the producer's transaction in ``epoch`` and no marker that ended
        it."""
        begun = self.open.get(producer_id)
        return begun is not None and begun.epoch == epoch

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the last stable offset for this HW: the HW or, if that is lower, the start of the first transaction
        that is open or whose marker is not committed. Also records which markers are committed now, so the HW must
        not go back between calls."""
        if self._ended and self._ended[0].end < high_watermark:
            count = sum(one.end < high_watermark for one in self._ended)
            self._aborted += [one for one in self._ended[:count] if not one.committed]
            del self._ended[:count]
        first = next(iter(self.open.values()), None)
        end = high_watermark if first is None else min(high_watermark, first.start)
        return min((end, *(one.start for one in self._ended)))

    def at(self, last_stable_offset: int) -> tuple[int, int]:
        """Return the producer id and epoch of the transaction that begins at the last stable offset and holds it
        below the HW. The epoch is -1 if the log has the transaction's marker already, which is not committed yet.
        Return (0, -1) if no transaction begins there."""
        for id, begun in self.open.items():
            if begun.start == last_stable_offset:
                return id, begun.epoch
        return next((one.producer_id for one in self._ended if one.start == last_stable_offset), 0), -1

    def forget_below(self, start: int) -> None:
        """Remove the ended transactions whose markers lie below ``start``, where the log begins now."""
        self._aborted = [one for one in self._aborted if one.end >= start]
        self._ended = [one for one in self._ended if one.end >= start]

    def before(self, offset: int) -> TransactionIndex:
        """Return a new index with those transactions that are open now and had begun before ``offset``. A log that
        begins at ``offset`` needs them."""
        return TransactionIndex((id, begun) for id, begun in self.open.items() if begun.start < offset)

    def copy(self) -> TransactionIndex:
        """Return an independent copy of the index, which another thread may use."""
        return TransactionIndex(self.open.items(), (*self._aborted, *self._ended))

    # --- what was aborted --------------------------------------------------------------------------------

    def aborted_from(self, offset: int) -> list[EndedTransaction]:
        """Return the aborted transactions whose marker lies above ``offset``, whether that marker is committed or
        not. An empty list if there are none."""
        first = bisect_right(self._aborted, offset, key=lambda one: one.end)
        return self._aborted[first:] + [one for one in self._ended if one.end > offset and not one.committed]

    def without_aborted(self, batches: Sequence[Buffer], offset: int) -> list[Buffer]:
        """Return the given batches, read from ``offset`` on and all below the last stable offset, with each aborted
        batch replaced by an empty one with the same offsets. Readers with isolation ``committed`` get this."""
        aborted = self.aborted_from(offset)
        if not aborted:
            return list(batches)
        return [emptied(batch) if is_aborted(read_header(batch), aborted) else batch for batch in batches]

    # --- as bytes ----------------------------------------------------------------------------------------

    def to_map(self) -> dict[str, list[tuple[object, ...]]]:
        """Return the index as the CBOR map ``transactions`` of ``tidelog.cddl``."""
        return {
            "open": [(id, *begun) for id, begun in self.open.items()],
            "ended": [tuple(one) for one in (*self._aborted, *self._ended)],
        }

    @classmethod
    def from_map(cls, data: object) -> TransactionIndex:
        """Return the index whose ``to_map`` gave ``data``. Raises ``ProtocolError`` if the data is malformed or has
        more than ``MAX_KEPT`` transactions."""
        if not isinstance(data, dict) or set(data) != {"open", "ended"}:
            raise ProtocolError("transactions are open and ended")
        open, ended = data["open"], data["ended"]
        if not isinstance(open, list) or not isinstance(ended, list) or len(open) + len(ended) > MAX_KEPT:
            raise ProtocolError("transactions are two arrays")
        if not all(_is_row(row, (2**64 - 1, 2**16 - 1, MAX_OFFSET)) for row in open):
            raise ProtocolError("an open transaction is [id, epoch, start]")
        if not all(_is_row(row, (2**64 - 1, MAX_OFFSET, MAX_OFFSET), flag=True) for row in ended):
            raise ProtocolError("an ended transaction is [id, start, end, committed]")
        return cls(
            ((id, OpenTransaction(epoch, start)) for id, epoch, start in open),
            (EndedTransaction(*row) for row in ended),
        )


class LastStableOffsetAge:
    """A measure of how long the last stable offset has stood still below the HW. Each leader or follower role of a
    partition has its own, so the time begins anew after a change of leader."""

    def __init__(self) -> None:
        self._offset = -1
        self.since: float | None = None
        """When the last stable offset stopped; None: it is equal to the HW. Only this class changes it."""

    def update(self, transactions: TransactionIndex, high_watermark: int, now: float) -> None:
        """Compute the last stable offset for this HW and record since when (seconds) it has stood still. The caller
        may omit the call while ``transactions`` is idle and ``since`` is None."""
        end = transactions.last_stable_offset(high_watermark)
        if end >= high_watermark:
            self.since = None
        elif self.since is None or end != self._offset:
            self._offset, self.since = end, now

    def age_s(self, now: float) -> float:
        """Return for how many seconds the last stable offset has stood still; 0 if it equals the HW."""
        return 0.0 if self.since is None else max(0.0, now - self.since)


def is_aborted(header: BatchHeader, aborted: Sequence[EndedTransaction]) -> bool:
    """Return whether a batch is part of one of these aborted transactions. False for a marker, and for a batch
    outside of transactions."""
    if not header.is_transactional or header.is_control:
        return False
    id, offset = header.producer_id, header.base_offset
    return any(one.producer_id == id and one.start <= offset < one.end for one in aborted)


def _is_row(row: object, limits: tuple[int, ...], flag: bool = False) -> bool:
    """Return whether a value read from CBOR is a list of integers, each from 0 to its number in ``limits``; with
    ``flag`` a boolean must follow them."""
    if not isinstance(row, list) or len(row) != len(limits) + flag or (flag and type(row[-1]) is not bool):
        return False
    return all(type(value) is int and 0 <= value <= limit for value, limit in zip(row, limits, strict=False))
