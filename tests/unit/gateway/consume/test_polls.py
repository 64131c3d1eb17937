"""Reads of clients that wait for news at the gateway, with the subscriptions: one wait at the server for all.
Tests ``consume/polls.py``, and the waits in ``consume/subscriptions.py``."""

from __future__ import annotations

from typing import Any

import pytest
from support.gateway_subscribers import Bench as Subscribers
from support.gateway_subscribers import stored
from tidelog.errors import TidelogError, refuse
from tidelog.sansio.effects import Call
from tidelog.wire.messages import Read, ReadAnswer
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
