"""The offset of the first record at or after a time.

A replica server does not decode batches. It answers with the beginning of the first batch that has such a record. The
gateway reads from that offset and finds the record. It skips batches without such a record, since compaction or an
abort may have removed it. If a batch cannot be decoded, its first offset is the answer: a reader that begins there
gets the error. If no record is found, the answer is the high watermark, as it is if no batch has such a record.
If retention removes the batch before it is read, the gateway asks the leader once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import trio
from tidelog.batch.format import decode_batch, split
from tidelog.errors import CorruptBatch, TidelogError, refuse
from tidelog.types import Buffer
from tidelog.wire.codec import payload_view
from tidelog.wire.messages import ListOffset, Message, OffsetAnswer, Read, ReadAnswer

Answered = Callable[[Message | TidelogError], None]
AskLeader = Callable[[Read | ListOffset, float, Answered], None]
"""Asks the partition's leader, with a timeout in seconds. The callback is called exactly once."""

READ_BYTES = 1 << 20
"""Bytes that each read after the first batch asks for."""


async def find_by_time(ask_leader: AskLeader, asked: ListOffset, timeout_s: float, done: Answered) -> None:
    """Find the offset of the first record at or after ``asked.timestamp_ms`` by reads from the partition's leader.
    Call ``done`` once, with the ``OffsetAnswer``, or with the error if the search fails or takes longer than
    ``timeout_s`` seconds. If there is no such record, the offset is the high watermark."""
    try:
        done(await _find(ask_leader, asked, trio.current_time() + timeout_s))
    except TidelogError as error:
        done(error)


async def _find(ask_leader: AskLeader, asked: ListOffset, deadline: float) -> Message:
    """Return the answer to a search by time, which is repeated once if retention deletes the batch meanwhile. Raises
    ``TidelogError``."""
    if asked.timestamp_ms < 0:
        raise refuse("MALFORMED", "at is timestamp, and timestamp_ms is missing")
    try:
        return await _search(ask_leader, asked, deadline)
    except TidelogError as error:
        if error.code != "OFFSET_OUT_OF_RANGE":
            raise
    return await _search(ask_leader, asked, deadline)


async def _search(ask_leader: AskLeader, asked: ListOffset, deadline: float) -> Message:
    """Ask the leader for the batch with the first record at or after the time, and read from there until the record
    is found. Return its position, or the high watermark if there is none. Raises the leader's error."""
    answer = await _ask(ask_leader, asked, deadline)
    assert isinstance(answer, OffsetAnswer)
    if not 0 <= answer.timestamp_ms < asked.timestamp_ms:
        return answer
    offset, last_epoch, max_bytes = answer.offset, answer.leader_epoch, 1
    while True:
        read = Read(asked.topic_id, asked.partition, offset, max_bytes=max_bytes, isolation=asked.isolation)
        batches = await _ask(ask_leader, read, deadline)
        assert isinstance(batches, ReadAnswer)
        payload = payload_view(batches.payload)
        if not len(payload):
            return await _ask(ask_leader, replace(asked, at="latest", timestamp_ms=-1), deadline)
        found, place = await trio.to_thread.run_sync(first_since, payload, offset, last_epoch, asked.timestamp_ms)
        if found:
            return place
        offset, last_epoch, max_bytes = place.offset, place.leader_epoch, READ_BYTES


def first_since(payload: Buffer, offset: int, last_epoch: int, timestamp_ms: int) -> tuple[bool, OffsetAnswer]:
    """Find the first record in ``payload`` (whole batches) whose offset is at least ``offset`` and whose timestamp is
    at least ``timestamp_ms``. Return whether there is one, and the answer: its offset and timestamp, and the leader
    epoch of the record before it; if there is none, the position after the batches. ``last_epoch``: leader epoch of
    the record before the payload. A batch that cannot be decoded ends the search: the answer is then its first
    offset, but not below ``offset``."""
    for header, batch in split(payload):
        try:
            records = decode_batch(batch)
        except CorruptBatch:
            inside = offset > header.base_offset
            return True, OffsetAnswer(max(offset, header.base_offset), header.leader_epoch if inside else last_epoch)
        for record in records:
            if record.offset >= offset and record.timestamp_ms >= timestamp_ms:
                epoch = header.leader_epoch if record.offset > header.base_offset else last_epoch
                return True, OffsetAnswer(record.offset, epoch, record.timestamp_ms)
        offset, last_epoch = max(offset, header.end_offset), header.leader_epoch
    return False, OffsetAnswer(offset, last_epoch)


async def _ask(ask_leader: AskLeader, message: Read | ListOffset, deadline: float) -> Message:
    """Send a request to the partition's leader and return the answer. Raises the error of the answer as
    ``TidelogError``, and ``REQUEST_TIMED_OUT`` if the deadline has passed."""
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
