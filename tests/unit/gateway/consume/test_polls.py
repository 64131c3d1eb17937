"""Reads of clients that wait for news at the gateway, with the subscriptions: one wait at the server for all.
Tests ``consume/polls.py``, and the waits in ``consume/subscriptions.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.gateway_subscribers import Bench as Subscribers
from support.gateway_subscribers import stored
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.effects import Call
from tidelog.wire.messages import Message, Read, ReadAnswer
from tidelog_gateway.consume.polls import POLL_MAX_S, Polls
from tidelog_gateway.consume.server_reads import READ_TIMEOUT_S, Answered, ReaderId
from tidelog_gateway.consume.subscriptions import Effect, Polled


class Bench(Subscribers):
    """``polled``: the ends of the clients' reads."""

    def __init__(self, **settings: Any) -> None:
        self.polled: list[Polled] = []
        super().__init__(**settings)

    def take(self, effects: list[Effect]) -> list[Effect]:
        self.polled += [effect for effect in effects if isinstance(effect, Polled)]
        return super().take(effects)

    def poll(self, client: int, until: float = 30.0, offset: int = 0, now: float = 0.0, **fields: Any) -> None:
        self.take(self.core.on_poll(client, client, Read("t", 0, offset, **fields), until, now))

    def end(self, answer: ReadAnswer | TidelogError, now: float = 0.0) -> None:
        """All that was asked is answered with this."""
        for token in list(self.calls):
            del self.calls[token]
            self.take(self.core.on_answer(token, answer, now))

    @property
    def asked(self) -> list[Read]:
        return [call.message for call in self.calls.values() if isinstance(call.message, Read)]


def test_ten_thousand_that_wait_cost_the_leader_one_wait() -> None:
    bench = Bench()
    for client in range(10_000):
        bench.poll(client)
    (read,) = bench.asked
    assert read.max_wait_ms == 5000
    bench.end(ReadAnswer(1, 1, 0, stored(0)), 1.0)
    assert len(bench.polled) == 10_000 and bench.calls == {}
    assert all(isinstance(end.answer, ReadAnswer) for end in bench.polled)


def test_reads_and_subscriptions_share_a_wait() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.poll(2)
    assert len(bench.calls) == 1
    bench.answer(stored(0), 1.0, hw=1)
    assert bench.payloads(1) == stored(0) and [end.source for end in bench.polled] == [2]


def test_a_wait_that_ends_without_news_is_asked_again_while_somebody_waits() -> None:
    bench = Bench()
    bench.poll(1, until=12.0)
    bench.end(ReadAnswer(1, 0), 5.0)
    bench.end(ReadAnswer(1, 0), 10.0)
    assert len(bench.calls) == 1 and bench.polled == []
    assert bench.core.deadline() == 12.0
    bench.take(bench.core.on_tick(12.0))
    assert bench.polled == [Polled(1, 1, None, timed_out=True)]
    bench.end(ReadAnswer(1, 0), 15.0)
    assert bench.calls == {}


def test_an_announcement_ends_it_so_that_it_reads() -> None:
    bench = Bench()
    bench.poll(1)
    bench.end(ReadAnswer(1, 9), 1.0)
    assert bench.polled == [Polled(1, 1, None)]


@pytest.mark.parametrize("code", ["NOT_LEADER", "UNREACHABLE", "LOG_TRUNCATED"])
def test_an_error_ends_the_wait_so_that_the_next_read_returns_the_error(code: str) -> None:
    bench = Bench()
    bench.poll(1)
    bench.end(refuse(code, "no"))
    assert bench.polled == [Polled(1, 1, None)]


def test_a_wait_without_a_free_place_is_refused() -> None:
    bench = Bench()
    bench.poll(1)
    error = refuse("OVERLOADED", "no place")
    bench.end(error)
    assert bench.polled == [Polled(1, 1, error)]


def test_a_new_leader_ends_it_at_once() -> None:
    bench = Bench()
    bench.poll(1)
    bench.lead("r2")
    assert bench.polled == [Polled(1, 1, None)]
    bench.poll(2)
    assert [call.to for call in bench.calls.values()] == ["r1", "r2"], "the old wait is not shared"


def test_without_a_leader_it_does_not_wait() -> None:
    bench = Bench()
    bench.lead(None)
    bench.poll(1)
    assert bench.polled == [Polled(1, 1, None)]


def test_polls_with_different_conditions_wait_separately() -> None:
    bench = Bench()
    bench.poll(1)
    bench.poll(2, offset=1)
    bench.poll(3, last_epoch=1)
    bench.poll(4, isolation="uncommitted")
    bench.poll(5, consistency="bounded", max_staleness_ms=1000)
    assert len(bench.calls) == 5
    assert [read.max_wait_ms for read in bench.asked] == [5000, 5000, 5000, 5000, 1000]


