"""The offset of the first record at or after a time.

A replica server knows times by the batch: it answers where the first batch begins that has such a record, and does
not decode batches. The gateway reads on from there and finds the record. Batches that bring none, since compaction or
an abort has taken their records, are passed over. Where a batch cannot be decoded its first offset is the answer: a
reader that begins there meets it, and can say so. Where nothing is left, the answer is the end of the log, as it is
where no batch has such a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.records import decode_batch, split
from tidelog.types import Buffer
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import ListOffset, Message, OffsetAnswer, Read, ReadAnswer

Answered = Callable[[Message | TidelogError], None]
AskLeader = Callable[[Read | ListOffset, float, Answered], None]
"""Asks the partition's leader, for so many seconds at most; the answer comes exactly once."""

READ_BYTES = 1 << 20
"""Read at a time where the first batch did not have the record."""


async def find_by_time(ask_leader: AskLeader, asked: ListOffset, timeout_s: float, done: Answered) -> None:
    """Answer ``done`` with an ``OffsetAnswer``, or with why there is none."""
    try:
        done(await _find(ask_leader, asked, trio.current_time() + timeout_s))
    except TidelogError as error:
        done(error)


async def _find(ask_leader: AskLeader, asked: ListOffset, deadline: float) -> Message:
    if asked.timestamp_ms < 0:
        raise refuse("MALFORMED", "at is timestamp, and timestamp_ms is missing")
    answer = await _ask(ask_leader, asked, deadline)
    assert isinstance(answer, OffsetAnswer)
    if not 0 <= answer.timestamp_ms < asked.timestamp_ms:
        return answer
    offset, max_bytes = answer.offset, 1
    while True:
        read = Read(asked.topic_id, asked.partition, offset, max_bytes=max_bytes, isolation=asked.isolation)
        batches = await _ask(ask_leader, read, deadline)
        assert isinstance(batches, ReadAnswer)
        payload = payload_view(batches.payload)
        if not len(payload):
            return await _ask(ask_leader, replace(asked, at="latest", timestamp_ms=-1), deadline)
        found = await trio.to_thread.run_sync(first_since, payload, offset, asked.timestamp_ms)
        if isinstance(found, OffsetAnswer):
            return found
        offset, max_bytes = found, READ_BYTES


def first_since(payload: Buffer, offset: int, timestamp_ms: int) -> OffsetAnswer | int:
    """The first record from ``offset`` on in these whole batches that is at or after a time; where there is none, the
    offset behind them."""
    for header, batch in split(payload):
        try:
            records = decode_batch(batch)
        except CorruptBatch:
            return OffsetAnswer(max(offset, header.base_offset), header.leader_epoch)
        for record in records:
            if record.offset >= offset and record.timestamp_ms >= timestamp_ms:
                return OffsetAnswer(record.offset, record.leader_epoch, record.timestamp_ms)
        offset = max(offset, header.end_offset)
    return offset


async def _ask(ask_leader: AskLeader, message: Read | ListOffset, deadline: float) -> Message:
    """The leader's answer. Raises ``TidelogError``."""
    left_s = deadline - trio.current_time()
    if left_s <= 0:
        raise refuse("REQUEST_TIMED_OUT", "the record at or after that time was not found in time")
    answers: list[Message | TidelogError] = []
    answered = trio.Event()

    def done(answer: Message | TidelogError) -> None:
        answers.append(answer)
        answered.set()

    ask_leader(message, left_s, done)
    await answered.wait()
    if isinstance(answers[0], TidelogError):
        raise answers[0]
    return answers[0]
