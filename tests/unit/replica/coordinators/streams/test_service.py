"""Streams at replica servers: when a read is answered, and what a failover leaves."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_controller import KEY
from support.replica_network import CLIENT, Net, code
from tidelog.errors import TidelogError
from tidelog.types import STREAMS, PartitionState, TopicConfig, TopicState
from tidelog.wire.codec import payload_buffers
from tidelog.wire.messages import (
    AppendStream,
    CreateStream,
    DeleteStream,
    DescribeStream,
    Message,
    ReadStream,
    StreamData,
    StreamInfo,
)
from tidelog_replica.config import ReplicaSettings

TEXT = "text/plain"
CREATE = CreateStream("a", TEXT, payload=b"one")


class Streams(Net):
    """r1 leads the one partition of ``__streams``."""

    def __init__(self) -> None:
        super().__init__(3, TopicConfig(min_insync_replicas=2, cleanup="compact"), ReplicaSettings())
        self.wall_ms = 1000
        self.start()
        state = PartitionState(("r1", "r2", "r3"), ("r1", "r2", "r3"), "r1", 0, 0)
        self.topics = {KEY.topic_id: TopicState(KEY.topic_id, STREAMS, self.config, (state,))}
        self.broadcast()
        self.run()
        self.advance(0.1)

    def tell(self, message: Message, name: str = "r1") -> Any:
        """Ask, and the answer; None: it waits."""
        return self.answers.get(self.ask(name, message))

    def append(self, data: bytes, name: str = "r1") -> Any:
        return self.tell(AppendStream("a", TEXT, payload=data), name)

    def seen(self, position: int = 0, name: str = "r1", max_bytes: int = 1 << 20) -> bytes:
        """What a read finds."""
        return data(self.tell(ReadStream("a", position, max_bytes=max_bytes), name))

    def cut_followers(self) -> None:
        self.cut |= {("r2", "r1"), ("r3", "r1")}
        self.drop_notify = True

    def join_followers(self) -> None:
        self.cut.clear()
        self.drop_notify = False


def data(answer: Any) -> bytes:
    assert isinstance(answer, StreamData), answer
    return b"".join(map(bytes, payload_buffers(answer.payload)))


def test_no_append_is_acknowledged_or_read_before_it_is_committed() -> None:
    net = Streams()
    assert isinstance(net.tell(CREATE), StreamInfo)
    net.cut_followers()
    appended = net.ask("r1", AppendStream("a", TEXT, payload=b"two"))
    read = net.ask("r1", ReadStream("a", 0))
    described = net.ask("r1", DescribeStream("a"))
    assert not {appended, read, described} & set(net.answers)
    net.join_followers()
    net.advance(4)
    assert net.answers[appended].end == net.answers[described].end == 6
    assert data(net.answers[read]) == b"onetwo"


def test_a_read_at_the_end_waits_for_an_append_or_its_time() -> None:
    net = Streams()
    net.tell(CREATE)
    first = net.ask("r1", ReadStream("a", 3, max_wait_ms=2000))
    at_end = net.ask("r1", ReadStream("a", max_wait_ms=2000))
    short = net.ask("r1", ReadStream("a", 3, max_wait_ms=500))
    net.advance(1)
    assert data(net.answers[short]) == b""
    assert not {first, at_end} & set(net.answers)
    net.append(b"two")
    assert data(net.answers[first]) == data(net.answers[at_end]) == b"two"
    net.advance(5)
    assert net.answers[first].position == net.answers[at_end].position == 3


@pytest.mark.parametrize("ends", [AppendStream("a", close=True), DeleteStream("a")])
def test_a_waiting_read_ends_with_its_stream(ends: Message) -> None:
    net = Streams()
    net.tell(CREATE)
    waiting = net.ask("r1", ReadStream("a", 3, max_wait_ms=60_000))
    net.tell(ends)
    answer = net.answers[waiting]
    assert answer.closed if isinstance(ends, AppendStream) else code(answer) == "UNKNOWN_STREAM"


def test_a_waiting_read_ends_with_the_leader_and_goes_on_at_the_next() -> None:
    net = Streams()
    net.tell(CREATE)
    net.append(b"two")
    waiting = net.ask("r1", ReadStream("a", 6, max_wait_ms=60_000))
    net.lead("r2", "r1 r2 r3")
    answer = net.answers[waiting]
    assert isinstance(answer, TidelogError) and answer.code == "NOT_COORDINATOR"
    net.advance(0.1)
    assert net.seen(name="r2") == b"onetwo"
    net.append(b"three", "r2")
    assert [net.seen(position, "r2", 1) for position in (0, 3, 6)] == [b"one", b"two", b"three"]


def test_the_reads_of_a_link_that_has_closed_are_forgotten() -> None:
    net = Streams()
    net.tell(CREATE)
    gone = net.ask("r1", ReadStream("a", 3, max_wait_ms=60_000), source=CLIENT + 1)
    stays = net.ask("r1", ReadStream("a", 3, max_wait_ms=60_000))
    net._take("r1", net.nodes["r1"].on_link_closed(CLIENT + 1, net.now))
    net.append(b"two")
    assert data(net.answers[stays]) == b"two"
    assert gone not in net.answers


def test_streams_that_share_a_log_are_read_apart() -> None:
    net = Streams()
    expected = dict.fromkeys("abc", b"")
    for path in expected:
        net.tell(CreateStream(path, TEXT))
    for number in range(60):
        path, text = "abc"[number % 3], b"%d," % number
        net.tell(AppendStream(path, TEXT, payload=text))
        expected[path] += text
    for path, whole in expected.items():
        assert data(net.tell(ReadStream(path, 0))) == whole
        assert data(net.tell(ReadStream(path, 0, max_bytes=10))) == whole[:10].rpartition(b",")[0] + b","