def test_a_linearizable_poll_knows_the_high_watermark_and_waits_with_the_others() -> None:
    bench = Bench()
    bench.poll(1)
    bench.poll(2, consistency="linearizable")
    assert len(bench.calls) == 1
    bench.subscribe(3, consistency="linearizable")
    assert len(bench.calls) == 2, "a subscription is to be told of what is committed before each of its reads"


def test_a_client_that_goes_leaves_its_wait_to_the_next() -> None:
    bench = Bench()
    bench.poll(1)
    bench.core.on_link_closed(1)
    bench.poll(2)
    bench.subscribe(3)
    assert len(bench.calls) == 1
    bench.answer(stored(0), 1.0, hw=1)
    assert [end.source for end in bench.polled] == [2] and bench.payloads(3) == stored(0)


def test_a_client_that_comes_and_goes_does_not_pile_up_waits() -> None:
    bench = Bench()
    for client in range(1000):
        bench.subscribe(client)
        bench.core.on_link_closed(client)
        bench.poll(client)
        bench.core.on_link_closed(client)
    assert len(bench.calls) == 1 and bench.polled == []


# --- subscriptions that wait or read ----------------------------------------------------------------------------


def test_a_reader_at_the_end_waits_and_one_behind_reads() -> None:
    bench = Bench()
    bench.subscribe(1)
    assert [read.max_wait_ms for read in bench.asked] == [5000]
    bench.answer(stored(0), hw=2)
    assert [read.max_wait_ms for read in bench.asked] == [0]
    bench.answer(stored(1), hw=2)
    assert [read.max_wait_ms for read in bench.asked] == [5000]


def test_a_copy_has_time_to_learn_that_it_is_fresh_enough() -> None:
    bench = Bench()
    bench.subscribe(1, read_from="any", consistency="bounded", max_staleness_ms=1000)
    bench.answer(stored(0), hw=2)
    assert [read.max_wait_ms for read in bench.asked] == [250]
    assert [bench.core.asked_for(token) for token in bench.calls] == [(1, False)]


def test_a_read_that_finds_nothing_waits() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.answer(stored(0), hw=9)
    bench.answer(b"", hw=9)
    assert [read.max_wait_ms for read in bench.asked] == [5000]


def test_news_larger_than_a_wait_may_bring_are_read_once_for_all() -> None:
    bench = Bench()
    for client in range(100):
        bench.subscribe(client)
    bench.answer(b"", now=0.5, hw=1)
    assert [read.max_wait_ms for read in bench.asked] == [0]
    bench.answer(stored(0), hw=1)
    assert all(bench.payloads(client) == stored(0) for client in range(100))
    assert [read.max_wait_ms for read in bench.asked] == [5000]
    assert bench.core.counts.reads == 3


def test_a_subscription_without_a_place_to_wait_reads_with_pauses() -> None:
    bench = Bench()
    bench.subscribe(1)
    bench.end(refuse("OVERLOADED", "no place"))
    assert bench.calls == {}
    bench.take(bench.core.on_tick(bench.settings.retry_first_s))
    assert [read.max_wait_ms for read in bench.asked] == [0]
    bench.answer(stored(0), now=0.1)
    assert bench.payloads(1) == stored(0)


def test_the_shell_learns_of_joined_and_abandoned_reads() -> None:
    bench = Bench()
    for client in (1, 2):
        bench.subscribe(client, credit=1000)
    bench.answer(stored(0), hw=9)
    (token,) = bench.calls
    assert bench.core.joined == [(token, 2)] and bench.core.asked_for(token) == (1, False)
    bench.core.on_link_closed(1)
    assert bench.core.given_up == []
    bench.core.on_link_closed(2)
    assert bench.core.given_up == [token] and bench.core.asked_for(token) is None
    assert isinstance(bench.calls[token], Call)


# --- a client's read, from the request to the answer ------------------------------------------------------------


class Shell:
    """As much of the shell as polls ask for. ``sent``: the reads that were sent to a replica, with their time limits;
    the oldest is answered first. ``answers``: by client, what it was answered."""

    def __init__(self) -> None:
        self.bench = Bench()
        self.polls = Polls(self, self.bench.core, lambda: self.now)
        self.now = 0.0
        self.sent: list[tuple[Read, float]] = []
        self.answers: dict[int, list[Message | TidelogError]] = {}
        self._dones: list[Answered] = []
        self._gone: set[int] = set()

    def ask_reader(self, message: Read, timeout_s: float, done: Answered, reader: ReaderId) -> None:
        self.sent.append((message, timeout_s))
        self._dones.append(done)

    def is_gone(self, reader: ReaderId) -> bool:
        return reader.source in self._gone

    def perform(self, effects: list[Effect]) -> None:
        for effect in self.bench.take(effects):
            if isinstance(effect, Polled):
                self.polls.on_polled(effect)

    def read(self, client: int = 1, max_wait_ms: int = 1000, **fields: Any) -> None:
        """A client reads at the end of the log."""
        read = Read("t", 0, 0, max_wait_ms=max_wait_ms, **fields)
        self.polls.on_read(read, ReaderId(("ann", 0), client), self.answers.setdefault(client, []).append)

    def answer(self, answer: Message | TidelogError) -> None:
        """A replica answers the oldest read."""
        self._dones.pop(0)(answer)

    def bring(self, answer: ReadAnswer | TidelogError) -> None:
        """The waits at the leader end with this."""
        for token in list(self.bench.calls):
            del self.bench.calls[token]
            self.perform(self.bench.core.on_answer(token, answer, self.now))

    def pass_time(self, now: float) -> None:
        self.now = now
        self.perform(self.bench.core.on_tick(now))

    def close(self, client: int) -> None:
        self._gone.add(client)
        self.bench.core.on_link_closed(client)
        self.polls.on_link_closed(client)


