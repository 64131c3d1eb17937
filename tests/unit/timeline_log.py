"""The partition of ``__timeline`` as a scribe sees it: conditional appends, a high watermark, elections."""

from __future__ import annotations

from tidelog.effects import Call
from tidelog.errors import TidelogError, refuse
from tidelog.records import decode_batch, read_header, stamp_prefix
from tidelog.timeline.records import Document, decode
from tidelog.wire.messages import ListOffset, Message, OffsetAnswer, Produce, ProduceAck, Produced, Read, ReadAnswer


class TimelineLog:
    """Batches as they stand. What is appended is committed by ``commit``; acks come then."""

    def __init__(self) -> None:
        self.leader_epoch = 0
        self.start = 0
        self.batches: list[bytes] = []
        self.committed = 0
        """Of the batches."""
        self._waiting: dict[int, list[ProduceAck]] = {}
        """Acks by the number of batches that must be committed."""

    def _end_of(self, batches: int) -> int:
        return read_header(self.batches[batches - 1]).end_offset if batches else self.start

    def produce(self, message: Produce) -> list[Produced]:
        """Append, or refuse; the ack of what is appended waits."""
        (part,) = message.parts
        error: TidelogError | None = None
        end = self._end_of(len(self.batches))
        if part.leader_epoch != self.leader_epoch:
            error = refuse("FENCED_LEADER_EPOCH", "another epoch")
        elif part.expected_offset != end:
            error = refuse("UNEXPECTED_OFFSET", f"the log ends at {end}")
        if error is not None:
            return [Produced((ProduceAck(part.id, error=error.to_info()),))]
        assert not isinstance(message.payload, list)
        batch = bytes(message.payload)
        stamp = stamp_prefix(end, self.leader_epoch, read_header(batch).crc32c)
        self.batches.append(stamp + batch[len(stamp) :])
        ack = ProduceAck(part.id, end, self.leader_epoch, "all/fsync")
        self._waiting.setdefault(len(self.batches), []).append(ack)
        return []

    def commit(self) -> list[Produced]:
        """The followers have everything."""
        self.committed = len(self.batches)
        acks = [ack for waiting in self._waiting.values() for ack in waiting]
        self._waiting.clear()
        return [Produced((ack,)) for ack in acks]

    def answer(self, call: Call) -> Message | TidelogError:
        """The high watermark, or the batch that holds an offset, to who knows the leader epoch."""
        assert isinstance(call.message, ListOffset | Read)
        if call.message.leader_epoch != self.leader_epoch:
            return refuse("FENCED_LEADER_EPOCH", "another epoch")
        end = self._end_of(self.committed)
        if isinstance(call.message, ListOffset):
            return OffsetAnswer(end)
        offset = call.message.offset
        if not self.start <= offset < end:
            return refuse("OFFSET_OUT_OF_RANGE", "it is not there", log_start=self.start)
        headers = [read_header(batch) for batch in self.batches]
        (at,) = [i for i, header in enumerate(headers) if header.base_offset <= offset < header.end_offset]
        return ReadAnswer(self.leader_epoch, end, self.start, self.batches[at])

    def fail_over(self, kept: int) -> None:
        """Another leader, which has so many of the batches that were not committed; nobody hears of their acks."""
        del self.batches[self.committed + kept :]
        self._waiting.clear()
        self.leader_epoch += 1

    def lose(self, batches: int) -> None:
        """An unclean election: the last ones are gone, committed or not."""
        del self.batches[len(self.batches) - batches :]
        self.committed = min(self.committed, len(self.batches))
        self.fail_over(0)

    def retire(self) -> None:
        """Retention takes everything."""
        self.start = self._end_of(len(self.batches))
        self.batches, self.committed = [], 0

    def records(self) -> list[Document]:
        """Everything that it tells."""
        told = [decode(record.value) for batch in self.batches for record in decode_batch(batch)]
        return [record for record in told if record is not None]

    def numbers(self) -> list[int]:
        """The events, by number."""
        return [record["event"] for record in self.records() if record["type"] == "event"]
