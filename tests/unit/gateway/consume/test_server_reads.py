"""Requests of a gateway that read: what is sent when, and who hears of its end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidelog.errors import TidelogError, Unreachable
from tidelog.types import ClusterImage, NodeId, TopicConfig, TopicState
from tidelog.wire.messages import ListOffset, Message, Read, ReadAnswer
from tidelog_gateway.cluster_view import ClusterView
from tidelog_gateway.consume.server_read_window import WindowSettings
from tidelog_gateway.consume.server_reads import Answered, ReaderId, ServerReads

MIB = 1 << 20
ANN, BEN = ReaderId(("ann", 0), 1), ReaderId(("ben", 0), 2)
READ = Read("t", 0, 0, max_bytes=2 * MIB)


class Bench:
    """Requests to a server that answers when it is told to. ``down``: it cannot be reached. Its window has room for
    one read."""

    def __init__(self, max_bytes: int = 48 << 10, max_waits: int = 2048) -> None:
        self.now = 0.0
        self.down = False
        self.sent: list[tuple[Message, float, Answered]] = []
        self.ends: list[tuple[str, Message | TidelogError]] = []
        settings = WindowSettings(max_bytes, max_waits=max_waits)
        cluster = ClusterView()
        large = TopicConfig(max_batch_bytes=11 * MIB)
        cluster.update(ClusterImage(1, "c", (), (TopicState("large", "large", large),)))
        self.reads = ServerReads(self.start_call, cluster, settings, lambda: self.now)

    def start_call(self, node: NodeId, request: Message, timeout_s: float, done: Answered) -> None:
        if self.down:
            done(Unreachable("it is down"))
        else:
            self.sent.append((request, timeout_s, done))

    def ask(
        self, name: str, reader: ReaderId = ANN, request: Read | ListOffset = READ, timeout_s: float = 5.0
    ) -> None:
        self.reads.ask("r1", request, reader, timeout_s, lambda answer: self.ends.append((name, answer)))

    def share(self, name: int, reader: ReaderId = ANN) -> None:
        self.reads.ask_shared(name, "r1", READ, reader, 2.0, lambda answer: self.ends.append((str(name), answer)))

    def answer(self, needed: int = 0) -> None:
        _, _, done = self.sent.pop(0)
        done(ReadAnswer(1, needed=needed))

    @property
    def limits(self) -> list[tuple[int, bool]]:
        return [(read.max_bytes, read.hard_limit) for read, _, _ in self.sent if isinstance(read, Read)]

    @property
    def ended(self) -> list[str]:
        return [name for name, _ in self.ends]


def test_a_read_is_sent_when_the_one_before_is_answered_with_the_time_that_is_left() -> None:
    bench = Bench()
    bench.ask("first")
    bench.ask("second")
    assert [timeout_s for _, timeout_s, _ in bench.sent] == [5.0]
    bench.now = 3.0
    bench.answer()
    assert bench.ended == ["first"] and [timeout_s for _, timeout_s, _ in bench.sent] == [2.0]


def test_a_read_that_waited_too_long_is_refused_as_overloaded() -> None:
    bench = Bench()
    bench.ask("first")
    bench.ask("second")
    assert bench.reads.deadline() == 5.0
    bench.reads.on_tick(5.0)
    ((name, error),) = bench.ends
    assert name == "second" and isinstance(error, TidelogError) and error.code == "OVERLOADED"
    bench.answer()
    assert bench.sent == [] and bench.reads.deadline() is None


def test_a_shared_read_waits_for_room_as_long_as_it_takes() -> None:
    bench = Bench()
    bench.ask("first", timeout_s=100.0)
    bench.share(7)
    bench.now = 50.0
    bench.reads.on_tick(50.0)
    assert bench.ends == []
    bench.answer()
    assert [timeout_s for _, timeout_s, _ in bench.sent] == [2.0]


def test_joining_a_waiting_read_counts_it_for_the_principal_that_joins() -> None:
    bench = Bench()
    for number in range(100):
        bench.ask(f"ann {number}")
    bench.share(7)
    bench.reads.join(7, ANN)
    bench.reads.join(7, BEN)
    for _ in range(3):
        bench.answer()
    assert bench.ended == ["ann 0", "7", "ann 1"]
    assert bench.reads.window.waiting == 97, "it is sent once"


def test_a_read_that_nobody_wants_any_more_is_not_sent() -> None:
    bench = Bench()
    bench.ask("first")
    bench.share(7)
    bench.reads.join(7, BEN)
    bench.reads.give_up(7)
    bench.answer()
    assert bench.sent == [] and bench.ended == ["first"] and bench.reads.window.bytes == 0


def test_the_reads_that_only_a_closed_client_wanted_are_dropped() -> None:
    bench = Bench()
    bench.ask("first", BEN)
    bench.ask("second")
    bench.share(7)
    bench.share(8)
    bench.reads.join(8, BEN)
    bench.reads.on_link_closed(ANN)
    assert bench.ended == ["second", "7"]
    bench.answer()
    bench.answer()
    assert bench.ended == ["second", "7", "first", "8"] and bench.reads.window.bytes == 0


def test_a_read_that_two_connections_of_a_client_share_goes_on_when_the_first_closes() -> None:
    bench = Bench()
    other, third = ReaderId(ANN.tenant, 3), ReaderId(ANN.tenant, 4)
    bench.ask("first", BEN)
    bench.share(7)
    for reader in (other, third, third):
        bench.reads.join(7, reader)
    bench.reads.on_link_closed(ANN)
    bench.reads.on_link_closed(other)
    assert bench.ended == [] and bench.reads.window.waiting == 1
    bench.answer()
    bench.answer()
    assert bench.ended == ["first", "7"] and bench.reads.window.bytes == 0
    assert not any(isinstance(answer, TidelogError) for _, answer in bench.ends)


def test_a_shared_read_ends_with_the_last_connection_that_wants_it() -> None:
    bench = Bench()
    other = ReaderId(ANN.tenant, 3)
    bench.ask("first", BEN)
    bench.share(7)
    bench.reads.join(7, other)
    bench.reads.on_link_closed(other)
    bench.reads.on_link_closed(ANN)
    assert bench.ended == ["7"] and bench.reads.window.waiting == 0


# --- what reads hold of the window ---------------------------------------------------------------------------------

LARGE = Read("large", 0, 0, max_bytes=4 * MIB)


def test_a_topic_that_allows_large_batches_holds_up_nobody() -> None:
    """Its readers say how much they hold at most. Otherwise each read of a few bytes would have the window alone."""
    bench = Bench(2 * MIB)
    bench.ask("ann", ANN, LARGE)
    bench.ask("ben", BEN, replace(READ, max_bytes=MIB))
    assert bench.limits == [(MIB, True), (MIB, False)]
    assert bench.reads.window.bytes == 2 * MIB


def test_a_batch_larger_than_the_share_is_asked_for_by_itself() -> None:
    bench = Bench(2 * MIB)
    bench.ask("ann", ANN, LARGE)
    bench.answer(needed=3 * MIB)
    assert bench.limits == [(1, False)] and bench.reads.window.bytes == 3 * MIB and bench.ended == []
    bench.answer(needed=3 * MIB)
    assert bench.ended == ["ann"] and bench.reads.window.bytes == 0, "once, whatever the server says"


def test_a_large_batch_that_nobody_waits_for_any_more_is_not_asked_for() -> None:
    bench = Bench(2 * MIB)
    bench.ask("ann", ANN, LARGE)
    bench.reads.ask_shared(7, "r1", LARGE, BEN, 2.0, lambda answer: bench.ends.append(("7", answer)))
    bench.answer(needed=3 * MIB)
    bench.answer(needed=3 * MIB)
    bench.reads.on_link_closed(ANN)
    assert bench.ended == []
    bench.answer()
    assert len(bench.sent) == 1 and bench.reads.window.bytes == 3 * MIB, "the one that is shared"
    bench.reads.on_link_closed(BEN)
    bench.answer()
    assert bench.reads.window.bytes == 0 and bench.ended == ["ann", "7"]


def test_a_client_that_goes_before_the_answer_is_not_asked_for_again() -> None:
    bench = Bench(2 * MIB)
    bench.ask("ann", ANN, LARGE)
    bench.reads.on_link_closed(ANN)
    bench.answer(needed=3 * MIB)
    assert bench.sent == [] and bench.ended == ["ann"] and bench.reads.window.bytes == 0


@pytest.mark.parametrize(
    "how",
    [
        {"consistency": "linearizable"},
        {"consistency": "bounded", "max_staleness_ms": 100, "max_wait_ms": 250, "any_replica": True},
        {"consistency": "bounded", "max_staleness_ms": 100},
    ],
)
def test_reads_that_wait_at_the_server_hold_little(how: dict[str, Any]) -> None:
    """For a proof, or until a copy knows that it is fresh enough."""
    bench = Bench(2 * MIB)
    for number in range(8):
        name = "t" if number % 2 else "large"
        bench.reads.ask_shared(number, "r1", Read(name, 0, 0, **how), ANN, 2.0, lambda answer: None)
    bench.ask("ben", BEN, replace(READ, max_bytes=MIB))
    assert bench.limits == [(64 << 10, True)] * 8 + [(MIB, False)]


def test_a_thousand_that_fail_at_once_end_once_each() -> None:
    bench = Bench()
    for number in range(3000):
        bench.ask(str(number))
    bench.down = True
    bench.answer()
    assert sorted(bench.ended, key=int) == [str(number) for number in range(3000)]


def test_a_wait_takes_no_space_of_the_window_and_has_a_bound_on_its_answer() -> None:
    bench = Bench()
    bench.ask("first")
    for max_bytes in (MIB, 100):
        read = Read("t", 0, 0, max_bytes=max_bytes, max_wait_ms=5000)
        bench.reads.wait("r1", read, ANN, 7.0, lambda answer: bench.ends.append(("wait", answer)))
    asked = [request for request, _, _ in bench.sent[1:]]
    assert [(read.max_bytes, read.hard_limit) for read in asked if isinstance(read, Read)] == [
        (64 << 10, True),
        (100, True),
    ]
    while bench.sent:
        bench.answer()
    assert bench.reads.window.waits == 0


def test_a_principal_that_has_its_share_of_the_waits_is_refused() -> None:
    bench = Bench(max_waits=4)
    for _ in range(3):
        bench.reads.wait("r1", READ, ANN, 7.0, lambda answer: bench.ends.append(("wait", answer)))
    ((_, error),) = bench.ends
    assert isinstance(error, TidelogError) and error.code == "OVERLOADED" and error.retriable
    bench.reads.wait("r1", READ, BEN, 7.0, lambda answer: bench.ends.append(("wait", answer)))
    assert len(bench.ends) == 1