NOTHING = ReadAnswer(1, 0)
NEWS = ReadAnswer(1, 1, 0, stored(0))


def test_a_read_that_finds_records_does_not_wait() -> None:
    shell = Shell()
    shell.read(hard_limit=True)
    assert shell.sent == [(Read("t", 0, 0), 1.0 + READ_TIMEOUT_S)]
    shell.answer(NEWS)
    assert shell.answers[1] == [NEWS] and shell.bench.calls == {}


@pytest.mark.parametrize(("wait_ms", "answer"), [(0, NOTHING), (1000, refuse("OFFLINE", "no leader"))])
def test_a_read_that_may_not_wait_or_fails_is_answered_at_once(wait_ms: int, answer: Message | TidelogError) -> None:
    shell = Shell()
    shell.read(max_wait_ms=wait_ms)
    shell.answer(answer)
    assert shell.answers[1] == [answer] and shell.bench.calls == {}


def test_news_answer_a_read_as_far_as_it_has_room_for_them() -> None:
    shell = Shell()
    shell.read(1, max_bytes=1)
    shell.read(2)
    shell.answer(NOTHING)
    shell.answer(NOTHING)
    assert shell.answers == {1: [], 2: []}
    both = ReadAnswer(1, 2, 0, stored(0) + stored(1))
    shell.bring(both)
    assert shell.answers == {1: [replace(both, payload=stored(0))], 2: [both]}
    assert len(shell.sent) == 2, "nothing is read again"


def test_an_error_of_the_wait_answers_a_read() -> None:
    shell = Shell()
    shell.read()
    shell.answer(NOTHING)
    error = refuse("OVERLOADED", "no place")
    shell.bring(error)
    assert shell.answers[1] == [error]


def test_a_read_of_announced_news_is_sent_again() -> None:
    shell = Shell()
    shell.read()
    shell.answer(NOTHING)
    shell.bring(ReadAnswer(1, 9))
    assert shell.sent[1:] == [(Read("t", 0, 0), READ_TIMEOUT_S)] and shell.answers[1] == []
    shell.answer(NEWS)
    assert shell.answers[1] == [NEWS]


def test_a_read_that_waited_in_vain_has_its_empty_answer_and_a_bounded_one_is_sent_again() -> None:
    shell = Shell()
    shell.read(1)
    bounded: dict[str, Any] = {"consistency": "bounded", "max_staleness_ms": 500}
    shell.read(2, **bounded)
    shell.answer(NOTHING)
    shell.answer(NOTHING)
    shell.pass_time(1.0)
    assert shell.answers == {1: [NOTHING], 2: []}
    assert shell.sent[2:] == [(Read("t", 0, 0, **bounded), READ_TIMEOUT_S)]
    shell.answer(NOTHING)
    assert shell.answers[2] == [NOTHING]


def test_no_read_waits_longer_than_the_bound() -> None:
    shell = Shell()
    shell.read(max_wait_ms=3_600_000)
    shell.answer(NOTHING)
    shell.pass_time(POLL_MAX_S - 1)
    assert shell.answers[1] == []
    shell.pass_time(POLL_MAX_S)
    assert shell.answers[1] == [NOTHING]


def test_the_time_for_the_first_answer_counts() -> None:
    shell = Shell()
    shell.read(max_wait_ms=1000)
    shell.now = 1.0
    shell.answer(NOTHING)
    assert shell.answers[1] == [NOTHING] and shell.bench.calls == {}


def test_a_client_that_goes_ends_its_waits_and_begins_none() -> None:
    shell = Shell()
    shell.read()
    shell.read()
    shell.answer(NOTHING)
    shell.close(1)
    (error,) = shell.answers[1]
    assert isinstance(error, TidelogError) and error.code == "UNREACHABLE"
    shell.bench.calls.clear()
    shell.answer(NOTHING)
    assert shell.answers[1] == [error, NOTHING] and shell.bench.calls == {}
