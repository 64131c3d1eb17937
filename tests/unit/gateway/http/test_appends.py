"""A second try with an Idempotency-Key, by what the log still has of the first. The link and the leader's answers are
scripted, since a leader that has lost a batch is rare."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

import pytest
import trio
from tidelog.batch.format import NewRecord, encode_batch, stamp_prefix
from tidelog.errors import TidelogError, refuse
from tidelog.types import Buffer, ClusterImage, PartitionState, TopicState
from tidelog.wire.messages import ProduceAck, ProducePart, Read, ReadAnswer
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.http import appends
from tidelog_gateway.http.appends import COPY_WAIT_S, Appends
from tidelog_gateway.http.decoded_batches import LongWork
from tidelog_gateway.http.http_link import HttpLink
from tidelog_gateway.http.idempotency import producer_id_of
from tidelog_gateway.http.record_bodies import JSON, NDJSON
from tidelog_gateway.http.request_head import parse_head
from tidelog_gateway.rights.producer_tickets import ProducerTickets
from trio.testing import MockClock

HEAD = b"POST /v1/topics/orders/records HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n\r\n"
OFFSET = 5
"""Where the leader says that the first try is."""
CONFLICT = refuse("SEQUENCE_CONFLICT", "other bytes", offset=OFFSET)
NOTHING = ReadAnswer(1, OFFSET)


@dataclass
class Leader:
    """The leader of the only partition: its acks of batches, and its answers to reads; the last is repeated."""

    acks: list[TidelogError | int]
    """Errors, or the offsets of batches that are appended."""
    answers: list[ReadAnswer | TidelogError]
    principal: str = "anonymous"
    source: int = 1
    sent: list[bytes] = field(default_factory=list)
    """The batches."""
    reads: int = 0

    async def produce(self, parts: list[ProducePart], batches: list[Buffer]) -> list[ProduceAck]:
        self.sent += [bytes(batch) for batch in batches]
        outcome = self.acks.pop(0)
        if isinstance(outcome, TidelogError):
            return [ProduceAck(0, error=outcome.to_info())]
        return [ProduceAck(0, outcome, 1, "all/os")]

    def ask_leader(self, read: Read, timeout_s: float, done: Callable[[ReadAnswer | TidelogError], None]) -> None:
        self.reads += 1
        assert (read.offset, read.isolation) == (OFFSET, "uncommitted")
        done(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    async def append(self, value: bytes = b"x", head: bytes = HEAD) -> tuple[int, Any]:
        """Send the request with a body, and return its status and document."""
        cluster = ClusterView()
        partition = PartitionState(("r1",), ("r1",), "r1", 1, 1)
        cluster.update(ClusterImage(1, "c", topics=(TopicState("t", "orders", partitions=(partition,)),)))
        shell = Mock(cluster=cluster, ask_leader=self.ask_leader, wall_ms=lambda: 9)
        shell.router.tickets = ProducerTickets(cluster)
        link: HttpLink = self  # type: ignore[assignment]
        answer = await Appends(shell, LongWork()).append(link, parse_head(head), {"topic": "orders"}, value)
        return answer.status, json.loads(answer.body)


def at(offset: int, value: bytes = b"x", producer_id: int | None = None) -> ReadAnswer:
    """The answer to a read that finds a batch with one record."""
    id = producer_id_of("anonymous", "k") if producer_id is None else producer_id
    batch = encode_batch([NewRecord(value, timestamp_ms=1)], producer_id=id)
    prefix = stamp_prefix(offset, 1, int.from_bytes(batch[12:16], "big"))
    return ReadAnswer(1, OFFSET + 1, payload=prefix + batch[len(prefix) :])


def out_of_range(log_start: int) -> TidelogError:
    return refuse("OFFSET_OUT_OF_RANGE", "not in the log", log_start=log_start)


async def test_a_second_try_waits_for_the_commit_of_the_first_and_is_a_copy(autojump_clock: MockClock) -> None:
    leader = Leader([CONFLICT], [NOTHING, NOTHING, at(OFFSET)])
    status, document = await leader.append()
    assert (status, leader.reads, len(leader.sent)) == (200, 3, 1)
    assert document["acks"][0]["duplicate"] and document["acks"][0]["offset"] == OFFSET


LOST = {
    "the log ends before": out_of_range(OFFSET),
    "the log ends before, and begins at 0": out_of_range(0),
    "another producer's batch is there": at(OFFSET, producer_id=7),
    "the records there are of a batch that begins before": at(OFFSET - 1),
}


@pytest.mark.parametrize("answer", LOST.values(), ids=LOST)
async def test_a_batch_that_a_new_leader_does_not_have_is_sent_again_at_once(
    answer: ReadAnswer | TidelogError, autojump_clock: MockClock
) -> None:
    leader = Leader([CONFLICT, 8], [answer])
    began = trio.current_time()
    status, document = await leader.append()
    assert (status, document["acks"][0]["offset"], document["acks"][0]["duplicate"]) == (200, 8, False)
    assert len(leader.sent) == 2 and leader.sent[0] == leader.sent[1]
    assert trio.current_time() == began


async def test_a_batch_that_is_lost_each_time_is_refused_in_the_end(autojump_clock: MockClock) -> None:
    leader = Leader([CONFLICT] * 3, [out_of_range(0)])
    status, document = await leader.append()
    assert (status, document["code"], len(leader.sent)) == (409, "UNVERIFIED_SEQUENCE", 3)


REFUSED: dict[str, tuple[ReadAnswer | TidelogError, int, str]] = {
    "other records are there": (at(OFFSET, b"y"), 422, "SEQUENCE_CONFLICT"),
    "retention has deleted it": (out_of_range(OFFSET + 1), 409, "UNVERIFIED_SEQUENCE"),
    "the leader does not say where its log begins": (refuse("OFFSET_OUT_OF_RANGE", "?"), 409, "UNVERIFIED_SEQUENCE"),
    "a new leader does not know what is committed": (
        refuse("OFFSET_NOT_AVAILABLE", "wait", log_start=0),
        503,
        "OFFSET_NOT_AVAILABLE",
    ),
    "no leader": (refuse("OFFLINE", "no leader"), 503, "OFFLINE"),
    "not committed in time": (NOTHING, 504, "REQUEST_TIMED_OUT"),
}


@pytest.mark.parametrize(("answer", "status", "code"), REFUSED.values(), ids=REFUSED)
async def test_a_batch_that_cannot_be_compared_is_never_sent_again(
    answer: ReadAnswer | TidelogError, status: int, code: str, autojump_clock: MockClock
) -> None:
    leader = Leader([CONFLICT], [answer])
    began = trio.current_time()
    assert ((found := await leader.append())[0], found[1]["code"]) == (status, code)
    assert len(leader.sent) == 1
    assert trio.current_time() - began <= 2 * COPY_WAIT_S


async def test_a_long_body_is_parsed_beside_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[bool] = []
    for name, function in dict(appends._PARSERS).items():

        def parse(body: bytes, now_ms: int, function: Any = function) -> list[NewRecord]:
            threads.append(threading.current_thread() is not threading.main_thread())
            return function(body, now_ms)  # type: ignore[no-any-return]

        monkeypatch.setitem(appends._PARSERS, name, parse)
    line = b'{"value": "%b"}' % (b"x" * 40_000)
    for kind, body, is_long in (
        (JSON, line, False),
        (JSON, line.replace(b"x", b"xx"), True),
        (NDJSON, line, False),
        (NDJSON, line + b"\n" + line, True),
    ):
        head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Type: %b\r\n\r\n" % kind.encode())
        assert (await Leader([0], []).append(body, head))[0] == 200
        assert threads.pop() is is_long
