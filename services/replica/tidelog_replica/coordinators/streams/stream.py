"""One stream: its index, which says where in the log its appends are, and the rules of appending to it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from dataclasses import dataclass

from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import AppendStream, StreamInfo

from tidelog_replica.coordinators.streams.records import AppendRecord, StreamRecord


@dataclass(slots=True)
class ProducerState:
    """What a stream remembers of an idempotent producer."""

    epoch: int
    seq: int
    """Number of its last append."""


class Stream:
    """A stream as its coordinator has it in memory: everything but the appended bytes, which stay in the log."""

    __slots__ = (
        "closed",
        "content_type",
        "end",
        "expires_ms",
        "id",
        "number",
        "path",
        "places",
        "principal",
        "producers",
        "seq",
        "starts",
        "touched_ms",
        "ttl_s",
    )

    def __init__(self, path: str, record: StreamRecord, offset: int) -> None:
        """``offset``: that of the record in the log."""
        self.path = path
        self.id = record.id
        self.content_type = record.content_type
        self.ttl_s = record.ttl_s
        self.expires_ms = record.expires_ms
        self.principal = record.principal
        self.closed = record.closed
        self.starts = array("q")
        """Position of the first byte of each append that has bytes, rising."""
        self.places = array("q")
        """Log offset of each of them."""
        self.end = 0
        self.number = 1
        """Number of the next append."""
        self.seq = ""
        """Greatest order mark of the writers."""
        self.producers: dict[str, ProducerState] = {}
        self.touched_ms = record.ms
        """Wall clock of the last read or append, in ms since 1970."""
        self._add(len(record.data), offset)

    def apply(self, record: AppendRecord, offset: int) -> None:
        """Add an append, whose record is at ``offset`` in the log."""
        self._add(len(record.data), offset)
        self.number += 1
        self.closed = record.closed
        self.seq = record.seq or self.seq
        self.touched_ms = max(self.touched_ms, record.ms)
        if record.producer:
            self.producers[record.producer] = ProducerState(record.producer_epoch, record.producer_seq)

    def _add(self, size: int, offset: int) -> None:
        if size:
            self.starts.append(self.end)
            self.places.append(offset)
            self.end += size

    def deleted_at_ms(self) -> int | None:
        """Return the wall clock at which the stream is deleted, in ms since 1970, if nobody reads or appends before;
        None if it never is."""
        if self.ttl_s >= 0:
            return self.touched_ms + self.ttl_s * 1000
        return None if self.expires_ms < 0 else self.expires_ms

    def places_from(self, position: int, max_bytes: int) -> list[int] | None:
        """Return the log offsets of the appends from ``position`` on: as many as have ``max_bytes`` together, at
        least one. An empty list at the end of the stream; None if no append begins at the position."""
        if position == self.end:
            return []
        first = bisect_left(self.starts, position)
        if first == len(self.starts) or self.starts[first] != position:
            return None
        last = bisect_left(self.starts, position + max_bytes, first + 1)
        end = self.starts[last] if last < len(self.starts) else self.end
        if last > first + 1 and end > position + max_bytes:
            last -= 1
        return self.places[first:last].tolist()

    def info(self, *, created: bool = False, duplicate: bool = False, producer: str = "") -> StreamInfo:
        """Return the description of the stream for an answer. ``producer``: the one that has appended."""
        known = self.producers.get(producer)
        return StreamInfo(
            self.id,
            self.end,
            self.content_type,
            self.closed,
            self.ttl_s,
            self.expires_ms,
            created,
            duplicate,
            -1 if known is None else known.seq,
        )

    # --- the rules of appending ------------------------------------------------------------------------------

    def check_append(self, asked: AppendStream) -> StreamInfo | TidelogError | None:
        """Return the answer to an append that was carried out before, the error that refuses it, or None if it is to
        be carried out."""
        if asked.producer and (found := self._check_producer(asked)) is not None:
            return found
        if self.closed:
            if not asked.payload and not asked.producer:
                return self.info(duplicate=True)
            return refuse("STREAM_CLOSED", f"{self.path} is closed", stream_id=self.id, end=self.end)
        if asked.payload and media_type(asked.content_type) != media_type(self.content_type):
            text = f"{self.path} holds {self.content_type}, not {asked.content_type or 'nothing named'}"
            return refuse("STREAM_CONFLICT", text)
        if asked.seq and asked.seq.encode() <= self.seq.encode():
            return refuse("STREAM_CONFLICT", f"the order mark {asked.seq} is not greater than {self.seq}")
        return None

    def _check_producer(self, asked: AppendStream) -> StreamInfo | TidelogError | None:
        """Compare an append with what is known of its producer, as ``check_append`` does."""
        known = self.producers.get(asked.producer)
        epoch, seq = asked.producer_epoch, asked.producer_seq
        expected = 0 if known is None or epoch > known.epoch else known.seq + 1
        if known is not None and epoch < known.epoch:
            text = f"{asked.producer} has begun epoch {known.epoch}, after {epoch}"
            return refuse("FENCED_PRODUCER", text, epoch=known.epoch)
        if known is not None and epoch > known.epoch and seq != 0:
            return refuse("MALFORMED", f"the first append of an epoch has number 0, not {seq}")
        if seq < expected:
            return self.info(duplicate=True, producer=asked.producer)
        if seq > expected and not self.closed:
            text = f"the next append of {asked.producer} has number {expected}, not {seq}"
            return refuse("STREAM_CONFLICT", text, expected=expected, received=seq)
        return None


def media_type(content_type: str) -> str:
    """Return a content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()
