"""The gateway finds the first record at or after a time in the batch that the leader names."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from tidelog.batch.format import NewRecord, encode_batch, read_header, stamp_prefix
from tidelog.errors import TidelogError, refuse
from tidelog.wire.messages import ListOffset, Message, OffsetAnswer, Read, ReadAnswer
from tidelog_gateway.consume.timestamp_lookup import Answered, find_by_time

END = OffsetAnswer(90, 4)


def batch(base: int, *timestamps_ms: int) -> bytes:
    new = encode_batch([NewRecord(b"v", timestamp_ms=at) for at in timestamps_ms])
    return stamp_prefix(base, 4, read_header(new).crc32c) + new[16:]


class Leader:
    """Answers by the batch; ``batches`` are what readers get, ``named`` where it says that the first begins."""

    def __init__(self, batches: Sequence[bytes], named: Message | TidelogError) -> None:
        self.batches, self.named, self.asked = list(batches), named, list[Message]()

    def ask(self, message: Read | ListOffset, timeout_s: float, done: Answered) -> None:
        self.asked.append(message)
        if isinstance(message, ListOffset):
            done(self.named if message.at == "timestamp" else END)
            return
        assert isinstance(message, Read)
        done(ReadAnswer(4, 90, 0, payload=self.batches.pop(0) if self.batches else b""))


async def find(leader: Leader, timestamp_ms: int, isolation: str = "committed") -> Message | TidelogError:
    answers: list[Message | TidelogError] = []
    asked = ListOffset("t", 0, "timestamp", timestamp_ms, isolation=isolation)
    await find_by_time(leader.ask, asked, 5.0, answers.append)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(("timestamp_ms", "offset", "at"), [(101, 11, 105), (105, 11, 105), (106, 12, 300)])
async def test_the_first_record_at_or_after_the_time_is_found_in_its_batch(
    timestamp_ms: int, offset: int, at: int
) -> None:
    leader = Leader([batch(10, 100, 105, 300, 200)], OffsetAnswer(10, 4, 100))
    assert await find(leader, timestamp_ms, "uncommitted") == OffsetAnswer(offset, 4, at)
    read = leader.asked[1]
    assert isinstance(read, Read) and (read.offset, read.isolation) == (10, "uncommitted")


async def test_a_batch_that_begins_at_the_time_needs_no_read() -> None:
    leader = Leader([], OffsetAnswer(10, 4, 100))
    assert await find(leader, 100) == OffsetAnswer(10, 4, 100) and len(leader.asked) == 1


async def test_a_record_before_the_place_that_the_leader_named_does_not_count() -> None:
    """The batch may begin before the log's start."""
    leader = Leader([batch(10, 500, 100, 300)], OffsetAnswer(11, 4, 100))
    assert await find(leader, 200) == OffsetAnswer(12, 4, 300)


async def test_batches_that_have_no_such_record_any_more_are_passed_over() -> None:
    leader = Leader([batch(10, 100, 101), batch(12, 150) + batch(13, 100, 260)], OffsetAnswer(10, 4, 100))
    assert await find(leader, 200) == OffsetAnswer(14, 4, 260)
    assert [read.offset for read in leader.asked if isinstance(read, Read)] == [10, 12]
    assert await find(Leader([batch(10, 100)], OffsetAnswer(10, 4, 100)), 200) == END


async def test_the_answer_has_the_leader_epoch_of_the_record_before() -> None:
    """A reader that begins there names it as ``last_epoch``."""
    leader = Leader([batch(10, 100, 101), batch(12, 260)], OffsetAnswer(10, 3, 100))
    assert await find(leader, 200) == OffsetAnswer(12, 4, 260)
    leader = Leader([batch(10, 100, 260)], OffsetAnswer(10, 3, 100))
    assert await find(leader, 200) == OffsetAnswer(11, 4, 260)
    damaged = batch(10, 300)[:-1] + b"?"
    assert await find(Leader([damaged], OffsetAnswer(10, 3, 100)), 200) == OffsetAnswer(10, 3)


async def test_where_a_batch_cannot_be_decoded_its_first_offset_is_the_answer() -> None:
    damaged = bytearray(batch(10, 100, 300))
    damaged[-1] ^= 1
    assert await find(Leader([bytes(damaged)], OffsetAnswer(10, 4, 100)), 200) == OffsetAnswer(10, 4)


async def test_a_time_has_to_be_given_and_what_the_leader_refuses_is_refused() -> None:
    answer = await find(Leader([], END), -1)
    assert isinstance(answer, TidelogError) and answer.code == "MALFORMED"
    answer = await find(Leader([], refuse("OFFLINE", "nobody leads")), 200)
    assert isinstance(answer, TidelogError) and answer.code == "OFFLINE"


async def test_where_retention_removes_the_batch_meanwhile_the_leader_is_asked_once_more() -> None:
    class Removing(Leader):
        times = 1

        def ask(self, message: Read | ListOffset, timeout_s: float, done: Answered) -> None:
            if isinstance(message, Read) and self.times:
                self.times, self.named = self.times - 1, OffsetAnswer(20, 4, 150)
                done(refuse("OFFSET_OUT_OF_RANGE", "below the log start"))
            else:
                super().ask(message, timeout_s, done)

    leader = Removing([batch(20, 150, 260)], OffsetAnswer(10, 4, 100))
    assert await find(leader, 200) == OffsetAnswer(21, 4, 260)
    leader.times = 2
    answer = await find(leader, 200)
    assert isinstance(answer, TidelogError) and answer.code == "OFFSET_OUT_OF_RANGE"


async def test_a_search_ends_with_its_time(autojump_clock: trio.testing.MockClock) -> None:
    class Slow(Leader):
        def ask(self, message: Read | ListOffset, timeout_s: float, done: Answered) -> None:
            autojump_clock.jump(2.0)
            super().ask(message, timeout_s, done)

    answer = await find(Slow([batch(n, 100) for n in range(20)], OffsetAnswer(0, 4, 100)), 200)
    assert isinstance(answer, TidelogError) and answer.code == "REQUEST_TIMED_OUT"
